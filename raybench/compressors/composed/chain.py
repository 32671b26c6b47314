"""One operator after another, and one on what another left."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.compose import Composed, Made
from raybench.compressors.composed.nested import SumMessage, kept, nest
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.registry import Operator, compressor
from raybench.core.streams import Stream
from raybench.wire import Message


@compressor("chain")
class Chain(Composed):
    """Q(C(x)), C = ``first`` and Q = ``then``, independent: the composition of two operators.

    Of a sparse message C(x) only the k kept values are handed to Q (before a known factor such as
    d/K), so shares and constants of Q are those of dimension k, and the indices are sent once; of
    any other message the decoded vector is.

    * C unbiased, Q unbiased: omega = (omega_C + 1)(omega_Q + 1) - 1.
    * C in B1(a, b) or B2(c, b), Q unbiased with zeta = omega_Q + 1: E||Q(C(x))||^2 <= zeta E||C(x)||^2
      and E<Q(C(x)), x> = E<C(x), x>, so B1(a, zeta b), B2(c, zeta b). A selection with alpha has
      a = c = alpha, b = 1: alpha/zeta in the contractive role, which multiplies by 1/zeta. Unscaled
      it would be (2 - zeta) alpha, never better, so ``alpha`` is None there.
    * C a selection, Q contractive on the kept values: Q(y) - y and y - x are orthogonal, y = C(x), so
      ||Q(y) - x||^2 <= ||x||^2 - alpha_Q ||y||^2 in mean: alpha = alpha_C alpha_Q.
    * Otherwise nothing is known. Source: Beznosikov et al. 2020, On Biased Compression, section 2.
    """

    first: Made = Operator("top_k:k=25%", help="acts on x")
    then: Made = Operator("natural", help="acts on what the first sends")
    made_of = ("first", "then")

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return all(part.selection for part in self.parts)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        first, then = self.parts
        after = stream.fold("then")
        return nest(first.encode(x, stream.fold("first")), lambda y: then.encode(y, after))

    def length(self, d: int) -> int:
        """Return the dimension that ``then`` acts in: k of a sparse message, or d."""
        known: dict[int, int] = self.__dict__.setdefault("_lengths", {})
        if d not in known:
            known[d] = kept(self.part("first").compress(torch.arange(d, dtype=torch.float32)))
        return known[d]

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        half = replace(self, first=self._fitted("first", d, n, layout))
        k = half.length(d)
        return replace(half, then=half._fitted("then", k, n, layout if k == d else None))

    def omega(self, d: int) -> float | None:
        first, then = self.parts
        one, two = first.omega(d), then.omega(self.length(d))
        return None if one is None or two is None else (one + 1) * (two + 1) - 1

    def alpha(self, d: int) -> float | None:
        first, then = self.parts
        k, own = self.length(d), first.alpha(d)
        if own is None or then.omega(k) == 0:  # the second leaves all as it is
            return own
        alone = k < d or own == 1 or then.selection  # the second stays on the kept coordinates
        after = then.alpha(k)
        projects = first.selection or own == 1
        return own * after if projects and alone and after is not None else None

    def b1(self, d: int) -> tuple[float, float] | None:
        first = self.part("first")
        return self._through(d, self._selected(d) or first.b1(d)) or super().b1(d)

    def b2(self, d: int) -> tuple[float, float] | None:
        first = self.part("first")
        return self._through(d, self._selected(d) or first.b2(d)) or super().b2(d)

    def _selected(self, d: int) -> tuple[float, float] | None:
        first = self.part("first")
        alpha = first.alpha(d) if first.selection else None
        return None if alpha is None else (alpha, 1.0)

    def _through(self, d: int, own: tuple[float, float] | None) -> tuple[float, float] | None:
        """Return B1 or B2 of the first operator after an unbiased second one."""
        if self.selection:
            alpha = self.alpha(d)
            return None if alpha is None else (alpha, 1.0)
        omega = self.part("then").omega(self.length(d))
        return None if own is None or omega is None else (own[0], (omega + 1) * own[1])


def _error(op: Compressor, d: int) -> float | None:
    """Return the least e known with E||C(x) - x||^2 <= e ||x||^2."""
    alpha, omega = op.alpha(d), op.omega(d)
    known = [e for e in (None if alpha is None else 1 - alpha, omega) if e is not None]
    return min(known, default=None)


@compressor("two_shot")
class TwoShot(Composed):
    """C_1(x) + C_2(x - C_1(x)), both messages sent: alpha = 1 - (1 - alpha_1)(1 - alpha_2).

    In general 1 - alpha = e_1 (1 - alpha_2), e_1 the error of the first (1 - alpha_1, or omega_1). With
    an unbiased second operator the sum is unbiased: omega = omega_2 e_1. Source: Richtarik et al. 2022
    (3PC), variant 4.
    """

    first: Made = Operator("top_k:k=25%", help="acts on x")
    then: Made = Operator("top_k:k=25%", help="acts on what the first leaves of x")
    made_of = ("first", "then")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        first, then = self.parts
        one = first.encode(x, stream.fold("first"))
        left = one.scaled(-1.0).add_to(x.clone())
        two = then.encode(left, stream.fold("then"))
        return SumMessage(x.shape[-1], x.dtype, [one, two])

    def omega(self, d: int) -> float | None:
        first, then = self.parts
        left, omega = _error(first, d), then.omega(d)
        return None if left is None or omega is None else omega * left

    def alpha(self, d: int) -> float | None:
        first, then = self.parts
        left, after = _error(first, d), then.alpha(d)
        if left is None or after is None:
            return None
        alpha = 1 - left * (1 - after)
        return alpha if alpha > 0 else None


@compressor("induced")
class Induced(TwoShot):
    """C(x) + Q(x - C(x)), C contractive and Q unbiased: unbiased, omega = omega_Q (1 - alpha_C).

    Costs both messages. Raises InputError where ``then`` is biased. Source: Horvath and Richtarik
    2021, A Better Alternative to Error Feedback.
    """

    first: Made = Operator("top_k:k=25%", help="contractive")
    then: Made = Operator("rand_k:k=25%", help="unbiased; acts on what the first leaves of x")

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        fitted = super().fit(d, n, layout)
        assert isinstance(fitted, Induced)
        if fitted.part("then").omega(d) is None:
            raise InputError.of("then", "is biased", "induced needs an unbiased second operator")
        return fitted
