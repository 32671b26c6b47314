"""What ``raybench advise`` compares: compressors with the methods that use them, replayed on real gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench import api, problems
from raybench.compressors import Compressor, unpack
from raybench.compressors.base import Role
from raybench.compressors.low_rank import Projection
from raybench.core.counts import ALL_TO_ALL, GATHER, REDUCE
from raybench.core.errors import InputError, count
from raybench.core.layout import Layout
from raybench.core.streams import Sample, Stream, stream
from raybench.data.catalogue import IMAGE_SETS, present
from raybench.measure.payoff import GPU_KEY, Codecs, Exchange
from raybench.measure.recorded import recorded
from raybench.measure.timing import ActionClock, affordable, in_a_line, relative_error
from raybench.problems.networks.models import NAMED
from raybench.spec import sections

LOCAL_STEPS = 30
RANK = 4
DIMENSIONS = (1000, 2**31)  # at which a compressor is asked for its class
HALF = 2  # bytes of a number in 16 bits


# Candidates ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Candidate(Exchange):
    """A compressor as a method uses it, and, once it was replayed, what it did to gradients.

    compressor: its short form. role: what the method needs the compressor to be. dropped: what becomes of what
    the compressor drops: ``kept`` by error feedback and sent later, ``lost``, or ``none`` where nothing is dropped.

    Replayed, means over the gradients and the best times: size without the header; encode, error feedback included;
    decode, to the sum in which a message is added; error, ||C(g) - g||^2 / ||g||^2, None for local steps, where only
    training tells; left_out, why nothing was measured.
    """

    compressor: str
    role: Role = Role.ANY
    dropped: str = "lost"
    left_out: str = ""


def _candidate(compressor: str, *ways: str, name: str = "", **more: Any) -> Candidate:
    return Candidate(name=name or compressor, compressor=compressor, collectives=ways, **more)


FEEDBACK: dict[str, Any] = {"role": Role.CONTRACTIVE, "dropped": "kept"}
BASELINE = _candidate("bf16", REDUCE, overlaps=True)
"""Data-parallel training in 16 bits: what everything is compared with."""

CATALOGUE: tuple[Candidate, ...] = (
    _candidate("identity", REDUCE, name="float32", overlaps=True, dropped="none"),
    _candidate("fp16", REDUCE, overlaps=True),
    *(_candidate(f"top_k:k={share}", GATHER, **FEEDBACK) for share in ("10%", "1%", "0.1%")),
    _candidate("dgc:k=0.1%", GATHER, **FEEDBACK),
    _candidate("rand_k:k=1%,mask=common", REDUCE, **FEEDBACK),
    *(
        _candidate(name, GATHER, ALL_TO_ALL, **FEEDBACK)
        for name in ("scaled_sign", "int8", "mxfp8", "nf4", "mxfp4")
    ),
    _candidate("qsgd:s=7", GATHER, ALL_TO_ALL),
    _candidate(
        f"per_tensor:of=(power_step:rank={RANK}),vectors=dense",
        REDUCE,
        name=f"power_sgd:rank={RANK}",
        parts=2,
        dropped="kept",
    ),
    *(
        _candidate(message, *ways, name=f"{method}:steps={LOCAL_STEPS}", every=LOCAL_STEPS, **more)
        for method, message, ways, more in (
            ("diloco", "identity", (REDUCE,), {"dropped": "unknown"}),
            ("diloco_int8", "int8", (ALL_TO_ALL,), {"dropped": "unknown"}),
            ("sparseloco", "block_top_k:k=64,block=4096", (GATHER,), FEEDBACK),
        )
    ),
)
"""Usual formats, sparsifiers, signs, quantisers of 8 and 4 bits, block formats, low rank, and local steps: of float32
differences, of 8-bit ones by an all-reduce in two shots (each worker adds up its part, and all gather the sums in 8 bits),
and of sparse ones with error feedback. In every step ``int8`` by ``all_to_all`` is that 8-bit all-reduce.

PowerSGD is stood for by ``power_step``, one step of subspace iteration from a fresh start: the same messages and work,
and an error that its warm start lowers.
"""


def candidates(texts: Iterable[str] | None) -> list[Candidate]:
    """Return the candidates of short forms such as ``top_k:k=5%``; those of the catalogue if none is given.

    A name of the catalogue (``power_sgd:rank=4``) means it. Any other compressor is used with error feedback if it
    is contractive or can be scaled to be, else without; low-rank ones act on every tensor. Messages that add up
    go through one all-reduce, selections are gathered, and others travel by whichever way is faster. Raises
    InputError for a wrong name or value.
    """
    if not texts:
        return list(CATALOGUE)
    named = {c.compressor: c for c in (*CATALOGUE, BASELINE) if c.overlaps}
    named |= {c.name: c for c in (*CATALOGUE, BASELINE)}
    return [named.get(text) or _asked(text) for text in dict.fromkeys(texts)]


def _asked(text: str) -> Candidate:
    form, section = text, sections.section("compressor", text, where="--compressor")
    compressor = api.compressor(text)
    if isinstance(compressor, Projection):
        form = f"per_tensor:of=({text}),vectors=dense"
        compressor = api.compressor(form)
    ways: tuple[str, ...] = (GATHER, ALL_TO_ALL)
    if compressor.additive:
        ways = (REDUCE,)
    elif compressor.selection or section.name == "per_tensor" or form != text:
        ways = (GATHER,)
    return _candidate(form, *ways, name=text, **(FEEDBACK if _contracts(compressor) else {}))


def _contracts(compressor: Compressor) -> bool:
    """Return whether a compressor is contractive, or is when scaled; asked for a dimension that it takes, if any."""
    for d in DIMENSIONS:
        try:
            return compressor.b3(d) is not None
        except InputError:  # fixed to a dimension of its own, or keeps more entries
            continue
    return True


# Gradients -----------------------------------------------------------------------------------

STEPS = (0, 3, 10)
"""Steps of SGD at which gradients are kept: the first one is not typical of training."""
RATE = 0.05
BATCH = 16
TIMED = 3
"""Steps whose forward pass is timed by itself; the least counts."""
FALLBACK, IMAGES = "digits", "cifar10_part"
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
    Recorded ones have no forward pass. note: what the reader should know, such as another data set.
    """

    about: str
    layout: Layout
    steps: tuple[int, ...]
    vectors: tuple[Tensor, ...]
    forward: float | None
    backward: float | None
    note: str = ""


def gradients(
    model: str, dataset: str | None = None, batch: int = BATCH, steps: Sequence[int] = STEPS
) -> Gradients:
    """Return gradients of a model, or those in a folder that ``raybench.torch.record`` wrote.

    model: as in ``problem.model``, or the folder. Of a model: minibatches of ``batch`` samples of ``dataset`` (by
    default a usual one of ``USUAL``; scikit-learn's digits where its files are missing), at some ``steps``
    of plain SGD with step size ``RATE`` from the initial weights. forward and backward are the least seconds of
    all steps. Raises InputError for an unknown model, data that do not fit it or are
    missing, and a bad folder.
    """
    if Path(model).expanduser().is_dir():  # of recorded gradients
        if dataset is not None:
            raise InputError.of("--dataset", "recorded gradients need no data set", "leave it out")
        return _recorded(model)
    if "/" in model and ".py:" not in model:
        fix = "record gradients there first: raybench.torch.record(path, model)"
        raise InputError.of("model", f"no folder {model}", fix)
    problem, data, note = _problem(model, dataset, batch)
    draws, clock = stream(0).fold("advise"), ActionClock()
    x, vectors = problem.start()[None], []
    for t in range(max(steps) + 1):
        indices = draws.fold(t).integers(batch, problem.samples[0])[None, None]
        try:
            if t <= TIMED:
                inputs, _ = problem.examples(problem.train, problem.rows[0][indices[0, 0]])
                clock("forward", partial(problem.passes.outputs, x[0], inputs))
            sample = Sample(indices, draws.fold(t).spread((1, 1)))
            gradient = clock("both", partial(problem.grad, x, sample))[0, 0]
        except InputError:
            raise
        except Exception as error:  # of the model, which is anybody's
            what = f"{model} fails on {count(batch, 'sample')}: {type(error).__name__}: {error}"
            raise InputError.of("model", what, "another --batch or --dataset") from error
        if not bool(gradient.isfinite().all()):
            fix = "record gradients of a run of your own: raybench.torch.record"
            raise InputError.of("model", f"{model} diverges in plain SGD with step {RATE}", fix)
        if t in steps:
            vectors.append(gradient.float().clone())
        x = x - RATE * gradient
    about = f"{model}: gradients of {batch} samples of {data or 'its own data'}, "
    about += f"steps {', '.join(map(str, steps))} of SGD"
    forward, both = clock.best["forward"], clock.best["both"]
    backward = max(both - forward, both / 10)
    return Gradients(about, problem.layout, tuple(steps), tuple(vectors), forward, backward, note)


def _recorded(path: str) -> Gradients:
    record = recorded(path)
    seen = f"step{'s' if len(record.steps) > 1 else ''} {', '.join(map(str, record.steps))}"
    about, note = f"gradients recorded in {path} at {seen}", ""
    if record.world_size > 1:
        about += f" of a run with {record.world_size} processes"
        note = "if the gradients are means over the workers, those of one worker are noisier"
    vectors, backward = tuple(record.gradients()), record.seconds_backward
    return Gradients(about, record.layout, record.steps, vectors, None, backward, note)


def _problem(model: str, dataset: str | None, batch: int) -> tuple[Any, str | None, str]:
    """Return the network, its data set, and a note where that stands in for the usual one, which is missing."""
    note, kind = "", model.partition(":")[0]
    if dataset is None and (kind in NAMED or kind == "torchvision"):  # others may bring their own
        dataset = USUAL.get(kind, IMAGES)
        files = IMAGE_SETS[dataset].files if dataset in IMAGE_SETS else ()
        if any(present(file) is None for file in files):
            note = f"{dataset} is not in the data folder: scikit-learn's {FALLBACK} instead"
            dataset = FALLBACK
    try:
        params = {"model": model, "dataset": dataset, "clients": 1, "batch": batch}
        return problems.build("network", params), dataset, note
    except InputError as error:
        cause = error.__cause__  # what a user's function raises without the data it is made for
        if dataset is None and cause and not isinstance(cause, ImportError | SyntaxError):
            what = f"is missing, and {model} cannot do without: {type(cause).__name__}: {cause}"
            raise InputError.of("--dataset", what, "such as --dataset digits") from error
        if not note:
            raise
        fix = f"put {IMAGES} into the data folder, or give --dataset"
        raise InputError.of("--dataset", f"{note}; but {error}", fix) from error


# Replay --------------------------------------------------------------------------------------

WORKERS = 2  # that compressors which share their work out are fitted for
LIMIT = 10.0  # seconds that one message of a candidate may take


def baseline(d: int) -> Exchange:
    """Return the exchange of d gradients in bfloat16, in buckets behind the backward pass."""
    return replace(BASELINE, size=HALF * d, dense=HALF * d)


def replay(
    candidates: Iterable[Candidate], layout: Layout, vectors: Sequence[Tensor], limit: float = LIMIT
) -> list[Candidate]:
    """Return what each candidate does to the gradients (d,), one after the other as in training.

    limit: seconds; a compressor whose message would take longer is left out, with the reason, as is one that does not
    fit the gradients.
    """
    rows = []
    for candidate in candidates:
        try:
            rows.append(_replayed(candidate, layout, vectors, limit))
        except InputError as error:
            rows.append(replace(candidate, left_out=in_a_line(error)))
    return rows


def _replayed(
    candidate: Candidate, layout: Layout, vectors: Sequence[Tensor], limit: float
) -> Candidate:
    compressor = api.compressor(candidate.compressor)
    bound = compressor.bind(layout.dim, WORKERS, layout, candidate.role)
    affordable(bound.compressor, vectors[0][None], limit, "a message")
    memory, total = (torch.zeros_like(vectors[0][None]) for _ in range(2))

    def turn(clock: ActionClock, x: Tensor, t: int) -> Stream:
        """Compress a gradient as the method does, and decode it; return the stream that was drawn from."""
        source = stream(t).fold("advise").spread((1,))

        def encode() -> bytes:
            if candidate.dropped != "kept":
                return bound(x, source).pack()
            memory.add_(x)
            message = bound(memory, source)
            packed = message.pack()
            message.scaled(-1.0).add_to(memory)
            return packed

        packed = clock("encode", encode)
        clock("decode", lambda: unpack(packed, tuple(x.shape)).add_to(total))
        return source

    turn(ActionClock(), vectors[0][None], 0)  # compiles, and touches memory
    memory.zero_()
    clock, figures = ActionClock(), []
    for t, x in enumerate(vector[None] for vector in vectors):
        alone = bound(x, turn(clock, x, t))
        size = float(torch.as_tensor(alone.nbytes).double().mean())
        figures.append([size, relative_error(alone.decode(), x)])
    size, error = map(float, np.mean(figures, axis=0))
    cast = candidate.compressor == "identity"
    return replace(
        candidate,
        dense=HALF * layout.dim,
        size=size,
        encode=0.0 if cast else clock.best["encode"],
        decode=0.0 if cast else clock.best["decode"],
        error=error if candidate.every == 1 else None,
    )


def on_gpu(rows: Iterable[Candidate], codecs: Codecs, d: int) -> list[Candidate]:
    """Return candidates with a GPU's times for d numbers; one that it has no times of is left out with a note."""
    result = []
    for row in rows:
        if row.left_out:
            result.append(row)
        elif row.compressor not in codecs.times:
            result.append(replace(row, left_out=f"{GPU_KEY} has no times of {row.compressor}"))
        else:
            encode, decode, feedback = codecs.at(row.compressor, d)
            kept = feedback if row.dropped == "kept" else 0.0
            result.append(replace(row, encode=encode + kept, decode=decode))
    return result
