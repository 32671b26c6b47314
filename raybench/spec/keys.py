"""The declaration of a key of a sweep file: one per key, at the field that holds its value.

``key(...)`` stands where a dataclass would have ``field(...)``. What reads sweep files, multiplies
axes out, makes ids, lays cases over the base and writes the JSON schema goes through these
declarations, so that a new key is declared once and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from raybench.core.facts import AlgorithmFacts, ProblemFacts, Role
from raybench.spec.kinds import AxisKind, Kind

K = TypeVar("K", bound=Kind, covariant=True)
Told = Callable[[ProblemFacts, AlgorithmFacts], object]


@dataclass(frozen=True)
class Key(Generic[K]):
    """One key of a sweep file.

    kind: how it is written. help: what it means. name: the key in the file, by default the name of the
    field that holds its value. required: it must be given.

    Of keys that make a cell: override: an entry of ``algorithm`` may set it for itself. heard: whether
    it makes a difference to a method on a problem; where it does not its value is None, and ignored says
    what is wrong with giving it. usual: its default, where problem or method decide it. needs: the role
    of the operator that a method cannot do without. in_group: it tells groups of cells apart. in_every_id:
    ids hold it even where it is the default, as they have from the beginning.
    """

    kind: K
    help: str
    name: str = ""
    field: str = ""
    required: bool = False
    override: bool = False
    heard: Callable[[ProblemFacts, AlgorithmFacts], bool] | None = None
    ignored: str = ""
    usual: Told | None = None
    needs: Callable[[AlgorithmFacts], Role | None] | None = None
    in_group: bool = True
    in_every_id: bool = False

    def hears(self, problem: ProblemFacts, method: AlgorithmFacts) -> bool:
        """Tell whether the key makes a difference to a method on a problem."""
        return self.heard is None or self.heard(problem, method)


def key(kind: Kind, help: str, **more: Any) -> Any:
    """Return the declaration of a key as the field of a dataclass; ``more`` as in ``Key``."""
    return field(metadata={"key": Key(kind, help, **more)})


_known: dict[type, dict[str, Key[Any]]] = {}  # by dataclass: found once for each


def keys_of(holder: type) -> Mapping[str, Key[Any]]:
    """Return the keys declared at the fields of a dataclass, by name, in the order of the fields."""
    if holder not in _known:
        named = [(f.name, f.metadata["key"]) for f in fields(holder) if "key" in f.metadata]
        found = [replace(one, field=name, name=one.name or name) for name, one in named]
        _known[holder] = {one.name: one for one in found}
    return _known[holder]


AxisKey = Key[AxisKind]
