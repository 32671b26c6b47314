"""What is said about wrong sweep files: the key path, what is allowed, the nearest name."""

from __future__ import annotations

import pytest
from spec_plugins import BASE, dummies, wrong  # noqa: F401 (a fixture)

from raybench.core import registry
from raybench.spec import load, sections


@pytest.mark.parametrize(
    ("line", "where", "says"),
    [
        ("exlude: []", "exlude", ["unknown key", "did you mean exclude?"]),
        ("rounds: many", "rounds", ["expected an integer, not 'many'"]),
        ("rounds: 0", "rounds", ["0 is out of range", ">= 1"]),
        ("rounds: 1e18", "rounds", ["1000000000000000000 is out of range"]),
        ("rounds: 1e400", "rounds", ["not inf"]),
        ("seed: []", "seed", ["an empty list leaves no cells"]),
        ("seed: 3..1", "seed", ["is empty", "a..b"]),
        ("seed: 0..", "seed", ["ranges are written"]),
        ("seed: 0..1000000000000", "seed", ["more than 100,000 values"]),
        ("step_size: 2^0..2^1000000", "step_size", ["more than 100,000 values"]),
        ("seed: [0, [1]]", "seed[1]", ["a list inside a list"]),
        ("seed: [0, x]", "seed[1]", ["'x'"]),
        ('plugins: "\\0"', "plug-in \0", ["no such file"]),
        ("name: a/b", "name", ["cannot name a folder"]),
        ("name: 5", "name", ["expected text, not 5"]),
        ("step_size: theory", "step_size", ["write {theory: 1}"]),
        ("step_size: {theory: 1, value: 2}", "step_size", ["theory and value"]),
        ("step_size: {theory: 0}", "step_size.theory", ["> 0"]),
        ("step_size: {rule: plus}", "step_size.rule", ["unknown value 'plus'"]),
        ("step_size: {of: ef22}", "step_size.of", ["unknown algorithm", "did you mean ef21?"]),
        ("step_size: .inf", "step_size", ["not a finite number"]),
        ("stop: 5", "stop", ["expected a mapping", "grad_norm_sq"]),
        ("x0: ones", "x0", ["unknown start 'ones'", "zeros"]),
        ("x0: normal", "x0", ["did you mean {normal: 1.0}?"]),
        ("x0: nope.npy", "x0", ["no file nope.npy"]),
        ("graph: rnig", "graph", ["did you mean ring?"]),
        ("prox: {l1: 0.1}", "prox", ["regularizer: l1"]),
        ("record: {every: 1, points: 2}", "record", ["give one of every, points and clock"]),
        ("record: {every: [1, 2]}", "record.every", ["no axis"]),
        ("record: 5", "record", ["expected a mapping", "every"]),
        ("resources: {mode: trian}", "resources.mode", ["did you mean train?"]),
        ("resources: {cpus_per_worker: .nan}", "resources.cpus_per_worker", ["nan"]),
        ("accounting: paper:ef12", "accounting", ["did you mean paper:ef21?"]),
        ("accounting: {value_bits: 80}", "accounting.value_bits", ["from 1 to 64"]),
        ("graph: {name: ring, weigths: x}", "graph.weigths", ["did you mean weights?"]),
        ("evaluate: {metrics: [nrm]}", "evaluate.metrics[0]", ["did you mean norm?"]),
        ("local: {setps: 2}", "local.setps", ["did you mean steps?"]),
        ("local: 3", "local", ["keys: steps, optimizer"]),
        ("participation: -1", "participation", ["a number > 0"]),
        ("checkpoint: {evry: 1}", "checkpoint.evry", ["did you mean every?"]),
        ("prune: halvin", "prune.rule", ["did you mean halving?"]),
        ("allow_unproven: 1", "allow_unproven", ["expected true or false"]),
        ("exclude: [{k: 1, sed: 2}]", "exclude[0].sed", ["unknown key", "did you mean seed?"]),
        ("exclude: [{algorithm: ef22}]", "exclude[0].algorithm", ["did you mean ef21?"]),
        ("exclude: [{k: x}]", "exclude[0].k", ["expected an integer, not 'x'"]),
        ("exclude: [5]", "exclude[0]", ["expected a mapping"]),
        ("cases: 5", "cases", ["expected a list"]),
        ("cases: [{name: x}]", "cases[0].name", ["move it to the top level"]),
        ("cases: [{prune: halving}]", "cases[0].prune", ["move it to the top level"]),
        ("cases: [{sed: 1}]", "cases[0].sed", ["did you mean seed?"]),
        ("cases: [{seed: 1}, {compressor: {k: 0}}]", "cases[1].compressor.k", ["0 is out of"]),
        ("cases: [{exclude: [{q: 1}]}]", "cases[0].exclude[0].q", ["unknown key"]),
    ],
)  # fmt: skip
def test_wrong_lines(line, where, says):
    result = wrong(BASE + line + "\n")
    assert list(result) == [where]
    for part in says:
        assert part in result[where]


COUNTS = {
    "0": "0 is out of range",
    "-1": "-1 is out of range",
    "101%": "'101%' is not a share",
    "0%": "'0%' is not a share",
    "1.5": "expected an integer, not 1.5",
    "ten": "expected an integer, not 'ten'",
    "null": "no value",
    "{a: 1}": "a mapping is not allowed",
    "false": "not false",
}


def test_wrong_counts():
    for k, says in COUNTS.items():
        result = wrong(BASE.replace("k: 1", f"k: {k}"))["compressor.k"]
        assert says in result
        assert "an integer >= 1, or a share of the message dimension" in result


@pytest.mark.parametrize(
    ("problem", "where", "says"),
    [
        ("logistc", "problem", "did you mean logistic?"),
        ("{nam: logistic}", "problem.name", "required / allowed: logistic, quadratic"),
        ("5", "problem", "expected a problem by name"),
        ("logistic", "problem.dataset", "required"),
        ("none", "problem", "a problem is needed"),
        ("{name: quadratic, dim: 1e3, shape: [3, 4]}", "problem.shape", "write shape: [[3, 4]]"),
        ("{name: quadratic, shape: 3}", "problem.shape", "write shape: [[3]]"),
        ("{name: quadratic, dimm: 3}", "problem.dimm", "did you mean dim?"),
        ("{name: logistic, dataset: [a, b/c]}", "problem.dataset[1]", "no file b/c"),
        ("{name: logistic, dataset: a, split: dirichlet}", "problem.split", "write {dirichlet:"),
        ("{name: logistic, dataset: a, split: {dirichle: 1}}", "problem.split", "dirichlet?"),
        (
            "{name: logistic, dataset: a, split: {dirichlet: [1, 0]}}",
            "problem.split.dirichlet[1]",
            "0 is out of range / a number > 0",
        ),
        ("{name: logistic, dataset: a, intercept: 1}", "problem.intercept", "true or false"),
        ("{name: logistic, dataset: a, lambda: auto}", "problem.lambda", "{times_L: a number"),
        ("{name: logistic, dataset: 5}", "problem.dataset", "expected text, not 5"),
    ],
)
def test_wrong_problems(problem, where, says):
    result = wrong(f"problem: {problem}\nalgorithm: gd\n")
    assert list(result) == [where]
    assert says in result[where]


def test_an_algorithm_says_what_it_needs():
    result = wrong("problem: quadratic\nalgorithm: [gd, ef21_bc]\n")
    assert "ef21_bc needs a compressor" in result["compressor"]
    assert "ef21_bc needs a downlink" in result["downlink"]
    assert "a contractive one, as compressor: {name: top_k, k: 10%}" in result["compressor"]
    assert "as downlink: {name: top_k, k: 10%}" in result["downlink"]


def test_a_name_is_expected_in_plain_english():
    result = wrong("problem: quadratic\nalgorithm: [gd, [ef21]]\n")
    assert "expected an algorithm by name" in result["algorithm[1]"]


def test_long_lists_of_names_are_cut(monkeypatch):
    """Sixty names hide the message; the list is a command away."""
    monkeypatch.setattr(registry, "names", lambda kind: [f"m{i:02}" for i in range(30)])
    assert sections.choices("algorithm").endswith("m19, ...; raybench ls algorithms lists all")
    monkeypatch.setattr(registry, "names", lambda kind: ["one", "two"])
    assert sections.choices("problem") == "allowed: one, two"


def test_null_is_not_offered_for_a_wrong_number():
    assert wrong(BASE + "step_size: {theory: -1}\n")["step_size.theory"].endswith("a number > 0")
    assert set(wrong("seed: 1\nx0: zeros\n")) == {"problem", "algorithm"}
    assert "empty" in next(iter(wrong("# nothing\n\n").values()))
    assert "expected keys" in next(iter(wrong("- 1\n- 2\n").values()))


def test_every_error_at_once():
    result = wrong(
        """
problem: {name: logistic, datset: a9a, clients: x}
algorithm: [ef21, {name: marnia}, {name: marina, p: 2, step_size: {theory: -1}}]
compressor: [{name: top_k, k: 0}, {name: rand_k, mask: comon}]
sed: 1
resources: {workers: 0}
seed: no
cases: [{rounds: 0}, {step_size: x, foo: 1}]
"""
    )
    assert set(result) == {
        "problem.datset",
        "problem.clients",
        "algorithm[1].name",
        "algorithm[2].p",
        "algorithm[2].step_size.theory",
        "compressor[0].k",
        "compressor[1].mask",
        "sed",
        "resources.workers",
        "seed",
        "cases[0].rounds",
        "cases[1].step_size",
        "cases[1].foo",
    }


@pytest.mark.parametrize(
    ("option", "where", "says"),
    [
        ("problme.clients=3", "--set problme.clients=3", "did you mean problem?"),
        ("problem.clinets=3", "problem.clinets", "did you mean clients?"),
        ("problem.clients", "--set problem.clients", "expected key=value"),
        ("=3", "--set =3", "expected key=value"),
        ("compressor[1].k=3", "--set 'compressor[1].k=3'", "no entry [1]"),
        ("algorithm.p=3", "--set algorithm.p=3", "name the entry, for example algorithm[0].p"),
        ("seed.x=3", "--set seed.x=3", "seed is 1, not a mapping"),
        ("seed=[1", "--set 'seed=[1', line 1, column 3", "not valid YAML"),
        ("compressor.k=0", "compressor.k", "0 is out of range"),
        ("seed=", "", ""),
    ],
)
def test_set_typos(option, where, says):
    text = BASE.replace("algorithm: ef21", "algorithm: [ef21, marina]") + "seed: 1\n"
    if not where:
        assert load(text, sets=[option]).cells[0].seed == 0
        return
    result = wrong(text, sets=[option])
    assert list(result) == [where]
    assert says in result[where]


def test_a_grid_too_large_is_refused_before_it_is_built():
    huge = BASE + "seed: 0..99999\nstep_size: {theory: 2^-300..2^300}\n"
    assert "60,100,000 cells" in next(iter(wrong(huge).values()))
    params = "{name: logistic, dataset: a, clients: 1..2000, rows: 1..2000}"
    assert "4,000,000 combinations" in wrong(f"problem: {params}\nalgorithm: gd\n")["problem"]
