"""Sweep files, and saved sweeps, from anybody: a few lines of error, at once, and exit code 2."""

import time

import pytest

from raybench.cli import main
from raybench.core import yaml
from raybench.core.errors import Complaint, InputError
from raybench.store import identity

pytestmark = pytest.mark.thorough

PATIENCE = 2.0  # seconds, after what must be imported
HEAD = "problem: quadratic\nalgorithm: gd\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{j}: &a{j} [{', '.join([f'*a{j - 1}'] * 9)}]\n" for j in range(1, 12)
)
DOCUMENTS = {
    "aliases": (BOMB, "too large or refers to itself"),
    "an alias within itself": ("a: &a [*a]\n", "too large or refers to itself"),
    "deep lists": ("[" * 5000 + "]" * 5000, "nested too deeply"),
    "deep lists, never closed": ("[" * 100_000, "nested too deeply"),
    "deep mappings": ("{a: " * 3000 + "}" * 3000, "nested too deeply"),
    "deep blocks": ("".join(" " * j + "a:\n" for j in range(1500)), "nested too deeply"),
    "a long text": ("a: " + "x" * 5_000_000, "letters"),
    "a long integer": ("a: " + "9" * 100_000, "not valid YAML"),
    "a tag that runs code": ('a: !!python/object/apply:os.system ["true"]', "not valid YAML"),
}


@pytest.mark.parametrize("what", DOCUMENTS)
@pytest.mark.parametrize("read", [yaml.parse, identity.parse], ids=["sweep", "saved"])
def test_documents(what, read):
    text, said = DOCUMENTS[what]
    begin = time.monotonic()
    with pytest.raises(InputError, match=said) as error:
        read(text, "sweep.yaml")
    assert time.monotonic() - begin < PATIENCE
    assert str(error.value).count("\n") < 4
    assert len(str(error.value)) < 1000


def test_a_saved_sweep_is_read_as_a_sweep_file_is():
    text = "name: no\nproblem: {a: 1_000, b: 0o17, c: 2^0..2^3}\n"
    assert (
        identity.parse(text)
        == yaml.parse(text)
        == {
            "name": "no",
            "problem": {"a": "1_000", "b": 15, "c": "2^0..2^3"},
        }
    )
    assert identity.parse(identity.dump(identity.parse(text))) == identity.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "rounds: 1e18\n", "rounds: 1000000000000000000 is out of range"),
        (HEAD + "rounds: 1e400\n", "rounds: "),
        (HEAD + "rounds: " + "9" * 5000 + "\n", "not valid YAML"),
        (HEAD + "seed: 0..1000000000000\n", "more than 100,000 values"),
        (HEAD + "step_size: 2^0..2^1000000\n", "step_size: "),
        (HEAD + "seed: 0..9999\nstep_size: 2^-500..2^500\n", "cells"),
        ("algorithm: gd\nproblem: " + "x" * 1_000_000 + "\n", "problem: unknown problem 'xxx"),
        (HEAD + "".join(f"k{j}: 1\n" for j in range(3000)), "complaints more"),
        (HEAD + BOMB, "too large or refers to itself"),
        (b"problem: \xff\xfe\n", "not a text file"),
        (b"\x00" * 1000, "error: "),
    ],
    ids=lambda x: str(x)[:40] if isinstance(x, bytes) else str(x)[-40:],
)
def test_the_command_line(tmp_path, capsys, text, said):
    file = tmp_path / "sweep.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    identity.parse("a: 1")
    begin = time.monotonic()
    with pytest.raises(SystemExit) as left:
        main(["plan", str(file)])
    took, shown = time.monotonic() - begin, capsys.readouterr().err
    assert left.value.code == 2
    assert said in shown
    assert shown.count("\n") < 50
    assert len(shown) < 20_000
    assert took < 10 * PATIENCE  # the first of them imports what a plan needs


def test_very_many_complaints_are_counted():
    error = InputError([Complaint("k" * 10_000, "w" * 10_000, "f" * 10_000)] * 1000)
    assert len(error.shown()) == 21
    assert error.shown()[-1] == "and 980 complaints more"
    assert len(str(error)) < 40_000
    assert len(error.complaints) == 1000
