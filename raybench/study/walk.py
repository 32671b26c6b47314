"""Real gradients to replay operators on: of a model along a few steps of SGD, or recorded by a user's own run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor

from raybench import problems
from raybench.core.draws import Sample
from raybench.core.errors import InputError, nearest
from raybench.core.layout import Layout
from raybench.core.streams import stream
from raybench.data.known import KNOWN_IMAGES, there
from raybench.data.recorded import is_record, recorded
from raybench.problems.networks.models import NAMED

STEPS = (0, 3, 10)
"""Steps of SGD at which gradients are kept: the first one is not typical of training."""
RATE = 0.05
BATCH = 16
TIMED = 3
"""Steps whose forward pass is timed by itself; the least counts."""
FALLBACK = "digits"
IMAGES = "cifar10_part"
USUAL = {
    "transformer": "shakespeare",
    "mlp": "digits",
    "mnist_cnn": "mnist",
    "autoencoder": "mnist",
}
"""The data set on which a model is tried; of other models with images ``IMAGES``."""


@dataclass(frozen=True)
class Gradients:
    """Gradients (d,) float32 of one worker at some steps, and the seconds in which they were computed.

    forward, backward: seconds on this machine, or of the run that recorded them; None where nobody timed it.
    problem: the section of a sweep file that stands for the same model and data; None for recorded ones.
    notes: what the reader should know, such as another data set.
    """

    about: str
    layout: Layout
    steps: tuple[int, ...]
    vectors: tuple[Tensor, ...]
    forward: float | None
    backward: float | None
    problem: dict[str, Any] | None
    notes: tuple[str, ...] = ()


def gradients(
    model: str,
    dataset: str | None = None,
    batch: int = BATCH,
    steps: Sequence[int] = STEPS,
    seed: int = 0,
) -> Gradients:
    """Return gradients of a model, or those in a folder that ``raybench.torch.record`` wrote.

    model: as in ``problem.model``, or the folder. Of a model: minibatches of ``batch`` samples of ``dataset`` (by
    default a usual one of ``USUAL``; scikit-learn's digits where its files are missing), at some ``steps``
    of plain SGD with step size ``RATE`` from the initial weights. forward and backward are the least seconds of
    all steps. Raises InputError for an unknown model, data that do not fit it or are
    missing, a bad folder, and a batch below 1.
    """
    if is_record(model):
        if dataset is not None:
            what = "recorded gradients need no data set"
            raise InputError.of("--dataset", what, "leave it out")
        return _recorded(model)
    if "/" in model and ".py:" not in model:
        fix = "record gradients there first: raybench.torch.record(path, model)"
        raise InputError.of("model", f"no folder {model}", fix)
    if batch < 1:
        raise InputError.of("--batch", f"{batch} is out of range", "an integer >= 1")
    return _walked(model, dataset, batch, steps, seed)


def _recorded(path: str) -> Gradients:
    held = recorded(path)
    seen = f"step{'s' if len(held.steps) > 1 else ''} {', '.join(map(str, held.steps))}"
    run = f" of a run with {held.world_size} processes" if held.world_size > 1 else ""
    notes: tuple[str, ...] = ()
    if held.world_size > 1:
        notes = ("if the gradients are means over the workers, those of one worker are noisier",)
    return Gradients(
        f"gradients recorded in {path} at {seen}{run}",
        held.layout,
        held.steps,
        tuple(held.gradients()),
        None,
        held.seconds_backward,
        None,
        notes,
    )


def _walked(
    model: str, dataset: str | None, batch: int, steps: Sequence[int], seed: int
) -> Gradients:
    if ":" not in model and model not in NAMED:
        fix = f"{nearest(model, NAMED)}; or torchvision:NAME, my_module:function, or a folder"
        raise InputError.of("model", f"unknown model {model!r}", fix)
    chosen, note = (dataset, "") if dataset is not None else _usual(model)
    data = {} if chosen is None else {"dataset": chosen}
    params: dict[str, Any] = {"model": model, **data, "clients": 1, "batch": batch}
    try:
        problem: Any = problems.build("network", {"dataset": None, **params})
    except InputError as error:
        if not note:
            raise
        fix = f"put {IMAGES} into the data folder, or give --dataset"
        raise InputError.of("--dataset", f"{note}; but {error}", fix) from error
    except (
        Exception
    ) as error:  # whatever a user's function raises without the data that it is made for
        if chosen is not None:
            raise
        what = f"is missing, and {model} cannot do without: {type(error).__name__}: {error}"
        raise InputError.of("--dataset", what, "such as --dataset digits") from error
    count = problem.samples[0]
    own = stream(seed).fold("advise")
    x, kept = problem.start()[None], []
    forward, whole = [], []
    for t in range(max(steps) + 1):
        indices = own.fold(t).integers(batch, count)[None, None]
        sample = Sample(indices, own.fold(t).spread((1, 1)))
        if t <= TIMED:
            inputs, _ = problem.examples(problem.train, problem.rows[0][indices[0, 0]])
            forward.append(_seconds(partial(problem.passes.outputs, x[0], inputs)))
        begin = perf_counter()
        gradient = problem.grad(x, sample)[0, 0]
        whole.append(perf_counter() - begin)
        if not bool(gradient.isfinite().all()):
            fix = "record gradients of a run of your own: raybench.torch.record"
            raise InputError.of("model", f"{model} diverges in plain SGD with step {RATE}", fix)
        if t in steps:
            kept.append(gradient.float().clone())
        x = x - RATE * gradient
    where = chosen or "its own data"
    seen = f"{batch} samples of {where}, steps {', '.join(map(str, steps))} of SGD"
    return Gradients(
        f"{model}: gradients of {seen}",
        problem.layout,
        tuple(steps),
        tuple(kept),
        min(forward),
        max(min(whole) - min(forward), min(whole) / 10),
        {"name": "network", **params},
        (note,) if note else (),
    )


def _seconds(action: Callable[[], object]) -> float:
    begin = perf_counter()
    action()
    return perf_counter() - begin


def _usual(model: str) -> tuple[str | None, str]:
    """Return the data set for a model, and a note where another one stands in for what is missing."""
    kind = model.partition(":")[0]
    if kind not in NAMED and kind != "torchvision":
        return None, ""  # a user's function may bring its own
    name = USUAL.get(kind, IMAGES)
    files = KNOWN_IMAGES[name].files if name in KNOWN_IMAGES else ()
    if all(there(file) is not None for file in files):
        return name, ""
    return FALLBACK, f"{name} is not in the data folder: scikit-learn's {FALLBACK} instead"
