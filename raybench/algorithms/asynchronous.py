"""Asynchronous SGD, those that bound or reuse what arrives late, and local steps whose results arrive late."""

import torch

from raybench.algorithms.base import Choice, Contractive, Dense, Flag, Integer, Number, theory
from raybench.algorithms.events import (
    TARGET,
    Asynchronous,
    compresses,
    noise_over_target,
    on_clock,
    threshold,
)
from raybench.algorithms.parts import steepest

STOP = Flag(True, help="stop computations that are R steps old; else ignore what they send")


def with_threshold(k: theory.Setting) -> float:
    """min{1/(2 R L), epsilon/(4 L sigma^2)}, R the threshold."""
    L, R, ratio = k.need("L"), k.number("threshold"), noise_over_target(k)
    return min(1 / (2 * R * L), 1 / (4 * L * ratio) if ratio else float("inf"))


RINGMASTER = theory.StepSizes(
    nonconvex=theory.Theorem(
        with_threshold,
        "E||grad f||^2 <= epsilon within 8 R L Delta/epsilon + 16 sigma^2 L Delta/epsilon^2 steps",
        (theory.SMOOTH, theory.SAME_CLIENTS),
        "Maranjyan, Tyurin, Richtarik 2025, arXiv 2501.16168",
        recalled=True,
    )
)


class Immediate(Asynchronous):
    """x <- x - gamma times what arrives."""

    def arrive(a, net, s, c, i, grad, delay):
        return a.descend(net, s, grad)


@on_clock(
    "async_sgd",
    title="asynchronous SGD",
    adaptive=Flag(help="gamma n/max(n, delay): late gradients move less"),
)
class AsyncSGD(Immediate):
    """x <- x - gamma Q(g_i) as the gradient of client i arrives, which begins anew at x.

    adaptive: gamma_k = gamma n/max(n, delta), delta the delay. Clients weigh in by their speed, so that with
    different data it stops at another point than the minimiser of f. Up: one message of one client. Source: Koloskova,
    Stich, Jaggi 2022; Mishchenko et al. 2022.
    """

    def arrive(a, net, s, c, i, grad, delay):
        if a.adaptive and delay > net.n:
            grad = net.n / delay * grad
        return a.descend(net, s, grad)


@on_clock(
    "async_ef14",
    title="asynchronous EF14",
    up=Contractive,
    dense=False,
)
class AsyncEF14(Immediate):
    """v_i = e_i + g_i; x <- x - gamma C(v_i) as it arrives; e_i <- v_i - C(v_i): the memory is the client's.

    EF14 whose participants are those that arrive; there is no theorem. Up: one message of one client.
    """

    def begin(a, net, s, c):
        c.e = net.zeros()

    def message(a, net, s, c, i):
        v = c.e[:, i] + a.direction(net, s, c, i)
        sent = a.C(v[:, None], net.call_stream("uplink", i))
        c.e[:, i] = v - sent.decode()[:, 0]
        return sent


class Bounded(Immediate):
    """Gradients with a delay of ``threshold`` or more do not count."""

    def begin(a, net, s, c):
        a.limit = int(a.threshold)


@on_clock(
    "ringmaster_asgd",
    title="Ringmaster ASGD",
    theory=RINGMASTER,
    auto={"threshold": threshold},
    threshold=Integer("auto", low=1, words=("auto",), help="R: delays of R or more do not count"),
    stop=STOP,
    target=TARGET,
)
class RingmasterASGD(Bounded):
    """Asynchronous SGD in which gradients with a delay of R or more do not count.

    stop: such computations are stopped as soon as they are R steps old and begun anew at x (algorithm 5); else what they
    send is ignored (algorithm 4). With R = 1 and stop it is SGD on the fastest clients. Up: one message of one client.
    Source: Maranjyan, Tyurin, Richtarik 2025, Ringmaster ASGD, arXiv 2501.16168.
    """


@on_clock(
    "ringmaster_lmo",
    title="Ringmaster LMO",
    threshold=Integer(10, low=1, help="R: delays of R or more do not count"),
    stop=STOP,
    momentum=Number(
        0.1, low=0, high=1, open_low=True, per_cell=True, help="a of m <- (1 - a) m + a g"
    ),
    norm=Choice(
        "spectral", "sign", "euclidean", help="of matrices; vectors move by signs unless euclidean"
    ),
)
class RingmasterLMO(Bounded):
    """m <- (1 - a) m + a g; x <- x + gamma LMO(m), tensor by tensor the steepest step of norm 1, as in EF21-Muon.

    Gradients with a delay of R or more do not count. The first m is the first gradient. Up: one message of one client.
    Source: arXiv 2605.18174.
    """

    def begin(a, net, s, c):
        super().begin(net, s, c)
        s.m = net.zero()
        s.seen = 0

    def arrive(a, net, s, c, i, grad, delay):
        s.m = grad.clone() if s.seen == 0 else s.m + a.momentum * (grad - s.m)
        s.seen = 1
        steps = [steepest(tensor, a.norm) for tensor in net.layout.views(s.m)]
        return a.descend(net, s, net.layout.concat(steps))


@on_clock(
    "iaasgd",
    title="incremental aggregated ASGD",
    up=Contractive,
)
class IAASGD(Asynchronous):
    """g_i <- g_i + C(grad f_i - g_i) as it arrives; x <- x - gamma mean_j g_j: the last gradient of every client.

    Without a compressor the server holds each client's last gradient (incremental aggregated gradients); with one it is
    EF21 whose participants are those that arrive, of which there is no theorem. No step before all have sent.
    Up: one message of one client. Source: Blatt, Hero, Gauchman 2007; Richtarik, Sokolov, Fatkhullin 2021.
    """

    def begin(a, net, s, c):
        c.g = net.zeros()
        s.g = net.zero()
        s.missing = net.n
        c.sent = torch.zeros(s.x.shape[0], net.n, dtype=torch.bool)

    def message(a, net, s, c, i):
        change = (a.direction(net, s, c, i) - c.g[:, i])[:, None]
        return a.C(change, net.call_stream("uplink", i)) if compresses(a) else Dense(change)

    def arrive(a, net, s, c, i, grad, delay):
        c.g[:, i] += grad
        s.g = s.g + grad / net.n
        if s.missing and not bool(c.sent[:, i].all()):
            c.sent[:, i] = True
            s.missing -= 1
        return a.descend(net, s, s.g) if not s.missing else False


@on_clock(
    "ringleader_asgd",
    title="Ringleader ASGD",
)
class RingleaderASGD(Asynchronous):
    """Rounds of n steps along the mean of a table of gradients, one of every client, for different data.

    Phase 1: means of what each client sends at old points, until all have sent. Phase 2: n steps
    x <- x - gamma mean_i t_i, the first at once, then one as each client that has not been updated sends; its gradient
    is folded into t_i. What others send goes into the table of the next phase 1. Delays are at most 2 n. Up: one
    message of one client. Source: Maranjyan, Richtarik 2025, Ringleader ASGD, arXiv 2509.22860.
    """

    def begin(a, net, s, c):
        c.t, c.next = (
            net.zeros(),
            net.zeros(),
        )  # the tables; s.g, s.next_g are their means over the clients
        s.g, s.next_g = net.zero(), net.zero()
        cells = len(s.x)  # they share their events, so that these are the same for all of them
        s.counts, s.next_counts = torch.zeros(cells, net.n), torch.zeros(cells, net.n)
        s.updated = torch.zeros(cells, net.n, dtype=torch.bool)
        s.collecting = True

    def arrive(a, net, s, c, i, grad, delay):
        if bool(s.updated[0, i]):
            s.next_g = s.next_g + fold(c.next, s.next_counts, i, grad) / net.n
            return False
        s.g = s.g + fold(c.t, s.counts, i, grad) / net.n
        if s.collecting and not bool((s.counts[0] > 0).all()):
            return False
        s.collecting = False
        s.updated[:, i] = True
        a.descend(net, s, s.g)
        if bool(s.updated[0].all()):
            c.t, s.counts, s.g = c.next, s.next_counts, s.next_g
            c.next, s.next_counts = torch.zeros_like(c.t), torch.zeros_like(s.counts)
            s.next_g, s.updated = torch.zeros_like(s.g), torch.zeros_like(s.updated)
            s.collecting = True
        return True


def fold(table: torch.Tensor, counts: torch.Tensor, i: int, grad: torch.Tensor) -> torch.Tensor:
    """Fold a gradient (B, d) into the mean of those of client i, table (B, n, d); return by how much that moved."""
    counts[:, i] += 1
    change = (grad - table[:, i]) / counts[0, i]
    table[:, i] += change
    return change


# Local steps, whose results reach the server whenever clients are done ------------------------------

LOCAL = Number(
    None, low=0, open_low=True, help="eta of the local steps; without it gamma is their step"
)


class LateLocal(Asynchronous):
    """y <- y - eta grad f_i(y), ``steps`` times from the client's x; it sends v = x - y.

    Without an eta of its own a client steps by gamma, and v = (x - y)/gamma is the sum of its gradients.
    """

    def begin(a, net, s, c):
        s.count = 0
        s.total = net.zero()

    def setup(a, net, s, c):
        a.calls = a.steps
        super().setup(net, s, c)

    def direction(a, net, s, c, i):
        x = s.at[i]
        v, y = torch.zeros_like(x), x
        for back in reversed(range(a.steps)):
            v = v + net.grad_of(i, y, a.batch, back)
            y = x - a.gamma * v if a.local_step_size is None else x - a.local_step_size * v
        return v if a.local_step_size is None else a.local_step_size * v


@on_clock(
    "fedbuff",
    title="FedBuff",
    steps=Integer(1, low=1, help="local steps of a client"),
    local_step_size=LOCAL,
    collect=Integer(10, low=1, help="K_b: results in the buffer that make a step"),
    damped=Flag(help="weights 1/sqrt(1 + delay)"),
)
class FedBuff(LateLocal):
    """x <- x - gamma (1/K_b) sum of the next K_b results v_i of local steps, however old, by weights w(delay).

    Up: one message of each client that is done. Source: Nguyen et al. 2021, Federated learning with buffered
    asynchronous aggregation, arXiv 2106.06639.
    """

    def arrive(a, net, s, c, i, grad, delay):
        v = grad / (1 + delay) ** 0.5 if a.damped else grad
        mean = a.collected(s, v, a.collect)
        return mean is not None and a.descend(net, s, mean)


@on_clock(
    "async_local_sgd",
    title="asynchronous local SGD",
    steps=Integer(10, low=1, help="local steps of a client"),
    local_step_size=LOCAL,
    momentum=Number(
        0.9, low=0, high=0.999, per_cell=True, help="beta of the delayed Nesterov momentum"
    ),
    every=Integer(4, low=1, help="N: arrivals after which the momentum moves"),
)
class AsyncLocalSGD(LateLocal):
    """x <- x - gamma v/N at each arrival; at each N-th m <- beta m + mean of the last N, x <- x - gamma beta m as well.

    DiLoCo whose outer step does not wait, with delayed Nesterov momentum. Up: one message of one client. Source: Liu
    et al. 2024, Asynchronous local-SGD training for language modeling, arXiv 2401.09135, algorithm 3 with c = 0.
    """

    def begin(a, net, s, c):
        super().begin(net, s, c)
        s.m = net.zero()

    def arrive(a, net, s, c, i, grad, delay):
        u, mean = grad / a.every, a.collected(s, grad, a.every)
        if mean is not None:
            s.m = a.momentum * s.m + mean
            u = u + a.momentum * s.m
        return a.descend(net, s, u)
