"""Sweep files: grids, overrides, cases, exclusions, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from spec_kit import BASE, wrong

from raybench.core import registry
from raybench.spec import StepSize, json_schema, load, sections
from raybench.spec.cells import STOP_PARAMS
from raybench.store.schema import CURVES

# ------------------------------------------------------------------ grids


def test_the_grid_is_the_product_of_all_axes_in_order():
    sweep = load(
        """
problem: {name: logistic, dataset: [mushrooms, a9a], split: {dirichlet: [0.1, 1]}}
algorithm: [ef21, {name: marina, p: [auto, 0.5]}]
compressor: [{name: top_k, k: [1, 5, 10%]}, natural]
step_size: {theory: 2^0..2^3}
seed: [0, 4..6]
"""
    )
    assert len(sweep.cells) == (2 * 2) * (1 + 2) * (3 + 1) * 4 * 4
    assert len({cell.id for cell in sweep.cells}) == len(sweep.cells)
    first = sweep.cells[:5]
    assert [(c.step.number, c.seed) for c in first] == [(1, 0), (1, 4), (1, 5), (1, 6), (2, 0)]
    given = {"dataset": "mushrooms", "split": {"dirichlet": 0.1}, "lambda": 0.1, "seed": 0}
    assert first[0].problem.params | given == first[0].problem.params
    ks = {c.compressor.params["k"] for c in sweep.cells if c.compressor.name == "top_k"}
    assert ks == {1, 5, "10%"}
    assert {c.algorithm.params.get("p") for c in sweep.cells} == {None, "auto", 0.5}


def test_overrides_in_an_algorithm_entry():
    sweep = load(
        BASE.replace(
            "algorithm: ef21",
            "algorithm: [ef21, {name: diana, compressor: [natural, {name: rand_k, k: 2}],"
            " step_size: {theory: [1, 8]}, rounds: 7}]",
        )
        + "step_size: [0.5, {theory: 2, rule: pl, of: gd}]\n"
    )
    seen = [(c.algorithm.name, c.compressor.name, c.step, c.rounds) for c in sweep.cells]
    assert seen == [
        ("ef21", "top_k", StepSize("value", 0.5), 1000),
        ("ef21", "top_k", StepSize("theory", 2.0, "pl", "gd"), 1000),
        *(
            ("diana", c, StepSize("theory", m), 7)
            for c in ("natural", "rand_k")
            for m in (1.0, 8.0)
        ),
    ]


def test_what_an_algorithm_ignores_is_merged_with_a_note():
    text = BASE.replace("k: 1", "k: [1, 5, 9]").replace("ef21", "[ef21, sign_sgd, sign_sgd]")
    sweep = load(text + "downlink: natural\n")
    assert [c.algorithm.name for c in sweep.cells] == ["ef21"] * 3 + ["sign_sgd"]
    assert (sweep.cells[-1].compressor, sweep.cells[-1].downlink) == (None, None)
    assert sweep.notes == (
        "sign_sgd x 3 compressors: 6 cells merged to 1",
        "sign_sgd compresses nothing on the way down: downlink ignored",
    )


def test_a_lambda_says_of_which_regularizer_it_is():
    text = BASE.replace("clients: 20", "clients: 20, lambda: 0.1")
    assert load(text).notes == (
        "lambda of logistic is that of the regularizer nonconvex, as none is named",
    )
    assert load(text.replace("lambda", "regularizer: nonconvex, lambda")).notes == ()


def test_graphs_and_local_steps_matter_to_those_methods_only_that_hear_of_them():
    text = BASE.replace("ef21", "[ef21, prox_lead]")
    sweep = load(text + "graph: [ring, {name: [star, path], weights: metropolis}]\n")
    assert [c.graph and c.graph.name for c in sweep.cells] == [None, "ring", "star", "path"]
    assert load(text).cells[1].graph.name == "ring"
    sweep = load(text + "local: {steps: [1, 2, 3]}\n")
    steps = [(c.algorithm.name, c.local and c.local["steps"]) for c in sweep.cells]
    assert steps == [*(("ef21", n) for n in (1, 2, 3)), ("prox_lead", None)]
    assert "prox_lead x 3 locals: 3 cells merged to 1" in sweep.notes


def test_cases_are_laid_over_the_base():
    sweep = load(
        BASE
        + """
step_size: {theory: [1, 2], rule: pl}
seed: 0..1
cases:
  - {problem: {dataset: a9a}}
  - {problem: {split: {dirichlet: 1}}, compressor: {name: natural}, step_size: {value: 0.1}}
  - {algorithm: gd, seed: 3}
"""
    )
    seen = [
        (c.problem.params["dataset"], c.algorithm.name, c.compressor and c.compressor.name, c.seed)
        for c in sweep.cells
    ]
    assert seen == [
        *[("a9a", "ef21", "top_k", s) for s in (0, 1, 0, 1)],
        *[("mushrooms", "ef21", "natural", s) for s in (0, 1)],
        *[("mushrooms", "gd", None, 3)] * 2,
    ]
    assert {c.problem.params["clients"] for c in sweep.cells} == {20}
    assert [c.step.rule for c in sweep.cells[:4]] == ["pl"] * 4
    assert sweep.cells[4].step == StepSize("value", 0.1)
    sweep = load(BASE + "cases: [{seed: 0..3}, {seed: 2..5}]\n")  # a union
    assert [c.seed for c in sweep.cells] == [0, 1, 2, 3, 4, 5]
    assert sweep.notes == ("ef21: 8 cells merged to 6",)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("{algorithm: diana, k: 1}", 20),
        ("{compressor: [top_k, rand_k]}", 0),
        ("{k: 1..5}", 8),
        ("{k: 10%, step: 4}", 20),
        ("{compressor: {name: top_k, k: 5}, seed: 0}", 20),
        ("{compressor.k: 5}", 16),
        ("{step_size: {theory: 4}}", 12),
        ("{step_multiple: 4.0}", 12),
        ("{step.value: 4}", 24),
        ("{step_size: 4}", 24),
        ("{dataset: mushrooms, problem.seed: 0, algorithm: ef21}", 12),
        ("{init: compressed}", 12),
        ("{clients: 3}", 24),
    ],
)
def test_exclude(pattern, left):
    text = """
problem: {name: logistic, dataset: mushrooms}
algorithm: [ef21, diana]
compressor: {name: top_k, k: [1, 5, 10%]}
step_size: {theory: [1, 4]}
seed: 0..1
"""
    text = f"{text}exclude: [{pattern}]\n"
    if left == 0:
        assert "empty" in wrong(text)["exclude"]
        return
    sweep = load(text)
    assert len(sweep.cells) == left
    assert sweep.excluded == 24 - left
    idle = [note for note in sweep.notes if "matches no cell" in note]
    assert len(idle) == (left == 24)
    assert all(note.startswith("exclude {") for note in idle)


def test_a_pattern_that_takes_out_cells_of_one_case_only_is_not_idle():
    sweep = load(BASE + "exclude: [{seed: 0}]\ncases: [{seed: 0..1}, {seed: 1..2}]\n")
    assert ([c.seed for c in sweep.cells], sweep.excluded) == ([1, 2], 1)
    assert sweep.notes == ("ef21: 4 cells merged to 3",)


def test_the_same_compressors_up_and_down_make_cells_of_their_own():
    both = "[{name: top_k, k: 1}, {name: top_k, k: 5}]"
    text = f"problem: quadratic\nalgorithm: ef21_bc\ncompressor: {both}\ndownlink: {both}\n"
    cells = load(text).cells
    ks = [(c.compressor.params["k"], c.downlink.params["k"]) for c in cells]
    assert ks == [(1, 1), (1, 5), (5, 1), (5, 5)]
    assert len({c.group for c in cells}) == 4


def test_set_overrides_file_and_cases():
    text = BASE + "cases: [{problem: {clients: 5}}, {seed: 1}]\n"
    sweep = load(text, sets=["problem.clients=50", "compressor.k=[2, 10%]", "name=x"])
    assert {c.problem.params["clients"] for c in sweep.cells} == {50}
    assert len(sweep.cells) == 4
    assert sweep.name == "x"
    assert load(BASE + "seed: 1\n", sets=["seed="]).cells[0].seed == 0
    sweep = load("problem: quadratic\nalgorithm: [gd, marina]\ncompressor: [natural, rand_k]\n",
                 sets=["problem.dim=7", "algorithm[1].p=0.25", "compressor[1].k=3",
                       "step_size.theory=2^0..2^1", "step_size.value=1e-3", "stop.bits_up=1e9"])  # fmt: skip
    assert {c.problem.params["dim"] for c in sweep.cells} == {7}
    assert [c.algorithm.params.get("p") for c in sweep.cells] == [None, 0.25, 0.25]
    assert sweep.cells[2].compressor.params["k"] == 3
    assert {(c.step.kind, c.step.number) for c in sweep.cells} == {("value", 1e-3)}
    assert sweep.cells[0].stop == {"bits_up": 1e9}


def test_set_overrides_entries_that_have_the_key_for_themselves():
    text = """
problem: {name: quadratic, dim: 7}
algorithm:
  - gd
  - {name: ef21, rounds: 20, compressor: {name: top_k, k: 2}, step_size: {value: 0.1}}
  - {name: marina, p: 0.5, compressor: [{name: rand_k, k: 2}, natural]}
compressor: {name: top_k, k: 3}
cases: [{}, {algorithm: {name: ef21, rounds: 30, step_size: 0.3}}]
rounds: 10
"""
    sets = ["rounds=5", "compressor.k=1", "step_size.value=0.7"]
    cells = load(text, sets=sets).cells
    assert {c.rounds for c in cells} == {5}
    result = {(c.algorithm.name, c.compressor and c.compressor.params.get("k")) for c in cells}
    # lists of compressors are named by their number, and stay
    assert result == {("gd", None), ("ef21", 1), ("marina", 2), ("marina", None)}
    steps = {(c.algorithm.name, c.step.number) for c in cells}
    assert steps == {("gd", 0.7), ("ef21", 0.7), ("marina", 0.7)}, "0.3 stands for {value: 0.3}"
    other = load(text.replace("value: 0.1", "theory: 0.1"), sets=["step_size.value=0.7"]).cells
    assert {c.step.kind for c in other if c.algorithm.name == "ef21"} == {"theory", "value"}
    short = load("problem: {name: quadratic, dim: 7}\nalgorithm: gd\nstep_size: [0.1, 0.2]\n",
                 sets=["step_size.theory=2"])  # fmt: skip
    assert {(c.step.kind, c.step.number) for c in short.cells} == {("theory", 2)}
    assert {c.step.number for c in load(text, sets=["step_size=0.2"]).cells} == {0.2}


def test_sources(tmp_path: Path, monkeypatch):
    file = tmp_path / "my sweep.yaml"
    file.write_text(BASE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.txt").write_text("1 1:1\n-1 1:2\n")
    assert load(file).name == load(str(file)).name == "my-sweep"
    assert load(file, name="other").name == "other"
    mapping = {
        "problem": {"name": "logistic", "dataset": "mushrooms", "clients": np.int64(20)},
        "algorithm": ("ef21",),
        "compressor": {"name": "top_k", "k": range(1, 3)},
    }
    assert load(mapping).cells[0] == load(file).cells[0]
    # paths are found beside the file, whatever the working directory
    file.write_text(BASE.replace("mushrooms", "data/x.txt"))
    monkeypatch.chdir("/")
    sweep = load(file)
    assert sweep.cells[0].problem.params["dataset"] == str((tmp_path / "data/x.txt").resolve())
    code = "from raybench.plugins import *\n@compressor('mine')\nclass Mine:\n    pass\n"
    (tmp_path / "mine.py").write_text(code)
    file.write_text(BASE + "plugins: mine.py\n")
    assert load(file).plugins == (str(tmp_path / "mine.py"),)
    assert str(tmp_path / "missing.yaml") in wrong(tmp_path / "missing.yaml")
    assert str(tmp_path) in wrong(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00a")
    assert "not a text file" in next(iter(wrong(tmp_path / "binary.yaml").values()))


def test_saved_text_gives_the_same_sweep(tmp_path: Path):
    (tmp_path / "x.txt").write_text("1 1:1\n-1 1:2\n")
    file = tmp_path / "s.yaml"
    file.write_text(
        BASE.replace("mushrooms", "./x.txt")
        + "step_size: {theory: 2^-1..2^2}\nseed: 0..1\nstop: {grad_norm_sq: 1e-14}\n"
        "cases: [{compressor: {k: 10%}}, {algorithm: [gd, {name: marina, p: 0.5}]}]\n"
    )
    sweep = load(file, sets=["problem.clients=3"])
    again = load(sweep.text)
    assert again.cells == sweep.cells
    assert (again.name, again.text) == (sweep.name, sweep.text)


# ------------------------------------------------------------------ keys that are mappings


def test_a_mapping_is_multiplied_out_and_taken_apart_again():
    sweep = load(BASE + "local: {steps: [1, 2..3], optimizer: adamw}\nparticipation: [0.5, 1]\n")
    assert len(sweep.cells) == 3 * 2
    assert [(c.local["steps"], c.participation) for c in sweep.cells[1:3]] == [(1, 1.0), (2, 0.5)]
    assert {cell.config()["local"]["optimizer"] for cell in sweep.cells} == {"adamw"}
    assert load(sweep.text).cells == sweep.cells


def test_entries_cases_set_and_patterns_may_give_a_mapping():
    entry = BASE.replace("ef21", "[gd, {name: ef21, local: {steps: 4}}]") + "local: {steps: 2}\n"
    assert [c.local["steps"] for c in load(entry).cells] == [2, 4]
    cases = BASE + "local: {steps: 2}\ncases: [{local: {optimizer: adamw}}, {participation: 0.5}]\n"
    cells = [(c.local["steps"], c.local["optimizer"], c.participation) for c in load(cases).cells]
    assert cells == [(2, "adamw", 1.0), (2, "sgd", 0.5)]
    (cell,) = load(cases, sets=["local.steps=9", "cases=[]"]).cells
    assert cell.local["steps"] == 9
    text = BASE + "local: {steps: [1, 2]}\nparticipation: [0.5, 1]\n"
    assert len(load(text + "exclude: [{local.steps: 2}]\n").cells) == 2
    both = "exclude: [{local: {steps: 2, optimizer: sgd}, participation: 1}]\n"
    assert len(load(text + both).cells) == 3


# ------------------------------------------------------------------ schema, sections


def test_the_schema_accepts_what_load_accepts_and_shows_defaults():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    check = jsonschema.Draft202012Validator(schema)
    good = {
        "problem": {"name": "logistic", "dataset": ["a", "b"], "split": {"dirichlet": [1, 2]}},
        "algorithm": ["gd", {"name": "marina", "p": "auto", "step_size": {"theory": [1]}}],
        "compressor": [{"name": "rand_k", "k": ["10%", "1..3", 0.5]}, "natural"],
        "step_size": {"theory": "2^0..2^8"},
        "stop": {"bits_up": 1e9},
        "cases": [{"seed": 1}],
        "record": {"every": 2},
        "accounting": "paper:ef21",
    }
    check.validate(good)
    assert load(good)
    several = {"name": ["rand_k", "natural"], "granularity": "bucket"}
    for granularity in ("tensor", ["global", "bucket"]):
        one = {"name": "natural", "granularity": granularity, "collective": ["gather", "reduce"]}
        check.validate({**good, "compressor": [several, one]})
    wrong_operators = ({"k": 0}, {"k": 1, "granularity": "layer"}, {"k": 1, "collective": "ring"})
    bad_ones = [{"compressor": {"name": "rand_k", **own}} for own in wrong_operators]
    for bad in ({"sed": 1}, {"seed": "x"}, *bad_ones):
        assert list(check.iter_errors({**good, **bad}))
    assert list(check.iter_errors({**good, "cases": [{"sed": 1}]}))
    entry = schema["$defs"]["compressor"]["anyOf"][0]["anyOf"][0]["anyOf"]
    rand_k = next(e for e in entry if e.get("properties", {}).get("name") == {"const": "rand_k"})
    assert rand_k["properties"]["mask"]["default"] == "independent"
    for way in schema["$defs"]["algorithm"]["anyOf"][0]["anyOf"][1:]:  # all but bare names
        assert "local" in way["properties"]
        assert "participation" not in way["properties"], "no entry may set it for itself"


def test_stopping_rules_are_columns_of_the_curves():
    assert {*STOP_PARAMS} - {"clock"} | {"clock_seconds"} <= {*CURVES.names}


# ------------------------------------------------------------------ what is said about wrong ones


@pytest.mark.parametrize(
    ("line", "where", "says"),
    [
        ("exlude: []", "exlude", ["unknown key", "did you mean exclude?"]),
        ("rounds: 0", "rounds", ["0 is out of range", ">= 1"]),
        ("seed: []", "seed", ["an empty list leaves no cells"]),
        ("seed: 0..1000000000000", "seed", ["more than 100,000 values"]),
        ('plugins: "\\0"', "plug-in \0", ["no such file"]),
        ("name: a/b", "name", ["cannot name a folder"]),
        ("step_size: {theory: 1, value: 2}", "step_size", ["theory and value"]),
        ("step_size: {of: ef22}", "step_size.of", ["unknown algorithm", "did you mean ef21?"]),
        ("stop: 5", "stop", ["expected a mapping", "grad_norm_sq"]),
        ("x0: ones", "x0", ["unknown start 'ones'", "zeros"]),
        ("x0: nope.npy", "x0", ["no file nope.npy"]),
        ("prox: {l1: 0.1}", "prox", ["regularizer: l1"]),
        ("record: {every: 1, points: 2}", "record", ["give one of every, points and clock"]),
        ("accounting: paper:ef12", "accounting", ["did you mean paper:ef21?"]),
        ("graph: {name: ring, weigths: x}", "graph.weigths", ["did you mean weights?"]),
        ("evaluate: {metrics: [nrm]}", "evaluate.metrics[0]", ["allowed: iterate_norm"]),
        ("local: {setps: 2}", "local.setps", ["did you mean steps?"]),
        ("participation: -1", "participation", ["a number > 0"]),
        ("exclude: [{k: 1, sed: 2}]", "exclude[0].sed", ["unknown key", "did you mean seed?"]),
        ("exclude: [{algorithm: ef22}]", "exclude[0].algorithm", ["did you mean ef21?"]),
        ("cases: [{name: x}]", "cases[0].name", ["move it to the top level"]),
        ("cases: [{seed: 1}, {compressor: {k: 0}}]", "cases[1].compressor.k", ["0 is out of"]),
    ],
)  # fmt: skip
def test_wrong_lines(line, where, says):
    result = wrong(BASE + line + "\n")
    assert list(result) == [where]
    for part in says:
        assert part in result[where]


@pytest.mark.parametrize(
    ("problem", "where", "says"),
    [
        ("logistc", "problem", "did you mean logistic?"),
        ("{nam: logistic}", "problem.name", "required / allowed: least_squares, logistic"),
        ("logistic", "problem.dataset", "required"),
        ("{name: logistic, dataset: [a, b/c]}", "problem.dataset[1]", "no file b/c"),
        ("{name: logistic, dataset: a, split: dirichlet}", "problem.split", "write {dirichlet:"),
        (
            "{name: logistic, dataset: a, split: {dirichlet: 1, holdout_mix: 1}}",
            "problem.split",
            "write one of",
        ),
        (
            "{name: logistic, dataset: a, split: {dirichlet: [1, 0]}}",
            "problem.split.dirichlet[1]",
            "0 is out of range / a number > 0",
        ),
        ("{name: logistic, dataset: a, lambda: auto}", "problem.lambda", "{times_L: a number"),
    ],
)
def test_wrong_problems(problem, where, says):
    result = wrong(f"problem: {problem}\nalgorithm: gd\n")
    assert list(result) == [where]
    assert says in result[where]


def test_complaints_say_what_is_needed_and_nothing_more():
    result = wrong("problem: quadratic\nalgorithm: [gd, ef21_bc]\n")
    for key in ("compressor", "downlink"):
        assert f"ef21_bc needs a {key}" in result[key]
        assert f"a contractive one, as {key}: {{name: top_k, k: 10%}}" in result[key]
    result = wrong("problem: quadratic\nalgorithm: [gd, [ef21]]\n")
    assert "expected an algorithm by name" in result["algorithm[1]"]
    # null is not offered for a wrong number
    assert wrong(BASE + "step_size: {theory: -1}\n")["step_size.theory"].endswith("a number > 0")
    assert set(wrong("seed: 1\nx0: zeros\n")) == {"problem", "algorithm"}
    assert "empty" in next(iter(wrong("# nothing\n\n").values()))
    assert "expected keys" in next(iter(wrong("- 1\n- 2\n").values()))


def test_long_lists_of_names_are_cut(monkeypatch):
    """Sixty names hide the message; the list is a command away."""
    monkeypatch.setattr(registry, "names", lambda kind: [f"m{i:02}" for i in range(30)])
    assert sections.choices("algorithm").endswith("m19, ...; raybench ls algorithms lists all")
    monkeypatch.setattr(registry, "names", lambda kind: ["one", "two"])
    assert sections.choices("problem") == "allowed: one, two"


def test_every_error_at_once():
    result = wrong(
        """
problem: {name: logistic, datset: a9a, clients: x}
algorithm: [ef21, {name: marnia}, {name: marina, step_size: {theory: -1}}]
compressor: [{name: top_k, k: 0}, natural]
sed: 1
cases: [{rounds: 0}, {step_size: x, foo: 1}]
"""
    )
    problem = {"problem.datset", "problem.clients"}
    algorithm = {"algorithm[1].name", "algorithm[2].step_size.theory"}
    cases = {"cases[0].rounds", "cases[1].step_size", "cases[1].foo"}
    assert set(result) == {*problem, *algorithm, "compressor[0].k", "sed", *cases}


@pytest.mark.parametrize(
    ("option", "where", "says"),
    [
        ("problme.clients=3", "--set problme.clients=3", "did you mean problem?"),
        ("problem.clinets=3", "problem.clinets", "did you mean clients?"),
        ("compressor[1].k=3", "--set 'compressor[1].k=3'", "no entry [1]"),
        ("algorithm.p=3", "--set algorithm.p=3", "name the entry, for example algorithm[0].p"),
        ("seed.x=3", "--set seed.x=3", "seed is 1, not a mapping"),
        ("seed=[1", "--set 'seed=[1', line 1, column 3", "not valid YAML"),
        ("compressor.k=-1", "compressor.k", "an integer >= 1, or a share of the message dimension"),
        ("compressor.k=0%", "compressor.k", "'0%' is not a share"),
    ],
)
def test_set_typos(option, where, says):
    text = BASE.replace("algorithm: ef21", "algorithm: [ef21, marina]") + "seed: 1\n"
    result = wrong(text, sets=[option])
    assert list(result) == [where]
    assert says in result[where]


def test_a_grid_too_large_is_refused_before_it_is_built():
    huge = BASE + "seed: 0..99999\nstep_size: {theory: 2^-300..2^300}\n"
    assert "60,100,000 cells" in next(iter(wrong(huge).values()))
    params = "{name: logistic, dataset: a, clients: 1..2000, rows: 1..2000}"
    assert "4,000,000 combinations" in wrong(f"problem: {params}\nalgorithm: gd\n")["problem"]
