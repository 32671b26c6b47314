"""Loops of a single rank, exactly: against plain optimizers, formulas by hand, and parts of ``raybench.torch`` by themselves."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from loop_kit import far, loss, network, sgd, steps, vector
from torch import Tensor, nn

import raybench.torch as rt
from raybench import spec
from raybench.core.errors import InputError
from raybench.execution.execute import hosted
from raybench.execution.plan import make_plan
from raybench.execution.run import Options, Run
from raybench.torch.flat import Flat
from raybench.torch.hook import _parted
from raybench.torch.report import report, row
from raybench.torch.saved import mean_of, parts_of
from raybench.wire.transport import Transport


def gradient(x: Tensor, t: int) -> Tensor:
    """Return the gradient at x (d,) of the minibatch of step t."""
    model = network()
    nn.utils.vector_to_parameters(x, model.parameters())
    loss(model, t, 0).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    ("algorithm", "compressor", "more"),
    [
        ("ef14", "identity", {}),  # messages hold the step size
        ("ef14", "identity", {"start_after": 2}),
        ("ef21", "identity", {"start_after": 2}),
        ("diana", "identity", {}),
        ("marina", "identity", {}),
    ],
)
def test_exact_messages_are_plain_descent(algorithm, compressor, more):
    model, other = network(), network()
    opt = rt.CompressedOptimizer(sgd(model), compressor, algorithm, **more)
    steps(model, opt, 0, range(5))
    steps(other, sgd(other), 0, range(5))
    assert far(vector(model), vector(other)) < 1e-13


@pytest.mark.parametrize("local", [None, {"steps": 1}])
def test_directions_of_some_steps_before(local):
    """x_{t+1} = x_t - gamma grad f_{t-2}(x_{t-2}), at first x_{t+1} = x_t; a local step alone is a gradient."""
    model, x, waiting = network(), vector(network()), []
    opt = rt.CompressedOptimizer(sgd(model, 0.1), None, "gd", delay={"rounds": 2}, local=local)
    for t in range(6):
        waiting.append(gradient(x, t))
        x = x - 0.1 * waiting[t - 2] if t >= 2 else x
        steps(model, opt, 0, [t])
        assert far(vector(model), x) < 1e-14


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam"])
def test_the_shared_point_moves_by_the_outer_optimizer(optimizer):
    """x <- x - eta (u + lambda x), u of v = x - y after two local steps."""
    eta, decay, beta = 0.3, 0.1, 0.8
    outer: dict[str, Any] = {"optimizer": optimizer, "step_size": eta, "weight_decay": decay}
    outer |= {} if optimizer == "sgd" else {"momentum": beta}
    model, other = network(), network()
    opt = rt.CompressedOptimizer(sgd(model), None, "gd", local={"steps": 2}, outer=outer)
    x, m, second = vector(other), 0.0, 0.0
    for k in range(1, 4):
        pair = range(2 * k - 2, 2 * k)
        steps(model, opt, 0, pair)
        steps(other, sgd(other), 0, pair)
        v = x - vector(other)
        if optimizer == "adam":
            m, second = beta * m + (1 - beta) * v, 0.99 * second + 0.01 * v**2
            u = m / (1 - beta**k) / ((second / (1 - 0.99**k)).sqrt() + 1e-8)
        else:
            m = v if optimizer == "sgd" else beta * m + v
            u = v + beta * m if optimizer == "nesterov" else m
        x = x - eta * (u + decay * x)
        nn.utils.vector_to_parameters(x.clone(), other.parameters())
        assert far(vector(model), x) < 1e-12


def test_the_shared_point_is_left_again():
    model = network()
    start = vector(model)
    opt = rt.CompressedOptimizer(sgd(model), None, "gd", local={"steps": 3})
    steps(model, opt, 0, [0])
    here = vector(model)
    with opt.shared_point():
        assert torch.equal(vector(model), start)
    assert torch.equal(vector(model), here)


def test_a_parameter_without_a_gradient_counts_as_zeros():
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), None, "gd")
    steps(model, opt, 0, [0])
    before = [p.detach().clone() for p in model.parameters()]
    opt.zero_grad()
    loss(model, 1, 0).backward()
    model[2].weight.grad = None
    opt.step()
    same = [torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert same == [False, False, True, False, False, False]
    opt.zero_grad()
    x = vector(model)
    opt.step()
    assert torch.equal(vector(model), x)


def test_vectors_are_of_the_widest_type():
    """Of 32 bits at least: memories of narrow gradients would lose what is added to them."""
    narrow, wide = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).double()
    named = [*narrow.named_parameters()]
    assert Flat(named).dtype == torch.float32
    assert Flat([*named, *wide.named_parameters()]).dtype == torch.float64


def test_a_closure_that_is_called_often_gives_its_first_loss():
    """As LBFGS of torch does."""
    model = network()
    inner = torch.optim.LBFGS(model.parameters(), max_iter=4)
    opt = rt.CompressedOptimizer(inner, None, "gd")
    losses = []

    def closure() -> Tensor:
        opt.zero_grad()
        losses.append(loss(model, 0, 0))
        losses[-1].backward()
        return losses[-1]

    assert opt.step(closure) is losses[0]
    assert len(losses) > 2


# What is saved --------------------------------------------------------------------------------------


def test_random_numbers_go_on_where_they_were():
    model, other = network(), network()
    opt = rt.CompressedOptimizer(sgd(model), "rand_k:k=10%", "diana")
    steps(model, opt, 0, range(3))
    kept = deepcopy([model.state_dict(), opt.state_dict()])
    steps(model, opt, 0, range(3, 6))
    again = rt.CompressedOptimizer(sgd(other), "rand_k:k=10%", "diana")
    other.load_state_dict(kept[0])
    again.load_state_dict(kept[1])
    steps(other, again, 0, range(3, 6))
    assert torch.equal(vector(model), vector(other))


def test_parts_are_of_the_ranks_of_a_group():
    """Whatever their places in a run: ranks 5 and 2 of it were ranks 0 and 1 of a group."""
    names = {"rank 2": 1, "rank 5": 0}
    same = {"algorithm": "ef21", "n": 2, "alike": False}
    state = {"raybench": {name: ({**same, "rank": r},) for name, r in names.items()}}
    assert [part["rank"] for part in parts_of(state, "ef21", 0, 3)] == [0, 1]
    assert [part["rank"] for part in parts_of(state, "ef21", 1, 2)] == [1]
    alone = {"raybench": {"rank 2": state["raybench"]["rank 2"]}}
    assert [part["rank"] for part in parts_of(alone, "ef21", 1, 2)] == [1]
    with pytest.raises(InputError, match="the part of rank 1 on rank 0"):
        parts_of(alone, "ef21", 0, 2)


def test_a_newcomers_optimizer_remembers_the_mean():
    states = [
        {"state": {0: {"step": torch.tensor(4), "m": torch.tensor([v, 1.0])}}, "lr": 0.1}
        for v in (1.0, 3.0)
    ]
    mean = mean_of(states)
    assert mean["state"][0]["m"].tolist() == [2.0, 1.0]
    assert int(mean["state"][0]["step"]) == 4
    assert mean["lr"] == 0.1


# Parts of a gradient --------------------------------------------------------------------------------


def test_parameters_are_parted_from_the_last_ones_on():
    """By bytes: 10, 20, 30 and 40 floats of 4 bytes; a part that is full is closed before the next parameter."""
    named = [(str(size), torch.zeros(size)) for size in (10, 20, 30, 40)]
    for size, names in (
        (1, [["40"], ["30"], ["20"], ["10"]]),
        (200, [["40"], ["20", "30"], ["10"]]),
        (280, [["30", "40"], ["10", "20"]]),
        (None, [["10", "20", "30", "40"]]),
    ):
        assert [[name for name, _ in part] for part in _parted(named, size)] == names


def test_what_parts_of_a_gradient_cost_and_left():
    """Norms of parts are those of one vector; errors are relative, so that their mean is told."""
    values: dict[str, Any] = {"bytes_up": 8.0, "bits_up": 60.0, "dense": 0.0}
    first = row(
        0, **values, residual_norm=3.0, compression_error=0.2, seconds_encode=0.5, began=1.0
    )
    second = row(
        0, **values, residual_norm=4.0, compression_error=0.4, seconds_send=0.25, began=2.0
    )
    whole = report([[first], [second]], 2, ("ef21", "top_k"), 1, 0, 64.0)
    assert (whole.residual_norm, whole.bytes_up, whole.bits_up) == (5.0, 16.0, 120.0)
    assert whole.compression_error == pytest.approx(0.3)
    assert (whole.encode_ms, whole.send_ms, whole.decode_ms) == (500.0, 250.0, 0.0)
    assert whole.rows["began"].tolist() == [1.0]
    assert whole.exchanges == 1


@pytest.mark.parametrize("algorithm", ["ef21", "diana"])
def test_minibatches_are_those_of_a_sweep(algorithm):
    """Of the second of two clients, in every round: EF21 takes its first gradient before its first round."""
    problem = {"name": "network", "model": "mlp:hidden=[4]", "dataset": "digits", "clients": 2}
    compressor = {"name": "top_k" if algorithm == "ef21" else "rand_k", "k": 5}
    cell = {"problem": {**problem, "rows": 60, "batch": 4}, "algorithm": algorithm, "seed": 5}
    cell |= {"compressor": compressor, "rounds": 3}
    (batch,) = make_plan(spec.load({**cell, "step_size": {"value": 0.1}})).batches
    run = Run(batch, hosted(batch, Transport(), "cpu"), Options())
    data = rt.batches(cell, rank=1)
    for call, (inputs, targets) in enumerate(data):
        run.net.begin(call if algorithm == "ef21" else call + 1)
        want, labels = run.problem.minibatch(run.net.sample("batch", 4))
        assert torch.equal(inputs, want[0, 1])
        assert torch.equal(targets, labels[0, 1])
    assert call == 2
