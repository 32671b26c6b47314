"""What a whole sweep is told besides its cells: how to record, what to take of the machine."""

from __future__ import annotations

from raybench.core.errors import InputError
from raybench.core.params import Choice, Flag, Integer, List, Number, record


@record
class Record:
    """Which rounds make a row: every so many, or about so many points in all.

    Neither given: every round, or 400 points where the method is stochastic. Raises InputError for both.
    """

    every: int | None = Integer(None, low=1, help="each so many-th round makes a row")
    points: int | None = Integer(None, low=1, help="about so many rows in all")

    def __post_init__(self) -> None:
        if self.every is not None and self.points is not None:
            raise InputError.of("record", "give every or points, not both")


@record
class Resources:
    """What a trial of the sweep takes on the machine or cluster.

    Raises InputError for a GPU and a half.
    """

    mode: str = Choice(
        "auto", "simulate", "train", help="train: worker groups of several processes"
    )
    workers: int = Integer(1, low=1, help="processes of a worker group")
    cpus_per_worker: float = Number(
        1.0, low=0, open_low=True, help="CPUs of a worker, or of a trial"
    )
    gpus_per_worker: float = Number(0.0, low=0, help="GPUs of a worker; a fraction shares one")
    timing: str = Choice("shared", "exclusive", help="exclusive: one cell at a time")

    def __post_init__(self) -> None:
        gpus = self.gpus_per_worker
        if gpus > 1 and gpus != int(gpus):
            what = f"gpus_per_worker: {gpus:g} is neither a share of a GPU nor a number of them"
            raise InputError.of("resources", what, "at most 1, or a whole number")


@record
class Evaluate:
    """What a recorded row measures: how often what is costly, and metrics besides the standard columns."""

    every: int | None = Integer(
        None, low=1, help="rounds between measures that take a pass over the data; about 50 in all"
    )
    gradient: bool = Flag(
        True, help="measure grad f over all samples; a network without it saves time"
    )
    loss: bool = Flag(
        True, help="measure f over all samples, where grad f is not; slow for networks"
    )
    metrics: tuple[str, ...] = List((), help="metrics by name")


@record
class Checkpoint:
    """When cells that run long are saved, so that they go on from there."""

    every: float = Number(
        600.0, low=0, open_low=True, help="seconds between saves; shorter cells never save"
    )
