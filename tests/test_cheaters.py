"""``raybench check`` finds plug-ins that use more than they book: one file of ``cheaters`` for each way to do so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import ClassVar

import pytest
from cli_kit import cli, own_plugins, ran

from raybench.compressors import Compressor
from raybench.core import registry
from raybench.testing.trial import TrialMethod, finished
from raybench.wire import DenseMessage

pytestmark = pytest.mark.thorough

CHEATERS = Path(__file__).parent / "cheaters"
EXAMPLES = Path(__file__).parents[1] / "examples"
FOUND = {
    "unseen_broadcast": "clients use what was sent",
    "unbooked_mean": "calls what methods may call",
    "remembered_values": "holds no more than its bytes",
    "too_good_alpha": "contraction at least alpha",
    "too_small_omega": "second moment within omega",
    "taken_back": "can be made",
    "written_gradient": "gradients are left alone",
    "wrong_alpha": "worst case within the theorem",
    "unshared_memory": "worst case within the theorem",
}
OTHERS_TOO = ("too_small_omega",)  # which other checks find as well


@pytest.fixture(autouse=True)
def _forgotten():
    with own_plugins():
        yield


def test_every_cheater_is_here():
    assert {path.stem for path in CHEATERS.glob("*.py")} == {*FOUND}


@pytest.mark.parametrize("name", FOUND)
def test_a_cheater_is_found(name):
    said = cli("check", CHEATERS / f"{name}.py")
    assert said.code == 1
    failed = re.findall(r"^  FAIL  .*?: ([a-z ]+): \S", said.out, re.M)
    kinds = re.findall(r"^[a-z]+ \w+$", said.out, re.M)
    assert failed.count(FOUND[name]) == len(kinds)  # of every plug-in of the file, once
    if name not in OTHERS_TOO:  # nothing else would have told
        assert set(failed) == {FOUND[name]}


def test_only_what_fails_or_every_check_is_said(tmp_path):
    file = plain(tmp_path, "mine")
    said = cli("check", file)
    assert said.out == "compressor mine\n  ok    mine: 24 checks\n24 checks passed\n"
    every = cli("check", file, "--verbose").out.splitlines()
    assert len(every) == 2 + 24
    assert all(line.startswith("  ok    mine: ") for line in every[1:-1])
    failed = cli("check", CHEATERS / "taken_back.py")
    lines = [line for line in failed.out.splitlines() if "FAIL" in line]
    assert (failed.code, len(lines)) == (1, 2)  # what, and of the others too


def test_what_is_not_claimed_is_not_said_to_hold(tmp_path):
    file = plain(tmp_path, "mine")
    text = file.read_text()
    file.write_text(text[: text.index("    def omega")])
    said = ran("check", file, "--verbose")
    unclaimed = ("unbiased", "second moment within omega")
    unclaimed += ("contraction at least alpha", "biased classes hold")
    for check in unclaimed:
        assert f"  -     mine: {check}: not claimed\n" in said.out
    assert said.out.endswith("\n20 checks passed, 4 of nothing that is claimed\n")
    assert f"mine: 20 checks; not claimed: {', '.join(unclaimed)}\n" in cli("check", file).out


def test_parameters_and_problem_of_a_check():
    file = EXAMPLES / "rand_block.py"
    said = cli("check", file, "--set", "k=7")
    assert said.out.splitlines()[1:] == ["  ok    rand_block:k=7: 24 checks", "24 checks passed"]
    for words, says in {
        ("--set", "kk=7"): "--set kk: no plug-in of the file has it\n    did you mean k?",
        ("--set", "k=0"): "--set.k: 0 is out of range",
        ("--problem", "quadratic"): "--problem: only methods and metrics are tried on one",
    }.items():
        wrong = cli("check", file, *words)
        assert (wrong.code, wrong.complaints) == (2, 1)
        assert says in wrong.err
    method = EXAMPLES / "heavy_ball.py"
    small = "quadratic:dim=4,clients=2"
    said = ran("check", method, "--set", "momentum=0.5", "--problem", small)
    assert said.out.count("momentum=0.5") == 3
    alone = cli("check", EXAMPLES / "largest.py", "--problem", "quadratic:dim=40")
    assert (alone.code, alone.err) == (0, "")


PLAIN = """
from raybench.plugins import Compressor, Dense, {decorator}


@{decorator}("{name}")
class Mine(Compressor):
    deterministic = True

    def encode(self, x, stream):
        return Dense(x)

    def omega(self, d):
        return 0.0

    def alpha(self, d):
        return 1.0
"""
SWEEP = {
    "name": "small",
    "problem": {"name": "quadratic", "dim": 12, "clients": 4},
    "algorithm": "ef21",
    "compressor": {"name": "natural"},
    "rounds": 5,
}


def plain(folder: Path, name: str) -> Path:
    """Return a plug-in file with a compressor that sends x as it is."""
    text = PLAIN.format(name=name, decorator="compressor")
    (folder / "p.py").write_text(text)
    return folder / "p.py"


@pytest.mark.parametrize("verb", ["check", "sweep"])
def test_the_name_of_a_built_in_one_is_refused(tmp_path, verb):
    file = plain(tmp_path, "natural")
    (tmp_path / "s.yaml").write_text(json.dumps(SWEEP))
    args = [file] if verb == "check" else [tmp_path / "s.yaml", "--plugin", file, "--inline"]
    said = cli(verb, *args, *(["--out", tmp_path / "out"] if verb == "sweep" else []))
    assert said.code == 2
    assert said.complaints == 1
    assert "raybench has a compressor of this name" in said.err
    assert "give it another name" in said.err
    assert not (tmp_path / "out").exists()
    assert registry.lookup("compressor", "natural").ours


BARE = {
    "in the decorator": '@compressor("mine", k=5)\nclass Mine(Compressor):\n    pass\n',
    "in the class": '@compressor("mine")\nclass Mine(Compressor):\n    k: int = 5\n',
    "beside a declared one": '@compressor("mine")\nclass Mine(Compressor):\n    s: int = Integer(1)\n    k: int = 5\n',
    "in the signature": '@problem("mine")\ndef mine(s: int = Integer(1), k: int = 5):\n    pass\n',
}


@pytest.mark.parametrize("way", BARE)
def test_a_bare_number_is_one_complaint(tmp_path, way):
    head = "from raybench.plugins import Compressor, Integer, compressor, problem\n\n\n"
    (tmp_path / "p.py").write_text(head + BARE[way])
    said = cli("check", tmp_path / "p.py")
    assert said.code == 2
    assert said.complaints == 1
    assert "parameter k is a bare 5\n    declare it" in said.err
    assert "k = Integer(5)" in said.err
    assert "mine" not in {*registry.names("compressor"), *registry.names("problem")}


def test_numbers_that_are_no_parameters_may_stand_in_a_class():
    @registry.compressor("mine")
    class Mine(Compressor):
        LEVELS: ClassVar[int] = 256
        width = 8
        _kept: int = 3

    assert registry.lookup("compressor", "mine").params == {}


def test_what_cannot_be_made_is_said_once_and_counted_for_each_set_of_parameters(tmp_path):
    head = "from raybench.plugins import Compressor, Count, compressor\n\n\n"
    (tmp_path / "p.py").write_text(
        head + '@compressor("mine", k=Count())\nclass Mine(Compressor):\n    pass\n'
    )
    said = cli("check", tmp_path / "p.py")
    assert said.code == 1
    assert said.out.count("can be made: TypeError") == 1  # and that the others fail, too
    assert said.out.count("FAIL") == 3


def test_a_message_may_not_take_the_place_of_one_of_ours():
    with pytest.raises(TypeError, match="kind 'dense' is raybench's: give Mine one of its own"):
        type("Mine", (DenseMessage,), {})


def test_demo_books_what_all_have_sent():
    """Everyone has everyone's message: n times as many bits down as each sends up."""
    run = finished(TrialMethod("demo", {}, {"name": "top_k", "k": 3}, step=0.01).batch())
    assert run.bits("up")[0] > 0
    assert run.bits("down")[0] == pytest.approx(run.net.n * run.bits("up")[0])
