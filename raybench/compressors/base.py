"""Operators: stateless maps C: R^d -> messages, with the constants of their class.

U(omega), unbiased: E C(x) = x and E||C(x) - x||^2 <= omega ||x||^2. B(alpha), contractive:
E||C(x) - x||^2 <= (1 - alpha) ||x||^2. An unbiased operator times 1/(omega + 1) is contractive with
alpha = 1/(omega + 1) (Beznosikov et al., On Biased Compression for Distributed Learning).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from raybench.compressors.messages import Message
from raybench.errors import InputError
from raybench.streams import Stream, stream


class Role(StrEnum):
    """What a method needs of its compressor."""

    CONTRACTIVE = "contractive"
    UNBIASED = "unbiased"
    ANY = "any"


Contractive, Unbiased, Any_ = Role.CONTRACTIVE, Role.UNBIASED, Role.ANY


def count_of(k: int | float | str, d: int, where: str = "k") -> int:
    """Return how many of d coordinates k means: an integer, a share ``10%`` or a float in (0, 1).

    A share gives at least one. Raises InputError for k < 1, k > d, or a share outside (0, 100%].
    """
    if isinstance(k, str):
        text = k.strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise InputError.of(
                where, f"{k!r} is no count", "an integer or a share like 10%"
            ) from None
        k = share if text.endswith("%") or not share.is_integer() else int(share)
    if isinstance(k, float) and not (k.is_integer() and k > 1):
        if not 0 < k <= 1:
            raise InputError.of(where, f"{k} is no share", "a share lies in (0, 100%]")
        return max(1, math.ceil(k * d - 1e-9))
    if not 1 <= k <= d:
        what = f"{int(k)} of {d} coordinates"
        raise InputError.of(where, what, f"an integer from 1 to {d}, or a share like 10%")
    return int(k)


class Compressor:
    """Base of all operators. A subclass defines ``encode`` and the constants of its class."""

    deterministic = False

    def encode(self, x: Tensor, stream: Stream) -> Message:
        """Return the message of x (*lead, d); ``stream`` has shape lead."""
        raise NotImplementedError

    def compress(self, x: Tensor, stream: Stream | None = None) -> Message:
        """Return the message of x, shape (*lead, d), with randomness from ``stream``.

        The stream has shape lead, or is a single key from which each row's is derived; without one
        seed 0 is used. Raises TypeError where x is no float32 or float64 tensor, ValueError for d = 0.
        """
        if x.dtype not in (torch.float64, torch.float32):
            raise TypeError(f"x must be float32 or float64, not {x.dtype}")
        if x.ndim == 0 or x.shape[-1] == 0:
            raise ValueError("x needs a last axis of at least one coordinate")
        source = stream if stream is not None else _seed_zero(x.device)
        return self.encode(x, source.spread(tuple(x.shape[:-1])))

    def omega(self, d: int) -> float | None:
        """Return omega of U(omega) in dimension d; None where the operator is biased."""
        return None

    def alpha(self, d: int) -> float | None:
        """Return alpha of B(alpha) in dimension d; None where the operator is not contractive."""
        return None

    def bind(self, d: int, n: int = 1, layout: Any = None, role: Role = Any_) -> Bound:
        """Return the operator fixed for dimension d and n clients, rescaled if its role needs it.

        Raises InputError where the parameters do not fit d, or the operator cannot play the role.
        """
        omega, alpha, factor = self.omega(d), self.alpha(d), 1.0
        if role == Role.CONTRACTIVE and alpha is None and omega is not None:
            factor = 1 / (omega + 1)
            alpha = factor
        if role == Role.UNBIASED and omega is None:
            raise InputError.of("compressor", "is biased; the method needs an unbiased one")
        if role == Role.CONTRACTIVE and alpha is None:
            raise InputError.of("compressor", "has no contraction; the method needs one")
        return Bound(self, d, role, omega if factor == 1.0 else None, alpha, factor)


@dataclass(frozen=True)
class Bound:
    """An operator fixed for a dimension and role; calling it compresses.

    omega: of U(omega), or None once rescaled; alpha: of B(alpha), or None; factor: the rescaling.
    """

    operator: Compressor
    d: int
    role: Role
    omega: float | None
    alpha: float | None
    factor: float = 1.0

    def __call__(self, x: Tensor, source: Stream) -> Message:
        message = self.operator.encode(x, source)
        return message if self.factor == 1.0 else message.scaled(self.factor)

    def dense_share(self, dtype: torch.dtype) -> float:
        """Return modelled bits of a message without its indices over those of a dense one."""
        x = stream(0).normal(self.d).to(dtype)
        cost = self.operator.compress(x).cost
        wide = dtype.itemsize * 8
        return min(1.0, float(cost.values * wide + cost.raw) / (self.d * wide))


def _seed_zero(device: torch.device) -> Stream:
    return stream(0, device)
