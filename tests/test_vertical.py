"""Features split over clients: identities, bounds, and what compressing products without memory costs."""

from dataclasses import replace

import numpy as np
import pytest
from toys import each_round, largest, path

from raybench.execution.resolve import Resolver, Skip
from raybench.spec import Step
from raybench.testing.trial import DATA, Method, finished, started

pytestmark = pytest.mark.thorough

SEEDS = 48
ROWS, FEATURES = 80, 11
FAR = {"x0": "problem"}


@pytest.fixture(scope="module")
def libsvm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LIBSVM file of well-conditioned features, labels 1 and 2, the last feature in few rows."""
    random = np.random.default_rng(4)
    X = random.standard_normal((ROWS, FEATURES))
    X[:, -1] *= random.random(ROWS) < 0.3
    noisy = X @ random.standard_normal(FEATURES) + 2 * random.standard_normal(ROWS) > 0
    lines = [
        f"{1 + y} " + " ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v)
        for row, y in zip(X, noisy.astype(int), strict=True)
    ]
    file = tmp_path_factory.mktemp("vertical") / "tiny.svm"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def on(file: str, name: str, compressor=None, clients=FEATURES, **rest) -> Method:
    problem = {"name": "vertical_least_squares", "dataset": file, "clients": clients}
    return Method(name, rest.pop("params", {}), compressor, problem, more=FAR, **rest)


def rand(k: int, mask: str = "independent") -> dict:
    return {"name": "rand_k", "k": k, "mask": mask}


@pytest.mark.parametrize("clients", [1, 4, FEATURES])
def test_gradient_descent_on_blocks_is_gradient_descent(libsvm, clients):
    method = on(libsvm, "vertical_gd", None, clients, rounds=300)
    run = started(method.batch((1.0, 0.5)))
    L = run.problem.constants.L
    assert method.cell().step_size == pytest.approx(1 / L)
    A, b = run.problem.train.dense(), run.problem.train.labels
    x = run.problem.first.copy()
    for now in path(run)[:, 0]:
        assert largest(now, x) < 1e-10
        x = x - 2 / L * A.T @ (A @ x - b)


@pytest.mark.parametrize("mask", ["independent", "common"])
def test_products_without_memory_stall_where_marina_falls_by_a_million(libsvm, mask):
    steps, rounds = (1.0, 0.25), 4_000
    marina = on(libsvm, "vertical_marina", rand(20, mask), rounds=rounds)
    gamma = marina.cell().step_size
    gaps = {}
    for name in ("vertical_marina", "vertical_naive"):
        method = on(libsvm, name, rand(20, mask), rounds=rounds, step=gamma)
        run = finished(method.batch(steps, (0, 1)), every=10)
        assert (run.status == "ok").all()
        gaps[name] = run.recorder.column("loss") - run.problem.constants.f_star
    first = gaps["vertical_naive"][:, 0]
    assert (gaps["vertical_marina"][:, -1] < 1e-6 * first).all(), gaps["vertical_marina"][:, -1]
    late = gaps["vertical_naive"][:, -200:]
    assert (late.min(1) > 1e-5 * first).all(), late.min(1) / first
    floor = late.mean(1)
    assert floor[0] > 2 * floor[1], floor  # it grows with the step
    # a floor, no divergence
    assert late[0].mean() < 3 * gaps["vertical_naive"][0, -400:-200].mean()


BOUNDED = [(k, m, p) for k in (4, 20) for m in ("independent", "common") for p in ("auto", 0.5)]


@pytest.mark.parametrize(("k", "mask", "p"), BOUNDED)
def test_pl_bound(libsvm, k, mask, p):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = F - F* + (gamma/p) 4||A||^2 ||v - Ax||^2."""
    args = {"params": {"p": p}, "rule": "pl", "rounds": 300}
    method = on(libsvm, "vertical_marina", rand(k, mask), 4, **args)
    run = started(method.batch((1.0,), range(SEEDS)))
    c, problem = run.problem.constants, run.problem

    def error(r):
        Ax = problem.products(r.c.x).sum(1)
        return 2 * c.L * (r.s.v - Ax).square().sum(-1).numpy()  # L = 2||A||^2

    G = np.stack(each_round(run, error))
    assert G[0].max() < 1e-20
    assert G[1:].max() > 1e-6
    cell = method.cell()
    gaps = run.recorder.column("loss").T - c.f_star
    psi = (gaps + cell.step_size / cell.params["p"] * G).mean(1)
    promised = (1 - cell.step_size * c.mu) ** np.arange(len(psi)) * psi[0]
    assert (psi <= promised + 1e-11 * c.f_star).all()


def test_a_message_has_an_entry_per_row(libsvm):
    for name, compressor, values in (
        ("vertical_gd", None, ROWS * 41),
        ("vertical_naive", rand(7), 7 * 41),
        ("vertical_marina", {"name": "rand_k", "k": 7}, None),
    ):
        run = finished(on(libsvm, name, compressor, rounds=40, step=1e-3).batch())
        up, down = (float(run.recorder.column(f"values_{way}")[0, -1]) for way in ("up", "down"))
        assert down == ROWS * 40
        if values is not None:
            assert up == values
        else:  # the first message is dense, and each later one dense or of seven values
            assert (up - 41 * 7) % (ROWS - 7) == 0
            assert ROWS + 40 * 7 < up < ROWS * 41


def test_no_step_is_proved_for_the_control(libsvm):
    cell = on(libsvm, "vertical_naive", rand(9), step=1.0).cell().cell
    assert Resolver().resolve(cell).theory_step is None
    with pytest.raises(Skip, match="no theoretical step size"):
        Resolver().resolve(replace(cell, step=Step("theory", 1.0)))
    borrowed = replace(cell, step=Step("theory", 1.0, of="vertical_gd"))
    gd = on(libsvm, "vertical_gd").cell()
    assert Resolver().resolve(borrowed).step_size == gd.step_size


def test_rows_split_over_clients_are_refused():
    method = Method("vertical_naive", {}, rand(2), {"name": "least_squares", **DATA}, step=0.1)
    with pytest.raises(Skip, match="features split over clients"):
        method.cell()
