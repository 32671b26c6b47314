"""What Ray is asked to set aside for workers, and how they then talk: as asked, fractions included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from spec_kit import BASE, wrong

import raybench
from raybench.core.errors import InputError
from raybench.execution.run import Options
from raybench.runtime.resources import backend_of, gpus_for, slots_of, workers_on
from raybench.runtime.worker import Shared
from raybench.spec.model import Resources
from raybench.store.writer import Owner
from raybench.wire.transport import Distributed


def shared(mode: str = "train", workers: int = 2, cpus: float = 1.0, gpus: float = 0.0) -> Shared:
    """Return what a sweep's workers share, with these resources."""
    sweep = (Options(), "", Owner("", ""), frozenset(), {}, {}, None, None)
    return Shared(*sweep, workers, cpus, gpus, mode, None)


@pytest.mark.thorough
@pytest.mark.parametrize("gpus", [0.25, 0.5, 1.0, 2.0])
def test_ray_takes_gpus_as_they_are_asked_for(gpus):
    from ray.train import ScalingConfig  # here, as Ray keeps the settings under which it is loaded

    config = ScalingConfig(**shared(gpus=gpus).scaling())
    assert config.num_gpus_per_worker == gpus
    assert config.total_resources["GPU"] == 2 * gpus


def test_cpus_and_gpus_are_asked_for_as_they_are():
    each = {"CPU": 1.0, "GPU": 0.25}
    asked = {"num_workers": 2, "use_gpu": True, "resources_per_worker": each}
    assert shared(gpus=0.25).scaling() == asked
    assert shared("simulate", gpus=0.25).per_trial() == each
    assert shared(gpus=0.25).device == "cuda"
    assert shared(cpus=0.5).per_worker() == {"CPU": 0.5}
    assert shared("simulate", cpus=3.0).per_trial() == {"CPU": 3.0}
    assert shared(cpus=3.0).per_trial() == {"CPU": 0.01}
    waits = replace(shared(cpus=3.0), place="node:10.0.0.1")
    assert waits.per_trial() == {"node:10.0.0.1": 0.001}, "a group may need every CPU there is"
    assert shared().device == "cpu"


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [(0, "gloo"), (0.25, "gloo"), (0.5, "gloo"), (0.51, "nccl"), (1, "nccl"), (2, "nccl")],
)
def test_nccl_is_for_ranks_with_a_gpu_of_their_own(gpus, backend):
    assert backend_of(gpus) == backend


@pytest.mark.parametrize(
    ("workers", "each", "gpus"),
    [(2, 0.25, 1), (5, 0.25, 2), (10, 0.1, 1), (3, 0.6, 3), (3, 1.0, 3), (2, 4.0, 8), (2, 0.0, 0)],
)
def test_a_share_lies_on_one_gpu(workers, each, gpus):
    """Three workers with 0.6 each take three GPUs, though 1.8 in all."""
    assert gpus_for(workers, each) == gpus
    if each:
        assert workers_on(gpus, each) >= workers
        assert workers_on(gpus - 1, each) < workers


def test_trials_at_once_on_shares_of_gpus():
    def slots(each: float, gpus: float, workers: int = 1) -> int:
        return slots_of(Resources(gpus_per_worker=each), {"CPU": 64.0, "GPU": gpus}, workers)

    assert [slots(0.25, 2), slots(0.6, 2), slots(1, 2), slots(0.1, 1)] == [8, 2, 2, 10]
    cores = ((16, 1), (16, 3), (2, 4))
    assert [slots_of(Resources(), {"CPU": n}, group) for n, group in cores] == [16, 5, 1]
    assert slots_of(Resources(timing="exclusive"), {"CPU": 16.0}, 1) == 1
    groups = ((0.25, 2, 4), (0.6, 4, 2), (2, 8, 2))
    assert [slots(*group) for group in groups] == [2, 2, 2]


@pytest.mark.parametrize(
    ("resources", "how", "says"),
    [
        ({"gpus_per_worker": 0.25}, {}, "0.25 GPUs take 1 GPU, and there is none"),
        ({"gpus_per_worker": 1}, {"inline": True}, "1 GPUs take 1 GPU, and there is none"),
        (
            {"gpus_per_worker": 0.6, "workers": 2, "mode": "train"},
            {},
            "2 workers with 0.6 GPUs each take 2 GPUs, and there is none",
        ),
    ],
)
def test_gpus_that_are_not_here_are_told_at_once(monkeypatch, tmp_path, resources, how, says):
    """Nothing is started or written: Ray would wait for them for ever."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    problem = {"name": "quadratic", "dim": 6, "clients": 2}
    sweep = {"name": "gpu", "problem": problem, "algorithm": "gd", "resources": resources}
    with pytest.raises(InputError) as error:
        raybench.sweep(sweep, tmp_path / "out", **how)
    (complaint,) = error.value.complaints
    assert (complaint.where, complaint.what) == ("resources.gpus_per_worker", says)
    assert not (tmp_path / "out").exists()


def test_a_gpu_and_a_half_is_refused():
    result = wrong(BASE + "resources: {gpus_per_worker: 1.5}\n")
    assert "at most 1, or a whole number" in result["resources"]


def test_gloo_gathers_in_main_memory(monkeypatch, tmp_path):
    """Ranks that share a GPU send their bytes by gloo: the result is back where the tensor was."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        sent = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
        moved = []
        monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self) or self.clone())
        (got,) = Distributed().exchange(sent)
        assert torch.equal(got, sent)
        assert len(moved) == 1
    finally:
        dist.destroy_process_group()
