"""EF21 on what local steps sum up to."""

from raybench.algorithms.base import Contractive, Integer, Local, algorithm
from raybench.algorithms.ef21 import EF21


@algorithm(
    "local_ef21",
    title="Local EF21",
    up=Contractive,
    broadcast=Contractive,
    blocks=True,
    robust=True,
    theory=None,
    stochastic=True,
    tau=Integer(5, low=1, help="local steps per round"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and local step"),
)
class LocalEF21(EF21):
    """EF21 on what tau local steps sum up to: c_i = C((x - y_i)/gamma - g_i), y_i as in local_sgd.

    tau = 1 is EF21. Up: one message. Down: d values. No guarantee here.
    """

    presets = ("local",)

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        a.local = Local(a.tau)
