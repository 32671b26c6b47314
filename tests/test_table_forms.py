"""Tables in all their forms, at any width; metrics of one's own as axes."""

import io
import math
import re
import shutil
import subprocess

import fake_store
import numpy as np
import pandas as pd
import pytest
from cli_kit import cli, refused, succeeds
from fake_runs import make
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import raybench
from raybench.analysis import closing_table, frames, opened
from raybench.analysis.frames import framed
from raybench.report.content import build
from raybench.report.custom import figure
from raybench.report.formats import Fitted, escaped, latex, markdown
from raybench.report.sheet import Field, Sheet
from raybench.report.tables import closing
from raybench.store import CELLS, Store, to_table
from raybench.store.schema import CURVES

PREAMBLE = "\\documentclass{article}\n\\usepackage{booktabs,siunitx}\n\\begin{document}\n%s\\end{document}\n"


def found(*runs):
    return framed(*make(runs))


THREE = [
    {"g": [1, 0.5, 0.01], "algorithm": "ef21", "k": 1},
    {"g": [1, 0.01, 0.005], "algorithm": "marina", "k": 1},
    {"g": [1, 0.5, 0.02], "algorithm": "gd", "compressor": None, "k": None},
]


def printed(sheet, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(Fitted(sheet))
    return out.getvalue()


# -- widths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_width_loses_anything(swept, width):
    """K, step and units were cut off at 60 columns; a number stays with its unit."""
    sheet = closing(swept)
    text = printed(sheet, width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    words = " ".join(text.split())
    for one in sheet.fields:
        heads = [] if one.left else one.head.split()  # a block of lines says no "Method"
        for part in [*heads, *(w for t in one.texts if t != "–" for w in t.split())]:
            assert part in words, (one.head, part)
    assert not re.search(r"^\s*k?bit", text, re.M)
    if width == 120:  # a row for each method
        for method in closing_table(swept)["method"]:
            assert sum(line.startswith(f" {method} ") for line in text.splitlines()) == 1


# -- columns and by k ------------------------------------------------------------------------


def test_columns_are_those_asked_for(swept):
    said = cli("table", swept, "--columns", "step,method", "--format", "markdown")
    assert said.out.startswith("| Step | Method |")
    raw = pd.read_csv(
        io.StringIO(cli("table", swept, "--columns", "method,step,loss", "--format", "csv").out)
    )
    assert list(raw) == ["method", "step_multiple", "step_size", "loss"]
    assert cli("table", swept, "--columns", ",".join(closing_table(swept).columns)).code == 0


def test_by_k_compares_methods_at_each_k(swept):
    table, every = closing_table(swept, by="k"), closing_table(swept, by="series")
    assert len(table) == len(every)
    assert table["k"].dropna().is_monotonic_increasing
    assert set(table["method"]) == {"GD", "EF21 Top-K", "EF21 Rand-K", "MARINA Rand-K"}
    for _, part in table.groupby("k"):
        assert part["bits_to_target"].fillna(math.inf).is_monotonic_increasing
    assert table["bits_to_target"].dropna().sum() == every["bits_to_target"].dropna().sum()
    assert cli("table", swept, "--by", "k", "--format", "markdown").out.startswith("| K | Method")


# -- the best in bold ------------------------------------------------------------------------


def test_the_best_is_bold_in_markdown_and_latex():
    sheet = closing(found(*THREE), target=0.1)
    lines = markdown(sheet).splitlines()
    bold = [re.findall(r"\*\*([^*]+)\*\*", line) for line in lines[2:5]]
    assert bold == [["10 bit", "0.005"], [], []]
    assert latex(sheet).count("\\bfseries") == 2


def test_what_prints_alike_is_equally_good():
    one = Field(name="x", head="x", texts=["a", "b", "c"], numbers=[1.0001, 1.0, 2], better="low")
    sheet = Sheet(fields=[one], sections=[0, 0, 0], data=pd.DataFrame())
    assert sheet.best(one) == [True, True, False]
    apart = Sheet(fields=[one], sections=[0, 1, 1], data=pd.DataFrame())
    assert apart.best(one) == [False, True, False]  # a lone row is no best


# -- LaTeX -----------------------------------------------------------------------------------


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
    field = Field(name="x", head="x", texts=["", "", "–"], numbers=[0.00118, 7.04e-33, math.nan])
    text = latex(Sheet(fields=[field], sections=[0, 0, 1], data=pd.DataFrame()))
    assert text.splitlines()[7:11] == [
        *("0.00118 \\\\", "7.04e-33 \\\\", "\\addlinespace", "{--} \\\\")
    ]


@given(st.text(st.characters(max_codepoint=127, exclude_categories=["Cc"])))
def test_every_text_is_escaped(text):
    """No character that LaTeX takes for a command is left bare."""
    bare = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]", "", escaped(text))
    assert not set(bare) & set("\\&%$#_{}~^")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex with siunitx")
@pytest.mark.parametrize("by", ["method", "k"])
def test_latex_compiles(tmp_path, by):
    runs = [{**run, "seed": s, "dataset": f"a_{d}%"} for run in THREE for s in (0, 1) for d in "xy"]
    odd = {"g": [1, 2], "params": {"init": "a&b_c#"}, "status": "diverged"}
    text = latex(closing(found(*runs, odd), target=0.1, by=by))
    (tmp_path / "t.tex").write_text(PREAMBLE % text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "siunitx.sty' not found" in done.stdout:
        pytest.skip("this TeX has no siunitx")
    assert done.returncode == 0, done.stdout[-2000:]


def test_forms_of_the_command_line(swept):
    for form, start in (("terminal", "\n Method"), ("plain", "\n Method"), ("latex", "% In the")):
        said = succeeds("table", swept, "--format", form)
        assert said.out.startswith(start), form


@pytest.mark.parametrize("verb", ["table", "rank"])
@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex"])
def test_a_folder_where_all_was_skipped(tmp_path, verb, form):
    _, cells = make([{"g": [1], "algorithm": "marina", "status": "skipped"}])
    store = Store(tmp_path / "r")
    store.claim({"name": "s", "problem": {"name": "logistic"}})
    known = {name: cells[name].to_list() for name in CELLS.names if cells[name].notna().all()}
    store.skip(to_table(known, CELLS))
    said = cli(verb, tmp_path / "r", "--format", form)
    assert (said.code, said.err) == (0, "")
    if form in ("terminal", "markdown"):
        assert ("1 skipped" if verb == "table" else "nothing to rank") in said.out


@pytest.mark.parametrize("by", ["series", "k"])
def test_problems_are_never_cut(tmp_path, by):
    store = Store(tmp_path / "run")
    names = ("a-file-with-a-long-name.csv", "数据集 数据集 数据集")
    fake_store.fill(store, rounds=20, datasets=names, multiples=(1.0, 4096.0), seeds=2)
    sheet = closing(store.folder, by=by)
    for width in (40, 70, 100, 110):
        text = printed(sheet, width)
        assert "…" not in text
        assert names[0] in text
        assert text.count("数据集") >= 3
        assert max(map(cell_len, text.splitlines())) <= width


# Metrics of one's own -----------------------------------------------------------------------------

SWEEP = """
name: own
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [gd, ef21]
compressor: {name: top_k, k: 3}
seed: 0..1
x0: {normal: 1.0}
rounds: 20
evaluate: {metrics: [iterate_norm, sparsity]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "results"
    raybench.sweep(SWEEP, out, inline=True)
    return out


def test_rows_of_a_folder_have_the_metric_that_is_asked_for(folder):
    result, rows = frames(folder), raybench.load(folder)
    cells = list(result.cells["cell"])
    assert result.held.extras(cells) == ["extra.iterate_norm", "extra.sparsity"]
    own = result.rows(cells, ["extra.iterate_norm", "loss", "extra.none"])
    assert own["extra.none"].isna().all()
    for name in ("extra.iterate_norm", "loss"):
        np.testing.assert_array_equal(own[name], rows[name])
    part = opened(folder, {"algorithm": "ef21"})
    some = list(part.cells["cell"])
    assert part.held.extras(some) == ["extra.iterate_norm", "extra.sparsity"]
    assert set(part.rows(some, ["extra.sparsity"])["cell"]) == set(some) < set(cells)


def test_shards_that_lack_a_metric_have_none_of_it(tmp_path):
    store = Store(tmp_path / "run")
    store.claim({"name": "two"})
    curves, cells = make([{"g": [1, 0.5]}, {"g": [1, 0.25], "seed": 1}])
    for i, (_, part) in enumerate(curves.groupby("cell")):
        table = part.drop(columns="extra").to_dict("list")
        extra = {"extra": {"own": [1.0, 2.0]}} if i else {}
        row = cells[cells["cell"] == part["cell"].iloc[0]]
        store.commit(f"s{i}", to_table({**table, **extra}, CURVES), to_cells(row))
    result = frames(store.folder)
    rows = result.rows(list(result.cells["cell"]), ["extra.own"])
    assert rows.loc[rows["cell"] == "cell0", "extra.own"].isna().all()
    assert rows.loc[rows["cell"] == "cell1", "extra.own"].tolist() == [1.0, 2.0]


def to_cells(row):
    """Return a row of cells as a table."""
    from raybench.store.schema import CELLS

    known = row.dropna(axis=1, how="all").to_dict("list")
    return to_table({k: v for k, v in known.items() if k in CELLS.names}, CELLS)


def test_the_page_draws_them(folder):
    result = frames(folder)
    names = {figure.name for figure in build(result, extras=True)} - {f.name for f in build(result)}
    assert {"extra.iterate_norm_vs_bits_up", "extra.sparsity_vs_round"} <= names


def test_counts_that_are_kept_beside_them_are_no_axes():
    """What the store keeps in ``extra`` for the accounting is no metric."""
    curves, cells = make([{"g": [1, 0.5, 0.1]}])
    curves = curves.assign(**{"extra.own": 1.0, "extra.index_entropy_up": 3.0})
    assert framed(curves, cells).held.extras(["cell0"]) == ["extra.own"]


def test_a_figure_of_one(folder, tmp_path):
    made = figure(frames(folder), y="extra.sparsity", methods=["ef21"])
    rows = raybench.load(folder)
    want = rows[rows["algorithm"] == "ef21"].groupby("round")["extra.sparsity"].median()
    np.testing.assert_allclose(made.data["y"], want)
    args = ("--y", "extra.sparsty", "--out", tmp_path / "none")
    refused("plot", folder, *args, says="did you mean extra.sparsity")
