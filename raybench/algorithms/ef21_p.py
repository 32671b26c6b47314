"""The server compresses the model: EF21-P, alone and with DIANA at the clients."""

from raybench.algorithms import diana
from raybench.algorithms.base import Contractive, Unbiased, algorithm, theory
from raybench.algorithms.gd import GD


def recursion(k: theory.Setting) -> theory.Rate:
    """G = L^2 ||w - x||^2: rho = theta, B = beta L^2, theta and beta of the downlink compressor."""
    theta, beta = theory.contraction(k.need("down_alpha"))
    L = k.need("L")
    return theory.Rate(rho=theta, B=beta * L**2, G=lambda s, c, grad: L * (s.x - s.y)[:, None])


STEPS = theory.recursive(recursion, "derived here; method: Gruntkowska, Tyurin, Richtarik 2023")


@algorithm(
    "ef21_p",
    up=None,
    down=Contractive,
    broadcast=Contractive,
    proximal=True,
    theory=STEPS,
)
class EF21P(GD):
    """x <- x - gamma mean_i grad f_i(w); w <- w + D(x - w), all that is broadcast; clients hold w.

    gamma = 1/(L + L sqrt(beta/theta)), free of n and of the clients' differences. f is recorded at
    the server's x, of which the theory speaks; ``gd`` with the same downlink has the same iterates
    and is recorded at w. Up: d values. Down: one message. Source: Gruntkowska, Tyurin, Richtarik
    2023, EF21-P and Friends.
    """

    def point(a, net, s, c):
        return s.y


def diana_recursion(k: theory.Setting) -> theory.Rate:
    """G = A ||w - x||^2 + (omega/n) mean||grad f_i(w) - h_i||^2: rho = min{theta, a}/2, B = (K + W)/theta.

    a is DIANA's alpha, theta that of the downlink compressor, left = sqrt(1 - its alpha) = 1 - theta;
    W = (omega/n)(2/a) (1 + left)^2 L_tilde^2, K = A left^2 = max{left^2 L^2, left W/(theta - rho)}.
    With V = ||x+ - w||^2 the first error becomes at most left^2 V and drives the second by W V, as
    ||w+ - w|| <= (1 + left) sqrt(V); V <= ||w - x||^2/left + R/theta, R = ||x+ - x||^2. A >= L^2, so
    ||g - grad f(x)||^2 <= G in expectation. Without compression down this is DIANA's diana_recursion.
    """
    half = diana.recursion(k).rho  # a/2
    theta, _ = theory.contraction(k.need("down_alpha"))
    left, rho = 1 - theta, min(theta / 2, half)
    W = k.mean_omega / half * ((1 + left) * k.need("L_tilde")) ** 2
    K = max((left * k.need("L")) ** 2, left * W / (theta - rho))
    return theory.Rate(rho=rho, B=(K + W) / theta)


DIANA_STEPS = theory.recursive(
    diana_recursion,
    "derived here; method: Gruntkowska, Tyurin, Richtarik 2023",
    theory.UNBIASED,
)


@algorithm(
    "ef21_p_diana",
    title="EF21-P + DIANA",
    up=Unbiased,
    down=Contractive,
    broadcast=Contractive,
    relay=False,
    proximal=True,
    theory=DIANA_STEPS,
    auto={"alpha": diana.shift_rate},
)
class EF21PDiana(diana.Diana):
    """m_i = Q(grad f_i(w) - h_i); x <- x - gamma (h + mean m_i); h_i <- h_i + alpha m_i; w <- w + D(x - w).

    The server keeps x and broadcasts the one message D(x - w), the same for all clients, which hold w. f is
    recorded at x, of which the theory speaks; ``diana`` with the same downlink has the same iterates and is recorded
    at w. Up: one message. Down: one message. Source: Gruntkowska, Tyurin, Richtarik 2023, EF21-P and Friends.
    """

    def point(a, net, s, c):
        return s.y
