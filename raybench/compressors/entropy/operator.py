"""Entropy coding: the symbols of a quantiser in fewer bits, nothing else changed."""

from __future__ import annotations

from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.compose import Composed, Made
from raybench.compressors.entropy.message import coded, library
from raybench.core.errors import InputError
from raybench.core.registry import Operator, compressor
from raybench.core.streams import Stream
from raybench.wire import Message


@compressor("entropy_coded")
class EntropyCoded(Composed):
    """C(x) of another operator, its symbols entropy-coded by a range coder: same values, fewer bits.

    Each row has a static model: the frequencies of its symbols, rounded to 8 or 16 bits, are sent in
    front and counted; then about d H bits, H the entropy of the row's symbols (x of shape (*lead, d)).
    A row that would be longer is sent as it was, with a byte that says so. The size depends on the
    data; it is that of the bytes, coded when first asked for. Class and constants are those of ``of``.
    Needs the package constriction (``pip install raybench[entropy]``). Raises InputError without it,
    or where ``of`` sends no symbols. Source: Martin 1979 (range coding); Bamler 2022 (constriction).
    """

    of: Made = Operator("dithering", help="a quantiser: it sends levels, exponents or other codes")
    made_of = ("of",)

    def __post_init__(self) -> None:
        library()
        super().__post_init__()

    @property
    def _own(self) -> Compressor:
        return self.part("of")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        message = self._own.encode(x, stream)
        leaves = message.leaves()
        found = [coded(leaf) for leaf in leaves]
        if not any(found):
            fix = "such as dithering, natural, int8 or nf4"
            raise InputError.of("entropy_coded.of", "sends no symbols to code", fix)
        return message.rebuild(
            iter([leaf if new is None else new for leaf, new in zip(leaves, found, strict=True)])
        )

    def omega(self, d: int) -> float | None:
        return self._own.omega(d)

    def alpha(self, d: int) -> float | None:
        return self._own.alpha(d)

    def b1(self, d: int) -> tuple[float, float] | None:
        return self._own.b1(d)

    def b2(self, d: int) -> tuple[float, float] | None:
        return self._own.b2(d)
