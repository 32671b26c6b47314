"""Views split over clients as a problem: its constants, what it is built of, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from views_kit import (
    ARRAYS,
    DECAY,
    DEEP,
    NETS,
    SAMPLES,
    TESTED,
    TOP,
    WIDTHS,
    on,
    problem_of,
    standard,
)

from raybench.core.errors import InputError
from raybench.core.registry import lookup
from raybench.execution.resolve import Resolver, Skip
from raybench.problems import build
from raybench.spec import Step
from raybench.testing.problems import conformance as problem_conformance
from raybench.testing.trial import Method


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("views") / "three.npz"
    np.savez(path, **ARRAYS)
    return str(path)


@pytest.mark.parametrize(
    ("net", "decay"), [("linear", 0.0), ("linear", DECAY), ("deep", DECAY), ("partly frozen", 0.0)]
)
def test_the_problem_conforms(file, net, decay):
    params = {"dataset": file, "dtype": "float64", "weight_decay": decay, **NETS[net]}
    found = problem_conformance(build("vertical_network", params))
    assert not [str(f) for f in found if not f.ok]


def test_constants_of_linear_parties(file):
    problem = build("vertical_network", {"dataset": file, "weight_decay": DECAY})
    parts = [standard(v).numpy() for v in sorted(WIDTHS)]
    norms = [np.linalg.norm(part, 2) ** 2 / (2 * SAMPLES) for part in parts]
    c = problem.constants
    whole = np.linalg.norm(np.hstack(parts), 2) ** 2 / (2 * SAMPLES)
    assert pytest.approx(whole + DECAY) == c.L
    assert c.extra["L_blk"] == pytest.approx(max(norms) + DECAY)
    assert c.mu == DECAY
    deep = build("vertical_network", {"dataset": file, "encoders": DEEP}).constants
    assert (deep.L, deep.L_i) == (None, ())
    for refused in (
        on(file, "vertical_ef21", TOP, {"batch": 7}),
        on(file, "vertical_gd", None, {}, NETS["deep"]),
    ):
        cell = replace(refused.cell().cell, step=Step("theory", 1.0))
        with pytest.raises(Skip, match="no theoretical step size"):
            Resolver().resolve(cell)


def test_choosing_views_and_rows(file):
    params = {"dataset": file, "views": ["text", "image"], "rows": 30, "scale": "none"}
    problem = build("vertical_network", params)
    assert [n for n, _ in problem.layout] == ["text.head.weight", "image.head.weight"]
    assert (problem.n, problem.sample_count) == (2, 30)
    assert len(problem.test_labels) == TESTED
    assert np.array_equal(problem.parties[0].phi.numpy(), ARRAYS["text"][:30].astype(np.float32))


def test_minibatches_larger_than_the_data_are_refused(file):
    with pytest.raises(InputError, match=r"algorithm\.batch: 41 of 40 samples"):
        on(file, "vertical_sgd", None, {"batch": 41}).cell()


def test_the_batch_of_the_problem_is_that_of_methods_without_their_own(file):
    cells = {
        name: on(file, name, how, net={"batch": 8}).cell()
        for name, how in (("vertical_ef21", TOP), ("vertical_sgd", None), ("vertical_gd", None))
    }
    assert [cells[n].params.get("batch") for n in cells] == [8, 8, None]
    own = on(file, "vertical_sgd", None, {"batch": 5}, {"batch": 8}).cell()
    assert own.params["batch"] == 5


def test_methods_for_rows_are_refused(file):
    with pytest.raises(Skip, match="features split over clients"):
        Method("gd", {}, None, problem_of(file), step=0.1).cell()
    assert lookup("problem", "vertical_network").facts.x0 == "problem"
