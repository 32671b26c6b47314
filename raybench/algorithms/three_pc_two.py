"""Three point compressors made of two operators: variants 2 and 4."""

from raybench.algorithms.base import Contractive, Operator, Unbiased, algorithm, theory
from raybench.algorithms.three_pc import ThreePC, three_point


def v2(k: theory.Setting) -> tuple[float, float]:
    """A = alpha, B = (1 - alpha) omega, omega of ``first``: C shrinks what Q's message leaves,
    E||b - grad f_i(x+)||^2 = ||g_i - grad f_i(x)||^2 + omega ||grad f_i(x+) - grad f_i(x)||^2.
    """
    alpha = k.need("alpha")
    return alpha, (1 - alpha) * k.operator("first").omega


def v4(k: theory.Setting) -> tuple[float, float]:
    """EF21's A = theta and B = beta, of alpha = 1 - (1 - alpha_1)(1 - alpha_2), alpha_1 of ``first``."""
    left = (1 - k.operator("first").alpha) * (1 - k.need("alpha"))
    return theory.contraction(1 - left)


@algorithm(
    "three_pc_v2",
    title="3PCv2",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    blocks=True,
    robust=True,
    theory=three_point(v2),
    operators={"first": Unbiased},
    first=Operator("rand_k:k=10%", help="unbiased operator of the difference of gradients"),
)
class ThreePCv2(ThreePC):
    """b = g_i + Q(grad f_i(x) - y), y = grad f_i at the x before; g_i <- b + C(grad f_i(x) - b).

    Q is ``first``. gamma = 1/(L + L_plus sqrt((1 - alpha) omega/alpha)). Up: both messages. Down: d
    values. Source: Richtarik et al. 2022, 3PC, variant 2.
    """

    def update(a, wire, s, c, x):
        first = a.add(wire, c, a.first(x - c.y, wire.stream("first")))
        return first + a.add(wire, c, a.C(x - c.g, wire.stream("up")))


@algorithm(
    "three_pc_v4",
    title="3PCv4",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    blocks=True,
    robust=True,
    theory=three_point(v4),
    operators={"first": Contractive},
    first=Operator("top_k:k=10%", help="contractive operator that acts first"),
)
class ThreePCv4(ThreePC):
    """b = g_i + C_1(grad f_i(x) - g_i); g_i <- b + C(grad f_i(x) - b).

    C_1 is ``first``: EF21 with the operator ``two_shot``, and its step with L_plus for L_tilde. Up: both
    messages. Down: d values. Source: Richtarik et al. 2022, 3PC, variant 4.
    """

    def update(a, wire, s, c, x):
        first = a.add(wire, c, a.first(x - c.g, wire.stream("first")))
        return first + a.add(wire, c, a.C(x - c.g, wire.stream("up")))
