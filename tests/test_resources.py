"""What Ray is asked to set aside for workers, and how they then talk: as asked, fractions included."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from spec_plugins import BASE, registered, wrong

from raybench.engine.run import Options
from raybench.runtime.work import Shared
from raybench.store.writer import Owner
from raybench.wire.transport import Distributed


def shared(mode: str = "train", workers: int = 2, cpus: float = 1.0, gpus: float = 0.0) -> Shared:
    """Return what a sweep's packs share, with these resources."""
    return Shared(
        packs=[],
        options=Options(),
        folder="",
        owner=Owner("", ""),
        apart=frozenset(),
        plugins=(),
        problems={},
        board=None,
        writer=None,
        workers=workers,
        cpus=cpus,
        gpus=gpus,
        mode=mode,
        timeout=None,
    )


@pytest.mark.parametrize("gpus", [0.25, 0.5, 1.0, 2.0])
def test_gpus_are_asked_for_as_they_are(gpus):
    from ray.train import ScalingConfig  # here, as Ray keeps the settings under which it is loaded

    asked = shared(gpus=gpus)
    config = ScalingConfig(
        num_workers=asked.workers, use_gpu=True, resources_per_worker=asked.per_worker()
    )
    assert config.num_gpus_per_worker == gpus
    assert config.total_resources["GPU"] == 2 * gpus
    assert asked.device == "cuda"
    assert shared("simulate", gpus=gpus).per_trial() == {"CPU": 1.0, "GPU": gpus}


def test_cpus_are_asked_for_as_they_are():
    assert shared(cpus=0.5).per_worker() == {"CPU": 0.5}
    assert shared("simulate", cpus=3.0).per_trial() == {"CPU": 3.0}
    assert shared(cpus=3.0).per_trial() == {"CPU": 0.01}
    assert shared().device == "cpu"


@pytest.mark.parametrize(
    ("gpus", "backend"), [(0, "gloo"), (0.25, "gloo"), (1, "nccl"), (2, "nccl")]
)
def test_nccl_is_for_ranks_with_a_gpu_of_their_own(gpus, backend):
    assert shared(gpus=gpus).backend == backend


def test_a_gpu_and_a_half_is_refused():
    with registered():
        found = wrong(BASE + "resources: {gpus_per_worker: 1.5}\n")
    assert "at most 1, or a whole number" in found["resources"]


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
