"""Parts around a round: limits of their product are known methods; robust servers in a plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from toys import RAND, TOP, Alike, registered

import raybench
from raybench import spec
from raybench.analysis import describe
from raybench.core.errors import InputError
from raybench.execution.checks import Skip
from raybench.execution.costs import need_of
from raybench.execution.plan import make_plan
from raybench.execution.resolve import Resolver
from raybench.store import cells
from raybench.testing.trial import DATA, TrialMethod, finished, started

PROBLEM = {"name": "least_squares", **DATA}
NET = {"name": "network", "model": "mlp:hidden=[6]", "dataset": "digits"}
NET |= {"clients": 3, "rows": 90, "batch": 5, "dtype": "float64"}


def run(name, params=None, compressor=None, step=0.02, rounds=12, problem=PROBLEM, **more):
    method = TrialMethod(
        name, params or {}, compressor, problem, step=step, rounds=rounds, more=more
    )
    return finished(method.batch((1.0, 0.5), (0, 1)))


def begun(name, params=None, compressor=None, step=0.02, rounds=12, problem=PROBLEM, **more):
    """Return a run of one cell that is about to begin."""
    method = TrialMethod(
        name, params or {}, compressor, problem, step=step, rounds=rounds, more=more
    )
    return started(method.batch())


def resolve(name, compressor=TOP, step=None, problem=PROBLEM, **more):
    """Return the resolved cell of a method, by default with the step of theory."""
    config = TrialMethod(name, {}, compressor, problem, more=more).config
    (cell,) = spec.load(config({"theory": 1} if step is None else {"value": step}, 0)).cells
    return Resolver(step is not None).resolve(cell)


def close(a, b):
    torch.testing.assert_close(a.s.x, b.s.x, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("product", "known"),
    [
        (("gd", {}, None, {"local": {"steps": 4}}), ("local_sgd", {"tau": 4})),
        (
            ("sgd", {"batch": 3}, None, {"local": {"steps": 4}}),
            ("local_sgd", {"tau": 4, "batch": 3}),
        ),
        (("ef21", {}, TOP, {"local": {"steps": 4}}), ("local_ef21", {"tau": 4}, TOP)),
        (("gd", {}, None, {"outer": {"optimizer": "momentum"}}), ("heavy_ball", {})),
        (
            ("gd", {}, None, {"outer": {"optimizer": "nesterov", "momentum": 0.7}}),
            ("heavy_ball", {"momentum": 0.7, "nesterov": True}),
        ),
        (
            ("ef21", {}, TOP, {"outer": {"optimizer": "momentum", "momentum": 0.5}}),
            ("ef21_hb", {"eta": 0.5}, TOP),
        ),
        (
            ("ef21", {}, TOP, {"local": {"steps": 1}, "outer": {}, "delay": {"rounds": 0}}),
            ("ef21", {}, TOP),
        ),
    ],
    ids=lambda v: v[0],
)
def test_limits_of_the_product_are_known_methods(product, known):
    name, params, compressor, more = product
    close(run(name, params, compressor, **more), run(*known))


ADAM = {"steps": 3, "optimizer": "adamw", "step_size": 0.01, "nesterov": True}
DILOCO = {"steps": 3, "inner_step": 0.01}


@pytest.mark.parametrize(
    ("preset", "product"),
    [
        (
            ("diloco", {**DILOCO, "momentum": 0.8}, None),
            ("gd", {}, None, {"local": ADAM, "outer": {"optimizer": "nesterov", "momentum": 0.8}}),
        ),
        (
            ("muloco", {**DILOCO, "weight_decay": 0.1}, None),
            (
                "gd",
                {},
                None,
                {
                    "local": {**ADAM, "optimizer": "muon", "weight_decay": 0.1},
                    "outer": {"optimizer": "nesterov"},
                },
            ),
        ),
        (
            ("desloc", {**DILOCO, "momentum_every": 99, "variance_every": 99}, None),
            ("gd", {}, None, {"local": ADAM}),
        ),
        (
            ("sparseloco", {**DILOCO, "beta": 1.0, "combine": "mean"}, TOP),
            ("ef14", {"memory": "gradient"}, TOP, {"local": ADAM}),
        ),
    ],
    ids=lambda v: v[0],
)
def test_presets_are_points_of_the_product(preset, product):
    name, params, compressor, more = product
    close(run(*preset, problem=NET), run(name, params, compressor, problem=NET, **more))


def test_moments_are_averaged_at_periods_of_their_own():
    """By torch's AdamW at every client: x every round, m every second and v every third one."""
    params = {"steps": 2, "inner_step": 0.01, "momentum_every": 2, "variance_every": 3}
    ours = begun("desloc", params, step=1.0, problem={**PROBLEM, "clients": 3}, rounds=8)
    grad = ours.problem.oracle
    points = [nn.Parameter(ours.s.x[0].clone()) for _ in range(3)]
    each = [torch.optim.AdamW([y], lr=0.01, weight_decay=0.0) for y in points]
    for t in range(1, 9):
        ours.advance(1)
        for _ in range(2):
            for i, (y, optimizer) in enumerate(zip(points, each, strict=True)):
                y.grad = grad(y.detach()[None], loss=False)[0][0, i].clone()
                optimizer.step()
        shared = [[y.data for y in points]]
        for name, every in (("exp_avg", 2), ("exp_avg_sq", 3)):
            shared += [[o.state[y][name] for y, o in zip(points, each)]] if t % every == 0 else []
        for group in shared:
            mean = torch.stack(group).mean(0)
            for x in group:
                x.copy_(mean)
        torch.testing.assert_close(ours.s.x[0], points[0].detach(), rtol=1e-9, atol=1e-12)
    dense = 8 * ours.problem.dim
    assert ours.recorder.column("bytes_up")[0, -1] == (8 + 4 + 2) * dense


def test_the_error_of_sparseloco_fades():
    """beta = 0 forgets it: the message of every round is that of the fresh direction alone."""
    runs = [
        run("sparseloco", {**DILOCO, "beta": b, "combine": "mean"}, TOP, problem=NET, rounds=6)
        for b in (0.0, 1.0)
    ]
    assert not torch.allclose(runs[0].s.x, runs[1].s.x)
    by_hand = run("dcgd", {}, TOP, problem=NET, rounds=6, local=ADAM)
    close(runs[0], by_hand)


@pytest.mark.parametrize("combine", ["senders", "mean"])
def test_sparseloco_averages_over_those_that_sent_a_coordinate(combine):
    """By default as its released code does: what one of three clients sent is taken whole, not by a third."""
    chosen = {} if combine == "senders" else {"combine": combine}
    sent, fifth = [], {"name": "top_k", "k": "20%"}
    made = begun("sparseloco", {**DILOCO, **chosen}, fifth, step=0.7, problem=NET)
    up = made.net.up
    made.net.up = lambda message: (sent.append(message.decode()), up(message))[1]
    for _ in range(3):
        before = made.s.x.clone()
        made.advance(1)
        total, senders = sent[-1].sum(1), (sent[-1] != 0).sum(1)
        assert {1, 2}.issubset(senders.unique().tolist())
        mean = total / (senders.clamp(min=1) if combine == "senders" else 3)
        torch.testing.assert_close(made.s.x, before - 0.7 * mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("more", [{}, {"momentum_of": "steps"}], ids=["gradients", "steps"])
def test_decoupled_weight_decay_shrinks_x(more):
    """x <- (1 - gamma w) x - gamma u: where u is nothing, x shrinks by that factor each round."""
    outer = {"optimizer": "momentum", "weight_decay": 0.5, "momentum": 0.0, **more}
    plain = run("gd", step=0.1, rounds=1)
    decayed = run("gd", step=0.1, rounds=1, outer=outer)
    start = begun("gd").s.x
    gamma = torch.tensor([[0.1], [0.05]], dtype=start.dtype)
    torch.testing.assert_close(decayed.s.x, plain.s.x - gamma * 0.5 * start, rtol=1e-12, atol=1e-15)


def test_adamw_of_the_server_is_torchs():
    outer = {"optimizer": "adam", "weight_decay": 0.1}
    ours = begun("gd", step=0.01, problem={**NET, "batch": "full"}, outer=outer)
    x = torch.nn.Parameter(ours.s.x.clone())
    theirs = torch.optim.AdamW([x], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(5):
        x.grad = ours.problem.oracle(x.detach())[0].mean(1)
        theirs.step()
        ours.advance(1)
    torch.testing.assert_close(ours.s.x, x.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["ef14", "ec_diana"])
@pytest.mark.parametrize(
    "outer",
    [
        {"optimizer": "momentum"},
        {"optimizer": "nesterov", "weight_decay": 0.1},
        {"optimizer": "adam", "weight_decay": 0.1},
    ],
    ids=lambda outer: outer["optimizer"],
)
def test_an_error_in_steps_or_in_gradients_is_the_same_to_an_outer_optimizer(name, outer):
    """Adam took steps that held gamma for gradients, and x then moved by 1 in every coordinate and not by gamma."""
    more = {"shift": {"name": "rand_k", "k": 3}} if name == "ec_diana" else {}
    runs = [run(name, {"memory": m, **more}, TOP, outer=outer) for m in ("step", "gradient")]
    close(*runs)
    # for a compressor that sends everything it is AdamW on gradients
    runs = [run(n, p, {"name": "identity"}, outer=outer) for n, p in (("ef14", {}), ("dcgd", {}))]
    close(*runs)


def test_an_outer_step_of_local_differences():
    """local.step_size eta: v = x - y, and step_size 1 with sgd is the mean of the clients' points."""
    plain = run("gd", step=0.03, local={"steps": 4})
    apart = begun("gd", step=1.0, local={"steps": 4, "step_size": 0.03})
    apart.advance(12)
    torch.testing.assert_close(apart.s.x[0], plain.s.x[0], rtol=1e-10, atol=1e-13)


def test_late_estimates():
    """delay r: x^{t+1} = x^t - gamma g^{t-r}, by hand; the first r steps are none."""
    late = begun("gd", rounds=9, delay={"rounds": 2})
    x, seen = [late.problem.start().clone()], []
    for t in range(9):
        late.advance(1)
        seen.append(late.problem.grad(x[-1][None]).mean(1)[0])
        x.append(x[-1] - (0.02 * seen[t - 2] if t >= 2 else 0.0))
        torch.testing.assert_close(late.s.x[0], x[-1], rtol=1e-11, atol=1e-14)


def test_momentum_of_steps_differs_under_a_schedule_only():
    def both(schedule):
        step = {"value": 0.02, "schedule": schedule}
        outers = ({"optimizer": "momentum", "momentum_of": of} for of in ("gradients", "steps"))
        return (run("gd", step=None, step_size=step, outer=outer).s.x for outer in outers)

    torch.testing.assert_close(*both("constant"), rtol=1e-10, atol=1e-13)
    a, b = both("cosine")
    assert not torch.allclose(a, b, rtol=1e-6)


def torch_optimizer(name, params):
    if name == "adamw":
        return torch.optim.AdamW(params, 0.05, weight_decay=0.1)
    momentum = 0.0 if name == "sgd" else 0.9
    return torch.optim.SGD(params, 0.05, momentum=momentum, nesterov=name == "nesterov")


LOCALS = {
    "sgd": {"optimizer": "sgd", "step_size": 0.05},
    "momentum": {"optimizer": "momentum", "step_size": 0.05},
    "nesterov": {"optimizer": "momentum", "nesterov": True, "step_size": 0.05},
    "adamw": {"optimizer": "adamw", "step_size": 0.05, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", LOCALS)
def test_inner_optimizers_are_those_of_torch(name):
    """One client, gamma = 1: the network is trained as by torch's optimizer on the same samples."""
    local = {"steps": 3, **LOCALS[name]}
    ours = begun("gd", step=1.0, problem={**NET, "clients": 1}, local=local)
    made = ours.problem
    x = nn.Parameter(made.start().clone())
    optimizer = torch_optimizer(name, [x])
    for _ in range(4):
        ours.advance(1)
        for sample in ours.net.sample("batch", 15).split(5):
            x.grad = made.grad(x.detach()[None], sample)[0, 0].clone()
            optimizer.step()
        torch.testing.assert_close(ours.s.x[0], x.detach(), rtol=1e-9, atol=1e-12)


def muon_by_hand(W, G, M, eta, mu=0.95):
    """Muon for one matrix, from the definition: X <- X - eta sqrt(max(1, a/b)) NS5(M)."""
    M = mu * M + G
    X = M.T if M.shape[0] > M.shape[1] else M
    X = X / (X.norm() + 1e-7)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    X = X.T if M.shape[0] > M.shape[1] else X
    return W - eta * max(1.0, M.shape[0] / M.shape[1]) ** 0.5 * X, M


def test_muon_on_matrices_and_adamw_on_the_rest():
    muon = {"optimizer": "muon", "step_size": 0.05, "rest_step_size": 0.01, "rest": [["3.*"]]}
    ours = begun("gd", step=1.0, problem={**NET, "clients": 1}, local=muon)
    made = ours.problem
    layout = made.layout
    names = [name for name, _ in layout]
    parts = [v.clone() for v in layout.views(made.start())]
    rest = [nn.Parameter(p) for n, p in zip(names, parts) if n != "1.weight"]
    adam = torch.optim.AdamW(rest, 0.01, weight_decay=0.0)
    W, M = parts[names.index("1.weight")], torch.zeros(())
    for _ in range(5):
        ours.advance(1)
        x = layout.concat([W, *(p.detach() for p in rest)])
        grads = layout.views(made.grad(x[None], ours.net.sample("batch", 5))[0, 0])
        W, M = muon_by_hand(W, grads[0], M, 0.05)
        for p, g in zip(rest, grads[1:]):
            p.grad = g.clone()
        adam.step()
        x = layout.concat([W, *(p.detach() for p in rest)])
        torch.testing.assert_close(ours.s.x[0], x, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("local_ef21", {"local": {"steps": 2}}, "without a place for local"),
        ("heavy_ball", {"outer": {}}, "without a place for outer"),
    ],
)
def test_methods_that_have_their_own_parts_are_skipped(name, more, says):
    with pytest.raises(Skip, match=says):
        resolve(name, compressor={"name": "rand_k", "k": 3}, step=0.1, **more)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"local": {"steps": 3}}, r"local work \(local\)"),
        (
            {"outer": {"optimizer": "adam"}, "algorithm": "gd"},
            r"an outer optimizer \(outer: adam\)",
        ),
        ({"delay": {"rounds": 2}}, r"a delay \(delay: 2\)"),
        ({"outer": {"weight_decay": 0.3}, "algorithm": "gd"}, r"weight decay"),
    ],
)
def test_no_theorem_is_about_more_than_a_step_and_the_reason_says_which(more, says):
    said = f"no theoretical step size .*a step along an estimate .* {says}"
    with pytest.raises(Skip, match=said):
        resolve("ef21", **more)


@pytest.mark.parametrize(
    ("more", "basis"),
    [({}, "theorem"), ({"local": {"steps": 3}}, "borrowed"), ({"downlink": TOP}, "borrowed")],
)
def test_a_step_asked_of_the_method_itself_is_a_mere_number_where_no_theorem_covers_the_cell(
    more, basis
):
    config = TrialMethod("ef21", {}, TOP, PROBLEM, more=more).config({"theory": 1, "of": "ef21"}, 0)
    (cell,) = spec.load(config).cells
    own = resolve("ef21")
    assert Resolver().resolve(cell).form.basis == basis
    assert Resolver().resolve(cell).step_size == own.step_size


def test_adamw_needs_a_step_of_its_own():
    with pytest.raises(InputError, match=r"local.step_size: is missing"):
        resolve("gd", compressor=None, step=1, local={"optimizer": "adamw"})


@pytest.mark.parametrize(
    ("name", "key", "given"),
    [("dgd", "local", {"steps": 2}), ("extra", "robust", {"rule": "median"})],
)
def test_methods_without_a_server_ignore_the_parts(name, key, given):
    method = TrialMethod(name, {}, None, PROBLEM, more={key: given})
    sweep = spec.load(method.config({"value": 0.1}, 0))
    assert getattr(sweep.cells[0], key) is None
    assert sweep.notes == (f"{name} has no server to step: {key} ignored",)


# Robust servers in a plan: steps, memory, and what they do not go with ----------------------------


UNLIKE = {"name": "quadratic", "dim": 10, "clients": 7, "mu": 0.1, "seed": 1}


@pytest.fixture(autouse=True)
def _alike():
    with registered("problem", alike=Alike):
        yield


# What it does not go with -----------------------------------------------------------------------------


def unlike(name, compressor=None, step=0.1, **more):
    return resolve(name, compressor, step, UNLIKE, **more)


MEDIAN, IDENTITY = {"rule": "median"}, {"name": "identity"}
SUM = "the server has their sum alone"


@pytest.mark.parametrize(
    ("method", "robust", "error", "says"),
    [
        (("gd",), {"byzantine": 7}, InputError, "7 of 7 clients leave nobody"),
        (("gd",), {"byzantine": 1.5}, InputError, "a share of the clients such as 10%"),
        (("gd",), {"byzantine": 4}, InputError, "cannot resist 4 of 7 clients"),
        (("gd",), {"rule": "krum", "byzantine": 3, "bucket": 2}, InputError,
         "cannot resist 3 of 4 buckets of 7"),
        (("gd",), {"rule": "trimmed_mean", "tolerate": "60%"}, InputError, "cannot resist 4 of 7"),
        (("gd",), {"byzantine": 1, "attack": "label_flip"}, Skip, "needs labels"),
        *((("ef21", {**IDENTITY, "collective": how}), MEDIAN, InputError,
           f"by compressor.collective: {how} {SUM}") for how in ("reduce", "all_to_all")),
        *((method, MEDIAN, Skip, f"what the server of {method[0]} steps along is no mean")
          for method in (("ef21_plus", TOP), ("ef21_w", TOP), ("sign_sgd",), ("scaffold",),
                         ("adiana", TOP))),
        (("ef21", TOP, None), MEDIAN, Skip, "no theoretical step"),
        (("byz_vr_marina", RAND, None), {"rule": "krum", "byzantine": 1}, Skip,
         "kappa is unknown here"),
        (("byz_vr_marina", RAND, None), {"bucket": 2}, Skip, "kappa is unknown here"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with(method, robust, error, says):
    with pytest.raises(error) as said:
        unlike(*method, robust=robust)
    assert says in str(said.value)


def test_a_relayed_sum_is_refused():
    with pytest.raises(InputError, match="downlink: aggregate"):
        unlike("ef21", TOP, robust={}, downlink="aggregate")


def test_a_majority_of_attackers_may_be_studied():
    for robust in ({"byzantine": 5, "tolerate": 1}, {"rule": "mean", "byzantine": 6}):
        more = {"robust": {**robust, "attack": "inner_product"}}
        finished(TrialMethod("gd", {}, None, UNLIKE, step=0.1, rounds=2, more=more).batch())


# What it takes --------------------------------------------------------------------------------------


def test_the_step_of_a_preset_is_that_of_the_honest_clients_and_of_the_rule():
    """Alike clients: L and L_tilde stay, n is the number of honest ones, kappa = f/(n - 2f)."""
    given = {"params": {"p": 0.25, "batch": 1}, "compressor": {"name": "rand_k", "k": 5}}
    robust = {"rule": "trimmed_mean", "byzantine": 2, "attack": "inner_product"}
    more = {"problem": {"name": "alike"}, "more": {"robust": robust}}
    # omega, L and L_tilde are 1; Lcal^2 of some may be n/h times as large
    kappa, p, l = 2 / 3, 0.25, 7 / 5
    V, S = ((1 + l) + l) / 5, 2 * (1 + l)
    ratio = 2 * (1 - p) / p * ((1 + p / 2) * V + (1 + 2 / p) * kappa * S)
    step = TrialMethod("byz_vr_marina", **given, **more).cell().step_size
    assert step == pytest.approx(1 / (1 + np.sqrt(ratio)), rel=1e-9)


def robust_sweep(**more):
    return spec.load(
        {
            "problem": {"name": "quadratic", "dim": 100, "clients": 50},
            "algorithm": {"name": "ef21", "compressor": TOP},
            "step_size": {"value": [0.1, 0.2]},
            "rounds": 2,
            **more,
        }
    )


def test_the_plan_knows_what_the_server_keeps():
    """n d values of 8 bytes for each of the two cells of the batch; nothing where a mean is all that it needs."""
    need = need_of(make_plan(robust_sweep(robust={"rule": "median"})))
    assert need.server == 2 * 50 * 100 * 8
    plain = need_of(make_plan(robust_sweep()))
    assert plain.server == 0
    assert need.tensors == plain.tensors + need.server
    assert need_of(make_plan(robust_sweep(robust={"rule": "mean"}))).server == 0


def test_how_many_attack_tells_problems_apart_and_not_methods(tmp_path):
    """f is the mean over honest clients, so that cells with other numbers of them minimise another function."""

    asked = {
        "name": "attacked",
        "problem": {"name": "quadratic", "dim": 6, "clients": 9},
        "algorithm": ["gd", {"name": "ef21", "compressor": {"name": "top_k", "k": 2}}],
        "robust": {"rule": ["median", "mean"], "byzantine": [1, 2], "attack": "sign_flip"},
        "step_size": {"value": 0.01},
        "rounds": 3,
    }
    raybench.sweep(asked, tmp_path / "out", inline=True)
    result = describe(cells(tmp_path / "out"))
    assert sorted(set(result["facet"])) == ["1 Byzantine", "2 Byzantine"]
    assert result["method"].nunique() == 4
    assert not result["method"].str.contains("byzantine").any()
