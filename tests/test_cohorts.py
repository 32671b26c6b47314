"""Cohorts: few of very many clients take part in a round, drawn anew, and nothing costs what all of them would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cli_kit import cli, own_plugins
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench import problems, spec
from raybench.algorithms.base import Dense, Estimator, algorithm
from raybench.core import registry
from raybench.core.draws import Sample
from raybench.core.errors import InputError
from raybench.execution.oracle import CohortOracle
from raybench.execution.plan import make_plan
from raybench.execution.run import Run
from raybench.execution.saved import share, whole
from raybench.testing.algorithms import keeps_nothing_of_clients
from raybench.testing.trial import Method, started
from raybench.wire.transport import Transport, on_virtual_ranks

DATA = {"name": "logistic", "dataset": "breast_cancer", "rows": 60, "scale": "columns"}
MANY = {**DATA, "clients": 10**9, "split": {"shuffled": 4}}
TAU = {"name": "local_sgd", "params": {"tau": 3, "batch": 2}}
COHORT = {"cohort": 6}


def cohort_run(method: Method, transport: Transport | None = None, rounds: int = 12) -> Run:
    found = started(method.batch((1.0, 0.5), (0, 1)), transport=transport)
    found.advance(rounds)
    return found


def oracle_of(found: Run) -> CohortOracle:
    oracle = found.net.oracle
    assert isinstance(oracle, CohortOracle)
    return oracle


# The same as what is known ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["contiguous", "shuffled", "sorted_by_label"])
@pytest.mark.parametrize(
    "method", [{"name": "gd"}, {"name": "dcgd", "compressor": {"name": "top_k", "k": 3}}, TAU]
)
def test_a_cohort_of_everyone_is_the_problem_that_there_was(order: str, method: Any) -> None:
    if method == TAU:  # of all rows, as who is at which place decides over minibatches
        method = {"name": "local_sgd", "params": {"tau": 3}}
    plain = Method(**method, step=0.1, problem={**DATA, "clients": 15, "split": order})
    crowd = {**DATA, "clients": 15, "split": {order: 4}}
    ours = cohort_run(Method(**method, step=0.1, problem=crowd, more={"cohort": 15}))
    theirs = cohort_run(plain)
    torch.testing.assert_close(ours.s.x, theirs.s.x, rtol=1e-12, atol=1e-14)
    for name in ("loss", "grad_norm_sq", "grad_evals", "accuracy"):
        np.testing.assert_allclose(
            ours.recorder.column(name), theirs.recorder.column(name), rtol=1e-9
        )
    assert np.array_equal(ours.net.ledger.up, theirs.net.ledger.up)
    assert np.array_equal(ours.net.ledger.down, theirs.net.ledger.down)


def test_a_client_has_the_gradient_of_its_own_rows() -> None:
    found = cohort_run(Method("gd", step=0.1, problem=MANY, more=COHORT))
    oracle = oracle_of(found)
    ids, x = oracle.cohort(), found.s.x
    grads = found.net.grad(x)
    pool = problems.build("logistic", {**{k: v for k, v in DATA.items() if k != "name"},
                                       "clients": 1, "split": "shuffled"})  # fmt: skip
    for cell in range(2):
        for place, client in enumerate(ids[cell].tolist()):
            rows = torch.tensor([(4 * client + j) % 60 for j in range(4)])
            want = pool.grad(x[cell : cell + 1], Sample.at(rows[None, None]))[0, 0]
            torch.testing.assert_close(grads[cell, place], want, rtol=1e-12, atol=1e-14)


def test_the_mean_over_all_clients_is_the_gradient_that_is_recorded() -> None:
    """45 clients with 4 of 60 rows: each row three times."""
    crowd = problems.build(
        "logistic", {**{k: v for k, v in MANY.items() if k != "name"}, "clients": 45}
    )
    assert isinstance(crowd, problems.Crowd)
    x = torch.linspace(-1, 1, crowd.dim, dtype=torch.float64)[None]
    everyone = torch.arange(45)[None]
    each = crowd.grad_of(everyone, x, Sample.at(torch.arange(4).expand(1, 45, 4)))
    torch.testing.assert_close(each.mean(1), crowd.oracle(x)[0][:, 0], rtol=1e-10, atol=1e-14)


# Who takes part ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(n=st.integers(60, 10**12), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_cohorts_are_of_different_clients_and_change(n: int, share: float, seed: int) -> None:
    m = max(1, min(50, int(n * share)))
    method = Method("gd", step=0.1, problem={**MANY, "clients": n}, more={"cohort": m})
    found = started(method.batch((1.0,), (seed,)))
    seen = []
    for _ in range(3):
        found.advance(1)
        ids = oracle_of(found).cohort()[0]
        assert len(set(ids.tolist())) == m
        assert 0 <= int(ids.min()) <= int(ids.max()) < n
        seen.append(tuple(ids.tolist()))
    assert m > n // 2 or len(set(seen)) > 1, "every round has the same clients"


def test_every_client_comes_equally_often() -> None:
    crowd = {**MANY, "clients": 20}
    method = Method("gd", step=0.1, problem=crowd, rounds=800, more={"cohort": 5})
    found = started(method.batch())
    counts = np.zeros(20)
    for _ in range(800):
        found.advance(1)
        counts[oracle_of(found).cohort()[0].numpy()] += 1
    # a client comes in a quarter of 800 rounds, with a standard deviation of 12.2
    assert np.abs(counts - 200).max() < 5 * 12.25
    assert counts.sum() == 4000


def test_ranks_share_a_cohort_and_a_run_goes_on() -> None:
    method = Method(**TAU, step=0.1, problem=MANY, more=COHORT)
    want = cohort_run(method)
    for other in on_virtual_ranks(2, lambda t: cohort_run(method, t)):
        torch.testing.assert_close(other.s.x, want.s.x, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(other.net.oracle.evals, want.net.oracle.evals)
        np.testing.assert_allclose(other.net.ledger.up, want.net.ledger.up)
        np.testing.assert_allclose(
            other.recorder.column("grad_norm_sq"), want.recorder.column("grad_norm_sq"), rtol=1e-9
        )
    state = cohort_run(method, rounds=5).state()
    again = started(method.batch((1.0, 0.5), (0, 1)))
    again.load(share(whole([state]), again.problem.clients))
    again.advance(7)
    assert torch.equal(again.s.x, want.s.x)
    assert np.array_equal(again.net.ledger.up, want.net.ledger.up)


# What is counted ------------------------------------------------------------------------------------


def test_counts_are_means_over_everyone() -> None:
    n, m, rounds = 600, 6, 12
    method = Method("gd", step=0.1, problem={**MANY, "clients": n}, more={"cohort": m})
    found = cohort_run(method, rounds=rounds)
    d = found.problem.dim
    np.testing.assert_allclose(found.bits("up"), 64 * d * rounds * m / n)
    np.testing.assert_allclose(found.bits("down"), 64 * d * rounds * m / n)
    np.testing.assert_allclose(found.net.oracle.evals, 4 * rounds * m / n)
    np.testing.assert_allclose(found.net.ledger.bytes_up_max, 8 * d * rounds)  # of who sends most


def test_nothing_is_as_long_as_there_are_clients() -> None:
    """A billion clients: one number for each would be 8 GB."""
    found = cohort_run(Method("gd", step=0.5, problem=MANY, more=COHORT), rounds=40)
    norms = found.recorder.column("grad_norm_sq")
    assert (norms[:, -1] < 0.2 * norms[:, 0]).all()
    (batch,) = plan_of({**MANY}, cohort=6).batches
    assert batch.facts["clients"] == 10**9


def test_a_network_is_trained_by_cohorts() -> None:
    network = {"name": "network", "model": "mlp:hidden=[8]", "dataset": "digits", "batch": 4,
               "clients": 10**6, "split": {"sorted_by_label": 10}, "dtype": "float64"}  # fmt: skip
    method = Method("local_sgd", {"tau": 3, "batch": 4}, problem=network, step=0.3,
                    more={"cohort": 20, "train": {"weight_decay": 1e-4}})  # fmt: skip
    found = cohort_run(method, rounds=60)
    losses = found.recorder.column("loss")
    known = losses[:, ~np.isnan(losses).any(0)]
    assert (known[:, -1] < 0.7 * known[:, 0]).all()


# What is refused -------------------------------------------------------------------------------------


def plan_of(problem: dict[str, Any], **keys: Any) -> Any:
    given = {"problem": problem, "algorithm": "gd", "step_size": {"value": 0.1}, "rounds": 5}
    return make_plan(spec.load({**given, **keys}))


@pytest.mark.parametrize(
    ("problem", "keys", "told"),
    [
        (MANY, {}, "cohort: is missing"),
        ({**DATA, "clients": 5}, {"cohort": 2}, "problem.split: {shuffled: 20}"),
        ({**MANY, "clients": 20}, {"cohort": 21}, "21 of 20 clients"),
        ({**MANY, "clients": 14}, {"cohort": 2}, "leave out rows of 60"),
        ({**DATA, "clients": 99, "split": {"shuffled": 0}}, {"cohort": 2}, "split.shuffled"),
        (MANY, {"cohort": 0}, "cohort"),
    ],
)
def test_what_cannot_be_is_told(problem: dict[str, Any], keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told.replace("{", r"\{")):
        plan_of(problem, **keys)


def test_statistics_of_clients_are_refused() -> None:
    resnet = {"name": "network", "model": "resnet20", "dataset": "digits", "clients": 10**5}
    with pytest.raises(InputError, match="frozen"):
        plan_of({**resnet, "split": {"shuffled": 10}}, cohort=5)


TOP = {"name": "top_k", "k": 3}


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "ef21", "compressor": TOP},
        {"algorithm": "sign_sgd"},
        {"local": {"steps": 2, "optimizer": "momentum", "step_size": 0.1}},
        {"downlink": TOP},
        {"algorithm": "dcgd", "compressor": {"name": "bf16", "collective": "reduce"}},
    ],
)
def test_what_relies_on_clients_that_come_again_is_skipped(keys: dict[str, Any]) -> None:
    found = plan_of(MANY, cohort=5, **keys)
    assert not found.cells
    (skipped,) = found.skipped
    assert skipped.why.code == "no_cohort"


def test_theory_has_no_step_for_clients_that_are_drawn() -> None:
    (skipped,) = plan_of(MANY, cohort=5, step_size={"theory": 1}).skipped
    assert skipped.why.code == "no_step"


# The kit ----------------------------------------------------------------------------------------------


def test_methods_that_take_cohorts_are_those_without_memory() -> None:
    entries = [registry.lookup("algorithm", name) for name in registry.names("algorithm")]
    assert {e.name for e in entries if e.facts.cohorts} >= {"gd", "sgd", "dcgd", "local_sgd"}


@pytest.fixture
def dishonest() -> Iterator[None]:
    """Two methods that claim to take cohorts, and cannot; forgotten afterwards."""
    with own_plugins():

        @algorithm("test_cohorts_keeps", up=None, cohorts=True)
        class Keeps(Estimator):
            """Its clients keep a gradient."""

            def estimate(a, wire, s, c, grad):
                c.last = grad
                return wire.up(Dense(grad)).mean()

        @algorithm("test_cohorts_untold", up=None, cohorts=True)
        class Untold(Estimator):
            """Its clients step themselves."""

            broadcasts_model = False

            def estimate(a, wire, s, c, grad):
                return wire.up(Dense(grad)).mean()

        yield


@pytest.mark.usefixtures("dishonest")
@pytest.mark.parametrize("name", ["test_cohorts_keeps", "test_cohorts_untold"])
def test_a_method_that_takes_cohorts_and_cannot_is_found_out(name: str) -> None:
    with pytest.raises(AssertionError, match="cohorts=True"):
        keeps_nothing_of_clients(Method(name, step=0.1))


def test_a_sweep_compares_cohorts_of_one_problem(tmp_path: Any) -> None:
    (tmp_path / "crowd.yaml").write_text(
        "problem: {name: logistic, dataset: breast_cancer, scale: columns, clients: 1000000,"
        " split: {shuffled: 20}}\n"
        "cohort: [5, 50]\nalgorithm: [gd, {name: local_sgd, tau: 3}]\n"
        "step_size: {value: 1}\nrounds: 30\n"
    )
    done = cli("sweep", tmp_path / "crowd.yaml", "--out", tmp_path / "out", "--inline")
    assert done.code == 0, done.err
    for arm in ("cohort=5", "cohort=50"):
        assert arm in done.out.replace("\n", " ")
