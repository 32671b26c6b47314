"""The target of a problem is fixed when a sweep first ends, and kept."""

from __future__ import annotations

import json
import shutil

import pytest
from cli_kit import SWEEP, cli

from raybench.analysis import closing_table, frames
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.store.log import TARGETS

MORE = ("--set", "rounds=200")


@pytest.fixture
def ended(swept, tmp_path):
    """Return the file and the folder of a sweep that has run."""
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(SWEEP)
    shutil.copytree(swept, out)
    return file, out


def target_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("Target")]


def test_a_target_stays_when_a_sweep_is_extended(ended):
    file, out = ended
    (kept,) = json.loads((out / TARGETS).read_text())["targets"]
    said = target_of(cli("table", out).out)
    assert said == [f"Target: ‖∇f‖² ≤ {kept['value']:g}, fixed on {kept['since'][:10]}"]
    before = closing_table(out).set_index("method")
    assert cli("sweep", file, "--out", out, "--inline", *MORE).code == 0
    now = frames(out).own_targets[""]
    assert now != kept["value"], "the sweep was meant to move it"
    assert set(closing_table(out)["target"]) == {kept["value"]}
    first, second = target_of(cli("table", out).out)
    assert first == said[0]
    assert second == f"Target from what the folder holds now: {now:g} (--target auto)"
    assert [one["value"] for one in json.loads((out / TARGETS).read_text())["targets"]] == [
        kept["value"]
    ]
    assert (
        before.loc["GD", "bits_to_target"]
        == closing_table(out).set_index("method").loc["GD", "bits_to_target"]
    )


@pytest.mark.parametrize("verb", ["table", "report", "plot"])
def test_another_target_is_asked_for_with_every_verb(ended, verb):
    _, out = ended
    for wrong in ("nought", "-1", "0", "inf", "nan")[: 5 if verb == "table" else 1]:
        said = cli(verb, out, "--target", wrong)
        assert said.code == 2
        assert "a number > 0, or auto" in said.err
    assert cli(verb, out, "--target", "0.5").code == 0
    if verb == "report":
        assert (
            "≤ 0.5, as asked for; the target that was fixed is" in (out / "report.html").read_text()
        )


def test_what_was_asked_for_is_said(ended):
    _, out = ended
    (kept,) = json.loads((out / TARGETS).read_text())["targets"]
    said = target_of(cli("table", out, "--target", "0.5").out)
    assert said == [
        f"Target: ‖∇f‖² ≤ 0.5, as asked for; the target that was fixed is {kept['value']:g}"
    ]
    (said,) = target_of(cli("table", out, "--target", "auto").out)
    assert said.endswith(f"≤ {kept['value']:g}, from what the folder holds now")


def test_each_problem_has_its_own_whatever_it_is_called(ended):
    """With a second problem tables call the first by another name; its target stays."""
    file, out = ended
    (kept,) = json.loads((out / TARGETS).read_text())["targets"]
    assert cli("sweep", file, "--out", out, "--inline", "--set", "problem.clients=[4, 6]").code == 0
    told = json.loads((out / TARGETS).read_text())["targets"]
    assert len(told) == 2
    assert kept in told
    found = frames(out)
    assert set(found.cells["facet"]) == set(found.kept) == {"4 clients", "6 clients"}
    assert found.kept["4 clients"].value == kept["value"]


def test_a_sweep_that_is_not_whole_fixes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    (tmp_path / "own.py").write_text(
        "from raybench.plugins import algorithm, Estimator\n"
        '@algorithm(\'breaks\')\nclass Breaks(Estimator):\n    """Breaks."""\n\n'
        "    def setup(a, wire, s, c):\n        raise RuntimeError('as it does')\n\n"
        "    def estimate(a, wire, s, c, grad):\n        return s.x\n"
    )
    (tmp_path / "a.yaml").write_text(
        "name: a\nproblem: {name: quadratic, dim: 4, clients: 2}\nalgorithm: [gd, breaks, diana]\nrounds: 60\n"
        f"compressor: {{name: rand_k, k: 1}}\nstep_size: 0.1\nplugins: {tmp_path}/own.py\n"
    )
    said = cli("sweep", tmp_path / "a.yaml", "--out", tmp_path / "out", "--inline", "--fail-fast")
    assert said.code == 1
    assert not (tmp_path / "out" / TARGETS).exists()
    assert cli("sweep", tmp_path / "a.yaml", "--out", tmp_path / "out", "--inline").code == 1
    assert (tmp_path / "out" / TARGETS).exists(), "failed cells have ended, too"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"targets": [{"problem": 1}]}',
        '{"targets": 3}',
        '{"targets": [{"problem": "a", "metric": "loss", "value": NaN, "since": "x"}]}',
    ],
)
def test_a_damaged_file_is_told(ended, text):
    _, out = ended
    (out / TARGETS).write_text(text)
    with pytest.raises(InputError, match=r"target\.json"):
        frames(out)
