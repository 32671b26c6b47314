"""Rules ``paper`` and ``released`` on real data, against steps computed here from the raw rows with numpy.

Nothing of raybench's constants is used: rows are read, split and measured anew. ``released`` takes for
smoothness what the authors' code takes, the largest squared norm of a row; ``paper`` eigenvalues.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from raybench import data, spec
from raybench.execution.resolve import Resolver

LIBSVM = Path(os.environ.get("RAYBENCH_DATA", "")) / "libsvm"
SETS = {"breast_cancer": 30, "mushrooms": 112, "a9a": 123, "w8a": 300}


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, d) and labels -1, +1 in file order, read without raybench."""
    if name == "breast_cancer":
        loaded = sklearn.datasets.load_breast_cancer()
        X, y = loaded.data, loaded.target
    else:
        result = sorted(LIBSVM.glob(f"{name}*"))
        if not result:
            pytest.skip(f"needs the LIBSVM set {name}")
        own = next(f for f in result if f.name.split(".")[0] == name and ".t" not in f.suffixes)
        if own.suffix == ".xz":
            import lzma

            with lzma.open(own) as stream:
                X, y = sklearn.datasets.load_svmlight_file(stream, n_features=SETS[name])
        else:
            X, y = sklearn.datasets.load_svmlight_file(str(own), n_features=SETS[name])
        X = X.toarray()
    return X, np.where(y == y.min(), -1.0, 1.0)


def parts_of(X: np.ndarray, clients: int) -> list[np.ndarray]:
    """Contiguous equal parts; what is left over is dropped."""
    size = len(X) // clients
    return [X[i * size : (i + 1) * size] for i in range(clients)]


def largest(A: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(A.T @ A / len(A))[-1])


def step(problem: dict, algorithm: dict, operator: dict, rule: str) -> float:
    """One times the step that raybench finds."""
    config = {
        "problem": problem,
        "algorithm": algorithm,
        "compressor": operator,
        "step_size": {"theory": 1, "rule": rule},
    }
    (cell,) = spec.load(config).cells
    return Resolver().resolve(cell).step_size


@pytest.fixture(
    scope="module",
    params=[
        *("breast_cancer", "mushrooms"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("a9a", "w8a")),
    ],
)
def nonconvex(request):
    """The problem of MARINA's experiments, its clients' rows, d, and lambda = 1e-6 L."""
    X, _ = rows_of(request.param)
    parts = parts_of(X, 5)
    lam = 1e-6 * 0.154058 * largest(np.concatenate(parts))  # as raybench's {times_L: 1e-6} means it
    problem = {"name": "nonconvex_classification", "dataset": request.param, "clients": 5}
    return problem, parts, X.shape[1], lam


@pytest.mark.parametrize("k", [1, 10])
def test_marina_and_diana(nonconvex, k):
    problem, parts, d, lam = nonconvex
    n, omega, rand = 5, d / k - 1, {"name": "rand_k", "k": k}
    rows = [0.15405 * np.square(part).sum(1).max() + lam for part in parts]
    tight = [0.154058 * largest(part) + lam for part in parts]
    root = np.sqrt(omega * omega / n)  # (1-p) omega/(p n) at p = 1/(1 + omega)
    close = {"rel": 1e-4}  # the code rounds 0.154058.. down

    released = step(problem, {"name": "marina"}, rand, "released")
    assert released == pytest.approx(1 / (max(rows) * (1 + root)), **close)
    paper = step(problem, {"name": "marina"}, rand, "paper")
    mean_square = np.sqrt(np.mean(np.square(tight)))
    assert paper == pytest.approx(1 / (mean_square * (1 + root)), **close)
    assert max(rows) / mean_square > 1.5  # rows against eigenvalues: the two rules differ

    scale = 10 * np.sqrt(1 + omega / n) * (2 + omega)
    for rule, L in (("released", max(rows)), ("paper", max(tight))):
        assert step(problem, {"name": "diana"}, rand, rule) == pytest.approx(
            1 / (L * scale), **close
        )

    m = len(parts[0])
    for batch in (1, m // 100 + 1):
        L = max(rows)
        p = min(1 / (1 + omega), batch / (batch + m))
        inside = (omega * L * L + (1 + omega) * L * L / batch) * (1 - p) / (p * n)
        given = {"name": "vr_marina", "batch": batch}
        assert step(problem, given, rand, "released") == pytest.approx(
            1 / (L + np.sqrt(inside)), **close
        )
        scale = 10 * np.sqrt(1 + omega / n) * ((m / batch) ** (2 / 3) + omega + 1)
        given = {"name": "vr_diana", "batch": batch}
        for rule in ("paper", "released"):
            assert step(problem, given, rand, rule) == pytest.approx(1 / (L * scale), **close)

    mean, square = np.mean(rows), np.sqrt(np.mean(np.square(rows)))
    want = 1 / (mean + square * np.sqrt(omega * (4 * omega + 1) / n))
    assert step(problem, {"name": "dasha"}, rand, "released") == pytest.approx(want, **close)


@pytest.mark.parametrize("name", ["breast_cancer", "mushrooms"])
@pytest.mark.parametrize("k", [1, 20])
def test_ef21(name, k):
    X, _ = rows_of(name)
    parts, d = parts_of(X, 20), X.shape[1]
    used, top, alpha = np.concatenate(parts), {"name": "top_k", "k": k}, k / d
    t = 1 / np.sqrt(1 - alpha) - 1
    theta, beta = 1 - (1 - alpha) * (1 + t), (1 - alpha) * (1 + 1 / t)
    plain = {"dataset": name, "clients": 20}

    logistic = {"name": "logistic", **plain, "regularizer": "nonconvex", "lambda": 0.1}
    L = largest(used) / 4 + 0.2
    tilde = np.sqrt(np.mean([(largest(part) / 4 + 0.2) ** 2 for part in parts]))
    want = 1 / (L + tilde * np.sqrt(beta / theta))
    for rule in ("nonconvex", "paper", "released"):
        assert step(logistic, {"name": "ef21"}, top, rule) == pytest.approx(want, rel=1e-9)

    ridge = {"name": "least_squares", **plain, "regularizer": "l2", "lambda": 0.5}
    L, tilde = largest(used) + 0.5, np.sqrt(np.mean([(largest(part) + 0.5) ** 2 for part in parts]))
    mu = max(np.linalg.eigvalsh(used.T @ used / len(used))[0], 0) + 0.5
    want = min(1 / (L + tilde * np.sqrt(2 * beta / theta)), theta / (2 * mu))
    for rule in ("pl", "released"):
        assert step(ridge, {"name": "ef21"}, top, rule) == pytest.approx(want, rel=1e-8)


def test_the_rows_are_those_that_raybench_reads():
    X, y = rows_of("breast_cancer")
    read = data.load("breast_cancer")
    assert np.array_equal(read.features, X)
    assert np.array_equal(read.binary(), y)
