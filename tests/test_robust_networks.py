"""Wrong labels on networks: what liars send, and which networks have labels."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from raybench.execution.checks import Skip
from raybench.testing.trial import Method, started

pytestmark = pytest.mark.thorough

MLP = {"model": "mlp:hidden=[8]", "dataset": "digits", "clients": 5, "rows": 150, "batch": 6}
PROBLEM = {"name": "network", **MLP, "dtype": "float64"}
LIE = {"byzantine": 1, "attack": "label_flip"}
NET = """
import torch


def small(train):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(),
        torch.nn.Dropout(0.4), torch.nn.Linear(12, 10),
    )
"""


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
