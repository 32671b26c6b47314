"""What runs inside Ray: a pack in a Tune trial, or on the workers of a Train group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raybench.core import registry
from raybench.core.errors import FolderLost
from raybench.core.process import tune_process
from raybench.engine.execute import Commit, Progress, execute
from raybench.engine.run import Options
from raybench.planning.batch import Batch
from raybench.planning.resolve import adopt
from raybench.runtime.checkpoints import (
    FOLDER,
    Checkpoints,
    TrainCheckpoints,
    run_name,
    storage_of,
)
from raybench.runtime.gpus import backend_of
from raybench.runtime.scratch import scratch
from raybench.spec import Section
from raybench.store import Store
from raybench.store.tries import Tries
from raybench.store.writer import Owner
from raybench.wire.transport import Distributed, Transport

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


@dataclass(frozen=True)
class Shared:
    """What every pack of a sweep needs; shipped once through the object store.

    owner: whose the results folder is while this sweep runs. apart: cells that had failed and run again.
    problems: references to the built problems, so that workers on other nodes need no data files.
    board, writer: handles of the actors below; writer is None unless the folder is the disk of the
    driver's node and there are other nodes. cpus, gpus: of a worker, as asked; a fraction of a GPU is
    shared with others.
    """

    packs: list[list[Batch]]
    options: Options
    folder: str
    owner: Owner
    apart: frozenset[str]
    plugins: tuple[str, ...]
    problems: Mapping[Section, ObjectRef]
    board: ActorHandle
    writer: Any
    workers: int
    cpus: float
    gpus: float
    mode: str
    timeout: float | None
    checkpoint_every: float = 600.0

    @property
    def device(self) -> str:
        """Where a worker's tensors are."""
        return "cuda" if self.gpus > 0 else "cpu"

    @property
    def backend(self) -> str:
        """How ranks talk."""
        return backend_of(self.gpus)

    def per_worker(self) -> dict[str, float]:
        """Return what Ray is asked to set aside for a worker."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def scaling(self) -> dict[str, Any]:
        """Return the arguments of Ray Train's ``ScalingConfig`` for a worker group."""
        use_gpu = self.device == "cuda"
        each = self.per_worker()
        return {"num_workers": self.workers, "use_gpu": use_gpu, "resources_per_worker": each}

    def per_trial(self) -> dict[str, float]:
        """Return what Ray is asked to set aside for a trial.

        One that owns a worker group only waits for its workers: were it to take a whole CPU, they might
        never start.
        """
        return {"CPU": 0.01} if self.mode == "train" else self.per_worker()


class Board:
    """An actor where packs post their progress and learn whether to stop.

    tries: how often each cell was tried before.
    """

    def __init__(self, fail_fast: bool, tries: Mapping[str, int]) -> None:
        self.parts: dict[int, Progress] = {}
        self.fail_fast = fail_fast
        self.lost = ""
        self.tried = Tries(tries)

    def post(self, pack: int, progress: Progress) -> bool:
        """Take a pack's progress; return whether the pack should stop."""
        self.parts[pack] = progress
        return bool(self.lost) or (self.fail_fast and any(p.failed for p in self.parts.values()))

    def begin(self, cells: Sequence[str]) -> int:
        """Note that cells are tried once more; return how often one of them was before, at most."""
        return self.tried.begin(cells)

    def tries(self) -> dict[str, int]:
        """Return how often each cell was tried."""
        return self.tried.counts

    def lose(self, why: str) -> None:
        """Note that the results folder is lost, so that every pack stops."""
        self.lost = why

    def why_lost(self) -> str:
        """Return why the results folder is lost, empty where it is there."""
        return self.lost

    def read(self) -> dict[int, Progress]:
        """Return the progress of every pack."""
        return self.parts


class Writer:
    """An actor that writes the shards which other nodes send as tables."""

    def __init__(self, folder: str, owner: Owner, apart: frozenset[str]) -> None:
        self.store = Store(folder, owner, apart)

    def commit(self, *shard: Any) -> None:
        """Write one shard, as ``Store.commit``."""
        self.store.commit(*shard)

    def done(self) -> dict[str, str]:
        """Return the cells that are committed, by status."""
        return self.store.done()


def set_threads(threads: int) -> None:
    """Let torch, and with it the compiled kernels, use so many threads."""
    import torch

    torch.set_num_threads(max(1, threads))


def committer(shared: Shared) -> Commit:
    """Return the function that writes a shard, here or through the driver's node."""
    if shared.writer is None:
        return Store(shared.folder, shared.owner, shared.apart).commit

    def send(*shard: Any) -> None:
        import ray

        ray.get(shared.writer.commit.remote(*shard))

    return send


def committed(shared: Shared) -> set[str]:
    """Return the cells that need not run: those committed, but for failed ones that run again."""
    import ray

    done = Store(shared.folder).done if shared.writer is None else None
    found = done() if done else ray.get(shared.writer.done.remote())
    return {c for c, status in found.items() if status != "failed" or c not in shared.apart}


def prepare(shared: Shared) -> None:
    """Make this process ready to run packs: memory, threads, plug-ins, problems."""
    import ray

    tune_process()
    set_threads(int(shared.cpus))
    for plugin in shared.plugins:
        registry.load_plugin(plugin)
    for section, reference in shared.problems.items():
        adopt(section, partial(ray.get, reference))


def checkpoints_of(shared: Shared, run: str, transport: Transport) -> Checkpoints | None:
    """Return how a run of this name keeps states: None where its node does not see the results folder."""
    if shared.writer is not None:
        return None
    kind = TrainCheckpoints if shared.mode == "train" else Checkpoints
    store = Store(shared.folder, shared.owner)
    return kind(store, shared.options, shared.checkpoint_every, run, transport)


def run_pack(
    shared: Shared, pack: int, transport: Transport, device: str, run: str
) -> Iterator[Progress]:
    """Run a pack's uncommitted batches, posting progress; a generator that yields now and then.

    run: a name that no other run of the sweep has, for its checkpoints.
    """
    import ray

    lost = ray.get(shared.board.why_lost.remote()) if transport.rank == 0 else ""
    if transport.agree(lost):
        return
    # Of a batch that was cut, since a cell of it raised, some cells may be committed.
    done = transport.agree(committed(shared) if transport.rank == 0 else None)
    left = [batch.without(done) for batch in shared.packs[pack]]
    where = {"mode": shared.mode, "workers": shared.workers}
    last = Progress()

    def begin(batch: Batch) -> int:
        tried: int = ray.get(shared.board.begin.remote([c.id for c in batch.cells]))
        return tried

    steps = execute(
        [batch for batch in left if batch is not None],
        shared.options,
        committer(shared),
        transport=transport,
        device=device,
        where=where,
        timeout=shared.timeout,
        begin=begin,
        keeper=checkpoints_of(shared, run, transport),
    )
    for progress in _telling_losses(shared, steps):
        last = progress
        stop = False
        if transport.rank == 0:
            stop = ray.get(shared.board.post.remote(pack, progress))
        if transport.agree(stop):
            return
        yield progress
    if transport.rank == 0:
        ray.get(shared.board.post.remote(pack, last))


def _telling_losses(shared: Shared, steps: Iterator[Progress]) -> Iterator[Progress]:
    """Yield the steps; where the results folder is lost, tell everyone before the error goes on."""
    with telling_losses(shared):
        yield from steps


@contextmanager
def telling_losses(shared: Shared) -> Iterator[None]:
    """Tell everyone of a lost results folder before the error goes on."""
    try:
        yield
    except FolderLost as error:
        import ray

        ray.get(shared.board.lose.remote(str(error)))
        raise


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
            pack, device = new_config["pack"], self.shared.device
            self.work = run_pack(self.shared, pack, Transport(), device, run_name(f"pack-{pack}"))
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
    for _ in run_pack(shared, config["pack"], transport, device, config["run"]):
        pass


def train_trial(config: dict[str, object], shared: Shared | None = None) -> None:
    """Own one Train worker group, which serves a whole pack (a Tune function trial)."""
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    assert shared is not None
    run = run_name(f"pack-{config['pack']}")
    with telling_losses(shared):  # Ray would make the folder again
        Store(shared.folder, shared.owner).check_owner()
    with scratch("train") as folder:
        # where nodes do not share the results folder nothing is saved, but Ray wants a place all the same
        files = None if shared.writer else Store(shared.folder).files
        TorchTrainer(
            train_loop,
            train_loop_config={"shared": shared, "pack": config["pack"], "run": run},
            scaling_config=train.ScalingConfig(**shared.scaling()),
            torch_config=TorchConfig(backend=shared.backend),
            run_config=train.RunConfig(
                name=run,
                checkpoint_config=train.CheckpointConfig(num_to_keep=1),
                **({"storage_path": folder} if files is None else storage_of(files)),
            ),
        ).fit()
        if files is not None:
            files.clear(f"{FOLDER}/{run}")  # all of its batches are committed
