"""Features and views split over clients: identities, bounds, the same as training in one place, and mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import views_kit
from numpy_methods import top
from tiers import first_of_each
from torch import Tensor
from torch.nn import functional as F
from views_kit import (
    ARRAYS,
    CLASSES,
    DECAY,
    DEEP,
    EVERY,
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
from raybench.execution.resolve import Resolver, Skip
from raybench.execution.run import Run
from raybench.problems import build
from raybench.spec import StepSize
from raybench.testing.problems import conformance as problem_conformance
from raybench.testing.trial import TrialMethod, finished, started

# Networks whose views are split over clients ------------------------------------------------------

file = views_kit.file


# In one place, by automatic differentiation: knows the arrays, and the names of the tensors -----------


def features(view: str, x: dict[str, Tensor], prefix: str = "") -> Tensor:
    phi = standard(view, prefix)
    if f"{view}.encoder.1.weight" in x:
        phi = F.linear(phi, x[f"{view}.encoder.1.weight"], x[f"{view}.encoder.1.bias"])
        phi = phi.tanh() if view == "image" else phi.relu()
    return phi


def scores(x: dict[str, Tensor], prefix: str = "") -> Tensor:
    return sum(features(v, x, prefix) @ x[f"{v}.head.weight"].T for v in sorted(WIDTHS))


class Centralised:
    """The whole network in one place: every tensor by name, frozen ones included, from the same start."""

    def __init__(self, file: str, net: dict) -> None:
        params = {k: v for k, v in problem_of(file, **net).items() if k not in ("name", "freeze")}
        free = build("vertical_network", params)
        start = free.layout.views(free.start())
        self.x = {n: t.clone() for (n, _), t in zip(free.layout, start, strict=True)}
        own = build("vertical_network", {**params, "freeze": net.get("freeze", [])})
        self.names = [n for n, _ in own.layout]
        self.labels = torch.from_numpy(ARRAYS["labels"] - 1)

    def loss(self, rows: Tensor | None = None) -> Tensor:
        at = slice(None) if rows is None else rows
        penalty = sum(self.x[n].square().sum() for n in self.names)
        return F.cross_entropy(scores(self.x)[at], self.labels[at]) + DECAY / 2 * penalty

    def step(self, gamma: float, rows: Tensor | None = None) -> None:
        for name in self.names:
            self.x[name] = self.x[name].detach().requires_grad_()
        with torch.enable_grad():
            own = [self.x[n] for n in self.names]
            grads = torch.autograd.grad(self.loss(rows), own)
        for name, grad in zip(self.names, grads, strict=True):
            self.x[name] = (self.x[name] - gamma * grad).detach()

    @property
    def point(self) -> Tensor:
        return torch.cat([self.x[n].detach().flatten() for n in self.names])


def steps(method: TrialMethod, rounds: int = 30) -> Iterator[tuple[Tensor, Tensor | None, Run]]:
    """Yield the point after each round, the rows of the step that led to it, and the run."""
    run = started(method.batch((1.0,), (3,)), every=rounds)
    run.advance(0)
    for _ in range(rounds):
        rows = None if run.s.rows is None else run.s.rows[0].clone()
        run.advance(1)
        yield run.a.point(run.net, run.s, run.c)[0], rows, run


def compare(file: str, name: str, compressor, params: dict, net: dict) -> None:
    reference = Centralised(file, net)
    first = reference.point
    for now, rows, _ in steps(on(file, name, compressor, params, net)):
        reference.step(0.5, rows)
        assert float((now - reference.point).abs().max()) < 1e-10
    assert float((reference.point - first).abs().max()) > 0.1


@pytest.mark.parametrize("net", first_of_each(NETS))
@pytest.mark.parametrize(
    ("name", "compressor", "params"),
    first_of_each(
        [
            ("vertical_gd", None, {}),
            ("vertical_naive", "identity", {}),
            ("vertical_naive", EVERY, {"batch": 7}),
            ("vertical_marina", "identity", {"p": 0.3}),
            ("vertical_ef21", "identity", {}),
            ("vertical_sgd", None, {"batch": 7}),
            ("vertical_ef21", EVERY, {"batch": 7, "p": 0.3}),
            ("vertical_ef21", EVERY, {"batch": 7, "init": "full"}),
        ],
        lambda case: case[0],
    ),
)
def test_with_all_entries_it_is_training_in_one_place(file, net, name, compressor, params):
    if name == "vertical_marina":  # its s.rows are not: all samples in every round
        method = on(file, name, compressor, params, NETS[net])
        plain = finished(on(file, "vertical_gd", None, {}, NETS[net]).batch((1.0,), (3,)))
        run = finished(method.batch((1.0,), (3,)))
        apart = run.a.point(run.net, run.s, run.c) - plain.a.point(plain.net, plain.s, plain.c)
        assert float(apart.abs().max()) < 1e-10
        return
    compare(file, name, compressor, params, NETS[net])


def test_the_loss_and_what_is_measured_are_those_of_one_place(file):
    for net in NETS.values():
        params = {k: v for k, v in problem_of(file, **net).items() if k != "name"}
        problem = build("vertical_network", params)
        one = Centralised(file, net)
        one.step(0.7)
        x = one.point[None]
        assert float(problem.oracle(x)[1][0, 0]) == pytest.approx(float(one.loss()), rel=1e-12)
        out, labels = scores(one.x, "test_"), torch.from_numpy(ARRAYS["test_labels"] - 1)
        result = problem.evaluate(x)
        assert float(result["accuracy"]) == float((out.argmax(1) == labels).double().mean())
        want = float(F.cross_entropy(out, labels))
        assert float(result["test_loss"]) == pytest.approx(want, rel=1e-12)


# Minibatches, messages and tables -----------------------------------------------------------------------


def test_minibatches_are_the_same_for_all_clients_and_without_repeats(file):
    seen = []
    for _, rows, run in steps(on(file, "vertical_ef21", TOP, {"batch": 7}, rounds=40), 40):
        assert rows.shape == (7,)
        assert len(set(rows.tolist())) == 7
        assert run.net.n_here == 3  # one list of rows for three clients
        seen.append(tuple(rows.tolist()))
    assert len(set(seen)) == 40
    assert {row for rows in seen for row in rows} == set(range(SAMPLES))
    other = steps(on(file, "vertical_sgd", None, {"batch": 7}, rounds=40), 40)
    assert [tuple(rows.tolist()) for _, rows, _ in other] == seen  # the method makes no difference


@pytest.mark.parametrize(
    ("name", "compressor", "params", "values"),  # sent in ten messages, one before the first round
    first_of_each(
        [
            ("vertical_gd", None, {}, 10 * SAMPLES * CLASSES),
            ("vertical_sgd", None, {"batch": 7}, 10 * 7 * CLASSES),
            ("vertical_naive", TOP, {"batch": 7}, 10 * 5),
            ("vertical_naive", {"name": "top_k", "k": "20%"}, {"batch": 10}, 10 * 6),
            ("vertical_ef21", {"name": "top_k", "k": "20%"}, {}, 10 * SAMPLES * CLASSES // 5),
            ("vertical_ef21", TOP, {"p": 1.0, "batch": 7}, 10 * 7 * CLASSES),
            ("vertical_marina", {"name": "rand_k", "k": 7}, {"p": 1.0}, 10 * SAMPLES * CLASSES),
            ("vertical_marina", {"name": "rand_k", "k": 7}, {"p": 1e-9}, SAMPLES * CLASSES + 9 * 7),
        ],
        lambda case: case[0],
    ),
)
def test_what_a_message_holds(file, name, compressor, params, values):
    run = finished(on(file, name, compressor, params, rounds=9).batch())
    up, down = (float(run.recorder.column(f"values_{way}")[0, -1]) for way in ("up", "down"))
    assert up == values
    assert down == 9 * params.get("batch", SAMPLES) * CLASSES
    share = params.get("batch", SAMPLES) / SAMPLES
    assert float(run.recorder.column("grad_evals")[0, -1]) == pytest.approx(9 * share)


@pytest.mark.parametrize(
    ("p", "init"), first_of_each([(0.4, "zero"), (0.0, "zero"), (0.0, "full")])
)
@pytest.mark.parametrize("net", first_of_each(["linear", "deep"]))
def test_a_sample_is_compared_with_its_own_last_turn(file, net, p, init):
    """s_j changes in the rows of the minibatch alone, by Top-k of u_j - s_j, or to u_j in a dense round."""
    method = on(file, "vertical_ef21", TOP, {"batch": 6, "p": p, "init": init}, NETS[net])
    run = started(method.batch((1.0,), (5,)))
    run.advance(0)
    dense = 0
    table = np.zeros((3, SAMPLES, CLASSES))
    if init == "full":
        table = run.problem.products(run.problem.split(run.problem.start()[None]))[0].numpy()
        table = table.reshape(3, SAMPLES, CLASSES)
    for t in range(25):
        if t:
            run.advance(1)
        rows, x = run.s.rows[0].numpy(), run.c.x
        u = run.problem.products(x)[0].numpy().reshape(table.shape)
        have = run.c.sent[0].numpy().reshape(table.shape)
        off = (u[:, rows] - table[:, rows]).reshape(3, -1)
        want = table.copy()
        want[:, rows] += top(off, 5).reshape(3, -1, CLASSES)
        refreshed = p > 0 and np.abs(have[:, rows] - u[:, rows]).max() < 1e-12 < np.abs(off).max()
        if refreshed:
            want[:, rows] = u[:, rows]
            dense += 1
        assert np.abs(have - want).max() < 1e-12, t
        assert np.abs(run.s.sum[0].numpy() - have.reshape(3, -1).sum(0)).max() < 1e-12
        assert np.abs(run.s.v[0].numpy() - have.sum(0)[rows].flatten()).max() < 1e-12
        table = have
    assert dense == 0 if p == 0 else 3 <= dense <= 20


# The problem itself: its constants, what it is built of, what it refuses ----------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("net", "decay"), [("linear", 0.0), ("linear", DECAY), ("deep", DECAY), ("partly frozen", 0.0)]
)
def test_the_problem_conforms(file, net, decay):
    params = {"dataset": file, "dtype": "float64", "weight_decay": decay, **NETS[net]}
    result = problem_conformance(build("vertical_network", params))
    assert not [str(f) for f in result if not f.ok]


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
        cell = replace(refused.cell().cell, step=StepSize("theory", 1.0))
        with pytest.raises(Skip, match="no theoretical step size"):
            Resolver().resolve(cell)


def test_choosing_views_and_rows(file):
    params = {"dataset": file, "views": ["text", "image"], "rows": 30, "scale": "none"}
    problem = build("vertical_network", params)
    assert [n for n, _ in problem.layout] == ["text.head.weight", "image.head.weight"]
    assert (problem.n, problem.sample_count) == (2, 30)
    assert len(problem.test_labels) == TESTED
    assert np.array_equal(problem.parties[0].phi.numpy(), ARRAYS["text"][:30].astype(np.float32))


@pytest.mark.thorough
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
