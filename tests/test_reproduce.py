"""Reproductions: claims files are checked, measures are what they say, verdicts follow, the verb tells them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_kit import cli

import raybench
from raybench.analysis.measures import NOTHING
from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.reproduce import ClaimVerdict, Compared, catalogue, find, judge, page, read_claims
from raybench.reproduce.evidence import Evidence, keep, kept, of_folder
from raybench.reproduce.judge import AGREES, DISAGREES, NOT_RUN, UNDECIDED, details, measured_words

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
def place(tmp_path_factory):
    """A claims file with its sweep, which has not run."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "tiny.yaml").write_text(SWEEP)
    (folder / "tiny.claims.yaml").write_text(CLAIMS)
    return folder


@pytest.fixture(scope="module")
def ran(place):
    """A claims file with its sweep, and the results of it."""
    raybench.sweep(place / "tiny.yaml", place / "out" / "tiny", inline=True)
    return place


def with_claim(place: Path, **change: object):
    """Return the reproduction with its claim changed; None takes a key away."""
    text = yaml.parse(CLAIMS)
    text["claims"][0].update(change)
    text["claims"][0] = {k: v for k, v in text["claims"][0].items() if v is not None}
    file = place / "changed.claims.yaml"
    file.write_text(yaml.dump(text | {"sweep": "tiny.yaml"}))
    return read_claims(file)


def measured(ran, measure: dict, where: dict, **more: object) -> float:
    """Return the one number that a measure gives of some cells."""
    side = {"where": where, "measure": measure}
    what = with_claim(ran, left=side, right=0, each=None, **more)
    ((one,),) = (verdict.compared for verdict in judge(what, of_folder(ran / "out" / "tiny")))
    return one.left.value


@pytest.mark.thorough
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


def test_a_claim_is_as_good_as_the_worst_of_its_comparisons():
    for words, word in (
        ([AGREES, NOT_RUN, DISAGREES], DISAGREES),
        ([AGREES, UNDECIDED, NOT_RUN], NOT_RUN),
        ([AGREES, UNDECIDED], UNDECIDED),
        ([AGREES, AGREES], AGREES),
        ([], NOT_RUN),
    ):
        compared = tuple(Compared({}, NOTHING, NOTHING, one) for one in words)
        assert ClaimVerdict(None, compared).word == word


COST = {"cost": "bits_up", "target": 1.0, "y": "loss"}
LOSS = {"value": "loss"}
FEW, MANY, MORE = (40, 0.5), (100, 0.5), (100, 9.0)  # bits, and whether a loss of 1 is reached


def results(**methods: list[tuple[float, float]]) -> Evidence:
    """Results of methods by seed: the bits that each has spent in two rounds, and the loss at their end, before it 9."""
    rows = [
        {"cell": f"{name}{seed}", "algorithm": name, "seed": seed, "round": t,
         "bits_up": t * bits / 2, "loss": loss if t == 2 else 9.0}
        for name, seeds in methods.items()
        for seed, (bits, loss) in enumerate(seeds)
        for t in range(3)
    ]  # fmt: skip
    curves = pd.DataFrame(rows)
    cells = curves.drop_duplicates("cell").assign(status="ok", facet="", step=1.0, rounds=2)
    return Evidence(cells.assign(series=cells["algorithm"]), curves, "made up")


def seeds_of(**ends: list[float]) -> Evidence:
    """Results of methods whose seeds end with these losses."""
    return results(**{name: [(100, loss) for loss in losses] for name, losses in ends.items()})


def versus(place, measure: dict, **change: object):
    """Return the claim that what is measured of the left method is below that of the right one."""
    sides = {name: {"where": {"algorithm": name}, "measure": measure} for name in ("left", "right")}
    return with_claim(place, **{"each": None, **sides, **change})


def costs(place, **change: object):
    """Return the claim that the left one of ``results`` needs fewer bits than the right one."""
    return versus(place, COST, spread=0, **change)


@pytest.mark.parametrize(
    ("left", "right", "factor", "word"),
    [
        (FEW, MANY, 0.5, AGREES),
        (FEW, MORE, 0.5, AGREES),  # it costs more than 100, and 50 would do
        (FEW, MORE, 0.3, NOT_RUN),  # 30 are shown, and it might cost 1,000
        (MORE, FEW, 0.5, DISAGREES),
        ((10, 9.0), FEW, 0.5, NOT_RUN),
        (MORE, MORE, 1.0, NOT_RUN),
    ],
)
def test_a_target_that_is_not_reached_costs_at_least_what_was_spent(
    place, left, right, factor, word
):
    (verdict,) = judge(costs(place, factor=factor), results(left=[left], right=[right]))
    assert verdict.word == word
    assert ("more than 100" in measured_words(verdict)) == (MORE in (left, right))
    within = costs(place, **{"is": "within", "tolerance": 0.5})
    (verdict,) = judge(within, results(left=[left], right=[right]))
    certain = {left, right} in ({FEW, MANY}, {FEW, MORE})
    assert verdict.word == (DISAGREES if certain else NOT_RUN)


def test_of_what_failed_nothing_is_known_and_what_diverged_never_arrives(place):
    result = results(left=[FEW], right=[MANY])
    right = result.cells["algorithm"] == "right"
    for status, word in (("failed", NOT_RUN), ("diverged", AGREES), ("skipped", NOT_RUN)):
        of_right = result.curves["cell"] == "right0"
        curves = result.curves.assign(loss=9.0).where(of_right, result.curves)
        cells = result.cells.assign(status=np.where(right, status, "ok"))
        (verdict,) = judge(costs(place, factor=0.1), Evidence(cells, curves, "made up"))
        assert verdict.word == word, status
    # one step failed: the other shows that the left side is cheap enough, not that the right side is dear
    more = results(left=[FEW], right=[MANY]).cells.assign(step=2.0)
    cells = pd.concat([result.cells, more.assign(cell=more["cell"] + "x", status="failed")])
    for side, word in (("left", AGREES), ("right", NOT_RUN)):
        part = cells[(cells["algorithm"] == side) | (cells["step"] == 1.0)]
        assert judge(costs(place), replace(result, cells=part))[0].word == word


@pytest.mark.parametrize(
    "measure", [{"value": "loss"}, {"lowest": "loss"}, {"value": "loss", "at": {"bits_up": 100}}]
)
def test_a_curve_that_ends_early_says_nothing_of_its_end(place, measure):
    result = results(left=[MANY])
    what = versus(place, measure, right=1.0, spread=0)
    assert judge(what, result)[0].word == AGREES
    cut = replace(result, curves=result.curves[result.curves["round"] < 2])
    assert judge(what, cut)[0].word == NOT_RUN
    above = versus(place, measure, right=1.0, spread=0, **{"is": "above"})
    assert judge(above, cut)[0].word == NOT_RUN


SIX = [1.0, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("left", "right", "p_value", "word"),
    [
        (SIX, [1.1, 2.2, 3.4, 4.1, 5.3, 6.2], 2 / 64, AGREES),
        (SIX, [0.9, 1.9, 2.9, 3.9, 4.9, 5.9], 2 / 64, DISAGREES),
        (SIX, [1.1, 2.2, 3.4, 4.1, 5.3, 5.5], 10 / 64, UNDECIDED),  # one is against it
        (SIX[:3], [1.1, 2.2, 3.4], math.nan, UNDECIDED),  # each is lower, within the range of seeds
        (SIX[:3], [3.1, 3.2, 3.4], math.nan, AGREES),
        (SIX[:3], [0.1, 0.2, 1.0], math.nan, DISAGREES),
        ([1.0], [100.0], math.nan, UNDECIDED),  # one seed: nobody knows its range
        ([1.0], [], math.nan, NOT_RUN),
    ],
)
def test_an_order_within_what_seeds_differ_by_is_undecided(place, left, right, p_value, word):
    result = seeds_of(left=left, right=right)
    (verdict,) = judge(versus(place, LOSS), result)
    assert verdict.word == word
    for one in verdict.compared:
        assert one.p_value == pytest.approx(p_value, nan_ok=True)
    assert ("p = 0." in measured_words(verdict)) == (not math.isnan(p_value))
    assert ("(one seed)" in measured_words(verdict)) == (right == [100.0])
    mirrored = versus(place, LOSS, **{"is": "above"})
    assert judge(mirrored, seeds_of(left=right, right=left))[0].word == word


@pytest.mark.parametrize(
    ("spread", "right", "word"),
    [
        (0, 1.01, AGREES),
        (0, 1.0, DISAGREES),
        (0.1, 1.2, UNDECIDED),
        (0.1, 1.3, AGREES),
        (0.1, 0.8, DISAGREES),
    ],
)
def test_of_one_seed_the_sides_are_further_apart_than_it_may_be_off(place, spread, right, word):
    what = versus(place, LOSS, spread=spread)
    (verdict,) = judge(what, seeds_of(left=[1.0], right=[right]))
    assert verdict.word == word
    assert ("one seed, taken to be within 10 %" in measured_words(verdict)) == (spread > 0)


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.01, 0.99, 1.0, 1.02, 0.98, 1.01], AGREES),
        ([1.2, 1.3, 1.2, 1.3, 1.2, 1.3], DISAGREES),
        ([1.2, 0.99, 1.0, 1.02, 1.3, 1.01], UNDECIDED),
        ([1.01, 1.2], UNDECIDED),
        ([0.9, 0.8], DISAGREES),
    ],
)
def test_nearness_is_that_of_the_same_seeds(place, ratios, word):
    right = np.linspace(1, 6, len(ratios))
    what = versus(place, LOSS, **{"is": "within", "tolerance": 0.05})
    result = seeds_of(left=[r * v for r, v in zip(ratios, right, strict=True)], right=[*right])
    assert judge(what, result)[0].word == word


def test_seeds_that_did_not_end_well_are_the_worst(place):
    what = versus(place, {**LOSS, "best": "highest"}, **{"is": "above"})
    result = seeds_of(left=[2 * v for v in SIX], right=SIX)
    broken = result.cells["cell"].isin(["right0", "right1"])
    cells = result.cells.assign(status=np.where(broken, "diverged", "ok"))
    (verdict,) = judge(what, replace(result, cells=cells))
    assert (verdict.word, verdict.compared[0].p_value) == (AGREES, 2 / 64)
    (verdict,) = judge(what, replace(result, cells=cells.assign(status="diverged")))
    assert verdict.word == DISAGREES  # both are at their worst, and neither is above
    negative = result.curves.assign(loss=-result.curves["loss"])  # of which there are no ratios
    (verdict,) = judge(what, replace(result, curves=negative))
    assert (verdict.word, math.isnan(verdict.compared[0].p_value)) == (UNDECIDED, True)


def left(**measure):
    return {"left": {"measure": measure}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"is": "belw"}, r"fewer_bits.is: unknown value 'belw'\n +did you mean below"),
        ({"tolerence": 1}, r"fewer_bits.tolerence: unknown key\n +did you mean tolerance"),
        ({"left": None}, r"fewer_bits.left: is no side\n +\{where: ..., measure: ...\}"),
        ({"name": None}, r"changed.claims.name: required"),
        (left(cst="bits_up"), r"left.measure: names 0 measures \(cst\)"),
        (left(cost="bits_up"), r"left.measure.target: required\n +a number > 0"),
        ({"right": "much"}, r"fewer_bits.right: is no side\n +a number, or \{where: "),
        ({"tolerance": 2}, r"fewer_bits.tolerance: 2 is out of range"),
        ({"published": None}, r"fewer_bits: is either published or our own\n +published: what"),
        ({"own": "why"}, r"fewer_bits: is either published or our own"),
        (left(value="loss", at={"bits_up": "all"}), r"at: \{'bits_up': 'all'\} is no budget"),
        (
            {"each": ["datasett"], "right": 1.0},
            r"unknown column 'datasett'\n +did you mean dataset",
        ),
        (
            {**left(value="losss"), "right": 1, "each": None},
            r"unknown column 'losss'\n +did you mean loss",
        ),
    ],
)
def test_what_is_wrong_in_a_claim_is_named(place, change, says):
    made = results(ef21=[FEW])
    with pytest.raises(InputError, match=says):
        judge(with_claim(place, **change), replace(made, cells=made.cells.assign(dataset="a")))


def test_names_are_unique_and_something_is_there_to_run(place, tmp_path):
    stated = yaml.parse(CLAIMS)
    stated["claims"] *= 2
    (place / "twice.claims.yaml").write_text(yaml.dump(stated | {"sweep": "tiny.yaml"}))
    with pytest.raises(InputError, match="the name is taken"):
        read_claims(place / "twice.claims.yaml")
    (tmp_path / "alone.claims.yaml").write_text(CLAIMS)
    with pytest.raises(InputError, match="neither a sweep nor a script"):
        read_claims(tmp_path / "alone.claims.yaml")
    with pytest.raises(InputError, match="unknown 'nobody'"):
        find("nobody")


@pytest.mark.thorough
def test_what_is_kept_is_judged_as_the_results_are(ran, tmp_path):
    what, result = read_claims(ran / "tiny.claims.yaml"), of_folder(ran / "out" / "tiny")
    assert kept(what, tmp_path) is None
    paths = keep(what, result, tmp_path)
    assert sum(path.stat().st_size for path in paths) < 100_000
    again = judge(what, kept(what, tmp_path))
    assert [[*details(v, every=True)] for v in again] == [
        [*details(v, every=True)] for v in judge(what, result)
    ]
    # a figure of another column than that by which steps are chosen
    drawn = replace(what, figures=({"x": "bits_up", "y": "loss"},), claims=())
    keep(drawn, result, tmp_path)
    judged = page.Judged(drawn, (), kept(drawn, tmp_path))
    assert [path.stat().st_size > 0 for path in page.draw(judged, tmp_path)] == [True]


@pytest.mark.thorough
def test_what_is_kept_of_another_sweep_does_not_count(ran, tmp_path):
    what, result = read_claims(ran / "tiny.claims.yaml"), of_folder(ran / "out" / "tiny")
    keep(what, result, tmp_path)
    for steps, cells in (("[1, 8]", 24), ("[3]", 0)):
        (tmp_path / "tiny.yaml").write_text(SWEEP.replace("[1, 8, 16]", steps))
        again = kept(replace(what, sweep=tmp_path / "tiny.yaml"), tmp_path)
        assert (0 if again is None else len(again.cells)) == cells
        assert again is None or set(again.curves["cell"]) == set(again.cells["cell"])
    verdicts = judge(what, again)
    assert [verdict.word for verdict in verdicts] == [NOT_RUN]


@pytest.mark.thorough
def test_the_verb_runs_judges_and_writes_a_page(ran, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = str(ran / "tiny.claims.yaml")
    result = cli("reproduce", file, "--no-run", "--out", "none")
    assert result.code == 0
    assert "NOT RUN" in result.out
    args = ("reproduce", file, "--inline", "--out", "out", "--page", "page.md")
    result = cli(*args)
    assert result.code == 0, result.err
    assert "published: 1 AGREES, 0 DISAGREES, 0 UNDECIDED, 0 NOT RUN" in result.out
    assert "own: 0 AGREES, 0 DISAGREES, 0 UNDECIDED, 0 NOT RUN" in result.out
    assert "(page/tiny.md) | 1 | 0 |" in (tmp_path / "page.md").read_text()
    page = (tmp_path / "page" / "tiny.md").read_text()
    assert "| EF21 sends less than gradient descent. | less | holds in 4 of 4: " in page
    assert "(tiny_1.png)" in page
    assert (tmp_path / "page" / "tiny_1.png").stat().st_size > 5_000
    cli(*args)  # nothing is left to run, the page is written anew
    assert (tmp_path / "page" / "tiny.md").read_text() == page
    (tmp_path / "hard.yaml").write_text(SWEEP)
    harder = CLAIMS.replace("is: below", "is: above\n    likely: The moon.")
    (tmp_path / "hard.claims.yaml").write_text(harder)
    result = cli("reproduce", "hard.claims.yaml", "--inline", "--out", "out")
    assert result.code == 1
    assert "likely: The moon." in result.out
    assert "fails  dim 20, k 2: " in result.out


@pytest.mark.thorough
def test_networks_run_where_they_are_asked_for_and_the_published_scale_where_it_is(
    ran, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    file = tmp_path / "tiny.claims.yaml"
    file.write_text(CLAIMS + "kind: network\nfull: [rounds=3, 'seed=[5]']\n")
    result = cli("reproduce", file, "--inline")
    assert "published: 0 AGREES, 0 DISAGREES, 0 UNDECIDED, 1 NOT RUN" in result.out
    assert not (tmp_path / "results").exists()
    result = cli("reproduce", file, "--inline", "--networks", "--full")
    assert "published: 0 AGREES, 0 DISAGREES, 0 UNDECIDED, 1 NOT RUN" in result.out  # three rounds
    cells = raybench.store.cells(tmp_path / "results" / "paper" / "tiny-full")
    assert (set(cells["rounds"]), set(cells["seed"])) == ({3}, {5})
    result = cli("reproduce", file, "--no-run", "--full")
    assert "has not ended" not in result.err
    next((tmp_path / "results" / "paper" / "tiny-full" / "cells").iterdir()).unlink()
    result = cli("reproduce", file, "--no-run", "--full")
    assert "note: tiny: its sweep has not ended, what is there is judged" in result.err
    result = cli("reproduce", file, "--all")
    assert result.code == 2
    assert "--all: stands beside names" in result.err


@pytest.mark.thorough
def test_cells_that_failed_are_told_and_are_no_success(ran, tmp_path, monkeypatch):
    monkeypatch.setattr("raybench.cli.results.KEPT", tmp_path)
    what, result = read_claims(ran / "tiny.claims.yaml"), of_folder(ran / "out" / "tiny")
    args = ("reproduce", what.file, "--no-run", "--out", tmp_path / "none")
    for status, code in (("ok", 0), ("failed", 1)):
        last = result.cells["step_multiple"] == 16
        cells = result.cells.assign(status=result.cells["status"].where(~last, status))
        keep(what, replace(result, cells=cells), tmp_path)
        said = cli(*args)
        assert said.code == code, said.err
        assert ("note: tiny: 12 cells failed" in said.err) == (status == "failed")


@pytest.mark.thorough
def test_a_script_runs_once_and_again_where_it_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = "import pandas as pd\ndef measure(full):\n    return pd.DataFrame({'of': ['a', 'b'], 'x': [1.0, VALUE]})\n"
    (tmp_path / "own.py").write_text(script.replace("VALUE", "3.0"))
    (tmp_path / "own.claims.yaml").write_text(
        "title: Own\nsource: me\nclaims:\n  - name: b_is_larger\n    says: b is larger.\n    own: a test\n    is: below\n"
        "    left: {where: {of: a}, measure: {column: x}}\n    right: {where: {of: b}, measure: {column: x}}\n"
        "figures:\n  - {caption: C., x: x, y: x, by: of}\n"
    )
    args = ("reproduce", "own.claims.yaml", "--out", "out", "--page", "page.md")
    assert "own: 1 AGREES" in cli(*args).out
    first = (tmp_path / "out" / "own" / "measured.parquet").stat().st_mtime_ns
    cli(*args)
    assert (tmp_path / "out" / "own" / "measured.parquet").stat().st_mtime_ns == first
    (tmp_path / "own.py").write_text(script.replace("VALUE", "0.5"))
    result = cli(*args)
    assert result.code == 1
    assert "own: 0 AGREES, 1 DISAGREES" in result.out
    (tmp_path / "own.py").write_text("1 / 0\n")
    result = cli(*args)
    assert result.code == 2
    assert "own.py: cannot be run: ZeroDivisionError" in result.err


@pytest.mark.thorough
def test_the_page_of_the_docs_is_what_the_kept_results_say():
    """`raybench reproduce --all --page docs/reproductions.md` writes it: a number typed by hand is found.

    What disagrees with a source is explained.
    """
    every, listed = [], cli("reproduce").out
    for name in catalogue():
        assert name in listed
        what = find(name)
        assert what.claims
        result = kept(what, DOCS / "reproductions")
        assert result is not None
        every.append(page.Judged(what, judge(what, result), result))
        for verdict in every[-1].verdicts:
            assert verdict.word != DISAGREES or verdict.claim.likely, verdict.claim.name
    for name, text in page.texts(every, "reproductions.md").items():
        assert text == (DOCS / name).read_text("utf-8"), name
    for one in every:
        for number in range(len(one.what.figures) if one.evidence is not None else 0):
            assert (DOCS / "reproductions" / f"{one.what.name}_{number + 1}.png").exists()
