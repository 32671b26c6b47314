"""Asynchronous SGD and those that bound or reuse what arrives late: a server step for every arrival that counts."""

import torch

from raybench.algorithms.base import (
    Contractive,
    Dense,
    Flag,
    Integer,
    Number,
    Unbiased,
    algorithm,
    theory,
)
from raybench.algorithms.events import (
    SAME_DATA,
    TARGET,
    Asynchronous,
    compresses,
    noise_over_target,
    threshold,
)
from raybench.algorithms.parts import orthogonalised

BATCH = Integer("full", low=1, words=("full",), help="samples of a gradient")


def with_threshold(k: theory.Setting) -> float:
    """min{1/(2 R L), epsilon/(4 L sigma^2)}, R the threshold."""
    L, R, ratio = k.need("L"), k.number("threshold"), noise_over_target(k)
    return min(1 / (2 * R * L), 1 / (4 * L * ratio) if ratio else float("inf"))


RINGMASTER = theory.StepSizes(
    nonconvex=theory.Theorem(
        with_threshold,
        "E||grad f||^2 <= epsilon within 8 R L Delta/epsilon + 16 sigma^2 L Delta/epsilon^2 steps",
        (theory.SMOOTH, SAME_DATA),
        "Maranjyan, Tyurin, Richtarik 2025, arXiv 2501.16168",
        recalled=True,
    )
)


class Immediate(Asynchronous):
    """x <- x - gamma times what arrives."""

    def arrive(a, net, s, c, i, grad, delay):
        return a.descend(net, s, grad)


@algorithm(
    "async_sgd",
    title="asynchronous SGD",
    up=Unbiased,
    dense=True,
    clock=True,
    theory=None,
    batch=BATCH,
    adaptive=Flag(help="gamma n/max(n, delay): late gradients move less"),
)
class AsyncSGD(Immediate):
    """x <- x - gamma Q(g_i) as the gradient of client i arrives, which begins anew at x.

    adaptive: gamma_k = gamma n/max(n, delta), delta the delay. Clients weigh in by their speed, so that with
    different data it stops at another point than the minimiser of f. Up: one message of one client. Source: Koloskova,
    Stich, Jaggi 2022; Mishchenko et al. 2022.
    """

    def arrive(a, net, s, c, i, grad, delay):
        factor = net.n / max(net.n, delay) if a.adaptive else 1.0
        return a.descend(net, s, factor * grad)


@algorithm(
    "async_ef14",
    title="asynchronous EF14",
    up=Contractive,
    clock=True,
    theory=None,
    batch=BATCH,
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


@algorithm(
    "ringmaster_asgd",
    title="Ringmaster ASGD",
    up=Unbiased,
    dense=True,
    clock=True,
    theory=RINGMASTER,
    auto={"threshold": threshold},
    batch=BATCH,
    threshold=Integer("auto", low=1, words=("auto",), help="R: delays of R or more do not count"),
    stop=Flag(True, help="stop computations that are R steps old; else ignore what they send"),
    target=Number(1e-4, low=0, open_low=True, help=TARGET),
)
class RingmasterASGD(Bounded):
    """Asynchronous SGD in which gradients with a delay of R or more do not count.

    stop: such computations are stopped as soon as they are R steps old and begun anew at x (algorithm 5); else what they
    send is ignored (algorithm 4). With R = 1 and stop it is SGD on the fastest clients. Up: one message of one client.
    Source: Maranjyan, Tyurin, Richtarik 2025, Ringmaster ASGD, arXiv 2501.16168.
    """


@algorithm(
    "ringmaster_lmo",
    title="Ringmaster LMO",
    up=Unbiased,
    dense=True,
    clock=True,
    theory=None,
    batch=BATCH,
    threshold=Integer(10, low=1, help="R: delays of R or more do not count"),
    stop=Flag(True, help="stop computations that are R steps old; else ignore what they send"),
    momentum=Number(
        0.1, low=0, high=1, open_low=True, per_cell=True, help="a of m <- (1 - a) m + a g"
    ),
)
class RingmasterLMO(Bounded):
    """m <- (1 - a) m + a g; x <- x - gamma u, u the unit step along m: U V' of matrices m = U S V', else m/||m||.

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
        return a.descend(net, s, unit(s.m, net.layout))


def unit(m: torch.Tensor, layout) -> torch.Tensor:
    """Return the step (B, d) along m of norm 1: spectral norm of matrices, Euclidean norm of other tensors."""
    out, at = torch.empty_like(m), 0
    for (_, shape), size in zip(layout, layout.sizes, strict=True):
        part = m[..., at : at + size]
        if len(shape) >= 2:
            step = orthogonalised(part.unflatten(-1, (shape[0], -1))).flatten(-2)
        else:
            step = part / part.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        out[..., at : at + size] = step
        at += size
    return out


@algorithm(
    "iaasgd",
    title="incremental aggregated ASGD",
    up=Contractive,
    dense=True,
    clock=True,
    theory=None,
    batch=BATCH,
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


@algorithm(
    "ringleader_asgd",
    title="Ringleader ASGD",
    up=Unbiased,
    dense=True,
    clock=True,
    theory=None,
    batch=BATCH,
)
class RingleaderASGD(Asynchronous):
    """Rounds of n steps along the mean of a table of gradients, one of every client, for different data.

    Phase 1: means of what each client sends at old points, until all have sent. Phase 2: n steps
    x <- x - gamma mean_i t_i, the first at once, then one as each client that has not been updated sends; its gradient
    is folded into t_i. What others send goes into the table of the next phase 1. Delays are at most 2 n. Up: one
    message of one client. Source: Maranjyan, Richtarik 2025, Ringleader ASGD, arXiv 2509.22860.
    """

    def begin(a, net, s, c):
        c.t, c.next = net.zeros(), net.zeros()  # the tables
        cells = len(s.x)  # they share their events, so that these are the same for all of them
        s.counts, s.next_counts = torch.zeros(cells, net.n), torch.zeros(cells, net.n)
        s.updated = torch.zeros(cells, net.n, dtype=torch.bool)
        s.collecting = True

    def arrive(a, net, s, c, i, grad, delay):
        if s.collecting:
            fold(c.t, s.counts, i, grad)
            if not bool((s.counts > 0).all()):
                return False
            s.collecting = False
            s.updated = torch.zeros_like(s.updated)
        elif bool(s.updated[0, i]):
            fold(c.next, s.next_counts, i, grad)
            return False
        else:
            fold(c.t, s.counts, i, grad)
        s.updated[:, i] = True
        a.descend(net, s, c.t.mean(1))
        if bool(s.updated.all()):
            c.t, s.counts = c.next, s.next_counts
            c.next, s.next_counts = torch.zeros_like(c.t), torch.zeros_like(s.counts)
            s.collecting = True
        return True


def fold(table: torch.Tensor, counts: torch.Tensor, i: int, grad: torch.Tensor) -> None:
    """Fold a gradient (B, d) into the mean of those of client i, table (B, n, d)."""
    counts[:, i] += 1
    table[:, i] += (grad - table[:, i]) / counts[0, i]
