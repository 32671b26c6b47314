"""The script of mutation testing: its faults apply to today's sources and are faults. None is run here."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import mutations
import pytest
from mutants_listed import EQUIVALENT, KNOWN, LOOPS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("one", [*KNOWN, *LOOPS], ids=lambda one: one.name)
def test_the_permanent_list_applies(one):
    source = (ROOT / one.path).read_text()
    assert source.count(one.old) == 1
    text = mutants.known(one.name)[0].text
    assert text != source
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))


@pytest.fixture(scope="module")
def every():
    """All faults of all targets."""
    return {name: list(mutants.of_target(name)) for name in mutants.TARGETS}


def test_every_target_has_faults_and_tests(every):
    for name, target in mutants.TARGETS.items():
        assert len(every[name]) > 50
        assert len({m.what for m in every[name]}) > 50
        assert all((ROOT / "tests" / f"test_{test}.py").exists() for test in target.tests)
    for one in mutants.known():
        assert all((ROOT / "tests" / f"test_{test}.py").exists() for test in one.tests)


def test_a_fault_is_another_program():
    for mutant in mutants.drawn(mutants.TARGETS, 40, seed=1):
        source = (ROOT / mutant.path).read_text()
        assert ast.dump(ast.parse(mutant.text)) != ast.dump(ast.parse(source)), mutant.what


def test_samples_follow_from_the_seed():
    def sample(seed):
        return [m.what for m in mutants.drawn(["theory", "ledger"], 21, seed)]

    assert sample(0) == sample(0) != sample(1)
    assert len(set(sample(0))) == 21
    assert sum(what.startswith("raybench/theory") for what in sample(0)) == 11


SMALL = '''
"""A docstring with 2 + 2."""
from math import sqrt
__all__ = ["L"]
Alias = int | None


@decorated(eta=0.9)
def f(a: int | None, b: int = 2) -> float:
    """1 + 1."""
    assert a > 0
    if a < b and not b:
        raise ValueError("low" + "high")
    g(a, b)
    raise NotImplementedError
    self.x += a
    return sqrt(a / 0.5), k.need("L"), f"{a + 1}", where(c, a + 1, b), x[-1:]
'''


def test_which_faults_there_are():
    found = [(" ".join(c.old.split()), c.new) for c in mutations.changes(SMALL, "small.py")]
    assert found == [
        ("2", "3"),
        ("a < b", "(a <= b)"),
        ("a < b and not b", "(not (a < b and not b))"),
        ("a < b and not b", "(a < b or not b)"),
        ("not b", "(b)"),
        ('raise ValueError("low" + "high")', "pass"),
        ("g(a, b)", "(g(b, a))"),
        ("g(a, b)", "pass"),
        ("self.x += a", "pass"),
        ("self.x += a", "self.x -= a"),
        ("sqrt(a / 0.5)", "(a / 0.5)"),
        ("a / 0.5", "(a * 0.5)"),
        ("0.5", "0.75"),
        ('"L"', '"L_tilde"'),
        ("where(c, a + 1, b)", "(where(c, b, a + 1))"),
        ("a + 1", "(a - 1)"),
        ("1", "2"),
        ("-1", "(1)"),
        ("1", "2"),
    ]


def test_places_are_counted_in_bytes():
    source = "x = 'µ', 1  # µ\ny = 'µ' and 2.0\n"
    texts = [change.applied(source) for change in mutations.changes(source, "small.py")]
    assert "x = 'µ', 2  # µ\ny = 'µ' and 2.0\n" in texts
    assert "x = 'µ', 1  # µ\ny = 'µ' and 3.0\n" in texts


@pytest.mark.parametrize("one", EQUIVALENT, ids=lambda one: f"{one.path} {one.within}"[:60])
def test_what_is_listed_as_equivalent_is_still_there(one):
    path = f"raybench/{one.path}"
    found = mutations.changes((ROOT / path).read_text(), path)
    assert any(one.is_of(change) for change in found)
    assert one.why
