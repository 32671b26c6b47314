"""EControl: error feedback whose strength is a parameter, with one message for shift and error."""

from math import sqrt

from raybench.algorithms.base import Contractive, Estimator, Integer, Number, algorithm, theory


def strength(k: theory.Setting) -> float:
    """Return theta/4, near the eta with the largest step of ``recursion``; theta/2 would be the last stable one."""
    theta, _ = theory.contraction(k.need("alpha"))
    return theta / 4


def recursion(k: theory.Setting) -> theory.Rate:
    """G = q^2 (V + c E)^2: rho the smaller root of y^2 - (1+eta) theta y + eta (theta - 2 eta w), B = q^2 L_tilde^2/rho.

    V, E: roots of mean E||eta e_i + grad f_i - h_i||^2 and mean E||e_i||^2; w = sqrt(1 - alpha) = 1 - theta, c =
    (theta - rho)/w - eta, q = max(w, eta/c). What is left of a message, v - C(v), has at most w V, so
    V+ <= (1+eta) w V + eta^2 E + L_tilde ||x+ - x||, E+ <= (1-eta) E + w V, ||g - grad f|| <= w V + eta E;
    (1, c) is the left eigenvector of that matrix, 1 - rho its largest eigenvalue. eta = 0 is EF21: rho = theta,
    B = beta L_tilde^2. Needs 2 eta w < theta.
    """
    theta, beta = theory.contraction(k.need("alpha"))
    eta, left = k.number("eta"), 1 - theta
    if eta == 0 or left == 0:
        return theory.Rate(rho=theta, B=beta * k.need("L_tilde") ** 2)
    if 2 * eta * left >= theta:
        raise theory.NoTheory(
            f"eta = {eta:.3g} feeds back more than the compressor can shrink: it must be below "
            f"theta/(2 sqrt(1 - alpha)) = {theta / (2 * left):.3g}"
        )
    b, q = (1 + eta) * theta, eta * (theta - 2 * eta * left)
    rho = 2 * q / (b + sqrt(b * b - 4 * q))
    weight = (theta - rho) / left - eta
    factor = max(left, eta / weight)
    return theory.Rate(rho=rho, B=(factor * k.need("L_tilde")) ** 2 / rho)


STEPS = theory.recursive(
    recursion,
    "derived here; method: Gao, Islamov, Stich 2024",
    theory.CONTRACTIVE,
    theory.FULL,
)


@algorithm(
    "econtrol",
    title="EControl",
    up=Contractive,
    proximal=True,
    theory=STEPS,
    auto={"eta": strength},
    eta=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="weight of the error"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EControl(Estimator):
    """c_i = C(eta e_i + g_i - h_i); e_i <- e_i + g_i - h_i - c_i; h_i <- h_i + c_i; x <- x - gamma h.

    The server's h equals mean h_i, and mean e_i is the sum of all mean g_i - h so far. eta = 0 is EF21-SGD
    that steps after its update; eta = 1 with h held at 0 is EF14. auto is theta/4. The theorem here is for full
    gradients; on minibatches, for which the method was made, give steps by ``value``. Up: one message.
    Down: d values. Source: Gao, Islamov, Stich 2024, EControl.
    """

    errors = ("e",)

    def setup(a, wire, s, c):
        c.e, c.h, s.h = wire.zeros(), wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        u = grad - c.h
        m = a.C(a.eta * c.e + u, wire.stream("up"))
        sent = m.decode()
        c.e += u - sent
        c.h += sent
        s.h = s.h + wire.up(m).mean()
        return s.h
