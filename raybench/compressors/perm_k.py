"""PermK: the clients share one permutation, and each sends its own block of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.sparsification import kept
from raybench.core.errors import InputError
from raybench.core.registry import Integer, compressor
from raybench.core.streams import Stream
from raybench.wire import Message
from raybench.wire.perm import PermMessage, block_of, clients_of

AUTO = "auto"


@compressor(
    "perm_k",
    clients=Integer(AUTO, low=1, words=(AUTO,), help="clients n that share a permutation"),
)
@dataclass(frozen=True)
class PermK(Compressor):
    """C_i(x) = n x_(block i of a shared random permutation): unbiased, omega = n - 1, exactly.

    d >= n: blocks of d/n coordinates; where n does not divide d some are one longer, and a random
    turn decides whose. n > d: d must divide n; client i sends d x_j e_j, j drawn without replacement
    from a list of every coordinate n/d times: omega = d - 1. The clients' errors cancel (``ab``):
    none is left where all send the same vector. The support comes from the shared seed, so d/n
    values travel and no indices.

    clients auto: those of the problem; where the operator was not fitted to one, the size of the
    last leading axis of x (1 for a vector), and no class is claimed. A client with an id i >= n has
    the block of i mod n. Raises InputError where n > d and d does not divide n.
    Source: Szlendak, Tyurin, Richtarik 2021, Permutation Compressors.
    """

    clients: int | str = AUTO

    def __post_init__(self) -> None:
        n = self.clients
        if n != AUTO and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InputError.of("clients", f"{n!r} is no number of clients", "an integer, or auto")

    def fit(self, d: int, n: int, layout: Any = None) -> PermK:
        own = replace(self, clients=n) if self.clients == AUTO else self
        _size(d, own.clients)
        return own

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        auto = x.shape[-2] if x.ndim > 1 else 1
        n = _size(d, auto if self.clients == AUTO else self.clients)
        places = block_of(stream.shared(), clients_of(stream), d, n)
        scale = float(min(n, d))
        return PermMessage(d, x.dtype, kept(x, *places), stream, n, scale=scale, held=places)

    @property
    def correlated(self) -> bool:
        return self.clients != 1

    def omega(self, d: int) -> float | None:
        return None if self.clients == AUTO else float(min(_size(d, self.clients), d) - 1)

    def alpha(self, d: int) -> float | None:
        return 1.0 if self.omega(d) == 0 else None

    def ab(self, d: int, n: int | None = None) -> tuple[float, float]:
        """Return (A, B) of E||mean C_i(a_i) - mean a_i||^2 <= A mean||a_i||^2 - B ||mean a_i||^2.

        With equality. A = B = 1 for d >= n > 1, (d - 1)/(n - 1) for n > d, 0 for n = 1; independent
        operators have (omega/n, 0). n None: the fitted clients. MARINA's step becomes
        1/(L + sqrt((1 - p)/p ((A - B) L_+^2 + B L_pm^2))), L_pm^2 the Hessian variance: with A = B
        the clients' likeness is all that counts, and identical clients allow that of gradient
        descent. Raises InputError where n is not known, or does not fit d.
        """
        n = _size(d, self.clients if n is None else n)
        both = 0.0 if n == 1 else min(1.0, (d - 1) / (n - 1))
        return both, both


def _size(d: int, n: int | str) -> int:
    """Return n, if that many clients can share d coordinates."""
    if not isinstance(n, int):
        raise InputError.of("clients", "is auto: the number of clients is not known", "give it")
    if n > d and n % d:
        what = f"{n} clients for {d} coordinates"
        raise InputError.of("clients", what, f"at most {d}, or a multiple of {d}")
    return n
