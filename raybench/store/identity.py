"""Which sweep a folder belongs to: another sweep is one whose ``name`` or ``problem`` differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from raybench.core import yaml
from raybench.core.errors import Complaint, InputError, nearest
from raybench.store import accounting
from raybench.store.accounting import Accounting

Meaning: TypeAlias = Callable[[object], Mapping[str, Sequence[object]]]
"""Returns the values that each key of a problem's section stands for."""


def as_written(problem: object) -> dict[str, list[object]]:
    """Return the values of a problem's section as they stand there: a list is an axis."""
    return {
        key: value if isinstance(value, list) else [value]
        for key, value in _section(problem).items()
    }


def decoded(data: bytes, folder: str) -> str:
    """Return the text of a folder's ``sweep.yaml``. Raises InputError unless it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        fix = "restore it from a copy, or give another --out folder"
        raise InputError.of("out", f"{folder}/sweep.yaml is not UTF-8 text", fix) from error


def parse_saved_sweep(text: str, where: str = "sweep.yaml") -> dict[str, Any]:
    """Return a saved sweep as a mapping, read as a sweep file is. Raises InputError if it is none."""
    sweep = yaml.parse(text, where)
    if not isinstance(sweep, Mapping):
        raise InputError.of(where, "holds no sweep", "it should map keys such as name and problem")
    return dict(sweep)


def dump(sweep: Mapping[str, object]) -> str:
    """Return a sweep as YAML text."""
    return yaml.dump(json.loads(json.dumps(sweep)))


def with_accounting(text: str, how: Accounting) -> str:
    """Return a saved sweep's text with this accounting, unchanged where it has it."""
    sweep = parse_saved_sweep(text)
    same = accounting.parse_accounting(sweep.get("accounting")) == how
    return text if same else dump({**sweep, "accounting": how.as_dict()})


def check_same_sweep(
    before: str, now: str | Mapping[str, object], folder: str, meaning: Meaning = as_written
) -> None:
    """Raise InputError if the sweep ``now`` is another one than ``before``, saved in ``folder``.

    Two values of a problem's key agree if they mean the same, or if one, read as an axis, holds all
    values of the other.
    """
    old, new = (
        parse_saved_sweep(before, f"{folder}/sweep.yaml"),
        parse_saved_sweep(now) if isinstance(now, str) else now,
    )
    wrong = []
    if old.get("name") != new.get("name"):
        wrong.append(Complaint("name", f"the folder holds {old.get('name')!r}"))
    wrong += problem_differs(old.get("problem"), new.get("problem"), meaning)
    if wrong:
        fix = "give another --out folder or another name"
        raise InputError([Complaint("out", f"{folder} holds another sweep", fix), *wrong])


def problem_differs(old: object, new: object, meaning: Meaning = as_written) -> list[Complaint]:
    """Return what keeps two problem sections from being one problem with added axis values."""
    wrong = _differences(old, new, as_written)
    return _differences(old, new, meaning) if wrong else []


def _differences(old: object, new: object, meaning: Meaning) -> list[Complaint]:
    before, now = meaning(old), meaning(new)
    wrong = []
    for key in sorted({*before, *now}):
        a, b = (_texts(values.get(key, [None])) for values in (before, now))
        if not (a <= b or b <= a):
            there, here = (_spell(_section(problem), key) for problem in (old, new))
            near = nearest(here, [there]) if isinstance(_section(new).get(key), str) else ""
            fix = (
                near if near.startswith("did") else ""
            )  # a slip of the pen, rather than another sweep
            wrong.append(Complaint(f"problem.{key}", f"{there} there, {here} here", fix))
    return wrong


def _section(problem: object) -> dict[str, object]:
    return dict(problem) if isinstance(problem, Mapping) else {"name": problem}


def _texts(values: Sequence[object]) -> set[str]:
    return {json.dumps(value, sort_keys=True, default=str) for value in values}


def _spell(section: Mapping[str, object], key: str) -> str:
    return json.dumps(section[key]) if key in section else "not set"
