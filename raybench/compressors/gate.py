"""The lazy gate: all of a vector, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.sparsification import probability
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.registry import Number, compressor
from raybench.core.streams import Stream
from raybench.wire import DenseMessage, FlaggedMessage, Message
from raybench.wire.compound import FlagMessage

COPY = 0.5  # what copying a coordinate costs, in additions


@compressor("lazy")
class Lazy(Compressor):
    """C(x) = x / p with probability p, else 0: the Bernoulli gate, unbiased, omega = 1/p - 1, exactly.

    One bit says whether the vector follows, full width; it is sent and booked either way.
    Source: the lazy communication of Condat & Richtarik 2022 (MURANA).
    """

    p: float = Number(0.5, low=0, high=1, open_low=True, help="probability of sending the vector")

    def __post_init__(self) -> None:
        probability(self.p)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        sent = stream.uniform(1)[..., 0] < self.p
        flag = FlagMessage(1, x.dtype, sent.to(torch.uint8)[..., None])
        held = passed(x, sent)
        whole = DenseMessage(x.shape[-1], x.dtype, held, scale=1 / self.p, present=sent)
        return FlaggedMessage(x.shape[-1], x.dtype, [flag, whole])

    def omega(self, d: int) -> float:
        return 1 / self.p - 1

    def alpha(self, d: int) -> float | None:
        return 1.0 if self.p == 1 else None


def passed(x: Tensor, sent: Tensor) -> Tensor:
    """Return the rows of x (*lead, d) that are sent (bool, *lead), and zeros in place of the others."""
    if bool(sent.all()):
        return x.clone()
    if sent.numel() == 1 or x.device.type != "cpu":
        held = torch.zeros_like(x)  # a lone row that is not sent touches no memory
        held[sent] = x[sent]
        return held
    out, d = torch.empty_like(x), x.shape[-1]
    rows, to, flags = x.view(-1, d).numpy(), out.view(-1, d).numpy(), sent.reshape(-1).numpy()

    def work(a: int, b: int, lo: int, hi: int) -> None:
        _passed(rows[a:b], flags[a:b], lo, hi, to[a:b])

    run_tiled(work, len(rows), d, COPY)
    return out


@compiled
def _passed(rows, sent, lo, hi, out):
    for r in range(rows.shape[0]):
        row, to = rows[r, lo:hi], out[r, lo:hi]
        if sent[r]:
            for j in range(row.shape[0]):
                to[j] = row[j]
        else:
            to[:] = 0
