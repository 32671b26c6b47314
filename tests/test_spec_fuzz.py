"""Sweep files made up at random, and from anybody: they load, or end with a few lines of error."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_plugins import dummies  # noqa: F401 (a fixture)

from raybench.cli import main
from raybench.core import yaml
from raybench.core.errors import Complaint, InputError
from raybench.spec import load
from raybench.store import identity

pytestmark = pytest.mark.thorough


KEYS = ["problem", "algorithm", "compressor", "step_size", "seed", "x0", "rounds", "stop", "exclude",
        "cases", "record", "resources", "accounting", "downlink", "graph", "prox", "plugins", "name",
        "k", "theory", "value", "dataset", "clients", "split", "dirichlet", "p", "every", "l1"]  # fmt: skip
WORDS = [*KEYS, "ef21", "gd", "marina", "top_k", "logistic", "quadratic", "auto", "none", "0..2",
         "2^0..2^3", "5..1", "10%", "a/b", "\0", "~x/y", "ring", "erdos_renyi", "rule", "x.npy"]  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=6),
    st.just(10**400),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*KEYS, "name", "x.y", "[0]", ""]), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
    st.lists(st.tuples(st.sampled_from(KEYS), st.text(max_size=8)).map("=".join), max_size=2),
    st.booleans(),
)
def test_garbage_never_raises_anything_but_an_input_error(document, sets, based):
    if based:
        base = {"problem": "quadratic", "algorithm": ["ef21", "gd"], "compressor": "rand_k"}
        document = {**base, **document}
    try:
        sweep = load(document, sets=sets)
    except InputError as error:
        sweep, complaints = None, error.complaints
    if sweep is None:
        assert complaints
        assert all(c.what for c in complaints)
        return
    assert sweep.cells
    assert load(sweep.text).cells == sweep.cells


def axis(*values):
    """A scalar, or a list of some of them: what a key that may be an axis may hold."""
    one = st.sampled_from(values)
    return st.one_of(one, st.lists(one, min_size=1, max_size=3))


NAMES = axis("rand_k", "top_k", "natural")
OPTIONS = {
    "k": axis(1, "10%", "1..3", 0.5, 2.0, 0, "2^0..2^2"),
    "mask": axis("common", "independent", "commom"),
}
CELL = {
    "problem": st.one_of(
        st.just("quadratic"),
        st.fixed_dictionaries(
            {"name": axis("quadratic", "logistic"), "dataset": axis("a9a", "w8a")},
            optional={"split": axis("shuffled", {"dirichlet": [1, 2]})},
        ),
        st.fixed_dictionaries({"name": st.just("quadratic"), "dim": axis(5, "2^2..2^3", 3.0)}),
    ),
    "algorithm": st.lists(
        st.one_of(
            st.sampled_from(["gd", "ef21", "diana", "prox_lead"]),
            st.fixed_dictionaries(
                {"name": st.just("marina")},
                optional={
                    "p": axis("auto", 0.5),
                    "compressor": st.just("natural"),
                    "step_size": st.sampled_from([0.1, {"theory": "2^0..2^2"}]),
                    "rounds": axis(5, 6),
                },
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    "compressor": st.one_of(
        axis("rand_k", "natural"),
        st.fixed_dictionaries({"name": NAMES}, optional=OPTIONS),
    ),
    "step_size": st.one_of(
        axis(0.1, 1, "2^-1..2^0", {"theory": [1, 2]}),
        st.fixed_dictionaries({}, optional={"theory": axis(1, 2), "rule": axis("pl", "paper")}),
    ),
    "seed": axis(0, "0..2", 5),
    "x0": axis("zeros", "problem", {"normal": [1, 2.0]}),
    "rounds": axis(3, 1e2, "2^0..2^2"),
    "stop": st.fixed_dictionaries({}, optional={"bits_up": axis(1e9, 5), "loss": axis(0, -1)}),
    "graph": axis("ring", "star", {"name": ["path", "complete"]}),
    "prox": axis("none"),
    "participation": axis(1, "50%", 0.5),
    "exclude": st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "algorithm": axis("gd", "ef21"),
                "k": axis(1, "10%", "1..3"),
                "seed": axis(0, "1..2"),
                "step": axis(1, 0.1),
            },
        ).filter(bool),
        max_size=2,
    ),
}
SWEEPS = st.fixed_dictionaries(
    {key: CELL[key] for key in ("problem", "algorithm", "compressor")},
    optional={
        **{key: CELL[key] for key in CELL if key not in ("problem", "algorithm", "compressor")},
        "cases": st.lists(st.fixed_dictionaries({}, optional=CELL), max_size=2),
    },
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(SWEEPS)
def test_plausible_sweeps_load_or_say_why(document):
    try:
        sweep = load(document)
    except InputError as error:
        sweep, complaints = None, error.complaints
    if sweep is None:
        roots = {c.where.split(".")[0].split("[")[0] for c in complaints}
        assert roots <= {*CELL, "cases", ""}
        return
    ids = [cell.id for cell in sweep.cells]
    assert len(set(ids)) == len(ids) > 0
    configs = {json.dumps(cell.config(), sort_keys=True) for cell in sweep.cells}
    assert len(configs) == len(ids)  # what differs has different ids, and the other way round
    groups = {
        json.dumps(
            {k: v for k, v in c.config().items() if k not in ("seed", "step_size")}, sort_keys=True
        )
        for c in sweep.cells
    }
    assert len(groups) == len({cell.group for cell in sweep.cells})
    assert load(sweep.text).cells == sweep.cells
    for cell in sweep.cells:
        assert (cell.compressor is None) == (cell.algorithm.name == "gd")
        assert (cell.graph is None) == (cell.algorithm.name != "prox_lead")


# Sweep files from anybody -------------------------------------------------------------------------

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
