"""EF21-P: the server compresses the model."""

from raybench.algorithms.base import Contractive, algorithm, theory
from raybench.algorithms.gd import GD


def recursion(k: theory.Setting) -> theory.Rate:
    """G = L^2 ||w - x||^2: rho = theta, B = beta L^2, theta and beta of the downlink operator."""
    theta, beta = theory.contraction(k.need("down_alpha"))
    return theory.Rate(rho=theta, B=beta * k.need("L") ** 2)


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
