"""Robust servers on networks: wrong labels of the last clients, and several processes that are one."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gloo_kit import run_processes, serve

import raybench
from raybench.planning.skip import Skip
from raybench.testing.trial import Method, finished, started
from raybench.wire.transport import on_virtual_ranks

MLP = {"model": "mlp:hidden=[8]", "dataset": "digits", "clients": 5, "rows": 150, "batch": 6}
PROBLEM = {"name": "network", **MLP, "dtype": "float64"}
TOP, RAND = {"name": "top_k", "k": "5%"}, {"name": "rand_k", "k": "5%"}
LIE = {"byzantine": 1, "attack": "label_flip"}
CASES = {  # method, parameters, compressor, robust
    "median": ("ef21", {}, TOP, {"rule": "median", "byzantine": 1, "attack": "sign_flip"}),
    "trimmed mean": ("marina", {"p": 0.4}, RAND, {"rule": "trimmed_mean", **LIE}),
    "krum": (
        "byz_vr_marina",
        {"p": 0.4, "batch": 4},
        RAND,
        {"rule": "krum", "byzantine": 1, "attack": "a_little_is_enough", "z": 1.5},
    ),
    "buckets": ("sgd", {}, None, {"rule": "geometric_median", "bucket": 2, "tolerate": 1, **LIE}),
}
NET = """
import torch


def small(train):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(),
        torch.nn.Dropout(0.4), torch.nn.Linear(12, 10),
    )
"""


def method(name: str, rounds: int = 20) -> Method:
    algorithm, params, compressor, robust = CASES[name]
    more = {"robust": robust}
    return Method(algorithm, params, compressor, PROBLEM, step=0.1, rounds=rounds, more=more)


def result(name, transport=None):
    run = finished(method(name).batch(), transport=transport)
    return run.a.point(run.net, run.s, run.c)[0].tolist()


@pytest.fixture(scope="module")
def alone():
    """What one process finds, by case."""
    return {name: result(name) for name in CASES}


@pytest.fixture(scope="module")
def over_gloo(tmp_path_factory):
    """What two processes found, by case each."""
    return run_processes(__file__, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", CASES)
def test_two_processes_over_gloo_are_one_process(over_gloo, alone, name):
    for found in over_gloo:
        np.testing.assert_allclose(found[name], alone[name], rtol=0, atol=1e-9)
    assert over_gloo[0][name] == over_gloo[1][name]


@pytest.mark.parametrize("name", CASES)
def test_three_ranks_are_one(alone, name):
    for found in on_virtual_ranks(3, lambda transport: result(name, transport)):
        np.testing.assert_allclose(found, alone[name], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(500)
def test_workers_of_ray_train_are_one_process(tmp_path):
    config = {**method("trimmed mean").config({"value": 0.1}, 0), "name": "robust"}
    raybench.sweep(config, tmp_path / "alone", inline=True)
    train = {"resources": {"mode": "train", "workers": 2}}
    raybench.sweep({**config, **train}, tmp_path / "train")
    want, found = (
        raybench.load(tmp_path / how)[["round", "loss", "accuracy", "bits_up"]]
        for how in ("alone", "train")
    )
    np.testing.assert_allclose(found.to_numpy(), want.to_numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("batchnorm", ["server", "sync", "frozen"])
@pytest.mark.parametrize("batch", [6, "full"])
def test_liars_train_on_wrong_labels_and_on_nothing_else(tmp_path, batch, batchnorm):
    """Same examples, same dropout, same BatchNorm: what the last client sends differs by its labels alone."""
    (tmp_path / "net.py").write_text(NET)
    model = {"model": f"{tmp_path}/net.py:small", "batchnorm": batchnorm, "batch": batch}
    given = {**PROBLEM, **model}
    more = {"robust": {"rule": "median", **LIE}}
    run = started(Method("sgd", {}, None, given, step=0.1, rounds=3, more=more).batch())
    problem = run.problem
    x = problem.start()[None] + 0.1 * torch.randn(1, problem.dim, generator=torch.manual_seed(0))
    J = None if batch == "full" else run.net.sample("batch", batch)
    buffers = problem.buffers(1)
    want, _ = problem.grad_buffered(x, J, buffers)
    wrong = copy.copy(problem)
    wrong.train, wrong._kept = replace(problem.train, targets=9 - problem.train.targets), {}
    lied, after = wrong.grad_buffered(x, J, buffers)
    got = run.net.grad(x, J)
    torch.testing.assert_close(got[:, :4], want[:, :4], rtol=0, atol=0)
    torch.testing.assert_close(got[:, 4], lied[:, 4])
    assert not torch.allclose(got[:, 4], want[:, 4])
    if batchnorm == "server":  # statistics are of pictures, whatever one calls them
        for name, values in run.net.oracle.buffers.items():
            torch.testing.assert_close(values, after[name])


def test_tokens_are_labels_and_pictures_to_be_drawn_again_are_none(tmp_path):
    (tmp_path / "text.txt").write_text("abcabcacbbca" * 40)
    text = {
        "name": "network",
        "model": "transformer:width=8,layers=1,heads=1",
        "dataset": f"{tmp_path}/text.txt",
        "clients": 5,
        "batch": 2,
        "length": 8,
    }
    more = {"robust": {"rule": "median", **LIE}}
    run = started(Method("sgd", {}, None, text, step=0.1, rounds=2, more=more).batch())
    classes = run.problem.train.classes
    flipped = run.net.poisoned.problem.train.targets
    np.testing.assert_array_equal(flipped, classes - 1 - run.problem.train.targets)
    auto = {**PROBLEM, "model": "autoencoder:code=2"}
    with pytest.raises(Skip, match="needs labels that can be turned around"):
        Method("sgd", {}, None, auto, step=0.1, more=more).cell()


if __name__ == "__main__":
    serve(lambda transport: {name: result(name, transport) for name in CASES})
