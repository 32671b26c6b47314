"""Methods of practice: momentum, deep gradient compression, signs, local steps, 1-bit Adam."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import each_round, full_gradients, path, registered

from raybench import registry
from raybench.compressors.keeping import keeping, kept_by, shares
from raybench.engine.ledger import COLUMNS
from raybench.engine.resolve import problem_of
from raybench.errors import InputError
from raybench.problems.groups import clipped, matrices
from raybench.problems.layout import Layout
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import DATA, Method, finished, started

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
MATRIX = {"name": "quadratic", "shape": [[5, 4]], "clients": 3, "mu": 0.05}
SAMPLES = {"name": "least_squares", **DATA}
TOP = {"name": "top_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}
VALUES, RAW = COLUMNS.index("values"), COLUMNS.index("raw")


def on_p1(name, compressor=None, rounds=60, step=0.1, **params) -> Method:
    return Method(name, params, compressor, P1, step=step, rounds=rounds, more=FAR)


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def paths(*methods: Method) -> list[np.ndarray]:
    return [path(started(m.batch((1.0, 0.5), (0, 1)))) for m in methods]


class Tensors(Quadratic):
    """Convex quadratics of five clients whose variable is a 3 x 4 matrix, a vector of 4, a 2 x 3 matrix."""

    layout_of = Layout((("w", (3, 4)), ("b", (4,)), ("v", (2, 3))))

    def __init__(self) -> None:
        random = np.random.default_rng(2)
        Q = np.linalg.qr(random.standard_normal((5, 22, 22))).Q
        A = Q * random.uniform(0.3, 2.0, (5, 1, 22)) @ Q.swapaxes(1, 2)
        b = random.standard_normal((5, 22))
        super().__init__(torch.from_numpy(A), torch.from_numpy(b), layout=self.layout_of)


class Median(Quadratic):
    """f_i = (x_j - b_ij)^2/2 summed over j, b_i = 0, 0, 3: x* = 1 and the majority pulls to 0.

    The last coordinate is the same for all clients: x* = 1 there too, and the majority is right.
    """

    def __init__(self) -> None:
        A = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
        b = torch.tensor([[0.0, 0, 1], [0, 0, 1], [3, 3, 1]], dtype=torch.float64)
        super().__init__(A, b)


class Idle(Quadratic):
    """f_i = sum over the first two coordinates of (x_j - b_ij)^2/2; the third has no gradient ever."""

    def __init__(self) -> None:
        A = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)).repeat(2, 1, 1)
        super().__init__(A, torch.tensor([[1.0, 2, 0], [3, -1, 0]], dtype=torch.float64))


@pytest.fixture(scope="module", autouse=True)
def problems():
    with registered("problem", tensors=Tensors, median=Median, idle=Idle):
        yield


# Momentum -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
def test_heavy_ball_formula(nesterov):
    look = each_round(
        started(on_p1("heavy_ball", momentum=0.8, nesterov=nesterov).batch()),
        lambda r: (r.s.x.clone(), full_gradients(r).mean(1)),
    )
    v = torch.zeros_like(look[0][0])
    for (x, g), (then, _) in pairwise(look):
        v = 0.8 * v + g
        assert largest(then, x - 0.1 * (g + 0.8 * v if nesterov else v)) < 1e-13


def test_no_momentum_is_sgd_on_the_same_samples():
    args = {"problem": SAMPLES, "step": 0.02}
    ours, theirs = paths(
        Method("momentum_sgd", {"momentum": 0.0, "batch": 3}, **args),
        Method("sgd", {"batch": 3}, **args),
    )
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("eta", [0.0, 0.5, 0.9, 0.97])
def test_heavy_ball_nonconvex_bound(eta):
    """(1/T) sum ||grad f||^2 <= 2 Delta0/(h T) + M^0/((1-eta) T), h = gamma/(1-eta), path-wise."""
    method = Method("heavy_ball", {"momentum": eta}, None, P1, rounds=800, more=FAR)
    run = finished(method.batch((1.0,), range(4)))
    gamma, L = method.cell().step_size, problem_of(method.cell().cell.problem).constants.L
    assert gamma == pytest.approx((1 - eta) ** 2 / L)
    norms = run.recorder.column("grad_norm_sq")
    gap = run.recorder.column("loss")[:, 0] - run.problem.constants.f_star
    for T in (1, 10, 100, 800):
        promised = (2 * gap * (1 - eta) / gamma + eta**2 * norms[:, 0] / (1 - eta)) / T
        assert (norms[:, :T].mean(1) <= promised).all()


@pytest.mark.parametrize("eta", [0.0, 0.5, 0.9])
def test_heavy_ball_pl_bound(eta):
    """Psi^t <= (1 - h mu)^t Psi^0, Psi = f - f* + (h/(1-eta)) ||(1-eta) v - grad f||^2, v after adding."""
    method = Method("heavy_ball", {"momentum": eta}, None, P1, rule="pl", rounds=400, more=FAR)
    run = started(method.batch((1.0,), range(3)))
    h, mu = method.cell().step_size / (1 - eta), run.problem.constants.mu

    def gap(r):
        g = full_gradients(r).mean(1)
        return ((1 - eta) * (eta * r.s.v + g) - g).square().sum(-1)

    M = torch.stack(each_round(run, gap)).numpy()
    psi = run.recorder.column("loss").T - run.problem.constants.f_star + h / (1 - eta) * M
    assert (psi <= (1 - h * mu) ** np.arange(401)[:, None] * psi[0] * (1 + 1e-9) + 1e-11).all()


def test_nesterov_has_no_theory_here():
    method = Method("heavy_ball", {"nesterov": True}, None, P1)
    assert method.cell().theory_step is None
    assert Method("heavy_ball", {}, None, P1).cell().theory_step > 0


def test_power_sgd_of_full_rank_with_momentum_is_heavy_ball():
    args = {"problem": MATRIX, "step": 0.05, "rounds": 200}
    ours, theirs, plain = paths(
        Method("power_sgd", {"rank": 4, "momentum": 0.7}, **args),
        Method("heavy_ball", {"momentum": 0.7}, **args),
        Method("gd", {}, **args),
    )
    assert largest(ours, theirs) < 1e-8
    assert largest(ours, plain) > 1e-2


# Deep gradient compression --------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("compressor", [TOP, {"name": "dgc", "k": 3, "sample": "50%"}, "natural"])
def test_dgc_without_masking_conserves_momentum(compressor, nesterov):
    method = on_p1("dgc", compressor, 50, 0.02, masking=False, nesterov=nesterov)

    def look(r):
        return r.s.x.clone(), r.c.u.mean(1), r.c.v.mean(1), full_gradients(r).mean(1)

    seen = each_round(started(method.batch((1.0, 2.0), (0, 1))), look)
    gammas, total = torch.tensor([[0.02], [0.04]], dtype=torch.float64), torch.zeros(2, 12).double()
    for (_, _, _, grad), (x, u, v, _) in pairwise(seen):
        total = total + u + (grad if nesterov else 0.0)
        assert largest((seen[0][0] - x) / gammas + v, total) < 1e-9
    assert float(seen[-1][2].abs().max()) > 1e-3


@pytest.mark.parametrize("nesterov", [False, True])
def test_dgc_that_sends_all_is_momentum_or_plain_descent(nesterov):
    dgc = {"rounds": 300, "step": 0.05, "nesterov": nesterov, "momentum": 0.8}
    open_, masked, bypass, ball, plain = paths(
        on_p1("dgc", "identity", masking=False, **dgc),
        on_p1("dgc", {"name": "top_k", "k": "100%"}, masking=True, **{**dgc, "nesterov": False}),
        on_p1("dgc", TOP, masking=True, warmup=[["100%"]], warmup_rounds=300, **dgc),
        on_p1("heavy_ball", None, 300, 0.05, momentum=0.8, nesterov=nesterov),
        on_p1("gd", None, 300, 0.05),
    )
    assert largest(open_, ball) < 1e-8
    assert largest(bypass, ball) < 1e-8  # a dense phase keeps its momentum
    assert largest(masked, plain) < 1e-8
    assert largest(plain, ball) > 1e-2


def test_dgc_masks_the_momentum_of_what_it_sent():
    run = started(on_p1("dgc", TOP, 30).batch((1.0,), (0,)))
    for u, v in each_round(run, lambda r: (r.c.u, r.c.v))[1:]:
        sent = u == 0
        assert (sent.sum(-1) == 3).all()
        assert (v[sent] == 0).all()
        assert (v[~sent] != 0).all()


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


def test_dgc_clips_to_the_share_of_a_client_and_adds_the_decay():
    params = {"clip": 0.5, "decay": 0.3}
    problem = {"name": "tensors"}
    method = Method("dgc", params, TOP, problem, step=0.1, rounds=1, more=FAR)
    run = started(method.batch())
    run.advance(0)
    x, g = run.s.x.clone(), full_gradients(run)
    run.advance(1)
    total = clipped(run.problem.layout, g, 0.5 / 5**0.5) + 0.3 * x[:, None]
    kept = run.c.u != 0
    assert kept.sum() == 5 * (22 - 3)
    assert largest(run.c.u[kept], total[kept]) < 1e-14


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


def test_dense_vectors_of_a_problem_with_one_vector_are_momentum_sgd():
    ours, theirs = paths(on_p1("dgc", TOP, vectors="dense"), on_p1("heavy_ball"))
    assert largest(ours, theirs) < 1e-10


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
    """The shares of the warm-up, so many rounds each, then the operator's own k."""
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
    found = [float(str(share).rstrip("%")) / 100 for share in shares("geometric", op, 10**6)]
    assert found == pytest.approx([0.316, 0.1, 0.0316, 0.01, 0.00316], rel=2e-3)
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


def test_a_warm_up_of_an_operator_without_k_is_refused():
    run = started(on_p1("dgc", "scaled_sign", warmup="paper").batch())
    with pytest.raises(InputError, match="keeps no number"):
        run.advance(0)


# Signs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sign_sgd", "signum"])
def test_majority_vote(name):
    """The formula, ties at +1 (six clients), and d bits each way."""
    problem = {**P1, "clients": 6}
    params = {"decay": 0.1, **({"momentum": 0.6} if name == "signum" else {})}
    run = started(Method(name, params, None, problem, step=0.05, rounds=40, more=FAR).batch())
    look = each_round(run, lambda r: (r.s.x.clone(), full_gradients(r)))
    m, ties = torch.zeros(1, 6, 12).double(), 0
    for (x, g), (then, _) in pairwise(look):
        m = 0.6 * m + 0.4 * g if name == "signum" else g
        votes = torch.where(m >= 0, 1, -1).sum(1)
        ties += int((votes == 0).sum())
        assert largest(then, x - 0.05 * (torch.where(votes >= 0, 1.0, -1.0) + 0.1 * x)) < 1e-14
    assert ties > 0
    for side in (run.net.ledger.up, run.net.ledger.down):
        assert side[RAW] == 40 * 12
        assert side[VALUES] == 0


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


def test_signum_without_momentum_is_sign_sgd():
    ours, theirs = paths(on_p1("signum", momentum=0.0), on_p1("sign_sgd"))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["sign_sgd", "signum"])
def test_the_majority_stalls_on_heterogeneous_data(name):
    """Negative control: it goes to the median of the clients' minimisers at any step; descent does not."""
    args = {"problem": {"name": "median"}, "rounds": 1500}
    run = finished(Method(name, {}, None, step=0.1, **args).batch((1.0, 0.1, 0.01)), every=1500)
    for x, gamma in zip(run.s.x, (0.1, 0.01, 0.001), strict=True):
        assert (x[:2].abs() <= 20 * gamma).all()  # not 1
        assert abs(float(x[2]) - 1) <= 20 * gamma
    star = finished(Method("gd", {}, None, step=0.1, **args).batch(), every=1500).s.x
    assert largest(star, np.ones(3)) < 1e-12


def test_a_gradient_that_is_not_finite_stops_its_own_cell_only():
    run = started(on_p1("sign_sgd").batch((1.0, 0.5), (0, 1)))
    run.advance(3)
    run.s.x[0, 2] = torch.nan
    run.advance(60)
    assert run.status.tolist() == ["diverged", "ok"]


# Local steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [3, "full"])
def test_one_local_step_is_sgd(batch):
    args = {"problem": SAMPLES, "step": 0.02}
    plain = Method("gd", {}, **args) if batch == "full" else Method("sgd", {"batch": 3}, **args)
    (want,) = paths(plain)
    for name in ("local_sgd", "fedprox", "scaffold"):
        (have,) = paths(Method(name, {"tau": 1, "batch": batch}, **args))
        assert largest(have, want) < 1e-12, name


def test_special_cases_of_local_steps():
    local, prox, pulled = paths(
        on_p1("local_sgd"), on_p1("fedprox", mu=0.0), on_p1("fedprox", mu=2.0)
    )
    assert np.array_equal(local, prox)
    assert largest(local, pulled) > 1e-3
    pairs = [
        (on_p1("local_sgd", tau=1, momentum=0.8), on_p1("heavy_ball", momentum=0.8)),
        (on_p1("local_ef21", TOP, tau=1), on_p1("ef21", TOP)),
        (on_p1("local_ef21", "identity", init="full", rounds=200), on_p1("local_sgd", rounds=200)),
    ]
    for ours, theirs in (paths(*pair) for pair in pairs):
        assert largest(ours, theirs) < 1e-10


def fixed_point(problem, gamma, tau, mu=0.0) -> torch.Tensor:
    """Where tau local steps from x lead back to x in the mean, by solving the affine map."""
    A, b = problem.A, problem.b
    x, y = torch.eye(12, dtype=torch.float64), torch.zeros(7, 12, 13, dtype=torch.float64)
    y[:, :, :12] = x  # as an affine function of x: columns of the matrix, then the constant
    start = y.clone()
    for _ in range(tau):
        slope = A @ y
        slope[:, :, 12] -= b
        y = y - gamma * (slope + mu * (y - start))
    mean = y.mean(0)
    return torch.linalg.solve(x - mean[:, :12], mean[:, 12])


@pytest.mark.parametrize(("name", "mu"), [("local_sgd", 0.0), ("fedprox", 1.5)])
def test_local_steps_have_a_fixed_point_of_their_own(name, mu):
    params = {"tau": 4, **({"mu": mu} if mu else {})}
    problem = {**P1, "mu": 0.3}
    method = Method(name, params, None, problem, step=0.1, rounds=1000, more=FAR)
    run = finished(method.batch((1.0, 0.5)), every=1000)
    star, away = run.problem.minimizer(), []
    for x, gamma in zip(run.s.x, (0.1, 0.05), strict=True):
        point = fixed_point(run.problem, gamma, 4, mu)
        assert largest(x, point) < 1e-8
        away.append(float((point - star).norm()))
    assert away[0] > 1.3 * away[1] > 1e-2


@pytest.mark.parametrize("params", [{}, {"p": 0.5}, {"momentum": 0.5}, {"server": 0.5}])
def test_scaffold_removes_it(params):
    problem, params = {**P1, "mu": 0.3}, {"tau": 4, **params}
    method = Method("scaffold", params, None, problem, step=0.1, rounds=1000, more=FAR)
    run = finished(method.batch((1.0, 0.5)), every=1000)
    assert largest(run.s.x, run.problem.minimizer().expand(2, -1)) < 1e-9
    assert largest(run.c.h, full_gradients(run)) < 1e-8


@pytest.mark.parametrize("p", [1.0, 0.4])
def test_scaffold_server_keeps_the_mean(p):
    run = started(on_p1("scaffold", None, 60, 0.05, tau=3, p=p).batch((1.0, 2.0), (0, 1)))
    gaps = each_round(run, lambda r: largest(r.s.h, r.c.h.mean(1)))
    assert max(gaps) < 1e-12
    assert float(run.s.h.abs().max()) > 1e-3
    d = 2 * 12
    assert (run.net.ledger.down[VALUES] == 60 * d).all()
    share = run.net.ledger.up[VALUES] / (60 * d)
    assert ((share == 1) if p == 1 else (share > 0.2) & (share < 0.6)).all()


def test_the_mean_is_over_those_who_take_part():
    run = started(on_p1("local_sgd", None, 60, 0.05, tau=2, p=0.2).batch())
    run.advance(0)
    empty = 0
    for t in range(1, 61):
        x, grads = run.s.x.clone(), full_gradients(run)
        run.advance(1)
        S = run.net.participants(run.a.p)[0]
        if S.any():
            y = x[:, None] - 0.05 * grads
            y = y - 0.05 * run.problem.grad(y)
            assert largest(run.s.x, y[:, S].mean(1)) < 1e-13, t
        else:
            empty += 1
            assert torch.equal(run.s.x, x)
    assert 0 < empty < 60


@pytest.mark.parametrize("name", ["local_sgd", "fedprox", "scaffold", "local_ef21"])
def test_local_gradients_are_counted(name):
    compressor = TOP if name == "local_ef21" else None
    for batch, cost in ((3, 3), ("full", 12)):
        params = {"tau": 4, "batch": batch, **({"init": "zero"} if compressor else {})}
        method = Method(name, params, compressor, SAMPLES, step=1e-3, rounds=10)
        run = finished(method.batch(), every=5)
        start = 4 * cost if compressor else 0  # EF21 asks for gradients at the start
        assert run.net.evals.tolist() == [10 * 4 * cost + start]


def test_those_who_stay_away_compute_nothing():
    params = {"tau": 4, "batch": 3, "p": 0.3}
    run = finished(Method("local_sgd", params, None, SAMPLES, step=1e-3, rounds=50).batch())
    share = run.net.ledger.up[VALUES] / (50 * 30)
    assert 0.1 < share < 0.5
    assert run.net.evals == pytest.approx(share * 50 * 12)


# 1-bit Adam -----------------------------------------------------------------------------------


def test_one_bit_adam_is_adam_at_first_and_then_conserves():
    params = {"warmup_rounds": 10, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
    run = started(on_p1("one_bit_adam", None, 40, 0.03, **params).batch())

    def look(r):
        mean = full_gradients(r).mean(1)
        held = r.s.E + r.c.e.mean(1)
        return r.s.x.clone(), mean, r.s.m.clone(), r.s.v.clone(), held, r.net.ledger.up.copy()

    seen = each_round(run, look)[:41]
    for t, ((x, g, m, v, held, sent), (x1, _, m1, v1, held1, sent1)) in enumerate(pairwise(seen)):
        assert largest(x1, x - 0.03 * m1 / (v1.sqrt() + 1e-3)) < 1e-13
        want = 0.8 * m + 0.2 * g
        cost = (sent1 - sent)[:, 0]
        if t < 10:
            assert largest(m1, want) < 1e-13
            assert largest(v1, 0.95 * v + 0.05 * g**2) < 1e-13
            assert held1.abs().max() == 0
            assert (cost[VALUES], cost[RAW]) == (12, 0)
        else:
            assert largest(m1 + held1, want + held) < 1e-12
            assert torch.equal(v1, v)
            assert held1.abs().max() > 1e-6
            assert m1.abs().unique().numel() <= 2  # signs times one scale
            assert (cost[VALUES], cost[RAW]) == (1, 12)


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
