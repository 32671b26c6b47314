"""Networks: f_i is the mean loss of any torch module over client i's examples."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from raybench import data
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.parts import Train
from raybench.core.registry import (
    REQUIRED,
    Choice,
    Integer,
    List,
    Number,
    Text,
    is_function,
    problem,
)
from raybench.core.streams import Sample, Stream
from raybench.data import Examples, catalogue
from raybench.data.files import input_errors
from raybench.data.images import MOST_SIDE
from raybench.problems.base import DTYPES, EVALUATED, Problem
from raybench.problems.networks import build, own
from raybench.problems.networks.adapted import adapted, merged
from raybench.problems.networks.passes import (
    LOSSES,
    Passes,
    Work,
    check_repeatable,
    cross_entropy,
    shifted_and_flipped,
    with_streams,
)
from raybench.store import CURVES

Buffers = Mapping[str, Tensor]


@problem("network", x0="problem", trained=True)
class NetworkProblem(Problem):
    """f_i(x) = the mean loss of a network with parameters x over client i's examples, + weight_decay/2 ||x||^2.

    model: ``mlp``, ``mnist_cnn``, ``autoencoder``, ``resnet18``, ``resnet20``, ``vgg11`` or ``transformer``, with sizes
    as in ``mlp:hidden=[64,64]``; ``torchvision:NAME``; or ``my.py:function``, which returns a module or a ``Network``.
    The ``causal_lm`` is the language model of the Hugging Face folder ``init_from``, by the library transformers. The
    loss is cross-entropy (of the next token for text), of targets that are no whole numbers the squared error (of the
    inputs for the autoencoder), unless ``loss`` says otherwise. Minibatches, augmentation and dropout are functions of
    the sample, so that a sample is the same at two points. Full gradients are taken without either.

    batchnorm: by which statistics it normalises. ``frozen``: by those the network starts with. ``server``: a gradient
    by those of its own samples, which clients also average into running statistics; f and the test metrics, in
    evaluation mode, by the mean of the clients' running statistics. ``sync``: the same, and clients average theirs in
    every round, which is booked. So f does not depend on ``chunk``; a full gradient is that of the losses of its passes
    of ``chunk`` samples, in training mode. No constants are known. Raises InputError for bad input.
    """

    per_client: ClassVar[tuple[str, ...]] = ("rows",)
    costly = True

    def __init__(
        self,
        model: str = Text(
            help="a name with sizes, torchvision:NAME, or my.py:function", runs_code=True
        ),
        *,
        dataset: str | None = Text(
            None,
            help="digits, mnist, cifar10, shakespeare, .., a path, or my.py:function",
            runs_code=True,
        ),
        loss: str | None = Text(
            None,
            help=f"{', '.join(LOSSES)}, or my.py:function; by the targets unless given",
            runs_code=True,
        ),
        metrics: Sequence[str] = List(
            (), help="accuracy, losses by name, or my.py:function", runs_code=True
        ),
        clients: int = Integer(REQUIRED, low=1, help="number of clients n"),
        batch: int | str = Integer(
            32, low=1, words=("full",), help="samples per client of a gradient"
        ),
        split: str | Mapping[str, float] = Choice(
            *data.SPLITS,
            default="shuffled",
            tags=data.SPLIT_TAGS,
            help="which examples each client holds",
        ),
        remainder: str = Choice("drop", "last", help="examples left over by equal chunks"),
        batchnorm: str = Choice("server", "sync", "frozen", help="by what BatchNorm normalises"),
        init_seed: int = Integer(0, low=0, help="drives the initial weights"),
        init_from: str | None = Text(
            None, help="weights: a state_dict of torch.save, .safetensors, or a folder of them"
        ),
        match: Sequence[str] = List((), help="patterns of the parameters that are trained; all"),
        lora: int | None = Integer(
            None, low=1, help="rank of updates that take the place of matched matrices"
        ),
        lora_alpha: float | None = Number(
            None, low=0, open_low=True, help="updates are lora_alpha/lora B A; by default B A"
        ),
        freeze: Sequence[str] = List((), help="patterns of parameters that stay, such as layer1.*"),
        augment: str = Choice("none", "shift_flip", help="shifts by up to 4 pixels, and mirrors"),
        scale: str = Choice(
            "auto", "unit", "channels", help="images in [0, 1], or each channel normal"
        ),
        size: int | None = Integer(
            None,
            low=1,
            high=MOST_SIDE,
            help="pixels a side that a folder's pictures are resized to",
        ),
        length: int = Integer(64, low=1, help="tokens of a sequence"),
        level: str | Mapping[str, int] = Choice(
            "character",
            "byte",
            tags={"bpe": Integer(low=256, high=1 << 17, help="tokens of a byte-level BPE")},
            help="what is a token",
        ),
        tokenizer: str | None = Text(None, help="a tokenizer.json, in place of level"),
        dtype: str = Choice("float32", "float64", help="floating-point type"),
        seed: int = Integer(0, low=0, help="drives the split and the test part"),
        rows: int | None = Integer(None, low=1, help="only the first so many examples"),
        test_rows: int | None = Integer(
            None, low=1, help="only the first so many examples of the test part"
        ),
        test_size: float = Number(
            0.0, low=0, high=0.99, help="share held out where there is no test part"
        ),
        chunk: int = Integer(256, low=1, help="samples of one pass, where many are evaluated"),
    ) -> None:
        self.batch = batch if isinstance(batch, int) else None
        self.chunk, self.batchnorm = chunk, batchnorm
        self.most = chunk  # samples of a minibatch that are taken in one pass
        self._text = model
        pair = examples_of(dataset, model, length, level, size, tokenizer) if dataset else None
        network, self._task = build.network_of(
            model, None if pair is None else pair.train, init_seed, loss, metrics, init_from
        )
        if network.train is not None:
            pair = data.Pair(network.train, network.test)
        assert pair is not None
        pair = data.Pair(pair.train, network.test or pair.test)
        pair = build.parted(pair, rows, test_size, seed)
        self.train, self.test = train, test = pair.train, pair.test
        if test is not None and test_rows is not None:
            self.test = test.first(test_rows)
        labels = train.targets if train.targets.ndim == 1 else np.arange(len(train))
        parts = data.split(labels, clients, split, remainder=remainder, seed=seed)
        self.rows = [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
        self.augment = augment
        if augment != "none" and train.inputs.ndim != 4:
            raise InputError.of("problem.augment", f"{train.name} holds no images", "none")
        self._shift, self._factor = scaling(train, scale)
        net = with_streams(network.model)
        if init_from is not None and model != build.CAUSAL_LM:
            build.load_weights(net, init_from)
        if match or lora is not None:
            net = adapted(net, tuple(match), lora, lora_alpha, init_seed)
        params = build.trainable(net, tuple(freeze))
        layout = Layout(tuple((name, tuple(p.shape)) for name, p in params.items()))
        super().__init__(
            clients, layout, dtype=DTYPES[dtype], samples=tuple(len(part) for part in parts)
        )
        net = net.to(self.dtype).requires_grad_(False)
        self._start = layout.concat([params[name].detach() for name, _ in layout]).to(self.dtype)
        self.networks = [Passes(net, layout, self._task, batchnorm == "frozen")]
        self._check(train)

    @classmethod
    def fingerprint(cls, dataset: str) -> str:
        """Return the hash of what a user's function returns as a data set, which takes its name's place in ids."""
        return own.fingerprint(own.dataset(dataset))

    def _check(self, train: Examples) -> None:
        """Raise InputError where network, data and loss do not fit, or there is one loss for all samples."""
        inputs, targets = self.examples(self.train, torch.arange(min(2, len(train))))
        form = f"inputs of {str(inputs.dtype).removeprefix('torch.')} {tuple(inputs.shape[1:])}"
        what = f"{self._text} does not take {form}, as of sample 0"
        with input_errors("problem.model", what, "a model and data that fit"):
            check_repeatable(self.passes.model, inputs)
            outputs = self.passes.outputs(self._start, inputs)
        if self._task.losses is cross_entropy:
            for part, noun in ((train, "sample"), (self.test, "test sample")):
                if part is not None:
                    self._check_labels(part, noun, outputs)
        what = f"takes no outputs of shape {tuple(outputs.shape[1:])} and targets of shape"
        what += f" {tuple(targets.shape[1:])}, as of sample 0"
        with input_errors("problem.loss", what, "a loss and a model that fit"):
            measures = self._measures(outputs, targets)
        for name, values in measures.items():
            if name not in EVALUATED and name in CURVES.names:
                what = f"{name} is a column of its own"
                raise InputError.of("problem.metrics", what, "another name for the function")
            if values.shape != (len(inputs),):
                what = f"the {name.replace('test_loss', 'losses')} of {len(inputs)} samples"
                what += f" have shape {tuple(values.shape)}"
                fix = "return one loss for every sample, (b,): torch's do by reduction='none'"
                raise InputError.of("problem.loss", what, fix)
        self.passes.fit(self._start, inputs, targets)

    def _check_labels(self, part: Examples, noun: str, outputs: Tensor) -> None:
        """Raise InputError where cross-entropy has no score for a label of some sample."""
        scores, targets = outputs.shape[-1], part.targets
        sequences = targets.dtype.kind == "i" and outputs.ndim - targets.ndim == 1
        if not sequences or outputs.shape[1:-1] != targets.shape[1:]:
            what = f"{self._text} gives outputs of shape {tuple(outputs.shape[1:])} for targets of"
            what += f" {targets.dtype} {targets.shape[1:]}, as of {noun} 0"
            fix = "scores of classes for whole numbers; or loss: squared_error, my.py:function, .."
            raise InputError.of("problem.loss", what, fix)
        beyond = (targets.reshape(len(part), -1) >= scores).any(1)
        if beyond.any():
            i = int(beyond.argmax())
            what = f"{part.name}: {noun} {i} has the label {targets[i].max()}, and"
            what += f" {self._text} gives {scores} scores"
            raise InputError.of("problem.model", what, f"{part.classes} scores, one for each class")

    def trained(self, train: Train) -> Self:
        """Return the problem with other settings of training.

        Raises InputError for bfloat16 where numbers are not float32, and for several minibatches of all examples.
        """
        out = copy.copy(self)
        out._kept = {}
        out.weight_decay, out.clip = train.weight_decay, train.clip
        if train.accumulate > 1:
            if self.batch is None:
                what = "there is nothing to accumulate where a gradient takes all examples"
                raise InputError.of("train.accumulate", what, "a number as problem.batch, or 1")
            out.batch, out.most = self.batch * train.accumulate, min(self.chunk, self.batch)
        if train.autocast == "bfloat16":
            if self.dtype != torch.float32:
                fix = "problem.dtype: float32"
                raise InputError.of("train.autocast", f"does not go with {self.dtype}", fix)
            out.networks = [self.passes.apart()]
            out.passes.lower = torch.bfloat16
        return out

    def few(self) -> Self:
        few, most = copy.copy(self), self.batch or 32
        few.rows = [rows[:most] for rows in self.rows]
        few.samples, few._kept = tuple(map(len, few.rows)), {}
        few.test = (self.test or self.train)[:most]
        return few

    @property
    def passes(self) -> Passes:
        """The network as a function of x."""
        return self.networks[0]

    # Examples -----------------------------------------------------------------------------------

    def examples(self, source: Examples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (*rows, ..) in the problem's type, and targets, of rows of a data set."""
        inputs = build.inputs_at(source, rows, self.dtype, self.device, self._shift, self._factor)
        if self._task.on_inputs:
            return inputs, inputs
        targets = torch.from_numpy(source.targets[rows.flatten().cpu().numpy()]).to(self.device)
        targets = targets.to(self.dtype) if targets.is_floating_point() else targets
        return inputs, targets.unflatten(0, tuple(rows.shape))

    def _rows(self, indices: Tensor) -> Tensor:
        """Return the rows of the data set, (B, n_here, b), of indices within each client."""
        picked = [rows[indices[:, i].cpu()] for i, rows in enumerate(self.rows)]
        return torch.stack(picked, 1)

    def minibatch(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return inputs (B, n_here, b, ..), augmented, and targets (B, n_here, b, ..) of a sample."""
        inputs, targets = self.examples(self.train, self._rows(sample.indices))
        if self.augment != "none":
            flat, keys = inputs.flatten(0, 1), _flat(sample.stream).keys
            rows = [
                shifted_and_flipped(images, Stream(keys[j]).fold("augment"))
                for j, images in enumerate(flat)
            ]
            inputs = torch.stack(rows).view(inputs.shape)
            targets = inputs if self._task.on_inputs else targets
        return inputs, targets

    def module(self) -> torch.nn.Module:
        """Return the network at its start, to be trained by itself: no parameters shared with the problem."""
        network = copy.deepcopy(self.passes.model)
        network.load_state_dict(self.layout.named(self.start()), strict=False)
        for name, _ in self.layout:
            network.get_parameter(name).requires_grad_(True)
        return network

    @property
    def labelled(self) -> bool:
        """Whether targets are classes, of examples or of the next token."""
        return not self._task.on_inputs and self.train.targets.dtype.kind == "i"

    def flipped(self) -> Self:
        """Return the same problem with class c - 1 - k in place of k of c, in training alone."""
        other = copy.copy(self)
        wrong = self.train.classes - 1 - self.train.targets
        other.train, other._kept = replace(self.train, targets=wrong), {}
        return other

    # Gradients ----------------------------------------------------------------------------------

    @property
    def shares_buffers(self) -> bool:
        """Whether clients average their running statistics after every gradient."""
        return self.batchnorm == "sync"

    def start(self) -> Tensor:
        """Return the network's initial parameters, from ``init_seed`` or ``init_from``."""
        return self._start.to(self.device)

    def buffers(self, cells: int) -> dict[str, Tensor]:
        """Return BatchNorm's running statistics at the start, (B, n_here, ..) by name."""
        buffers = dict(self.passes.model.named_buffers())
        lead = (cells, len(self.clients))
        return {
            name: buffers[name].to(self.device).expand(*lead, *buffers[name].shape).clone()
            for name in self.passes.statistics
        }

    def grad(self, x: Tensor, sample: Sample | None = None) -> Tensor:
        return self.gradients(x, sample, self.buffers(len(x)))[0]

    @property
    def tested(self) -> bool:
        """Whether there is a test part."""
        return self.test is not None

    @property
    def tokens(self) -> int:
        """Return how many tokens a sample has, 0 where its targets are no tokens."""
        return self.train.targets.shape[1] if self._next_token else 0

    @property
    def _next_token(self) -> bool:
        return self.train.kind == "text" and self.train.targets.ndim > 1

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        return self.gradients(x, None, self.buffers(len(x)))[:2]

    def gradients(
        self, x: Tensor, sample: Sample | None, buffers: Buffers
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return gradients (B, n_here, d), full or of a sample, losses (B, n_here), and the buffers afterwards."""
        at, decay = self.spread(x), self.weight_decay
        out = decay * at if decay else torch.zeros_like(at, memory_format=torch.contiguous_format)
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        flat = {name: buffer.flatten(0, 1) for name, buffer in after.items()}
        losses = x.new_zeros(out.shape[:2])
        for inputs, targets, weights, streams in self._passes(x, sample):
            draws = None if streams is None or not self.passes.draws else _flat(streams)
            a, b, w = (t.flatten(0, 1) for t in (inputs, targets, weights))
            work = Work(a, b, w, streams=draws, buffers=flat)
            each = self.passes.gradients(at.flatten(0, 1), work, out.view(-1, self.dim))
            losses += each.view(losses.shape)
        return out, losses + self.decay(at), after

    def _passes(
        self, x: Tensor, sample: Sample | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Stream | None]]:
        """Yield inputs and targets (B, n_here, b, ..), weights (B, n_here, b) and streams of each pass.

        Of a sample; else of all examples of a client in their order, ``chunk`` at a time: of the same ones each time.
        """
        if sample is not None:
            for part in sample.split(self.most) if sample.size > self.most else [sample]:
                inputs, targets = self.minibatch(part)
                weights = torch.full(targets.shape[:3], 1 / sample.size, dtype=self.dtype)
                yield inputs, targets, weights.to(self.device), part.stream
            return
        counts = torch.tensor([len(rows) for rows in self.rows])
        for first in range(0, int(counts.max()), self.chunk):
            place = torch.arange(first, min(first + self.chunk, int(counts.max())))
            inside = place < counts[:, None]
            indices = torch.where(inside, place, 0).expand(len(x), -1, -1)
            inputs, targets = self.examples(self.train, self._rows(indices))
            weights = (inside.to(x) / counts.to(x)[:, None]).expand(len(x), -1, -1)
            yield inputs, targets, weights, None

    def weights(self, x: Tensor, buffers: Buffers) -> bytes:
        """Return the file of the network at x (d,), with buffers (..) by name, as torch saves a state_dict."""
        weights = {**self.passes.model.state_dict(), **self.layout.named(x)}
        weights = merged(self.passes.model, weights)
        file = io.BytesIO()
        torch.save({n: v.detach().cpu().clone() for n, v in {**weights, **buffers}.items()}, file)
        return file.getvalue()

    # Measures -----------------------------------------------------------------------------------

    def losses(self, x: Tensor, buffers: Buffers | None = None) -> Tensor:
        means = [self._means(x, self.train, rows, buffers, metrics=False) for rows in self.rows]
        result = torch.stack([values["test_loss"] for values in means], 1).to(x)
        return result + self.decay(x[:, None])

    def _means(
        self,
        x: Tensor,
        source: Examples,
        rows: Tensor,
        buffers: Buffers | None,
        metrics: bool = True,
    ) -> dict[str, Tensor]:
        """Return the means over rows of a data set of what is measured at x (B, d), float64 (B,) by name."""
        if buffers is None:  # those at the start, the same for all clients
            buffers = {name: buffer[:, 0] for name, buffer in self.buffers(len(x)).items()}
        sums: dict[str, Tensor] = {}
        for part in rows.split(self.chunk):
            inputs, targets = self.examples(source, part)
            measure = partial(self._measures, targets=targets, metrics=metrics)
            for name, value in self.passes.measured(measure, x, inputs, buffers).items():
                sums[name] = sums.get(name, 0.0) + value.cpu()
        return {name: total / len(rows) for name, total in sums.items()}

    def _measures(
        self, outputs: Tensor, targets: Tensor, metrics: bool = True
    ) -> Mapping[str, Tensor]:
        losses = {"test_loss": self._task.losses(outputs, targets)}
        if self._task.metrics is None or not metrics:
            return losses
        return {**losses, **self._task.metrics(outputs, targets)}

    def evaluate(self, x: Tensor, buffers: Buffers | None = None) -> dict[str, Tensor]:
        """Return accuracy and test_loss on the test part, for text perplexity too; without one on the training part."""
        source = self.test or self.train
        values = self._means(x, source, torch.arange(len(source)), buffers)
        if self.test is None:
            del values["test_loss"]
        elif self._next_token and self._task.losses is cross_entropy:
            values["perplexity"] = values["test_loss"].exp()
        return values


def _flat(streams: Stream) -> Stream:
    return Stream(streams.keys.flatten())


def examples_of(
    dataset: str,
    model: str,
    length: int,
    level: str | Mapping[str, int],
    size: int | None = None,
    tokenizer: str | None = None,
) -> data.Pair:
    """Return a data set for networks: a user's, a text for transformers and known texts, else images."""
    if is_function(dataset):
        return own.dataset(dataset)
    of_text = model.partition(":")[0] in ("transformer", build.CAUSAL_LM)
    if of_text or dataset in catalogue.TEXTS or ".txt" in dataset:
        return data.text(dataset, length, level, tokenizer=tokenizer)
    return data.images(dataset, size=size)


def scaling(train: Examples, scale: str) -> tuple[Tensor | None, Tensor | None]:
    """Return what is subtracted from images in [0, 1], and what they are multiplied by, (C, 1, 1) each, or None."""
    if train.kind != "image" or scale == "unit" or (scale == "auto" and train.inputs.shape[1] == 1):
        return None, None
    std = np.where(train.std > 0, train.std, 1.0)
    shift, factor = (torch.from_numpy(v)[:, None, None] for v in (train.mean, 1 / std))
    return shift, factor
