"""Tables in all their forms: at any width nothing is lost, LaTeX is what siunitx reads, the best is in bold."""

import io
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
from cli_kit import cli
from fake_runs import make
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from raybench.analysis import closing_table
from raybench.analysis.frames import framed
from raybench.report.choices import choices
from raybench.report.formats import FittedSheet, escaped, latex
from raybench.report.sheet import Sheet, SheetColumn
from raybench.report.tables import closing
from raybench.store import CELLS, Store, to_table


def found(*runs):
    return framed(*make(runs))


THREE = [
    {"g": [1, 0.5, 0.01], "algorithm": "ef21", "k": 1},
    {"g": [1, 0.01, 0.005], "algorithm": "marina", "k": 1},
    {"g": [1, 0.5, 0.02], "algorithm": "gd", "compressor": None, "k": None},
]


def printed(sheet, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(FittedSheet(sheet))
    return out.getvalue()


def test_no_width_loses_anything(swept):
    """K, step and units were cut off at 60 columns; a number stays with its unit."""
    sheet = closing(swept)
    for width in (40, 60, 80, 120):
        text = printed(sheet, width)
        assert all(len(line.rstrip()) <= width for line in text.splitlines())
        assert "…" not in text
        words = " ".join(text.split())
        for one in sheet.fields:
            heads = [] if one.left else one.head.split()  # a block of lines says no "Method"
            for part in [*heads, *(w for t in one.texts if t != "–" for w in t.split())]:
                assert part in words, (one.head, part)
        assert not re.search(r"^\s*k?bit", text, re.M)
    for method in sheet.data["method"]:  # on a wide terminal each has a row
        assert sum(line.startswith(f" {method} ") for line in text.splitlines()) == 1


def test_columns_are_those_asked_for(swept):
    said = cli("table", swept, "--columns", "step,method", "--format", "markdown")
    assert said.out.startswith("| Step | Method |")
    said = cli("table", swept, "--columns", "method,step,loss", "--format", "csv")
    raw = pd.read_csv(io.StringIO(said.out))
    assert list(raw) == ["method", "step_multiple", "step_size", "loss"]
    assert cli("table", swept, "--columns", ",".join(closing_table(swept).columns)).code == 0


def test_unknown_columns_are_refused(swept):
    for columns, said in (("methd", "did you mean method"), ("", "some of"), (",", "some of")):
        wrong = cli("table", swept, "--columns", columns)
        assert (wrong.code, wrong.complaints, wrong.out) == (2, 1, "")
        assert said in wrong.err


def test_by_k_compares_methods_at_each_k(swept):
    table, every = closing_table(swept, by="k"), closing_table(swept, by="series")
    assert len(table) == len(every)
    assert table["k"].dropna().is_monotonic_increasing
    assert set(table["method"]) == {"GD", "EF21 Top-K", "EF21 Rand-K", "MARINA Rand-K"}
    for _, part in table.groupby("k"):
        assert part["bits_to_target"].fillna(math.inf).is_monotonic_increasing
    assert table["bits_to_target"].dropna().sum() == every["bits_to_target"].dropna().sum()
    assert cli("table", swept, "--by", "k", "--format", "markdown").out.startswith("| K | Method")


def test_what_prints_alike_is_equally_good():
    one = SheetColumn(
        name="x", head="x", texts=["a", "b", "c"], numbers=[1.0001, 1.0, 2], better="low"
    )
    sheet = Sheet(fields=[one], sections=[0, 0, 0], data=pd.DataFrame())
    assert sheet.best(one) == [True, True, False]
    assert sheet.best(replace(one, better="high")) == [False, False, True]
    apart = Sheet(fields=[one], sections=[0, 1, 1], data=pd.DataFrame())
    assert apart.best(one) == [False, True, False]  # a lone row is no best


def test_latex_by_hand():
    sheet = closing(found(*THREE), target=0.1, names=["method", "bits_to_target", "grad_norm_sq"])
    lines = [line for line in latex(sheet).splitlines() if not line.startswith("%")]
    assert lines == [
        "\\begingroup",
        "\\sisetup{detect-weight}",
        "\\begin{tabular}{@{}lSS@{}}",
        "\\toprule",
        "Method & {Bits to target (bit)} & {$\\|$$\\nabla$f$\\|$$^2$ end} \\\\",
        "\\midrule",
        "MARINA Top-K & \\bfseries 10 & \\bfseries 0.005 \\\\",
        "EF21 Top-K & 20 & 0.01 \\\\",
        "GD & 20 & 0.02 \\\\",
        "\\bottomrule",
        "\\end{tabular}",
        "\\endgroup",
    ]


def test_latex_of_unknown_numbers_and_of_sections():
    field = SheetColumn(
        name="x", head="x", texts=["", "", "–"], numbers=[0.00118, 7.04e-33, math.nan]
    )
    text = latex(Sheet(fields=[field], sections=[0, 0, 1], data=pd.DataFrame()))
    rows = ["0.00118 \\\\", "7.04e-33 \\\\", "\\addlinespace", "{--} \\\\"]
    assert text.splitlines()[7:11] == rows


@given(st.text(st.characters(max_codepoint=127, exclude_categories=["Cc"])))
def test_every_text_is_escaped(text):
    """No character that LaTeX takes for a command is left bare."""
    bare = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]", "", escaped(text))
    assert not set(bare) & set("\\&%$#_{}~^")


FORMS = ("terminal", "plain", "markdown", "csv", "latex")


def test_a_folder_where_all_was_skipped_in_all_forms(tmp_path):
    _, cells = make([{"g": [1], "algorithm": "marina", "status": "skipped"}])
    store = Store(tmp_path / "r")
    store.claim({"name": "s", "problem": {"name": "logistic"}})
    known = {name: cells[name].to_list() for name in CELLS.names if cells[name].notna().all()}
    store.skip(to_table(known, CELLS))
    for verb, what in (("table", "1 skipped"), ("rank", "nothing to rank")):
        for form in FORMS:
            said = cli(verb, tmp_path / "r", "--format", form)
            assert (said.code, said.err) == (0, "")
            if form != "csv":
                assert what in said.out


# Why a candidate was not chosen -----------------------------------------------------------------------


def of_seeds(multiple, *paths, k=1, **more):
    """Runs of EF21 at one step, a path for each seed."""
    step = {"algorithm": "ef21", "k": k, "multiple": multiple, **more}
    return [{**step, "g": g, "seed": seed} for seed, g in enumerate(paths)]


SLOW, FAST, MISS = [1, 0.5, 0.01, 0.01], [1, 0.01, 0.01, 0.01], [1, 0.5, 0.5, 0.5]


def test_each_candidate_says_why_it_was_not_chosen():
    runs = [
        *of_seeds(1.0, SLOW, FAST),
        *of_seeds(2.0, FAST, FAST, MISS),  # cheaper, but not for every seed
        *of_seeds(4.0, FAST, FAST, status="diverged"),
        *of_seeds(0.5, SLOW, SLOW, per_round=20),
        *of_seeds(0.25, MISS, MISS, k=2),
    ]
    table = choices(replace(found(*runs), asked=0.1)).data
    reasons = dict(zip(table["step_multiple"], table["reason"], strict=True))
    assert list(reasons) == [1.0, 0.5, 2.0, 0.25, 4.0]
    assert list(reasons.values()) == [
        "chosen", "costs 2.67 times as much", "reaches the target with 2 of 3 seeds",
        "does not reach the target", "2 seeds diverged",
    ]  # fmt: skip


def test_without_a_target_reached_values_at_a_budget_decide():
    """K = 1 spends 30 bits at both steps, K = 2 spends 60: all three are compared at 30."""
    runs = [
        *of_seeds(1.0, [1, 0.9, 0.8, 0.7], [1, 0.9, 0.8, 0.7]),
        *of_seeds(2.0, [1, 0.8, 0.7, 0.6], [1, 0.8, 0.7, 0.6]),
        *of_seeds(4.0, [1, 0.65, 0.3, 0.2], [1, 0.65, 0.3, 0.2], k=2, per_round=20),
    ]
    sheet = choices(replace(found(*runs), asked=0.1))
    table = sheet.data.set_index("step_multiple")
    assert table["reason"].tolist() == [
        "chosen",
        "‖∇f‖² is no lower at the budget of all K",
        "‖∇f‖² is no lower at the budget",
    ]
    assert table.index.tolist() == [2.0, 4.0, 1.0]
    assert table["budget"].tolist() == [30.0, 30.0, 30.0]
    assert table["at_budget"].tolist() == [0.6, 0.65, 0.7]
    assert "30 bit" in printed(sheet, 200)


def test_the_first_candidate_is_the_choice_of_the_table(swept):
    said = cli("table", swept, "--by", "step", "--format", "csv")
    every = pd.read_csv(io.StringIO(said.out))
    chosen = every[every["reason"] == "chosen"].set_index("method")
    best = closing_table(swept).set_index("method")
    assert len(every) > len(chosen) == len(best)
    names = ["step_multiple", "bits_to_target"]
    np.testing.assert_array_equal(chosen[names], best.loc[chosen.index, names])
    assert cli("table", swept, "--by", "step", "--columns", "k").code == 2


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_random_candidates_have_a_reason_and_the_order_of_the_table(data):
    """Whatever runs do, the first of each method is what the table shows, and every other says why it is not."""
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 3)), min_size=1, unique=True
        )
    )
    values = st.lists(st.sampled_from([0.05, 0.3, 0.6, 2.0]), min_size=1, max_size=4)
    states = st.sampled_from(["ok", "ok", "ok", "diverged", "failed", "pruned"])
    runs = [
        {"algorithm": "ef21", "k": k, "multiple": step, "seed": seed, "g": [1, *data.draw(values)],
         "status": data.draw(states), "per_round": k}
        for step, k in steps
        for seed in range(data.draw(st.integers(1, 3)))
    ]  # fmt: skip
    results = replace(found(*runs), asked=0.1)
    table, best = choices(results).data, results.tuned("method").iloc[0]
    assert len(table) == len(steps)
    assert (table["reason"] != "").all()
    assert ((table["reason"] == "chosen") == ((table.index == 0) & bool(best["eligible"]))).all()
    if best["eligible"]:
        assert (table["k"][0], table["step_multiple"][0]) == (best["k"], best["step_multiple"])
    printed(choices(results), 80)
