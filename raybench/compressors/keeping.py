"""The number of coordinates an operator keeps, wherever among its parts that is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.compose import Composed
from raybench.core.errors import InputError

PAPER = ("25%", "6.25%", "1.5625%", "0.4%")  # shares of the first four epochs; 0.1% afterwards
EPOCHS = 5  # of the geometric warm-up


def kept_by(op: Compressor) -> int | float | str | None:
    """Return the ``k`` of an operator or of the first of its parts that has one; None without any."""
    if hasattr(op, "k"):
        return op.k
    parts = op.parts if isinstance(op, Composed) else []
    return next((k for k in map(kept_by, parts) if k is not None), None)


def keeping(op: Compressor, k: int | float | str) -> Compressor:
    """Return the operator, not yet bound, with this ``k`` in place of every one that it has.

    Raises InputError where there is none, or k is no count.
    """
    if kept_by(op) is None:
        fix = "one that keeps k coordinates, such as top_k, dgc, or per_tensor of them"
        raise InputError.of("compressor", "keeps no number of coordinates", fix)
    return _kept(op, k)


def _kept(op: Compressor, k: int | float | str) -> Compressor:
    if hasattr(op, "k"):
        return replace(op, k=k)  # type: ignore[type-var]
    if kept_by(op) is None:
        return op
    assert isinstance(op, Composed)
    return replace(op, **{name: _kept(op.part(name), k) for name in op.made_of})  # type: ignore[type-var]


def shares(warmup: str | Sequence[float | str], op: Compressor, d: int) -> list[float | str]:
    """Return the shares kept in the stages of a warm-up, before the ``k`` of the operator itself.

    warmup: ``off``, ``paper``, ``geometric`` ((k/d)^(j/6), j = 1..5) or the shares. Raises InputError
    where one is no share of d, or the operator has no ``k``. What keeps all of d is given as ``100%``.
    """
    if warmup == "off":
        return []
    keeping(op, 1)  # raises where it has none
    if warmup == "geometric":
        base = count_of(cast(str, kept_by(op)), d) / d
        return [f"{100 * base ** (j / (EPOCHS + 1)):.6g}%" for j in range(1, EPOCHS + 1)]
    out: list[float | str] = []
    for j, share in enumerate(PAPER if warmup == "paper" else warmup):
        whole = count_of(share, d, f"algorithm.warmup[{j}]") == d
        out.append("100%" if whole else share)
    return out
