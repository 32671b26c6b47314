"""The best multiple of a compressed vector: sums of products, the same for a row alone and in a batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled, scratch
from raybench.wire import Message
from raybench.wire.nested import scattered

TILE = 2560  # products summed together; the tiles' sums are added in order
COST = 2


def best_factor(x: Tensor, message: Message) -> Tensor:
    """Return s = <C(x), x>/||C(x)||^2, shape (*lead, 1) in x's dtype; 0 where C(x) = 0.

    x: (*lead, d); message: of C(x). Sums are in float64. NaN where an entry of C(x) is not finite.
    """
    plain = scattered(message)
    if plain is None:
        value = message.decode(out=_space(x))
    else:
        x = x.gather(-1, plain.support())
        value = plain.values if plain.scale == 1.0 else plain.values * plain.scale
    along, size = products(x.contiguous(), value.contiguous())
    factor = along / size.where(size > 0, 1.0)
    odd = ~((size > 1e-200) & (size < 1e200))  # squares may have over- or underflowed
    if bool(odd.any()):
        a, b = x[odd].double(), value[odd].double()
        if a.shape[-1]:
            p, q = (v.abs().amax(-1, keepdim=True) for v in (a, b))
            one, two = products(a / p.where(p > 0, 1.0), b / q.where(q > 0, 1.0))
            ratio = (p / q.where(q > 0, 1.0))[..., 0]
            factor[odd] = torch.where(two == 0, 0.0, one / two * ratio)
    top = torch.finfo(x.dtype).max
    return factor.clamp(-top, top).to(x.dtype)[..., None]


def _space(x: Tensor) -> Tensor | None:
    """Return reused space of the shape of x, which is faster than new pages; None off the CPU."""
    if x.device.type != "cpu":
        return None
    kind = np.float64 if x.dtype == torch.float64 else np.float32
    return torch.from_numpy(scratch("best_factor", x.numel(), kind)).view(x.shape)


def products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return <a, b> and <b, b> over the last axis in float64, (*lead,); a and b contiguous."""
    if a.device.type != "cpu":
        return products_torch(a, b)
    lead, d = a.shape[:-1], a.shape[-1]
    tiles = -(-d // TILE)
    rows = a.numel() // d if d else 0
    out = np.zeros((2, lead.numel(), tiles))
    one, two = (v.detach().reshape(rows, d).numpy() for v in (a, b))

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _products(one, two, r0, r1, lo, hi, out)

    if rows:
        run_tiled(work, rows, d, COST, TILE)
    total = np.zeros((2, lead.numel()))
    _total(out, total)
    along, size = torch.from_numpy(total).view(2, *lead)
    return along, size


def products_torch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same, summed in another order (the reference; any device)."""
    one, two = a.double(), b.double()
    return (one * two).sum(-1), (two * two).sum(-1)


@compiled(fastmath={"reassoc", "nsz"})  # lets the sums use vectors
def _products(a, b, r0, r1, lo, hi, out):
    for r in range(r0, r1):
        for t in range(lo // TILE, -(-hi // TILE)):
            x, y = (
                a[r, t * TILE : min(hi, t * TILE + TILE)],
                b[r, t * TILE : min(hi, t * TILE + TILE)],
            )
            along, size = 0.0, 0.0
            for j in range(x.shape[0]):
                p, q = np.float64(x[j]), np.float64(y[j])
                along += p * q
                size += q * q
            out[0, r, t] = along
            out[1, r, t] = size


@compiled
def _total(parts, out):
    for i in range(2):
        for r in range(parts.shape[1]):
            for t in range(parts.shape[2]):
                out[i, r] += parts[i, r, t]
