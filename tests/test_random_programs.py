"""Training programs of many kinds: with messages that lose nothing, ``attach`` is plain DistributedDataParallel, or refuses."""

from __future__ import annotations

from dataclasses import asdict

from gloo_kit import run
from random_programs import Program, compare_all


def failures(drawn: list[Program]) -> list[tuple[str, Program]]:
    """Return the programs in which a rank finds something wrong, with what it is."""
    answers = run(2, compare_all, drawn=[asdict(program) for program in drawn])
    return [(a or b, p) for a, b, p in zip(*answers, drawn, strict=True) if a or b]


def base(**more: object) -> Program:
    settings: dict[str, object] = {
        "layers": ("linear", "scalar"),
        "frozen": (False, False),
        "owners": (0, 0),
        "events": (("step", 0), ("accumulate", 0), ("nan", 0), ("save", 0), ("closure", 0)),
        "turns": False,
        "foreign": False,
        "clips": False,
        "adam": True,
        "views": False,
        "cap": 1,
        "size": 1,
    }
    return Program(**{**settings, **more})  # type: ignore[arg-type]


TURNS = (("step", 0), ("step", 1), ("nan", 0), ("step", 1), ("step", 0), ("accumulate", 1))
FREEZES = (("step", 0), ("freeze", 0), ("step", 0), ("thaw", 0), ("step", 0))
FIXED = [
    base(),
    base(foreign=True),
    base(layers=("empty", "linear"), size=200),
    base(layers=("sparse", "linear"), adam=False),
    base(layers=("embedding", "norm")),
    base(layers=("tied", "tied"), views=True),
    base(layers=("unused", "convolution"), cap=1 << 20),
    base(frozen=(True, False), size=1 << 20),
    base(owners=(0, 1), events=TURNS, turns=True),
    base(owners=(0, 1), events=TURNS, turns=True, views=True, size=1 << 20),
    base(events=FREEZES, clips=True),
    base(owners=(1, 1), foreign=True, adam=False, clips=True),
]


def test_programs_train_as_in_plain_data_parallel_training():
    assert failures(FIXED) == []
