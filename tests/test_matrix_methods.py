"""Methods whose steps are matrices of norm 1: by hand, and as limits of others."""

from __future__ import annotations

import pytest
import torch

from raybench.testing.trial import Method, finished, started

pytestmark = pytest.mark.thorough

NET = {
    "name": "network",
    "model": "mlp:hidden=[6],activation=tanh",
    "dataset": "digits",
    "clients": 3,
    "rows": 90,
    "batch": "full",
    "dtype": "float64",
}


def dion_by_hand(run, rounds, gamma, rank=4, mu=0.95, beta2=0.95, decay=0.1):
    """Dion on the mean gradient with QR, as microsoft/dion's simple form: for one client."""
    f, layout = run.problem, run.problem.layout
    Q = [None if q is None else q[0].clone() for q in run.s.Q]
    x = f.start().clone()
    M = [torch.zeros(shape, dtype=x.dtype) for _, shape in layout]
    for _ in range(rounds):
        steps = []
        for j, g in enumerate(layout.views(f.grad(x[None])[0].mean(0))):
            if g.ndim < 2:
                steps.append(torch.sign(0.9 * M[j] + 0.1 * g))
                M[j] = beta2 * M[j] + (1 - beta2) * g
                continue
            M[j] = M[j] + g
            P = torch.linalg.qr(M[j] @ Q[j]).Q
            R = M[j].T @ P
            M[j] = M[j] - (1 - mu) * P @ R.T
            Q[j] = R / (R.norm(dim=0) + 1e-8)
            steps.append((g.shape[0] / g.shape[1]) ** 0.5 * P @ Q[j].T)
        x = x - gamma * (layout.concat(steps) + decay * x)
    return x


def test_dion_by_hand():
    problem = {**NET, "clients": 1}
    method = Method("dion", {"rank": 4, "decay": 0.1}, None, problem, step=0.02, rounds=15)
    run = started(method.batch())
    run.advance(0)
    want = dion_by_hand(run, 15, 0.02)
    run.advance(15)
    torch.testing.assert_close(run.s.x[0], want, rtol=1e-9, atol=1e-11)


def test_what_dion_sends():
    """r (a + b) values of a matrix, those of a vector as they are, up and down."""
    run = finished(Method("dion", {"rank": 4}, None, NET, step=0.02, rounds=5).batch())
    each = 4 * (6 + 64) + 6 + 4 * (10 + 6) + 10
    assert run.bits("up").tolist() == [5 * 64 * each]
    assert run.bits("down").tolist() == [5 * 64 * each]


def test_ef21_muon_with_the_identity_norm_is_ef21_sgdm(monkeypatch):
    operator = {"name": "top_k", "k": "10%"}
    want = finished(
        Method("ef21_sgdm", {"eta": 0.3, "batch": 90}, operator, NET, step=0.1, rounds=8).batch()
    )
    monkeypatch.setattr("raybench.algorithms.ef21_momentum.steepest", lambda G, norm: G)
    got = finished(
        Method("ef21_muon", {"eta": 0.3, "batch": 90}, operator, NET, step=0.1, rounds=8).batch()
    )
    torch.testing.assert_close(got.s.x, want.s.x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", ["spectral", "sign", "euclidean"])
def test_steps_have_norm_one(norm):
    method = Method(
        "ef21_muon", {"norm": norm, "init": "full"}, {"name": "identity"}, NET, step=0.5, rounds=1
    )
    run = finished(method.batch())
    moved = run.problem.layout.views((run.problem.start() - run.s.x[0]) / 0.5)
    for (_, shape), step in zip(run.problem.layout, moved, strict=True):
        if norm == "euclidean":
            assert float(step.norm()) == pytest.approx(1.0, rel=1e-9)
        elif norm == "sign" or len(shape) < 2:
            assert set(step.unique().tolist()) <= {-1.0, 0.0, 1.0}
        else:
            size = float(torch.linalg.matrix_norm(step, 2))
            assert 0.6 < size / max(1.0, shape[0] / shape[1]) ** 0.5 < 1.3
