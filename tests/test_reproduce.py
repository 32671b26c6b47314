"""Reproductions: claims files are checked, measures are what they say, verdicts follow, the verb tells them."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_kit import cli

import raybench
from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.reproduce import catalogue, find, judge, page, read, words
from raybench.reproduce.evidence import Evidence, keep, kept, of_folder
from raybench.reproduce.judge import FAIL, NOT_RUN, PASS

DOCS = Path(__file__).parent.parent / "docs"
SWEEP = """\
name: tiny
problem: {name: quadratic, dim: [20, 40], clients: 3}
algorithm: [gd, {name: ef21, compressor: {name: top_k, k: [2, 10]}}]
step_size: {theory: [1, 8, 16]}
seed: [0, 1]
rounds: 200
x0: {normal: 1.0}
"""
CLAIMS = """\
title: Tiny
source: "Nobody 2000, section 1"
claims:
  - name: fewer_bits
    says: EF21 sends less than gradient descent.
    published: less
    each: [problem.dim, k]
    left: {where: {algorithm: ef21}, measure: {cost: bits_up, target: 1.0e-1}}
    is: below
    right: {where: {algorithm: gd}, measure: {cost: bits_up, target: 1.0e-1}, each: [problem.dim]}
figures:
  - {caption: A figure., x: bits_up, y: grad_norm_sq, methods: [gd, ef21], where: {problem.dim: 20}}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A claims file with its sweep, and the results of it."""
    place = tmp_path_factory.mktemp("claims")
    (place / "tiny.yaml").write_text(SWEEP)
    (place / "tiny.claims.yaml").write_text(CLAIMS)
    raybench.sweep(place / "tiny.yaml", place / "out" / "tiny", inline=True)
    return place


def with_claim(place: Path, **change: object):
    """Return the reproduction with its claim changed; None takes a key away."""
    stated = yaml.parse(CLAIMS)
    stated["claims"][0].update(change)
    stated["claims"][0] = {k: v for k, v in stated["claims"][0].items() if v is not None}
    file = place / "changed.claims.yaml"
    file.write_text(yaml.dump(stated | {"sweep": "tiny.yaml"}))
    return read(file)


def measured(ran, measure: dict, where: dict, **more: object) -> float:
    """Return the one number that a measure gives of some cells."""
    side = {"where": where, "measure": measure}
    what = with_claim(ran, left=side, right=0, each=None, **more)
    ((one,),) = (verdict.compared for verdict in judge(what, of_folder(ran / "out" / "tiny")))
    return one.left


def test_measures_are_what_they_say(ran):
    frame = raybench.load(ran / "out" / "tiny", params=True)
    part = frame[(frame["algorithm"] == "ef21") & (frame["k"] == 2) & (frame["problem.dim"] == 20)]
    where = {"algorithm": "ef21", "k": 2, "problem.dim": 20}
    runs = {key: rows.sort_values("round") for key, rows in part.groupby(["step_multiple", "seed"])}
    assert len(runs) == 6

    def best(number, of=min):
        return of(np.median([number(runs[step, seed]) for seed in (0, 1)]) for step in (1, 8, 16))

    def cost(rows):
        there = rows[rows["grad_norm_sq"] <= 1e-1]
        return there["bits_up"].iloc[0] if len(there) else math.inf

    def slope(rows):
        return np.polyfit(rows["round"], np.log10(rows["grad_norm_sq"]), 1)[0]

    budget = 3000
    for measure, expected in (
        ({"cost": "bits_up", "target": 1e-1}, best(cost)),
        ({"value": "loss", "at": "end"}, best(lambda r: r["loss"].iloc[-1])),
        ({"value": "loss", "best": "highest"}, best(lambda r: r["loss"].iloc[-1], max)),
        (
            {"value": "loss", "at": {"bits_up": budget}},
            best(lambda r: r.loc[r["bits_up"] <= budget, "loss"].iloc[-1]),
        ),
        ({"lowest": "grad_norm_sq"}, best(lambda r: r["grad_norm_sq"].min())),
        ({"highest": "grad_norm_sq"}, best(lambda r: r["grad_norm_sq"].max(), max)),
        ({"rate": "grad_norm_sq"}, best(slope)),
        ({"ended": "ok"}, 1.0),
    ):
        assert measured(ran, measure, where) == pytest.approx(expected, rel=1e-12), measure
    assert measured(ran, {"cost": "bits_up", "target": 1e-300}, where) == math.inf
    common = {"value": "bits_up", "at": {"bits_up": "common"}}
    least = min(rows["bits_up"].max() for rows in runs.values())
    assert measured(ran, common, where) <= least


def test_a_verdict_follows_from_what_is_needed_and_what_is_missing(ran):
    found = of_folder(ran / "out" / "tiny")
    (verdict,) = judge(read(ran / "tiny.claims.yaml"), found)
    assert [one.of for one in verdict.compared] == [
        {"problem.dim": dim, "k": k} for dim in (20, 40) for k in (2, 10)
    ]
    assert (verdict.word, verdict.holding, verdict.needed) == (PASS, 4, 4)
    (verdict,) = judge(with_claim(ran, factor=1e-9), found)
    assert (verdict.word, verdict.holding) == (FAIL, 0)
    (verdict,) = judge(with_claim(ran, factor=1e-9, needed=0), found)
    assert verdict.word == PASS
    (verdict,) = judge(with_claim(ran, **{"is": "above"}), found)
    assert verdict.word == FAIL
    less = Evidence(found.cells[found.cells["algorithm"] != "gd"], found.curves, "less")
    (verdict,) = judge(read(ran / "tiny.claims.yaml"), less)
    assert {one.holds for one in verdict.compared} == {None}
    assert verdict.word == NOT_RUN
    assert [v.word for v in judge(read(ran / "tiny.claims.yaml"), None)] == [NOT_RUN]
    one = {"where": {"algorithm": "gd", "problem.dim": 20}, "measure": {"value": "round"}}
    for right, tolerance, word in ((200, 0, PASS), (205, 0.05, PASS), (230, 0.05, FAIL)):
        what = with_claim(
            ran, left=one, right=right, tolerance=tolerance, each=None, **{"is": "within"}
        )
        (verdict,) = judge(what, found)
        assert verdict.word == word


def test_a_target_that_is_never_reached_is_near_to_nothing(ran):
    cost = {"cost": "bits_up", "target": 1e-300}
    sides = {"where": {"algorithm": "gd"}, "measure": cost}
    for right in (sides, 1e5):
        what = with_claim(ran, left=sides, right=right, each=None, **{"is": "within"})
        (verdict,) = judge(what, of_folder(ran / "out" / "tiny"))
        assert verdict.word == FAIL
    finite = {"where": {"algorithm": "gd"}, "measure": {"value": "loss"}}
    what = with_claim(ran, left=finite, right=sides, each=None, **{"is": "within"})
    assert judge(what, of_folder(ran / "out" / "tiny"))[0].word == FAIL


def test_splits_tell_cells_apart_in_kept_curves_without_ids(ran, tmp_path):
    rows = [
        {"label": "gd", "problem": "network", "dataset": "mnist", "split": split, "algorithm": "gd",
         "compressor": "identity", "k": math.nan, "step_size": 1.0, "seed": 0, "round": t,
         "bits_up": 32.0 * t, "grad_norm_sq": end / (t + 1), "loss": end, "status": "ok"}
        for split, end in (("sorted", 1.0), ("shuffled", 2.0))
        for t in range(3)
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(ran / "old.parquet")
    side = {"where": {"algorithm": "gd"}, "measure": {"value": "loss"}}
    what = with_claim(ran, left=side, right=0, each=["split"])
    what = replace(what, evidence=ran / "old.parquet")
    (verdict,) = judge(what, kept(what, tmp_path))
    assert {one.of["split"]: one.left for one in verdict.compared} == {"sorted": 1, "shuffled": 2}


SIX = [1.0, 2, 3, 4, 5, 6]


def seeds_of(**ends: list[float]) -> Evidence:
    """Results of methods whose seeds end with these losses."""
    rows = [
        {"cell": f"{name}{seed}", "algorithm": name, "seed": seed, "round": 1, "loss": loss}
        for name, losses in ends.items()
        for seed, loss in enumerate(losses)
    ]
    cells = pd.DataFrame(rows).assign(status="ok", facet="", step=1.0)
    return Evidence(cells.assign(series=cells["algorithm"]), pd.DataFrame(rows), "made up")


@pytest.mark.parametrize(
    ("left", "right", "p_value", "word"),
    [
        (SIX, [1.1, 2.2, 3.4, 4.1, 5.3, 6.2], 2 / 64, PASS),
        (SIX[:5], [1.1, 2.2, 3.4, 4.1, 5.3], 2 / 32, FAIL),  # five seeds cannot show it
        (SIX, [0.9, 1.9, 2.9, 3.9, 4.9, 5.9], 2 / 64, FAIL),  # they show the reverse
        (SIX, [1.1, 2.2, 3.4, 4.1, 5.3, 5.5], 10 / 64, FAIL),  # one is against it
        ([1.0], [], math.nan, NOT_RUN),
    ],
)
def test_a_test_over_seeds_is_part_of_the_criterion_where_it_is_asked_for(
    ran, left, right, p_value, word
):
    sides = {
        side: {"where": {"algorithm": side}, "measure": {"value": "loss"}}
        for side in ("left", "right")
    }
    what = with_claim(ran, **sides, each=None, significance=0.05)
    (verdict,) = judge(what, seeds_of(left=left, right=right))
    assert verdict.word == word
    for one in verdict.compared:
        assert one.p_value == pytest.approx(p_value, nan_ok=True)
    assert word == NOT_RUN or "(p = 0." in words.measured(verdict)


def test_seeds_that_did_not_end_well_are_the_worst_of_a_test(ran):
    measure = {"value": "loss", "best": "highest"}
    sides = {side: {"where": {"algorithm": side}, "measure": measure} for side in ("left", "right")}
    what = with_claim(ran, **sides, each=None, significance=0.05, **{"is": "above"})
    found = seeds_of(left=[2 * v for v in SIX], right=SIX)
    broken = found.cells["cell"].isin(["right0", "right1"])
    cells = found.cells.assign(status=np.where(broken, "diverged", "ok"))
    (verdict,) = judge(what, replace(found, cells=cells))
    assert (verdict.word, verdict.compared[0].p_value) == (PASS, 2 / 64)
    (verdict,) = judge(what, replace(found, cells=cells.assign(status="diverged")))
    assert (verdict.word, verdict.compared[0].p_value) == (FAIL, 1)
    negative = found.curves.assign(loss=-found.curves["loss"])
    with pytest.raises(InputError, match="significance: ratios need numbers from 0"):
        judge(what, replace(found, curves=negative))


def test_a_run_that_did_not_end_well_has_no_good_value(ran):
    found = of_folder(ran / "out" / "tiny")
    broken = Evidence(found.cells.assign(status="diverged"), found.curves, "broken")
    where = {"where": {"algorithm": "gd"}, "measure": {"value": "loss"}}
    (verdict,) = judge(with_claim(ran, left=where, right=1e300, each=["problem.dim"]), broken)
    assert [one.left for one in verdict.compared] == [math.inf, math.inf]
    where["measure"]["best"] = "highest"
    what = with_claim(ran, left=where, right=-1e300, each=["problem.dim"], **{"is": "above"})
    assert [one.left for one in judge(what, broken)[0].compared] == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"is": "belw"}, r"fewer_bits.is: unknown 'belw'\n +did you mean below"),
        ({"tolerence": 1}, r"fewer_bits.tolerence: unknown key\n +did you mean tolerance"),
        ({"left": None}, r"fewer_bits.left: is missing"),
        ({"left": {"measure": {"cst": "bits_up"}}}, r"left.measure: names 0 measures \(cst\)"),
        ({"left": {"measure": {"cost": "bits_up"}}}, r"left.measure.target: nan is out of range"),
        ({"left": 3}, r"fewer_bits.left: is no side"),
        ({"right": "much"}, r"fewer_bits.right: is neither a number nor a side"),
        ({"factor": "two"}, r"fewer_bits.factor: 'two' is no number"),
        ({"significance": 5}, r"fewer_bits.significance: 5 is no level"),
        ({"significance": 0.05, "right": 1}, r"significance: there are no two samples that differ"),
        (
            {"significance": 0.05, "left": {"measure": {"rate": "loss"}}},
            r"significance: rate gives no positive number",
        ),
        (
            {"significance": 0.05, "left": {"measure": {"value": "loss", "best": "median"}}},
            r"significance: the middle of several steps has no seeds",
        ),
        ({"says": 3}, r"fewer_bits.says: 3 is no text"),
        ({"each": "k"}, r"fewer_bits.each: 'k' is no list"),
        (
            {"left": {"measure": {"value": "loss", "at": {"bits_up": "all"}}}},
            r"measure.at: 'all' is no budget",
        ),
    ],
)
def test_what_is_wrong_in_a_claims_file_is_named(ran, change, says):
    with pytest.raises(InputError, match=says):
        with_claim(ran, **change)


def test_columns_that_results_lack_are_named(ran):
    found = of_folder(ran / "out" / "tiny")
    for change, says in (
        ({"each": ["datasett"]}, "unknown column 'datasett'\n +did you mean dataset"),
        (
            {"left": {"where": {}, "measure": {"value": "losss"}}},
            "unknown column 'losss'\n +did you mean loss",
        ),
    ):
        with pytest.raises(InputError, match=says):
            judge(with_claim(ran, **change), found)


def test_names_are_unique_and_something_is_there_to_run(ran, tmp_path):
    stated = yaml.parse(CLAIMS)
    stated["claims"] *= 2
    (ran / "twice.claims.yaml").write_text(yaml.dump(stated | {"sweep": "tiny.yaml"}))
    with pytest.raises(InputError, match="the name is taken"):
        read(ran / "twice.claims.yaml")
    (tmp_path / "alone.claims.yaml").write_text(CLAIMS)
    with pytest.raises(InputError, match="neither a sweep nor a script"):
        read(tmp_path / "alone.claims.yaml")
    with pytest.raises(InputError, match="unknown 'nobody'"):
        find("nobody")


def test_what_is_kept_is_judged_as_the_results_are(ran, tmp_path):
    what, found = read(ran / "tiny.claims.yaml"), of_folder(ran / "out" / "tiny")
    assert kept(what, tmp_path) is None
    paths = keep(what, found, tmp_path)
    assert sum(path.stat().st_size for path in paths) < 100_000
    again = judge(what, kept(what, tmp_path))
    assert [v.compared for v in again] == [v.compared for v in judge(what, found)]
    # a figure of another column than that by which steps are chosen
    drawn = replace(what, figures=({"x": "bits_up", "y": "loss"},), claims=())
    keep(drawn, found, tmp_path)
    judged = page.Judged(drawn, (), kept(drawn, tmp_path))
    assert [path.stat().st_size > 0 for path in page.draw(judged, tmp_path)] == [True]
    keep(what, found, tmp_path)
    # curves of raybench.load alone, as older figures keep them
    columns = ["label", "problem", "dataset", "algorithm", "compressor", "k", "step_size", "seed"]
    asked = [*columns, "round", "bits_up", "grad_norm_sq", "status"]
    curves = raybench.load(ran / "out" / "tiny")
    curves[curves["d"] == 20 if "d" in curves else slice(None)][asked].to_parquet(
        tmp_path / "old.parquet"
    )
    text = (CLAIMS + "evidence: old.parquet\n").replace("problem.dim, k", "k")
    text = text.replace("each: [problem.dim]", "each: []").replace(", where: {problem.dim: 20}", "")
    shutil.copy(ran / "tiny.yaml", tmp_path / "older.yaml")
    (tmp_path / "older.claims.yaml").write_text(text)
    older = read(tmp_path / "older.claims.yaml")
    (verdict,) = judge(older, kept(older, tmp_path / "nowhere"))
    assert [one.holds for one in verdict.compared] == [True, True]


def test_the_verb_runs_judges_and_writes_a_page(ran, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = str(ran / "tiny.claims.yaml")
    found = cli("reproduce", file, "--no-run", "--out", "none")
    assert found.code == 0
    assert "NOT RUN" in found.out
    args = ("reproduce", file, "--inline", "--out", "out", "--page", "page.md")
    found = cli(*args)
    assert found.code == 0, found.err
    assert "PASS" in found.out
    assert "1 PASS, 0 FAIL, 0 NOT RUN" in found.out
    page = (tmp_path / "page.md").read_text()
    assert "| EF21 sends less than gradient descent. | less | 4 of 4: " in page
    assert "(page/tiny_1.png)" in page
    assert (tmp_path / "page" / "tiny_1.png").stat().st_size > 5_000
    cli(*args)  # nothing is left to run, the page is written anew
    assert (tmp_path / "page.md").read_text() == page
    (tmp_path / "hard.yaml").write_text(SWEEP)
    harder = CLAIMS.replace("is: below", "is: above\n    likely: The moon.")
    (tmp_path / "hard.claims.yaml").write_text(harder)
    found = cli("reproduce", "hard.claims.yaml", "--inline", "--out", "out")
    assert found.code == 1
    assert "likely: The moon." in found.out
    assert "fails  dim 20, k 2: " in found.out


def test_networks_run_where_they_are_asked_for_and_the_published_scale_where_it_is(
    ran, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    file = tmp_path / "tiny.claims.yaml"
    file.write_text(CLAIMS + "kind: network\nfull: [rounds=3, 'seed=[5]']\n")
    found = cli("reproduce", file, "--inline")
    assert "0 PASS, 0 FAIL, 1 NOT RUN" in found.out
    assert not (tmp_path / "results").exists()
    found = cli("reproduce", file, "--inline", "--networks", "--full")
    assert "0 PASS, 1 FAIL, 0 NOT RUN" in found.out
    cells = raybench.store.cells(tmp_path / "results" / "paper" / "tiny-full")
    assert (set(cells["rounds"]), set(cells["seed"])) == ({3}, {5})
    found = cli("reproduce", file, "--no-run", "--full")
    assert "has not ended" not in found.err
    (tmp_path / "results" / "paper" / "tiny-full" / "plan" / "receipt.json").unlink()
    found = cli("reproduce", file, "--no-run", "--full")
    assert "note: tiny: its sweep has not ended, what is there is judged" in found.err
    found = cli("reproduce", file, "--all")
    assert found.code == 2
    assert "--all: stands beside names" in found.err


def test_a_script_runs_once_and_again_where_it_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = "import pandas as pd\ndef measure(full):\n    return pd.DataFrame({'of': ['a', 'b'], 'x': [1.0, VALUE]})\n"
    (tmp_path / "own.py").write_text(script.replace("VALUE", "3.0"))
    (tmp_path / "own.claims.yaml").write_text(
        "title: Own\nsource: me\nclaims:\n  - name: b_is_larger\n    says: b is larger.\n    is: below\n"
        "    left: {where: {of: a}, measure: {column: x}}\n    right: {where: {of: b}, measure: {column: x}}\n"
        "figures:\n  - {caption: C., x: x, y: x, by: of}\n"
    )
    args = ("reproduce", "own.claims.yaml", "--out", "out", "--page", "page.md")
    assert "1 PASS" in cli(*args).out
    first = (tmp_path / "out" / "own" / "measured.parquet").stat().st_mtime_ns
    cli(*args)
    assert (tmp_path / "out" / "own" / "measured.parquet").stat().st_mtime_ns == first
    (tmp_path / "own.py").write_text(script.replace("VALUE", "0.5"))
    found = cli(*args)
    assert found.code == 1
    assert "1 FAIL" in found.out
    (tmp_path / "own.py").write_text("def measure(full):\n    return 3\n")
    found = cli(*args)
    assert found.code == 2
    assert "own.py: returns no table" in found.err
    (tmp_path / "own.py").write_text("1 / 0\n")
    found = cli(*args)
    assert found.code == 2
    assert "own.py: cannot be run: ZeroDivisionError" in found.err


def test_those_that_come_with_raybench_are_read_and_listed():
    found = cli("reproduce")
    assert found.code == 0
    for name in catalogue():
        what = find(name)
        assert what.claims
        assert name in found.out
        if what.sweep is not None:
            assert raybench.spec.load(what.sweep).cells


def test_the_page_of_the_docs_is_what_the_kept_results_say():
    """`raybench reproduce --all --page docs/reproductions.md` writes it: a number typed by hand is found."""
    every = []
    for name in catalogue():
        what = find(name)
        found = kept(what, DOCS / "reproductions")
        every.append(page.Judged(what, judge(what, found), found))
    assert page.text(every, "reproductions") == (DOCS / "reproductions.md").read_text("utf-8")
    for one in every:
        for number in range(len(one.what.figures) if one.found is not None else 0):
            assert (DOCS / "reproductions" / f"{one.what.name}_{number + 1}.png").exists()
