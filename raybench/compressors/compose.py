"""What operators made of operators rest on: building one from its short form, and its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

from raybench.compressors.base import Compressor
from raybench.core import registry
from raybench.core.errors import Complaint, InputError
from raybench.core.layout import Layout

Made = str | Compressor


def build(of: Made, where: str = "compressor") -> Compressor:
    """Return the operator of a short form such as ``top_k:k=1%``; an operator is returned as it is.

    where: what complaints call it. Raises InputError for a wrong name or parameter.
    """
    return of if isinstance(of, Compressor) else _built(of, where, registry.state())


@lru_cache(maxsize=1024)
def _built(text: str, where: str, state: tuple[int, int]) -> Compressor:
    # what reads sweep files is loaded when there is something to read
    from raybench.spec import short

    section = short.section("compressor", text, where=where)
    return registry.lookup("compressor", section.name).target(**section.params)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put the name of a parameter before the key path of every complaint."""
    try:
        yield
    except InputError as error:
        found = [Complaint(f"{name}.{c.where}", c.what, c.fix) for c in error.complaints]
        raise InputError(found) from error


class Composed(Compressor):
    """What operators made of others share; ``made_of`` names the fields that hold them.

    Deterministic where all of them are, correlated where one is, 0 at 0 where all are.
    """

    made_of: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.made_of:
            self.part(name)

    def part(self, name: str) -> Compressor:
        """Return the operator that a field holds."""
        return build(getattr(self, name), name)

    @property
    def parts(self) -> list[Compressor]:
        """The operators it is made of."""
        return [self.part(name) for name in self.made_of]

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return all(op.deterministic for op in self.parts)

    @property
    def zero_to_zero(self) -> bool:  # type: ignore[override]
        return all(op.zero_to_zero for op in self.parts)

    @property
    def correlated(self) -> bool:
        return any(op.correlated for op in self.parts)

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        return replace(self, **{name: self._fitted(name, d, n, layout) for name in self.made_of})  # type: ignore[type-var]

    def _fitted(self, name: str, d: int, n: int, layout: Layout | None) -> Compressor:
        with named(name):
            op = self.part(name).fit(d, n, layout)
            op.omega(d), op.alpha(d)  # where parameters do not fit d, name their path
            return op
