"""MARINA: compressed gradient differences with occasional full synchronisation."""

from math import sqrt

from raybench.algorithms.base import (
    Dense,
    Estimator,
    Number,
    PerCell,
    Unbiased,
    algorithm,
    theory,
    where,
)


def sync_probability(k: theory.Setting) -> float:
    """Return p that makes dense rounds cost what compressed ones do: K/d for Rand-K.

    Raises NoTheory where messages are empty: without dense rounds nothing would ever be learned.
    """
    if k.dense_share <= 0:
        raise theory.NoTheory("the compressor's messages are empty; give a number")
    return k.dense_share


def recursion(k: theory.Setting) -> theory.Rate:
    """G = ||g - grad f||^2: rho = p, B = (1-p)(omega/n) L_tilde^2.

    The coin resets the error; else n independent errors of differences add noise. With one mask for all
    clients omega instead of omega/n. With (A, B) B = (1-p)((A - B) L_+^2 + B L_pm^2): PermK with
    p = 1/n takes 1/(L + sqrt(n - 1) L_pm) (Szlendak, Tyurin, Richtarik 2021).
    """
    p = k.number("p")
    if k.ab is not None and k.constants.L_pm is not None:
        a, b = k.ab
        noise = (a - b) * k.need("L_plus") ** 2 + b * k.need("L_pm") ** 2
    else:
        noise = k.mean_omega * k.need("L_tilde") ** 2
    return theory.Rate(rho=p, B=(1 - p) * noise)


def factor(k: theory.Setting) -> float:
    """Return 1 + sqrt((1-p) omega/(p n))."""
    p = k.number("p")
    return 1 + sqrt((1 - p) * k.need("omega") / (p * k.n))


def paper(k: theory.Setting) -> float:
    """1/(L (1 + sqrt((1-p) omega/(p n)))), L = L_tilde for f as well; PermK: the step of its own paper."""
    if k.ab is not None:
        return recursion(k).nonconvex(k)
    if k.common_mask:
        raise theory.NoTheory(f"in the paper {theory.INDEPENDENT.text}")
    return 1 / (k.need("L_tilde") * factor(k))


def released(k: theory.Setting) -> float:
    """1/(L (1 + sqrt((1-p) omega/(p n)))) with L = max_ij L_ij, for its loss 0.15405 max_j ||a_j||^2 + lambda."""
    return 1 / (k.need("L_sample_max") * factor(k))


CODE = "burlachenkok/marina, linear_model_with_non_convex_loss/experiment_no_vr_all.py"
SOURCE = "Gorbunov, Burlachenko, Li, Richtarik 2021"
STEPS = theory.recursive(
    recursion,
    f"{SOURCE}, with L of f; PermK: Szlendak, Tyurin, Richtarik 2021",
    theory.UNBIASED,
    paper=theory.Theorem(
        paper, theory.NONCONVEX, (theory.PROXIMABLE, theory.UNBIASED), f"{SOURCE}, theorem 2.1"
    ),
    released=theory.Convention(released, CODE),
)


@algorithm(
    "marina",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=STEPS,
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class Marina(Estimator):
    """x <- x - gamma g; with probability p g <- grad f(x), else g <- g + mean Q_i(difference).

    One coin for all clients. p = auto balances dense and compressed rounds (K/d for Rand-K).
    gamma = 1/(L + L_tilde sqrt((1-p) omega/(p n))). Up: d values or one message. Down: d values.
    Source: Gorbunov, Burlachenko, Li, Richtarik 2021, algorithm 1.
    """

    opens = True
    batch = "full"  # differences of full gradients, also where a problem has minibatches of its own

    def open(a, wire, s, c, grad):
        c.grad = grad
        return wire.up(Dense(grad)).mean()

    def estimate(a, wire, s, c, grad):
        old, c.grad = c.grad, grad
        coin, q = wire.coin("sync", a.p), wire.stream("up")
        m = wire.cases(coin, lambda b: Dense(grad[b]), lambda b: a.Q(grad[b] - old[b], q[b]))
        got = wire.up(m).mean()
        return where(PerCell(coin).like(got), got, s.g + got)
