"""Methods whose server collects gradients taken at its present model before it steps, and discards older ones."""

import torch

from raybench.algorithms.base import Count, Flag, Integer, count_within, theory
from raybench.algorithms.events import (
    TARGET,
    Asynchronous,
    noise_over_target,
    on_clock,
    threshold,
)

STOP = Flag(True, help="stop computations at older models at each step; else ignore what they send")


def large_batch(k: theory.Setting) -> float:
    """min{1/L, epsilon B/(2 L sigma^2)}, B the gradients collected for a step, or S.

    What the server steps along has variance sigma^2/B at most (of Malenia by the harmonic mean of the B_i), so by the
    descent lemma with gamma <= 1/L mean_k E||grad f||^2 <= 2 Delta/(gamma K) + L gamma sigma^2/B, whose last term is at
    most epsilon/2.
    """
    L, count, ratio = k.need("L"), k.number("collect"), noise_over_target(k)
    return min(1 / L, count / (2 * L * ratio) if ratio else float("inf"))


RENNALA = theory.StepSizes(
    nonconvex=theory.Theorem(
        large_batch,
        "(1/K) sum_{k<K} E||grad f||^2 <= epsilon for K = 4 Delta/(gamma epsilon) steps",
        (theory.SMOOTH, theory.SAME_CLIENTS),
        "Tyurin, Richtarik 2023, arXiv 2305.12387; step of the authors' code",
    )
)


class Collecting(Asynchronous):
    """The first ``collect`` gradients taken at x^k make a step along their mean; older ones do not count."""

    limit = 1

    def begin(a, net, s, c):
        s.total, s.count = net.zero(), 0
        a.needed = int(a.collect)

    def arrive(a, net, s, c, i, grad, delay):
        mean = a.collected(s, grad, a.needed)
        return mean is not None and a.descend(net, s, mean)


@on_clock(
    "rennala_sgd",
    title="Rennala SGD",
    theory=RENNALA,
    auto={"collect": threshold},
    collect=Integer("auto", low=1, words=("auto",), help="B: gradients at x^k that make a step"),
    stop=STOP,
    target=TARGET,
)
class RennalaSGD(Collecting):
    """x^{k+1} = x^k - gamma (1/B) sum of the first B gradients taken at x^k, by whoever is fast.

    A client that has sent one begins the next at the same x^k; gradients of older points do not count. Up: one message
    of each client whose gradient arrives. Source: Tyurin, Richtarik 2023, Optimal time complexities of parallel
    stochastic optimization methods under a fixed computation model.
    """


@on_clock(
    "fastest_sgd",
    title="m-fastest SGD",
    collect=Count("50%", of="the clients", help="m: clients whose gradients make a step"),
)
class FastestSGD(Collecting):
    """x^{k+1} = x^k - gamma mean of the gradients of the m clients that are first; the others are stopped.

    Every client computes once in a round, so with m = n it is minibatch SGD that waits for all. Up: one message of m
    clients. Source: folklore; Tyurin 2026, arXiv 2602.03802.
    """

    waits = stop = True

    def begin(a, net, s, c):
        s.total, s.count = net.zero(), 0
        a.needed = count_within(a.collect, net.n)


def harmonic(k: theory.Setting) -> float:
    """max{ceil(sigma^2/epsilon), n}."""
    return max(threshold(k), float(k.n))


MALENIA = theory.StepSizes(
    nonconvex=theory.Theorem(
        large_batch,
        "(1/K) sum_{k<K} E||grad f||^2 <= epsilon for K = 4 Delta/(gamma epsilon) steps",
        (theory.SMOOTH,),
        "Tyurin, Richtarik 2023, arXiv 2305.12387; step of the authors' code",
    )
)


@on_clock(
    "malenia_sgd",
    title="Malenia SGD",
    theory=MALENIA,
    auto={"collect": harmonic},
    collect=Integer(
        "auto", low=1, words=("auto",), help="S: (1/n sum 1/B_i)^-1 >= S/n ends a round"
    ),
    stop=STOP,
    target=TARGET,
)
class MaleniaSGD(Asynchronous):
    """x^{k+1} = x^k - gamma (1/n) sum_i (1/B_i) sum_{j <= B_i} g_ij: client i sends B_i gradients taken at x^k.

    The round ends when every client has sent one and the harmonic mean of the B_i is at least S/n. For clients with
    different data. Up: one message for each gradient that arrives. Source: Tyurin, Richtarik 2023, Malenia SGD.
    """

    limit = 1

    def begin(a, net, s, c):
        c.total = net.zeros()
        s.counts = torch.zeros(len(s.x), net.n, dtype=torch.float64)

    def arrive(a, net, s, c, i, grad, delay):
        c.total[:, i] += grad
        s.counts[:, i] += 1
        counts = s.counts[0]
        enough = a.collect / net.n * (1 - 1e-12)  # as 1/(1/B_i) may fall short of B_i by rounding
        if not bool((counts > 0).all()) or 1 / float((1 / counts).mean()) < enough:
            return False
        mean = (c.total / counts[None, :, None].to(c.total)).mean(1)
        c.total, s.counts = torch.zeros_like(c.total), torch.zeros_like(s.counts)
        return a.descend(net, s, mean)
