"""Local work, estimator and outer optimizer are orthogonal: limits of the product are known methods."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys import handed_over

from raybench import spec
from raybench.algorithms.base import Estimator
from raybench.algorithms.parts import orthogonalised
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.execution.checks import Skip
from raybench.execution.resolve import Resolver
from raybench.testing.trial import DATA, Method, finished, started

PROBLEM = {"name": "least_squares", **DATA}
NET = {
    "name": "network",
    "model": "mlp:hidden=[6]",
    "dataset": "digits",
    "clients": 3,
    "rows": 90,
    "batch": 5,
    "dtype": "float64",
}
TOP = {"name": "top_k", "k": 3}


def run(name, params=None, compressor=None, step=0.02, rounds=12, problem=PROBLEM, **more):
    method = Method(name, params or {}, compressor, problem, step=step, rounds=rounds, more=more)
    return finished(method.batch((1.0, 0.5), (0, 1)))


def begun(name, params=None, compressor=None, step=0.02, rounds=12, problem=PROBLEM, **more):
    """Return a run of one cell that is about to begin."""
    method = Method(name, params or {}, compressor, problem, step=step, rounds=rounds, more=more)
    return started(method.batch())


def resolve(name, params=None, compressor=TOP, step=None, **more):
    """Return the resolved cell of a method, by default with the step of theory."""
    config = Method(name, params or {}, compressor, PROBLEM, more=more).config
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
            ("sparseloco", {**DILOCO, "beta": 1.0, "combine": "mean"}, TOP),
            ("ef14", {"memory": "gradient"}, TOP, {"local": ADAM}),
        ),
    ],
    ids=lambda v: v[0],
)
def test_presets_are_points_of_the_product(preset, product):
    name, params, compressor, more = product
    close(run(*preset, problem=NET), run(name, params, compressor, problem=NET, **more))


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


def test_newton_schulz_orthogonalises():
    M = torch.randn(3, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for made in (orthogonalised(M), orthogonalised(M.mT).mT):
        values = torch.linalg.svdvals(made)
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3
        U, _, Vh = torch.linalg.svd(M, full_matrices=False)
        rotated = U.mT @ made @ Vh.mT  # about the identity, exactly diagonal
        off = rotated - torch.diag_embed(rotated.diagonal(dim1=-2, dim2=-1))
        assert float(off.abs().max()) < 1e-6


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


EVERYTHING = {
    "local": {"steps": 2, "optimizer": "adamw", "step_size": 0.01},
    "outer": {"optimizer": "adam"},
    "delay": {"rounds": 2},
}


@pytest.mark.parametrize("name", ["ef21", "ef14", "diana"])
def test_interrupted_and_on_other_ranks_the_same(name):
    operator = {"name": "rand_k", "k": "10%"} if name == "diana" else TOP
    method = Method(name, {}, operator, NET, step=0.1, rounds=8, more=EVERYTHING)
    batch = method.batch((1.0, 0.5), (0, 1))
    once = finished(batch)

    for x in handed_over(batch, 4, lambda run: run.s.x):
        torch.testing.assert_close(x, once.s.x, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("local_ef21", {"local": {"steps": 2}}, "without a place for local"),
        ("heavy_ball", {"outer": {}}, "without a place for outer"),
        ("vr_marina", {"delay": {}}, "without a place for delay"),
        ("scaffold", {"local": {"steps": 2}}, "without a place for local"),
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
    ],
)
def test_no_theorem_is_about_more_than_a_step_and_the_reason_says_which(more, says):
    said = f"no theoretical step size .*a step along an estimate .* {says}"
    with pytest.raises(Skip, match=said):
        resolve("ef21", **more)


def test_one_local_step_has_the_step_of_theory():
    assert resolve("ef21", local={"steps": 1}).step_size > 0


def test_adamw_needs_a_step_of_its_own():
    with pytest.raises(InputError, match=r"local.step_size: is missing"):
        resolve("gd", compressor=None, step=1, local={"optimizer": "adamw"})


def test_methods_without_a_server_ignore_the_parts():
    method = Method("dgd", {}, None, PROBLEM, more={"local": {"steps": 2}})
    sweep = spec.load(method.config({"value": 0.1}, 0))
    assert sweep.cells[0].local is None
    assert "dgd has no server to step: local ignored" in sweep.notes


ESTIMATORS = [
    name
    for name in registry.names("algorithm")
    if isinstance(registry.lookup("algorithm", name).target, type)
    and issubclass(registry.lookup("algorithm", name).target, Estimator)
]
AROUND = {
    "momentum": {"outer": {"optimizer": "momentum", "weight_decay": 0.1}},
    "adam": {"outer": {"optimizer": "adam", "weight_decay": 0.1}},
    "late adam": {"outer": {"optimizer": "adam"}, "delay": {"rounds": 2}},
}


@pytest.mark.thorough
def test_what_stands_around_a_method_sees_gradients_whatever_its_messages_hold():
    """Whoever is gradient descent with messages that hold everything is so with all that may stand around it."""
    plain, compared = run("gd").s.x, 0
    around = {key: run("gd", **more).s.x for key, more in AROUND.items()}
    for name in ESTIMATORS:
        try:
            x = run(name, compressor={"name": "identity"}).s.x
        except (InputError, Skip):  # a parameter is required, or the compressor is its own
            continue
        if not torch.allclose(x, plain, rtol=1e-9, atol=1e-12):
            continue
        for key, more in AROUND.items():
            try:
                x = run(name, compressor={"name": "identity"}, **more).s.x
            except Skip:  # it has a round of its own
                continue
            torch.testing.assert_close(x, around[key], rtol=1e-9, atol=1e-12, msg=f"{name}, {key}")
            compared += 1
    assert compared >= 60
