"""VR-DIANA: DIANA on variance-reduced gradients."""

import torch

from raybench.algorithms.base import Choice, Integer, Number, Unbiased, algorithm, theory, where
from raybench.algorithms.diana import FAMILY, PAPER, Diana, learns_fully, of_family, shift_rate
from raybench.algorithms.vr_marina import CODE_VR
from raybench.core.errors import InputError

MOST_TABLE_VALUES = 1 << 29  # values in SAGA's tables: 4 GiB in float64


def batches(k: theory.Setting) -> float:
    """Return m/b: how many batches make up a client's samples."""
    return max(1.0, k.m / k.number("batch"))


def refresh(k: theory.Setting) -> float:
    """Return p = b/m."""
    return 1 / batches(k)


def nonconvex(k: theory.Setting) -> float:
    """1/(L + sqrt(2 [w (1 + 2/a) L_tilde^2/a + (4 w + 1/n)(2/p - 1) V/p])), w = omega/n, V = Lcal^2/b; lsvrg.

    H = mean||grad f_i - h_i||^2 and W = ||x - w||^2, w the reference point, bound the error, w H +
    (w + 1/n) V W, and obey H+ <= (1 - a/2) H + (3a/2) V W + (1 + 2/a) L_tilde^2 R, W+ <= (1 - p/2) W +
    (2/p - 1) R; Phi = f + gamma (w/a) H + gamma (4 w + 1/n)(V/p) W.
    """
    if k.numbers.get("estimator") == "saga":
        raise theory.NoTheory("saga has none here")
    a, p, w = k.number("alpha"), k.number("p"), k.mean_omega
    if not 0 < a <= (1 + 1e-12) * shift_rate(k):
        raise theory.NoTheory(f"it needs 0 < alpha <= 1/(1 + omega) = {shift_rate(k):.3g}")
    V = k.need("L_samples") ** 2 / k.number("batch")
    drift = w * (1 + 2 / a) * k.need("L_tilde") ** 2 / a + (4 * w + 1 / k.n) * (2 / p - 1) * V / p
    return 1 / (k.need("L") + (2 * drift) ** 0.5)


def paper(k: theory.Setting) -> float:
    """1/(10 L sqrt(1 + omega/n)((m/b)^(2/3) + omega + 1)), L = max_ij L_ij, with alpha and p of ``auto``."""
    learns_fully(k)
    if abs(k.number("p") - refresh(k)) > 1e-12:
        raise theory.NoTheory(f"the paper's p is b/m = {refresh(k):.3g}")
    return released(k)


def released(k: theory.Setting) -> float:
    """1/(10 L sqrt(1 + omega/n)((m/b)^(2/3) + omega + 1)), L = max_ij L_ij."""
    return of_family(k, k.need("L_sample_max"), batches(k))


STEPS = theory.StepSizes(
    nonconvex=theory.Theorem(
        nonconvex,
        "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 (Delta0 + gamma (w/a) H^0)/(gamma T)",
        (theory.PROXIMABLE, theory.UNBIASED),
        "derived here; method: Horvath et al. 2019",
    ),
    paper=theory.Theorem(paper, theory.NONCONVEX, FAMILY, PAPER, recalled=True),
    released=theory.Convention(released, CODE_VR),
)


@algorithm(
    "vr_diana",
    version="2",
    up=Unbiased,
    proximal=True,
    robust=True,
    theory=STEPS,
    auto={"alpha": shift_rate, "p": refresh},
    estimator=Choice("lsvrg", "saga", help="reference point, or table of sample gradients"),
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class VRDiana(Diana):
    """DIANA on g_i = grad f_i(x; J) - (the same samples' remembered gradients) + (mean of all remembered).

    lsvrg: remembered at w, w <- x with probability p, a coin for all clients; p = auto is b/m. Gradients
    per round and client: 2 b, and p m. saga: a table of the samples' gradients, zero at first; b
    gradients a round, m d values of memory; p is not used. No floor. Up: one message. Down: d values. Source: Horvath, Kovalev, Mishchenko, Richtarik, Stich 2019.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        if a.estimator == "lsvrg":
            s.w, c.full = s.x, net.grad(s.x)
            return
        m = int(net.oracle.samples.max())
        if c.h.numel() * m > MOST_TABLE_VALUES:
            what = f"saga's tables of all cells hold {c.h.numel() * m:,} values"
            raise InputError.of("algorithm.estimator", what, "lsvrg needs none")
        c.table, c.full = c.h[:, :, None].repeat(1, 1, m, 1), net.zeros()

    def source(a, net, s, c):
        J = net.sample("batch", a.batch)
        return a.table(net, s, c, J) if a.estimator == "saga" else a.reference(net, s, c, J)

    def reference(a, net, s, c, J):
        g = net.grad(s.x, J) - net.grad(s.w, J) + c.full
        coin = net.coin("refresh", a.p)
        s.w = where(coin[:, None], s.x, s.w)
        if len(b := coin.nonzero().flatten()):
            c.full = c.full.index_copy(0, b, net.grad(s.x, cells=b))
        return g

    def table(a, net, s, c, J):
        at = J.indices[..., None].expand(*J.indices.shape, s.x.shape[-1])
        new = torch.stack([net.grad(s.x, j) for j in J.split(1)], 2)
        change = new - c.table.gather(2, at)
        g = change.mean(2) + c.full
        same = J.indices[..., :, None] == J.indices[..., None, :]
        again = same.tril(-1).any(-1)  # a sample that stands earlier in the same batch
        new_sum = change.masked_fill(again[..., None], 0).sum(2)
        c.full = c.full + new_sum / net.oracle.samples[:, None]
        c.table = c.table.scatter(2, at, new)
        return g
