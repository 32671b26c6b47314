"""VR-DIANA: DIANA on variance-reduced gradients."""

import torch

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Integer,
    Number,
    Unbiased,
    algorithm,
    theory,
    where,
)
from raybench.algorithms.diana import Diana
from raybench.core.errors import InputError
from raybench.theory import Rate, Setting

TABLE_MOST = 1 << 29  # values in SAGA's tables: 4 GiB in float64


def batches(k: Setting) -> float:
    """Return m/b: how many batches make up a client's samples."""
    return max(1.0, k.m / float(k.numbers["batch"]))


def refresh(k: Setting) -> float:
    """Return p = b/m: a full gradient for every m/b minibatches."""
    return 1 / batches(k)


def vr_diana(k: Setting) -> Rate:
    """Paper: 1/(10 l sqrt(1 + omega/n)((m/b)^(2/3) + omega + 1)), l = max(max_i L_i, Lcal)."""
    size = (1 + k.mean_omega) ** 0.5 * (batches(k) ** (2 / 3) + k.need("omega") + 1)
    return Rate(paper=1 / (10 * max(k.need("L_max"), k.need("L_samples")) * size))


@algorithm(
    "vr_diana",
    version="2",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=vr_diana,
    stochastic=True,
    auto={"alpha": theory.shift_rate, "p": refresh},
    estimator=Choice("lsvrg", "saga", help="reference point, or table of sample gradients"),
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class VRDiana(Diana):
    """DIANA on g_i = grad f_i(x; J) - (the same samples' remembered gradients) + (mean of all remembered).

    lsvrg: remembered at w, w <- x with probability p, a coin for all clients; p = auto is b/m. Gradients
    per round and client: 2 b, and p m. saga: a table of the samples' gradients, zero at first; b
    gradients a round, m d values of memory; p is not used. No floor. Steps by rule ``paper`` only. Up:
    one message. Down: d values. Source: Horvath, Kovalev, Mishchenko, Richtarik, Stich 2019.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        if a.estimator == "lsvrg":
            s.w, c.full = s.x, net.grad(s.x)
            return
        m = int(net.oracle.samples.max())
        if c.h.numel() * m > TABLE_MOST:
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
        again = same.tril(-1).any(-1)  # drawn before in this batch
        new_sum = change.masked_fill(again[..., None], 0).sum(2)
        c.full = c.full + new_sum / net.oracle.samples[:, None]
        c.table = c.table.scatter(2, at, new)
        return g
