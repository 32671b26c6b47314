"""Multiples of an operator: the best for each vector, sent as a value, and the one that makes it contractive."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.compose import Composed, Made
from raybench.compressors.composed.nested import ScaledMessage, SumMessage, scattered
from raybench.compressors.selection.top_k import TopK
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_shared
from raybench.core.registry import Flag, Operator, compressor
from raybench.core.streams import Stream
from raybench.wire import Message

SAFE_SQUARES = {torch.float32: (1e-25, 1e35), torch.float64: (1e-200, 1e200)}
"""Between these a sum of squares has neither lost numbers that are too small nor overflown."""


@compressor("optimal_rescale")
class OptimalRescale(Composed):
    """s C(x), s = <C(x), x>/||C(x)||^2 sent as one value: ||s C(x) - x||^2 = (1 - cos^2) ||x||^2 <= ||x||^2.

    No multiple of C(x) is nearer to x, so it is contractive wherever a fixed multiple of C is: alpha
    is that of C in the contractive role (C in B3, B2, B1 or unbiased); without a class of C none is
    claimed (C(x) may be orthogonal to x). s = 0 where C(x) = 0. With ``correct`` the entry of the error
    x - s C(x) that is largest is added, one value and its index:
    alpha = 1 - (1 - alpha_C)(1 - 1/d) >= 1/d for every C.
    """

    of: Made = Operator("scaled_sign", help="the operator whose best multiple is sent")
    correct: bool = Flag(help="send the largest entry of the error too")
    made_of = ("of",)
    zero_to_zero = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        inner = self.part("of").encode(x, stream)
        message = ScaledMessage.of(best_factor(x, inner), inner)
        if not self.correct:
            return message
        left = message.scaled(-1.0).add_to(x.clone())
        return SumMessage(x.shape[-1], x.dtype, [message, TopK(1).encode(left, stream)])

    def alpha(self, d: int) -> float | None:
        found = self.part("of").b3(d)
        if self.correct:
            return 1 - (1 - (1 / found[0] if found else 0.0)) * (1 - 1 / d)
        return 1 / found[0] if found else None


@compressor("as_contractive")
class AsContractive(Composed):
    """c C(x) with the factor c that makes C contractive; both sides know c, so it costs no bits.

    C unbiased: c = 1/(omega + 1), alpha = 1/(omega + 1); in B1(a, b): c = 1/b, alpha = a/b^2; in
    B2(g, b): c = 1/b, alpha = g/b. Raises InputError where C is of no such class. Source: Beznosikov et
    al. 2020, theorem on B1, B2, B3.
    """

    of: Made = Operator("natural", help="unbiased, or of the class B1 or B2")
    made_of = ("of",)

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.part("of").additive

    def encode(self, x: Tensor, stream: Stream) -> Message:
        found = self._known(x.shape[-1])
        return self.part("of").encode(x, stream).scaled(found[1])

    def alpha(self, d: int) -> float:
        return 1 / self._known(d)[0]

    def _known(self, d: int) -> tuple[float, float]:
        found = self.part("of").b3(d)
        if found is None:
            fix = "as_contractive takes unbiased operators and those of B1 or B2"
            raise InputError.of("of", "has no constants that a factor makes contractive", fix)
        return found


def best_factor(x: Tensor, message: Message) -> Tensor:
    """Return s = <C(x), x>/||C(x)||^2, shape (*lead, 1) in x's dtype; 0 where C(x) = 0.

    x: (*lead, d); message: of C(x). Sums are in float64. NaN where an entry of C(x) is not finite.
    """
    plain = scattered(message)
    if plain is None:
        value = message.decode()
    else:
        x = x.gather(-1, plain.support())
        value = plain.values if plain.scale == 1.0 else plain.values * plain.scale
    along, size = _products(x, value)
    factor = along / size.where(size > 0, 1.0)
    least, most = SAFE_SQUARES[x.dtype]
    odd = ~((size > least) & (size < most))
    if bool(odd.any()):
        a, b = x[odd].double(), value[odd].double()
        if a.shape[-1]:
            p, q = (v.abs().amax(-1, keepdim=True) for v in (a, b))
            one, two = _products(a / p.where(p > 0, 1.0), b / q.where(q > 0, 1.0))
            ratio = (p / q.where(q > 0, 1.0))[..., 0]
            factor[odd] = torch.where(two == 0, 0.0, one / two * ratio)
    top = torch.finfo(x.dtype).max
    return factor.clamp(-top, top).to(x.dtype)[..., None]


def _products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return <a, b> and <b, b> over the last axis, summed in float64."""
    if a.device.type != "cpu":
        return (a * b).sum(-1, dtype=torch.float64), (b * b).sum(-1, dtype=torch.float64)
    along, size = torch.empty(2, *a.shape[:-1], dtype=torch.float64)
    rows = [v.reshape(along.numel(), a.shape[-1]).numpy() for v in (a, b)]
    found = along.view(-1).numpy(), size.view(-1).numpy()
    run_shared(lambda lo, hi: _sums(*rows, *found, lo, hi), along.numel(), a.numel())
    return along, size


@compiled(fastmath={"reassoc"})  # lets the sums use vectors
def _sums(a, b, along, size, lo, hi):
    for r in range(lo, hi):
        one, two = 0.0, 0.0
        for j in range(a.shape[1]):
            y = np.float64(b[r, j])
            one += a[r, j] * y
            two += y * y
        along[r], size[r] = one, two
