"""What every compression operator must hold: its law, its messages, its manners.

``CHECKS`` are functions of a ``Subject`` that raise AssertionError; ``conformance`` runs them all.
An operator without omega and alpha claims nothing about its error; all else is asked of it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raybench.compressors import Compressor
from raybench.core.registry import REQUIRED, Entry
from raybench.testing.checks import Checks, Finding, findings, made
from raybench.testing.law import LAW
from raybench.testing.subject import Subject
from raybench.testing.wire import WIRE

CHECKS = Checks({**LAW, **WIRE})


def conformance(
    make: Callable[[int], Compressor], about: str = "operator", **sizes: Any
) -> list[Finding]:
    """Return the findings of all checks on the operator; ``sizes`` are those of ``Subject``."""
    return findings(CHECKS, Subject(make, **sizes), about)


def examples(entry: Entry, given: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return parameter sets to try a registered operator with, by label: its defaults, then each
    parameter's other choices, words and (integers) lowest value. given: parameters that all sets have."""
    base: dict[str, Any] = {}
    other: list[tuple[str, Any]] = []
    for name, param in entry.params.items():
        if param.kind == "count":
            base[name] = "25%" if param.default is REQUIRED else param.default
            other += [(name, 1), (name, "100%")]
        elif param.default is not REQUIRED:
            base[name] = param.default
        elif param.choices or param.words:
            base[name] = (*param.choices, *param.words)[0]
        else:
            base[name] = param.low if math.isfinite(param.low) and not param.open_low else 1
        if param.kind == "integer" and math.isfinite(param.low):
            other.append((name, int(param.low)))
        other += [(name, value) for value in (*param.choices, *param.words)]
    fixed = given or {}
    base |= fixed
    others = [(name, value) for name, value in other if name not in fixed]
    sets = [base, *({**base, name: value} for name, value in others if base[name] != value)]
    return {label_of(entry.name, params): params for params in sets}


def label_of(name: str, params: dict[str, Any]) -> str:
    """Return ``name:key=value,..``."""
    text = ",".join(f"{k}={v}" for k, v in params.items())
    return f"{name}:{text}" if text else name


def check_entry(
    entry: Entry, given: Mapping[str, Any] | None = None, **sizes: Any
) -> Iterator[Finding]:
    """Yield the findings of all checks on a registered operator, over ``examples``."""
    for label, params in examples(entry, given).items():
        yield from _checked(entry, params, label, sizes)


def _checked(
    entry: Entry, params: Mapping[str, Any], label: str, sizes: Mapping[str, Any]
) -> list[Finding]:
    def make(d: int) -> Compressor:
        return entry.target(**params)

    wrong = made(lambda: Subject(make, **sizes).op, label)
    return wrong or conformance(make, label, **sizes)
