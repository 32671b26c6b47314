"""Parties: clients that hold one view of all samples, an encoder phi of it, and a linear head W.

A party contributes W phi(a) to the scores of a sample a; the scores are the sum over all parties. An encoder maps a
view, such as a picture, to a vector of features. Networks serve as encoders without their last linear layer.
"""

from __future__ import annotations

import copy
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from raybench.core.errors import InputError, nearest
from raybench.core.layout import Layout
from raybench.data import Examples, Pair
from raybench.data.files import input_errors, renamed
from raybench.problems.networks import build, own
from raybench.problems.networks.models import NAMED
from raybench.problems.networks.passes import Passes, Task, Work

KEY = "problem.encoders"
TEXTS = {"words": {"size": 1000}, "bert": {"length": 32}}
NETWORKS = [name for name in NAMED if name not in ("transformer", "autoencoder")]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Encoder:
    """An encoder and what it takes, sample by sample.

    train, test: inputs, as the view's or as tokens. shift, factor: inputs become (input - shift) factor, (C,
    1, 1) of pictures in [0, 1] and (p,) of features; None leaves them.
    """

    module: nn.Module
    train: Examples
    test: Examples | None
    shift: Tensor | None = None
    factor: Tensor | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    def at(self, rows: Tensor, test: bool = False) -> Tensor:
        """Return the inputs (*rows, ..) of rows of the training or of the test part; tokens stay integers."""
        source = self.test if test else self.train
        assert source is not None
        return build.inputs_at(source, rows, self.dtype, self.device, self.shift, self.factor)


def encoded(text: str, view: Pair, scale: str, seed: int, weights: str | None) -> Encoder:
    """Return the encoder that ``text`` stands for, initialised from ``seed``, or read from ``weights``.

    text: ``identity``, for features as they are and pictures as vectors; ``mlp:hidden=[64]``, ``resnet18`` and
    other networks of ``NAMED``, ``torchvision:NAME``; for texts ``words:size=1000``, the shares of the most
    frequent words, and ``bert:length=32``, BERT as in a folder of ``weights``. torch's own random numbers stay as
    they were. Raises InputError for an unknown encoder, one that does not fit the view, weights that are missing
    or cannot be read, and a package that is not installed.
    """
    name, kind = text.partition(":")[0], view.train.kind
    if weights is not None and name in ("identity", "words"):
        raise InputError.of("problem.init_from", f"{name} has no weights", "null in its place")
    if (kind == "texts") != (name in TEXTS):
        fix = "words, or bert" if kind == "texts" else "identity, mlp or torchvision:resnet18"
        raise InputError.of(KEY, f"{name} does not take a view of {kind}", fix)
    with own.seeded(seed):
        if name == "words":
            return _scaled(Encoder(nn.Flatten(), *_shares(view, _sizes(text)["size"])), scale)
        if name == "bert":
            return _bert(_sizes(text)["length"], view, weights)
        if text == "identity":
            return _scaled(Encoder(nn.Flatten(), view.train, view.test), scale)
        return _scaled(_network(text, view, seed, weights), scale)


def _sizes(text: str) -> dict[str, int]:
    usual = TEXTS[text.partition(":")[0]]
    sizes = build.sizes_of(text, usual, KEY)
    for key, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError.of(f"{KEY}.{key}", f"{value!r} is no size", "an integer from 1 on")
    return {**usual, **sizes}


def _network(text: str, view: Pair, seed: int, weights: str | None) -> Encoder:
    name = text.partition(":")[0]
    if not text.startswith(build.TORCHVISION) and name not in NETWORKS:  # identity has no sizes
        fix = f"{nearest(name, ['identity', *TEXTS, *NETWORKS])}; or torchvision:NAME"
        raise InputError.of(KEY, f"unknown encoder {text!r}", fix)
    with renamed("problem.model", KEY):
        net = build.network_of(text, view.train, seed)[0].model
    if weights is not None:
        build.load_weights(net, weights)
    linear = [at for at, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or not linear[-1]:
        raise InputError.of(KEY, f"{text} has no last linear layer", "another network")
    parent, _, leaf = linear[-1].rpartition(".")
    setattr(net.get_submodule(parent), leaf, nn.Identity())
    return Encoder(net, view.train, view.test)


def _scaled(encoder: Encoder, scale: str) -> Encoder:
    """Return the same with the inputs' shift and factor: by the training part, or by ImageNet's colours."""
    train = encoder.train
    if scale == "imagenet" and train.kind == "image":
        if train.inputs.shape[1] != 3:
            raise InputError.of("problem.scale", f"{train.name} is not in colour", "normal or none")
        mean, std = (np.array(v) for v in IMAGENET)
    elif scale == "normal" and train.kind == "image":
        mean, std = train.mean, train.std
    elif scale == "normal" and train.kind == "features":
        mean, std = train.inputs.mean(0, np.float64), train.inputs.std(0, np.float64)
    else:
        return encoder
    shift, factor = (torch.from_numpy(v) for v in (mean, 1 / np.where(std > 0, std, 1.0)))
    if train.kind == "image":
        shift, factor = shift[:, None, None], factor[:, None, None]
    return replace(encoder, shift=shift, factor=factor)


# Texts ----------------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    """Return the words of a text: letters and digits, in lower case."""
    return re.findall(r"\w+", text.lower())


def _shares(view: Pair, size: int) -> tuple[Examples, Examples | None]:
    """Return how often each of so many words occurs, float32 (N, words), over all words of its text.

    The words are the most frequent ones of the training texts, the most frequent first (of equal ones by the alphabet).
    """
    counts = Counter(word for text in view.train.inputs.tolist() for word in _words(text))
    listed = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    places = {word: j for j, word in enumerate(listed)}

    def shares(part: Examples) -> Examples:
        out = np.zeros((len(part), len(listed)), np.float32)
        for row, text in zip(out, part.inputs.tolist(), strict=True):
            every = _words(text)
            for word in every:
                if word in places:
                    row[places[word]] += 1 / len(every)
        return replace(part, inputs=out, kind="features")

    return shares(view.train), None if view.test is None else shares(view.test)


class _Sentences(nn.Module):
    """BERT's last hidden state at the first token, of tokens (b, T) with padding at the end."""

    def __init__(self, bert: nn.Module, pad: int) -> None:
        super().__init__()
        self.bert, self.pad = bert, pad

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != self.pad).long()
        return self.bert(input_ids=tokens, attention_mask=mask).last_hidden_state[:, 0]


def _bert(length: int, view: Pair, folder: str | None) -> Encoder:
    """Return BERT of a folder of the user's, and its tokens of texts: nothing is fetched, no code is run."""
    read = partial(build.pretrained, folder=folder, name="bert", instead="words")
    net = read("BertModel", use_safetensors=True, add_pooling_layer=False)
    tokenizer = read("AutoTokenizer")
    most = min(length, net.config.max_position_embeddings)

    def tokens(part: Examples) -> Examples:
        texts = part.inputs.tolist()
        out = tokenizer(texts, padding="max_length", truncation=True, max_length=most)
        return replace(part, inputs=np.asarray(out["input_ids"], np.int64))

    with input_errors("problem.init_from", f"cannot read {folder}", "the tokenizer's files"):
        test = None if view.test is None else tokens(view.test)
        return Encoder(_Sentences(net, int(tokenizer.pad_token_id)), tokens(view.train), test)


# Parties ------------------------------------------------------------------------------------------


# A party has a variable x (B, w). ``outputs`` are its contributions to the scores, (B, b, classes), of samples rows
# (B, b), of all where None, or of the test part; ``pullback`` is the gradient (B, w) in x of <r, outputs(x, rows)>,
# r (B, b, classes).


class LinearParty:
    """A party whose features phi (N, p) do not change: its variable is W (classes, p), at first zeros."""

    def __init__(self, name: str, phi: Tensor, test: Tensor | None, classes: int) -> None:
        self.phi, self.test = phi, test
        self.layout = Layout(((f"{name}.head.weight", (classes, phi.shape[1])),))

    def start(self) -> Tensor:
        return self.phi.new_zeros(self.layout.dim)

    def outputs(self, x: Tensor, rows: Tensor | None = None, test: bool = False) -> Tensor:
        phi = self.test if test else self.phi
        assert phi is not None
        return (phi if rows is None else phi[rows]) @ self.layout.views(x)[0].mT

    def pullback(self, x: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        return (r.mT @ (self.phi if rows is None else self.phi[rows])).flatten(1)

    def to(self, device: torch.device) -> Self:
        moved = copy.copy(self)
        moved.phi = self.phi.to(device)
        moved.test = None if self.test is None else self.test.to(device)
        return moved

    def apart(self) -> Self:
        """Return the party for another thread: itself, as nothing of it is ever written to."""
        return self


class DeepParty:
    """A party that trains its encoder, or a part of it; samples are taken in passes of ``chunk``.

    Dropout is off and BatchNorm normalises by the statistics that it starts with, so that the contribution of a
    sample depends on x alone. start: the encoder's initial weights, and zeros for the head.
    """

    def __init__(
        self, name: str, passes: Passes, encoder: Encoder, start: Tensor, chunk: int
    ) -> None:
        self.passes, self.encoder, self.chunk = passes, encoder, chunk
        self._start = start
        self.layout = Layout(tuple((f"{name}.{tensor}", shape) for tensor, shape in passes.layout))

    def start(self) -> Tensor:
        return self._start

    def outputs(self, x: Tensor, rows: Tensor | None = None, test: bool = False) -> Tensor:
        result = [
            torch.stack([self.passes.outputs(*pair) for pair in zip(x, part, strict=True)])
            for part in self._parts(x, rows, test)
        ]
        return torch.cat(result, 1)

    def pullback(self, x: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        out = torch.zeros_like(x, memory_format=torch.contiguous_format)
        for part, along in zip(self._parts(x, rows), r.split(self.chunk, 1), strict=True):
            self.passes.gradients(x, Work(part, along, x.new_ones(along.shape[:2])), out)
        return out

    def _parts(self, x: Tensor, rows: Tensor | None, test: bool = False) -> Iterator[Tensor]:
        """Yield the inputs (B, c, ..) of rows in passes."""
        if rows is not None:
            yield from (self.encoder.at(part) for part in rows.split(self.chunk, 1))
            return
        examples = self.encoder.test if test else self.encoder.train
        assert examples is not None
        for part in torch.arange(len(examples)).split(self.chunk):
            inputs = self.encoder.at(part, test)
            yield inputs.expand(len(x), *inputs.shape)

    def to(self, device: torch.device) -> Self:
        moved = copy.copy(self)
        moved.passes, moved._start = self.passes.to(device), self._start.to(device)
        moved.encoder = replace(self.encoder, device=device)
        return moved

    def apart(self) -> Self:
        """Return the party with a module of its own, for another thread."""
        party = copy.copy(self)
        party.passes = self.passes.apart()
        return party


Party = LinearParty | DeepParty


def parties_of(
    views: Mapping[str, Encoder],
    classes: int,
    freeze: Sequence[str],
    dtype: torch.dtype,
    chunk: int,
) -> list[Party]:
    """Return a party for every view: one whose encoder is frozen, or has no parameters, is linear.

    freeze: patterns of the parameters that stay, such as ``image.encoder.*``. Raises InputError for an
    encoder that does not take its inputs or gives no vector of features, a pattern that names no
    parameter, and for a head that is frozen.
    """
    encoders = {view: replace(encoder, dtype=dtype) for view, encoder in views.items()}
    nets: dict[str, nn.Module] = {}
    for view, encoder in encoders.items():
        module = encoder.module.to(dtype).eval()
        some = encoder.at(torch.arange(min(2, len(encoder.train))))
        head = nn.Linear(_features(view, module, some).shape[1], classes, bias=False, dtype=dtype)
        nn.init.zeros_(head.weight)
        plain = re.sub(r"\W", "_", view)  # as it may stand in the names of tensors
        nets[plain] = nn.Sequential(OrderedDict(encoder=module, head=head))
    every = build.trainable(nn.ModuleDict(nets), tuple(freeze))
    parties: list[Party] = []
    for (name, net), (view, encoder) in zip(nets.items(), encoders.items(), strict=True):
        mine = {n.removeprefix(f"{name}."): p for n, p in every.items() if n.startswith(f"{name}.")}
        if "head.weight" not in mine:
            what = f"{name}.head.weight is frozen"
            raise InputError.of("problem.freeze", what, f"a pattern such as {name}.encoder.*")
        if len(mine) == 1:  # features are computed here, once
            phi: list[Tensor] = []
            for examples in filter(None, (encoder.train, encoder.test)):
                rows = torch.arange(len(examples)).split(chunk)
                inputs = (encoder.at(part, examples is encoder.test) for part in rows)
                phi.append(torch.cat([_features(view, encoder.module, a) for a in inputs]))
            parties.append(LinearParty(name, phi[0], phi[1] if len(phi) > 1 else None, classes))
            continue
        layout = Layout(tuple((n, tuple(p.shape)) for n, p in mine.items()))
        start = layout.concat([p.detach() for p in mine.values()])
        passes = Passes(net.requires_grad_(False), layout, Task(_along), frozen=True)
        some = encoder.at(torch.arange(min(2, len(encoder.train))))
        passes.fit(start, some, start.new_zeros(len(some), classes))
        parties.append(DeepParty(name, passes, encoder, start, chunk))
    return parties


def _along(outputs: Tensor, r: Tensor) -> Tensor:
    """Return <outputs, r> of every sample, (b,), whose gradient is the pullback of r."""
    return (outputs * r).sum(-1)


@torch.no_grad()
def _features(view: str, encoder: nn.Module, inputs: Tensor) -> Tensor:
    """Return phi of inputs, (b, p); raises InputError where the encoder does not take them."""
    what = f"the encoder of {view} does not take inputs of shape {tuple(inputs.shape[1:])}"
    with input_errors(KEY, what, "another encoder, or size"):
        out = encoder(inputs)
    if out.ndim != 2 or out.shape[0] != len(inputs):
        what = f"the encoder of {view} gives {tuple(out.shape[1:])} for a sample"
        raise InputError.of(KEY, what, "a vector of features")
    return out
