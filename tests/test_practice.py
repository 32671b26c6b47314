"""Methods of practice: momentum, deep gradient compression, signs, local steps, 1-bit Adam."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import (
    FAR,
    P1,
    TOP,
    VALUES,
    each_round,
    full_gradients,
    largest,
    on_p1,
    registered,
)

from raybench.compressors.base import keeping, kept_by, shares
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.layout import Layout, clipped, matrices
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import Method, finished, started

pytestmark = pytest.mark.thorough


class Tensors(Quadratic):
    """Convex quadratics of five clients whose variable is a 3 x 4 matrix, a vector of 4, a 2 x 3 matrix."""

    layout_of = Layout((("w", (3, 4)), ("b", (4,)), ("v", (2, 3))))

    def __init__(self) -> None:
        random = np.random.default_rng(2)
        Q = np.linalg.qr(random.standard_normal((5, 22, 22))).Q
        A = Q * random.uniform(0.3, 2.0, (5, 1, 22)) @ Q.swapaxes(1, 2)
        b = random.standard_normal((5, 22))
        super().__init__(torch.from_numpy(A), torch.from_numpy(b), layout=self.layout_of)


class Idle(Quadratic):
    """f_i = sum over the first two coordinates of (x_j - b_ij)^2/2; the third has no gradient ever."""

    def __init__(self) -> None:
        A = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)).repeat(2, 1, 1)
        super().__init__(A, torch.tensor([[1.0, 2, 0], [3, -1, 0]], dtype=torch.float64))


@pytest.fixture(scope="module", autouse=True)
def problems():
    with registered("problem", tensors=Tensors, scalar=WithScalar, idle=Idle):
        yield


# Momentum -------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.0, 0.5, 0.9])
def test_heavy_ball_pl_bound(eta):
    """Psi^t <= (1 - h mu)^t Psi^0, Psi = f - f* + (h/(1-eta)) ||(1-eta) v - grad f||^2, v after adding."""
    method = Method("heavy_ball", {"momentum": eta}, None, P1, rule="pl", rounds=400, more=FAR)
    run = started(method.batch((1.0,), range(3)))
    h, mu = method.cell().step_size / (1 - eta), run.problem.constants.mu

    def gap(r):
        g = full_gradients(r).mean(1)
        return ((1 - eta) * (eta * r.s.outer + g) - g).square().sum(-1)

    M = torch.stack(each_round(run, gap)).numpy()
    psi = run.recorder.column("loss").T - run.problem.constants.f_star + h / (1 - eta) * M
    assert (psi <= (1 - h * mu) ** np.arange(401)[:, None] * psi[0] * (1 + 1e-9) + 1e-11).all()


class WithScalar(Quadratic):
    """One client, f = ||x - 1||^2/2, whose variable is a 2 x 3 matrix, a scalar and a vector of 2."""

    def __init__(self) -> None:
        A, b = torch.eye(9, dtype=torch.float64)[None], torch.ones(1, 9, dtype=torch.float64)
        super().__init__(A, b, layout=Layout((("w", (2, 3)), ("s", ()), ("b", (2,)))))


@pytest.mark.parametrize("name", ["power_sgd", "dgc"])
def test_a_scalar_is_a_tensor_too(name):
    params = {"dgc": {"vectors": "dense", "clip": 9.0, "momentum": 0.5}}.get(name, {})
    method = Method(name, params, TOP if name == "dgc" else None, {"name": "scalar"}, step=0.2)
    run = finished(replace(method, rounds=120).batch(), every=120)
    assert largest(run.s.x, np.ones((1, 9))) < 1e-6
    assert run.net.ledger.up[VALUES] == 120 * ((2 + 3) if name == "power_sgd" else 3) + 120 * 3


# Deep gradient compression --------------------------------------------------------------------


def test_tensors_are_clipped_one_by_one():
    layout, limit = Tensors.layout_of, 0.7
    g = torch.linspace(-2, 3, 3 * 22, dtype=torch.float64).view(3, 22)
    g[1] *= 1e-2
    g[2] = 0
    before, after = layout.views(g), layout.views(clipped(layout, g, limit))
    for whole, cut in zip(before, after, strict=True):
        norm, now = whole.flatten(1).norm(dim=-1), cut.flatten(1).norm(dim=-1)
        assert torch.allclose(now, norm.clamp(max=limit), rtol=1e-12)
        assert norm[0] > limit > norm[1] > 0
        assert torch.equal(cut[1:], whole[1:])
        scale = (now[0] / norm[0]).item()
        assert torch.allclose(cut[0], scale * whole[0], rtol=1e-12)


def test_dgc_sends_vectors_dense_where_asked():
    method = Method("dgc", {"vectors": "dense"}, TOP, {"name": "tensors"}, step=0.05, rounds=40)
    run = started(method.batch((1.0, 0.5), (0, 1)))
    narrow = slice(12, 16)
    for v, u in each_round(run, lambda r: (r.c.v, r.c.u))[1:]:
        assert (v[..., narrow] == 0).all()
        assert (u[..., narrow] != 0).all()  # their momentum is theirs
        assert ((u == 0).sum(-1) == 3).all()
    assert (run.net.ledger.up[VALUES] == 40 * (3 + 4)).all()


def test_a_split_joins_again():
    split = matrices(Tensors.layout_of, True)
    x = torch.arange(44.0).view(2, 22)
    wide, narrow = split(x)
    assert torch.equal(narrow, x[:, 12:16])
    assert torch.equal(split.join(wide, narrow), x)
    assert [name for name, _ in split.layout] == ["w", "v"]
    only = matrices(Layout.vector(5), True)
    assert torch.equal(only.join(*only(x[:, :5])), x[:, :5])
    assert matrices(Tensors.layout_of, False)(x)[0] is x


@pytest.mark.parametrize(
    ("compressor", "of"),
    [
        (TOP, lambda share: -(-share * 22 // 1)),
        (
            {"name": "per_tensor", "of": "top_k:k=1"},
            lambda share: sum(-(-share * size // 1) for size in (12, 4, 6)),
        ),
    ],
    ids=["whole", "per_tensor"],
)
def test_dgc_warms_up(compressor, of):
    """The shares of the warm-up, so many rounds each, then the compressor's own k."""
    params = {"warmup": [["50%", 0.25, "10%"]], "warmup_rounds": 4}
    method = Method("dgc", params, compressor, {"name": "tensors"}, step=0.02, rounds=15)
    counts = each_round(started(method.batch()), lambda r: r.net.ledger.up[VALUES].copy())
    sent = np.diff(np.concatenate(counts))[:15]
    assert sent.tolist() == [of(0.5)] * 4 + [of(0.25)] * 4 + [of(0.1)] * 4 + [3.0] * 3


def test_warm_up_ratios():
    """Those of the paper, and base^(j/6) of 0.1%: 0.316, 0.1, 0.0316, 0.01, 0.00316."""
    op = registry.lookup("compressor", "dgc").target(k="0.1%")
    assert shares("off", op, 1000) == []
    assert shares("paper", op, 10**6) == ["25%", "6.25%", "1.5625%", "0.4%"]
    result = [float(str(share).rstrip("%")) / 100 for share in shares("geometric", op, 10**6)]
    assert result == pytest.approx([0.316, 0.1, 0.0316, 0.01, 0.00316], rel=2e-3)
    assert shares(["99.99%", 4, "30%"], op, 10) == ["100%", 4, "30%"]
    for wrong in ("150%", 0, "much"):
        with pytest.raises(InputError, match=r"warmup\[1\]"):
            shares(["25%", wrong], op, 100)


def test_operators_with_another_k():
    def made(name, **params):
        return registry.lookup("compressor", name).target(**params)

    assert keeping(made("top_k", k=3), "50%") == made("top_k", k="50%")
    nested = keeping(made("per_tensor", of="chain:first=(top_k:k=1),then=natural"), "25%")
    x = torch.arange(1.0, 9.0)
    assert int((nested.bind(8)(x, started(on_p1("gd").batch()).net.roots).decode() != 0).sum()) == 2
    assert kept_by(nested) == "25%"
    assert kept_by(made("natural")) is None
    for without in (made("natural"), made("per_tensor", of="scaled_sign")):
        with pytest.raises(InputError, match="keeps no number"):
            keeping(without, 1)


@pytest.mark.parametrize("warmup", ["paper", "geometric", [["50%"]]])
def test_a_warm_up_of_an_operator_without_k_is_refused_by_the_plan(warmup):
    with pytest.raises(InputError, match="keeps no number"):
        on_p1("dgc", "scaled_sign", warmup=warmup).batch()


# Signs ----------------------------------------------------------------------------------------


def test_ties_by_coin():
    """Two clients that disagree everywhere: the vote is the server's coin, fair and the same for all."""
    problem = {**P1, "clients": 2, "dim": 200}
    run = started(Method("sign_sgd", {"ties": "random"}, None, problem, step=1.0, rounds=1).batch())
    g = full_gradients(run)
    run.advance(1)
    tie = (g[:, 0] >= 0) != (g[:, 1] >= 0)
    went = -run.s.x[tie]
    assert set(went.tolist()) == {-1.0, 1.0}
    assert abs(float(went.mean())) < 4 / tie.sum().item() ** 0.5
    assert torch.equal(-run.s.x[~tie], g[:, 0][~tie].sign())


def test_a_gradient_that_is_not_finite_stops_its_own_cell_only():
    run = started(on_p1("sign_sgd").batch((1.0, 0.5), (0, 1)))
    run.advance(3)
    run.s.x[0, 2] = torch.nan
    run.advance(60)
    assert run.status.tolist() == ["diverged", "ok"]


# 1-bit Adam -----------------------------------------------------------------------------------


def test_one_bit_adam_leaves_coordinates_without_gradients():
    params = {"warmup_rounds": 5}
    problem = {"name": "idle"}
    run = finished(
        Method("one_bit_adam", params, None, problem, step=0.01, rounds=300, more=FAR).batch()
    )
    start = started(run.batch).s.x
    assert torch.equal(run.s.x[:, 2], start[:, 2])
    assert (run.s.x[:, :2] != start[:, :2]).all()
    assert run.status[0] == "ok"
