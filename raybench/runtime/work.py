"""What runs inside Ray: a pack in a Tune trial, or on the workers of a Train group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raybench.core import registry
from raybench.core.process import tune_process
from raybench.engine.execute import Progress, execute
from raybench.engine.run import Options
from raybench.planning.batch import Batch
from raybench.planning.resolve import adopt
from raybench.runtime.scratch import scratch
from raybench.spec import Section
from raybench.store import Store, encode
from raybench.wire.transport import Distributed, Transport

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


@dataclass(frozen=True)
class Shared:
    """What every pack of a sweep needs; shipped once through the object store.

    problems: references to the built problems, so that workers on other nodes need no data files.
    board, writer: handles of the actors below; writer is None unless the folder is the disk of the
    driver's node and there are other nodes. cpus, gpus: of a worker, as asked; a fraction of a GPU is
    shared with others.
    """

    packs: list[list[Batch]]
    options: Options
    folder: str
    plugins: tuple[str, ...]
    problems: Mapping[Section, ObjectRef]
    board: ActorHandle
    writer: Any
    workers: int
    cpus: float
    gpus: float
    mode: str
    timeout: float | None

    @property
    def device(self) -> str:
        """Where a worker's tensors are."""
        return "cuda" if self.gpus > 0 else "cpu"

    @property
    def backend(self) -> str:
        """How ranks talk: NCCL needs a GPU of its own for every rank, and without one there is gloo."""
        return "nccl" if self.gpus >= 1 else "gloo"

    def per_worker(self) -> dict[str, float]:
        """Return what Ray is asked to set aside for a worker."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def per_trial(self) -> dict[str, float]:
        """Return what Ray is asked to set aside for a trial.

        One that owns a worker group only waits for its workers: were it to take a whole CPU, they might
        never start.
        """
        return {"CPU": 0.01} if self.mode == "train" else self.per_worker()


class Board:
    """An actor where packs post their progress and learn whether to stop."""

    def __init__(self, fail_fast: bool) -> None:
        self.parts: dict[int, Progress] = {}
        self.fail_fast = fail_fast

    def post(self, pack: int, progress: Progress) -> bool:
        """Take a pack's progress; return whether the pack should stop."""
        self.parts[pack] = progress
        return self.fail_fast and any(p.failed for p in self.parts.values())

    def read(self) -> dict[int, Progress]:
        """Return the progress of every pack."""
        return self.parts


class Writer:
    """An actor that writes the shards which other nodes send as bytes."""

    def __init__(self, folder: str) -> None:
        self.store = Store(folder)

    def commit(self, shard: str, curves: bytes | None, cells: bytes) -> None:
        """Write one shard."""
        self.store.commit(shard, curves, cells)


def set_threads(threads: int) -> None:
    """Let torch, and with it the compiled kernels, use so many threads."""
    import torch

    torch.set_num_threads(max(1, threads))


def committer(shared: Shared) -> Callable[[str, pa.Table | None, pa.Table], None]:
    """Return the function that writes a shard, here or through the driver's node."""
    if shared.writer is None:
        return Store(shared.folder).commit

    def send(shard: str, curves: pa.Table | None, cells: pa.Table) -> None:
        import ray

        data = None if curves is None else encode(curves)
        ray.get(shared.writer.commit.remote(shard, data, encode(cells)))

    return send


def prepare(shared: Shared) -> None:
    """Make this process ready to run packs: memory, threads, plug-ins, problems."""
    import ray

    tune_process()
    set_threads(int(shared.cpus))
    for plugin in shared.plugins:
        registry.load_plugin(plugin)
    for section, reference in shared.problems.items():
        adopt(section, partial(ray.get, reference))


def run_pack(shared: Shared, pack: int, transport: Transport, device: str) -> Iterator[Progress]:
    """Run a pack's uncommitted batches, posting progress; a generator that yields now and then."""
    import ray

    done = set(Store(shared.folder).done()) if shared.writer is None else set()
    todo = [b for b in shared.packs[pack] if transport.agree(not done >= {c.id for c in b.cells})]
    where = {"mode": shared.mode, "workers": shared.workers}
    last = Progress()
    for progress in execute(
        todo,
        shared.options,
        committer(shared),
        transport=transport,
        device=device,
        where=where,
        timeout=shared.timeout,
    ):
        last = progress
        stop = False
        if transport.rank == 0:
            stop = ray.get(shared.board.post.remote(pack, progress))
        if transport.agree(stop):
            return
        yield progress
    if transport.rank == 0:
        ray.get(shared.board.post.remote(pack, last))


def pack_trial() -> type:
    """Return the Trainable that runs packs in its own process, actors reused from pack to pack."""
    from ray import tune

    class PackTrial(tune.Trainable):
        def setup(self, config: dict[str, int], shared: Shared | None = None) -> None:
            assert shared is not None
            self.shared = shared
            prepare(shared)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, int]) -> bool:
            self.work = run_pack(self.shared, new_config["pack"], Transport(), self.shared.device)
            return True

        def step(self) -> dict[str, object]:
            until = time.monotonic() + 1.0
            for _ in self.work:
                if time.monotonic() > until:
                    return {"done": False}
            return {"done": True}

    return PackTrial


def train_loop(config: dict[str, Any]) -> None:
    """Run a pack on one worker of a Train group; all workers run it together, rank 0 commits."""
    shared: Shared = config["shared"]
    prepare(shared)
    device = shared.device
    if device == "cuda":
        from ray.train.torch import get_device

        device = str(get_device())
    transport = Distributed() if shared.workers > 1 else Transport()
    for _ in run_pack(shared, config["pack"], transport, device):
        pass


def train_trial(config: dict[str, object], shared: Shared | None = None) -> None:
    """Own one Train worker group, which serves a whole pack (a Tune function trial)."""
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    assert shared is not None
    with scratch("train") as folder:
        TorchTrainer(
            train_loop,
            train_loop_config={"shared": shared, "pack": config["pack"]},
            scaling_config=train.ScalingConfig(
                num_workers=shared.workers,
                use_gpu=shared.device == "cuda",
                resources_per_worker=shared.per_worker(),
            ),
            torch_config=TorchConfig(backend=shared.backend),
            run_config=train.RunConfig(name=f"pack-{config['pack']}", storage_path=folder),
        ).fit()
