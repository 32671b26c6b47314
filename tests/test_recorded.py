"""Gradients recorded in a training loop: what is written, what is read back, and what is refused."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

import raybench.torch
from raybench.core.errors import InputError
from raybench.measure.recorded import recorded


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))


def train(folder, steps: int = 12, every: int = 4, most: int = 2):
    """Return the gradients (d,) of every step of a run that is recorded."""
    model, seen = net(), []
    rec = raybench.torch.record(folder, model, every=every, most=most)
    for t in range(steps):
        model.zero_grad()
        model(torch.full((6, 5), 0.1 * t + 1)).square().mean().backward()
        rec.step()
        seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    rec.close()
    return seen


@pytest.fixture
def folder(tmp_path):
    train(tmp_path / "gradients")
    return tmp_path / "gradients"


def test_recorded_gradients_come_back_bit_for_bit(tmp_path):
    seen = train(tmp_path / "g", steps=9, every=3, most=2)
    held = recorded(str(tmp_path / "g"))
    assert held.steps == (0, 3)
    shapes = {"0.weight": (4, 5), "0.bias": (4,), "2.weight": (3, 4), "2.bias": (3,)}
    assert held.layout.tensors == tuple(shapes.items())
    for t, gradient in zip(held.steps, held.gradients(), strict=True):
        assert torch.equal(gradient, seen[t])
    assert held.world_size == 1
    assert held.seconds_backward is not None
    assert 0 < held.seconds_backward < 60


def test_a_parameter_without_a_gradient_is_zeros(tmp_path):
    model = net()
    model[2].weight.requires_grad_(False)  # is left out
    rec = raybench.torch.record(tmp_path / "g", model)
    model[2].bias.sum().backward()
    rec.step()
    held = recorded(str(tmp_path / "g"))
    assert [name for name, _ in held.layout] == ["0.weight", "0.bias", "2.bias"]
    assert held.gradient(0).tolist() == [0.0] * 24 + [1.0] * 3
    assert held.seconds_backward is None  # one step alone tells nothing


def test_only_the_first_rank_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    train(tmp_path / "g")
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("given", [{"every": 0}, {"most": 0}, {"every": 1.5}, {"most": True}])
def test_numbers_out_of_range_are_refused(tmp_path, given):
    with pytest.raises(InputError, match="an integer >= 1"):
        raybench.torch.record(tmp_path / "g", net(), **given)
    assert not (tmp_path / "g").exists()


def test_folders_that_cannot_be_used_are_refused(tmp_path, folder):
    with pytest.raises(InputError, match="is not empty"):
        raybench.torch.record(folder, net())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make"):
        raybench.torch.record(tmp_path / "file", net())
    frozen = net().requires_grad_(False)
    with pytest.raises(InputError, match="requires a gradient"):
        raybench.torch.record(tmp_path / "h", frozen)


# What a folder may hold ------------------------------------------------------------------------


def change(folder, **to):
    file = folder / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **to}))


@pytest.mark.parametrize(
    "to",
    [
        *({"steps": steps} for steps in ([], [0, 0], [-1], ["../../x"], 3)),
        *({"tensors": [["a", shape]]} for shape in ([0], 2, [2**40, 2**40], [2**45])),
        *({"tensors": tensors} for tensors in ([], [["a", [2]], ["a", [2]]])),
        *({"seconds_backward": seconds} for seconds in (0, "1")),
        *({"format": 2}, {"world_size": 0}),
    ],
    ids=str,
)
def test_an_index_of_another_kind_is_refused(folder, to):
    change(folder, **to)
    with pytest.raises(InputError, match="gradients"):
        recorded(str(folder))


def test_steps_come_in_their_order(folder):
    change(folder, steps=[4, 0])
    assert recorded(str(folder)).steps == (0, 4)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\x00"])
def test_an_index_that_is_no_object_is_refused(folder, text):
    (folder / "record.json").write_text(text)
    with pytest.raises(InputError, match="gradients"):
        recorded(str(folder))


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def savez(folder, **arrays):
    np.savez(folder / "step_0.npz", **arrays)


def test_archives_that_do_not_fit_are_refused_and_nothing_is_unpickled(folder):
    held = dict(np.load(folder / "step_0.npz"))
    cases = [
        {k: v for k, v in held.items() if k != "2.bias"},
        {**held, "2.bias": np.zeros(4, np.float32)},
        {**held, "2.bias": np.zeros(3, np.float64)},
        {**held, "2.bias": np.array([0, np.nan, 0], np.float32)},
        {**held, "2.bias": np.array([Bomb()] * 3, object)},
    ]
    for arrays in cases:
        savez(folder, **arrays)
        with pytest.raises(InputError, match=r"step_0\.npz"):
            recorded(str(folder)).gradient(0)
    (folder / "step_0.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError, match="cannot read"):
        recorded(str(folder)).gradient(0)
    (folder / "step_0.npz").unlink()
    with pytest.raises(InputError, match="cannot read"):
        recorded(str(folder)).gradient(0)
