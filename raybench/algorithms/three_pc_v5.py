"""3PCv5: MARINA's recursion with a contractive operator."""

from raybench.algorithms.base import Contractive, Dense, Number, algorithm, theory
from raybench.algorithms.marina import sync_probability
from raybench.algorithms.three_pc import ThreePC, three_point


def v5(k: theory.Setting) -> tuple[float, float]:
    """A = 1 - sqrt(1-p), B = (1-p)(1-alpha)/A: EF21's split of the error, for the coin in place of the operator."""
    theta, beta = theory.contraction(k.number("p"))
    return theta, beta * (1 - k.need("alpha"))


@algorithm(
    "three_pc_v5",
    title="3PCv5",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    blocks=True,
    theory=three_point(v5),
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class ThreePCv5(ThreePC):
    """With probability p g_i <- grad f_i(x), else g_i <- g_i + C(grad f_i(x) - y), y at the x before.

    One coin for all clients. p = auto makes dense rounds cost what the others do. The errors of
    biased messages add up between dense rounds, hence the step. With an unbiased operator that is
    not rescaled it is MARINA, A = p and B = (1-p) omega: see ``marina``, whose clients keep no g_i.
    Up: d values or one message. Down: d values. Source: Richtarik et al. 2022, 3PC, variant 5.
    """

    def update(a, wire, s, c, x):
        coin, q, left, change = wire.coin("sync", a.p), wire.stream("up"), x - c.g, x - c.y
        m = wire.cases(coin, lambda b: Dense(left[b]), lambda b: a.C(change[b], q[b]))
        return a.add(wire, c, m)
