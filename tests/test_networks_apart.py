"""Networks on several processes, over gloo and on Ray Train's workers: the parameters of one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gloo_kit import everyone, on_ranks

import raybench
from raybench.store import cells
from raybench.testing.trial import TrialMethod, finished
from raybench.wire.transport import Distributed

pytestmark = pytest.mark.thorough

MLP = {"model": "mlp:hidden=[8]", "dataset": "digits", "clients": 5, "rows": 150, "batch": 6}
PROBLEM = {"name": "network", **MLP, "dtype": "float64"}
TOP, RAND = {"name": "top_k", "k": "5%"}, {"name": "rand_k", "k": "5%"}
H = {"steps": 3, "inner_step": 0.01}
ROUNDS = 20
PARTS, ADDED = {"collective": "all_to_all"}, {"collective": "reduce"}
LIE = {"byzantine": 1, "attack": "label_flip"}
CASES = {  # by method, and a word on how its messages travel or are judged; the kit has all methods on virtual ranks
    "ef21": ({}, TOP, 0.1),
    "power_sgd": ({"rank": 2}, None, 0.05),
    "streaming_diloco": ({**H, "late": 1}, {"name": "identity"}, 0.7),
    "demo": ({"beta": 0.9}, {"name": "dct_top_k", "k": 5}, 0.003),
    "zero_one_adam": ({"freeze": 8, "updates": 3, "steps_each": 3}, None, 0.003),
    "lgc": ({"dense_rounds": 3, "fit_rounds": 7, "width": 4}, TOP, 0.02),
    "marina all_to_all": ({"p": 0.4}, {"name": "natural", **PARTS}, 0.1),
    "marina reduce": ({"p": 0.4}, {**RAND, "mask": "common", **ADDED}, 0.1),
    "marina trimmed_mean": ({"p": 0.4}, RAND, 0.1),
    "sgd buckets": ({}, None, 0.1),
    "dcgd bf16": ({}, {"name": "bf16", **ADDED}, 0.1),
}
ROBUST = {
    "marina trimmed_mean": {"rule": "trimmed_mean", **LIE},
    "sgd buckets": {"rule": "geometric_median", "bucket": 2, "tolerate": 1, **LIE},
}
ROUNDED = {"dcgd bf16": 2e-3}  # sums of 16 bits are rounded on the way, to 2^-8 of gradients


def method(name: str) -> TrialMethod:
    params, compressor, step = CASES[name]
    more = {"robust": ROBUST[name]} if name in ROBUST else {}
    algorithm = name.split()[0]
    return TrialMethod(algorithm, params, compressor, PROBLEM, step=step, rounds=ROUNDS, more=more)


def result(name, transport=None):
    run = finished(method(name).batch(), transport=transport)
    return run.a.point(run.net, run.s, run.c)[0].tolist()


@pytest.mark.parametrize("name", CASES)
@on_ranks(2)
def test_two_processes_over_gloo_are_one_process(name):
    found = result(name, Distributed())
    want, apart = torch.tensor(result(name)), ROUNDED.get(name, 1e-9)
    torch.testing.assert_close(torch.tensor(found), want, rtol=0, atol=apart)
    assert everyone(found) == [found] * 2


@pytest.mark.ray
@pytest.mark.timeout(500)
def test_workers_of_ray_train_are_one_process(tmp_path):
    """Two workers of Ray Train for every method, and the same curves as in the driver's own process."""
    entries = []
    exact = {name: case for name, case in CASES.items() if name not in ROUNDED}
    for name, (params, compressor, step) in exact.items():
        entry = {"name": name.split()[0], **params, "step_size": {"value": step}}
        if name in ROBUST:
            entry["robust"] = ROBUST[name]
        entries.append(entry if compressor is None else {**entry, "compressor": compressor})
    sweep = {"problem": PROBLEM, "algorithm": entries, "rounds": ROUNDS, "record": {"every": 5}}
    raybench.sweep({**sweep, "name": "alone"}, tmp_path / "alone", inline=True)
    train = {"resources": {"mode": "train", "workers": 2}}
    raybench.sweep({**sweep, **train, "name": "train"}, tmp_path / "train")
    columns = ["loss", "grad_norm_sq", "accuracy", "bits_up"]
    want, results = (
        raybench.load(tmp_path / name).set_index(["label", "round"]).sort_index()[columns]
        for name in ("alone", "train")
    )
    assert set(want.groupby("label").size()) == {8}, (
        "rounds 0, 5, 10, 15, 20, and the first: 1, 2, 4"
    )
    assert want.index.equals(results.index)
    np.testing.assert_allclose(results.to_numpy(), want.to_numpy(), rtol=1e-8, atol=1e-9)
    ended = cells(tmp_path / "train")
    assert set(ended["mode"]) == {"train"}
    assert set(ended["workers"]) == {2}
