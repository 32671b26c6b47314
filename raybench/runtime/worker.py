"""What runs inside Ray: a worker, which is a Tune trial or a Train group of one, and serves the queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.core import registry
from raybench.core.errors import FolderLost
from raybench.core.patience import heard
from raybench.core.process import tune_process
from raybench.execution.batch import Batch
from raybench.execution.execute import Progress, execute
from raybench.execution.resolve import use_shared_problem
from raybench.execution.run import Options
from raybench.problems.base import Problem
from raybench.runtime.checkpoints import FOLDER, Checkpoints, run_name
from raybench.runtime.leftovers import scratch
from raybench.runtime.resources import backend_of
from raybench.runtime.shipping import unpack
from raybench.spec import Section
from raybench.store import Store
from raybench.store.writer import Owner
from raybench.wire.transport import Distributed, Transport

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

SPEAKS_EVERY = 1.0  # seconds between the words of a worker to the queue
STEP = 5.0  # seconds of work between two results of a trial, each of which costs Tune milliseconds


@dataclass(frozen=True)
class Shared:
    """What every worker of a sweep needs; shipped once through the object store."""

    options: Options
    folder: str
    owner: Owner  # whose the results folder is while this sweep runs
    retried: frozenset[str]  # cells that had failed and run again
    plugins: Mapping[str, bytes]  # what their files hold, by paths on the driver's node
    problems: Mapping[Section, ObjectRef]  # built and packed: other nodes need no data files
    queue: ActorHandle
    writer: Any  # the store as an actor, where its folder is a disk of the driver's node alone
    workers: int
    cpus: float  # of a worker, as asked
    gpus: float
    mode: str
    timeout: float | None
    checkpoint_every: float = 600.0
    place: str = ""  # a resource that the driver's node alone has

    @property
    def device(self) -> str:
        """Where a worker's tensors are."""
        return "cuda" if self.gpus > 0 else "cpu"

    def per_worker(self) -> dict[str, float]:
        """Return what Ray is asked to set aside for a worker."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def scaling(self) -> dict[str, Any]:
        """Return the arguments of Ray Train's ``ScalingConfig`` for a worker group."""
        use_gpu, each = self.gpus > 0, self.per_worker()
        return {"num_workers": self.workers, "use_gpu": use_gpu, "resources_per_worker": each}

    def per_trial(self) -> dict[str, float]:
        """Return what Ray is asked to set aside for a trial.

        One that owns a worker group only waits for its workers: were it to take of their CPUs, they might
        never start. It waits on the driver's node.
        """
        if self.mode != "train":
            return self.per_worker()
        return {self.place: 0.001} if self.place else {"CPU": 0.01}


def store_method(shared: Shared, method: str) -> Callable[..., Any]:
    """Return a method of the store, which is called here or on the driver's node."""
    import ray

    if shared.writer is not None:
        return lambda *given: ray.get(getattr(shared.writer, method).remote(*given))
    write: Callable[..., Any] = getattr(Store(shared.folder, shared.owner, shared.retried), method)
    return write


def committed(shared: Shared) -> set[str]:
    """Return the cells that need not run: those committed, but for failed ones that run again."""
    statuses = store_method(shared, "done")()
    return {c for c, status in statuses.items() if status != "failed" or c not in shared.retried}


def prepare(shared: Shared) -> None:
    """Make this process ready to run batches: memory, threads, plug-ins, problems."""
    import ray
    import torch

    def fetched(reference: ObjectRef) -> Problem:
        problem: Problem = unpack(ray.get(reference))
        return problem

    tune_process()
    torch.set_num_threads(max(1, int(shared.cpus)))  # the compiled kernels follow
    for path, content in shared.plugins.items():
        load_shipped(path, content)
    for section, reference in shared.problems.items():
        use_shared_problem(section, partial(fetched, reference))


def load_shipped(path: str, content: bytes) -> None:
    """Load a plug-in file of the driver's node, which need not be there, or be the same, on this one."""
    file = Path(path).expanduser()
    if file.is_file() and file.read_bytes() == content:
        registry.load_plugin(file)
        return
    with scratch("plugin") as folder:
        file = Path(folder) / file.name
        file.write_bytes(content)
        registry.load_plugin(file)


def checkpoints_of(shared: Shared, run: str, transport: Transport) -> Checkpoints | None:
    """Return how a run of this name keeps states: None where its node does not see the results folder."""
    if shared.writer is not None:
        return None
    store = Store(shared.folder, shared.owner)
    return Checkpoints(store, shared.options, shared.checkpoint_every, run, transport)


class Heartbeat:
    """A worker's heartbeat to the queue: one rank's word once a second that it is there, and how far it is.

    The word comes from a thread, so that a rank is silent when its process or its node is, not when a round
    takes long. stop: whether the queue has answered that the worker should stop.
    """

    def __init__(self, queue: ActorHandle, worker: str, rank: int) -> None:
        self.queue, self.worker, self.rank = queue, worker, rank
        self.stop = False
        self.now: tuple[int, Progress | None] = (0, None)
        self.over = threading.Event()
        threading.Thread(target=self._speak, daemon=True).start()

    def take(self, done: Progress | None) -> Batch | None:
        """Tell the queue of the batch that has ended; return the next one, or None."""
        import ray

        batch: Batch | None = ray.get(self.queue.take.remote(self.worker, done))
        self.now = (self.now[0] + 1, None)
        return batch

    def say(self, progress: Progress) -> None:
        """Let the queue know, when the next word is due, how far the batch is."""
        copied = replace(progress, best=dict(progress.best), errors=list(progress.errors))
        self.now = (self.now[0], copied)

    def _speak(self) -> None:
        import ray
        from ray.exceptions import RayError

        while not self.over.wait(SPEAKS_EVERY):
            turn, progress = self.now
            with suppress(RayError):  # the sweep is ending, and this process with it
                self.stop = ray.get(self.queue.post.remote(self.worker, self.rank, turn, progress))


def serve(
    shared: Shared, worker: str, transport: Transport, device: str, run: str
) -> Iterator[None]:
    """Run batches of the queue until it has none; a generator that yields now and then.

    All ranks of a group serve together; rank 0 takes the batches. worker: the name by which the queue knows
    this worker. run: a name that no other run of the sweep has, for its checkpoints.
    """
    first = transport.rank == 0
    where = {"mode": shared.mode, "workers": shared.workers}
    commit, keeper = store_method(shared, "commit"), checkpoints_of(shared, run, transport)
    heartbeat = Heartbeat(shared.queue, worker, transport.rank)
    done: Progress | None = None
    try:
        while True:
            batch = transport.agree(heartbeat.take(done) if first else None)
            if batch is None:
                return
            done = Progress()
            if batch.attempts:  # of one that was cut, as a cell of it raised, some may be there
                batch = batch.without(transport.agree(committed(shared) if first else None))
            steps = execute(
                [] if batch is None else [batch],
                shared.options,
                commit,
                transport=transport,
                device=device,
                where=where,
                timeout=shared.timeout,
                keeper=keeper,
            )
            with heard(shared.queue.trouble.remote):
                for done in steps:
                    heartbeat.say(done)
                    if transport.agree(heartbeat.stop):
                        return
                    yield
    except FolderLost as error:  # which everyone is told before it goes on
        import ray

        ray.get(shared.queue.lose.remote(str(error)))
        raise
    finally:
        heartbeat.over.set()


def worker_trial() -> type:
    """Return the Trainable that is a worker in its own process."""
    from ray import tune

    class Worker(tune.Trainable):
        def setup(self, config: dict[str, object], shared: Shared | None = None) -> None:
            assert shared is not None
            prepare(shared)
            self.work = serve(shared, self.trial_id, Transport(), shared.device, run_name("worker"))

        def step(self) -> dict[str, object]:
            until = time.monotonic() + STEP
            for _ in self.work:
                if time.monotonic() > until:
                    return {"done": False}
            return {"done": True}

    return Worker


def train_loop(config: dict[str, Any]) -> None:
    """Serve the queue as one worker of a Train group."""
    shared: Shared = config["shared"]
    prepare(shared)
    device = shared.device
    if device == "cuda":
        from ray.train.torch import get_device

        device = str(get_device())
    transport = Distributed() if shared.workers > 1 else Transport()
    for _ in serve(shared, config["worker"], transport, device, config["run"]):
        pass


def linked(backend: str) -> Any:
    """Return a ``TorchConfig`` whose ranks meet by the addresses that their nodes have in the cluster.

    By itself gloo goes by what the host's name means there, which is often a loopback: ranks of two nodes then never
    meet.
    """
    from ray.train.torch import TorchConfig

    base: Any = TorchConfig().backend_cls

    class Linked(base):
        def on_start(self, group: Any, config: Any) -> None:
            group.execute(name_interface)
            super().on_start(group, config)

    class Config(TorchConfig):
        backend_cls = property(lambda self: Linked)

    return Config(backend=backend)


def name_interface() -> None:
    """Tell gloo which interface of this host has the address that the cluster knows (Linux)."""
    import fcntl
    import os
    import socket
    import struct

    from ray.util import get_node_ip_address

    address, asks = get_node_ip_address(), 0x8915  # SIOCGIFADDR
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, asks, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(answer[20:24]) == address:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def train_trial(config: dict[str, object], shared: Shared | None = None) -> None:
    """Own one Train worker group, which serves the queue (a Tune function trial)."""
    from ray import train, tune
    from ray.train.torch import TorchTrainer

    assert shared is not None
    if not wait_for_room(shared):
        return
    run = run_name("group")
    worker = tune.get_context().get_trial_id()
    with scratch("train") as folder:
        TorchTrainer(
            train_loop,
            train_loop_config={"shared": shared, "worker": worker, "run": run},
            scaling_config=train.ScalingConfig(**shared.scaling()),
            torch_config=linked(backend_of(shared.gpus)),
            run_config=train.RunConfig(name=run, storage_path=folder),
        ).fit()
    if shared.writer is None:
        Store(shared.folder).files.clear(f"{FOLDER}/{run}")  # all of its batches are committed


def wait_for_room(shared: Shared) -> bool:
    """Wait until a worker group would find its CPUs and GPUs; return False once nothing waits for it.

    The places are asked for as those of a group are, so that Ray's autoscaler starts nodes for them.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    room = placement_group([shared.per_worker()] * shared.workers)
    try:
        while not room.wait(1):
            if ray.get(shared.queue.idle.remote()):
                return False
        return True
    finally:
        remove_placement_group(room)
