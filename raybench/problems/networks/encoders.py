"""Encoders: from the text that names one to a module, and to the inputs that it takes.

An encoder maps a view of a sample, such as its picture, to a vector of features. Networks serve as encoders
without their last linear layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raybench.core.errors import Complaint, InputError, nearest
from raybench.data import Examples, Pair, Words
from raybench.problems.networks.build import TORCHVISION, load_weights, network_of
from raybench.problems.networks.models import NAMED
from raybench.spec.sections import parse

KEY = "problem.encoders"
TEXTS = {"words": {"size": 1000}, "bert": {"width": 64, "layers": 2, "heads": 2, "length": 32, "size": 1000}}  # fmt: skip
NETWORKS = [name for name in NAMED if name not in ("transformer", "autoencoder")]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Encoded:
    """An encoder and what it takes. module: None where inputs are the features themselves.

    train, test: inputs, as the view's or as tokens. shift, factor: inputs become (input - shift) factor, (C,
    1, 1) of pictures in [0, 1] and (p,) of features; None leaves them.
    """

    module: nn.Module | None
    train: Examples
    test: Examples | None
    shift: np.ndarray | None = None
    factor: np.ndarray | None = None


def encoded(text: str, view: Pair, scale: str, seed: int, weights: str | None) -> Encoded:
    """Return the encoder that ``text`` stands for, initialised from ``seed``, or read from ``weights``.

    text: ``identity``, for features as they are and pictures as vectors; ``mlp:hidden=[64]``, ``resnet18`` and
    other networks of ``NAMED``, ``torchvision:NAME``; for texts ``words:size=1000``, the shares of the most
    frequent words, and ``bert:width=64,layers=2,heads=2,length=32,size=1000``, or BERT as in a folder of
    ``weights``. torch's own random numbers stay as they were. Raises InputError for an unknown encoder, one
    that does not fit the view, weights that cannot be read, and a package that is not installed.
    """
    name, kind = text.partition(":")[0], view.train.kind
    if weights is not None and name in ("identity", "words"):
        raise InputError.of("problem.init_from", f"{name} has no weights", "null in its place")
    if (kind == "texts") != (name in TEXTS):
        fix = "words, or bert" if kind == "texts" else "identity, mlp or torchvision:resnet18"
        raise InputError.of(KEY, f"{name} does not take a view of {kind}", fix)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "words":
            return _scaled(Encoded(None, *_shares(view, _sizes(text)["size"])), scale)
        if name == "bert":
            return _bert(_sizes(text), view, weights)
        if text == "identity":
            return _scaled(Encoded(None, view.train, view.test), scale)
        return _scaled(_network(text, view, seed, weights), scale)


def _sizes(text: str) -> dict[str, int]:
    given = parse(text, KEY)
    name = given.pop("name")
    known = TEXTS[name]
    for key, value in given.items():
        if key not in known:
            raise InputError.of(f"{KEY}.{key}", f"{name} has no such size", nearest(key, known))
        if type(value) is not int or value < 1:
            raise InputError.of(f"{KEY}.{key}", f"{value!r} is no size", "an integer from 1 on")
    return {**known, **given}


def _network(text: str, view: Pair, seed: int, weights: str | None) -> Encoded:
    name = text.partition(":")[0]
    if not text.startswith(TORCHVISION) and name not in NETWORKS:  # identity has no sizes
        fix = f"{nearest(name, ['identity', *TEXTS, *NETWORKS])}; or torchvision:NAME"
        raise InputError.of(KEY, f"unknown encoder {text!r}", fix)
    with _renamed("problem.model"):
        net = network_of(text, view.train, seed)[0].model
    if weights is not None:
        load_weights(net, weights)
    linear = [at for at, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or not linear[-1]:
        raise InputError.of(KEY, f"{text} has no last linear layer", "another network")
    parent, _, own = linear[-1].rpartition(".")
    setattr(net.get_submodule(parent), own, nn.Identity())
    return Encoded(net, view.train, view.test)


@contextmanager
def _renamed(key: str) -> Iterator[None]:
    """Name the encoders where an error in the block names another key."""
    try:
        yield
    except InputError as error:
        moved = [Complaint(c.where.replace(key, KEY, 1), c.what, c.fix) for c in error.complaints]
        raise InputError(moved) from error


def _scaled(made: Encoded, scale: str) -> Encoded:
    """Return the same with the inputs' shift and factor: by the training part, or by ImageNet's colours."""
    train = made.train
    if scale == "imagenet" and train.kind == "image":
        if train.inputs.shape[1] != 3:
            raise InputError.of("problem.scale", f"{train.name} is not in colour", "normal or none")
        mean, std = (np.array(v) for v in IMAGENET)
    elif scale == "normal" and train.kind == "image":
        mean, std = train.mean, train.std
    elif scale == "normal" and train.kind == "features":
        mean, std = train.inputs.mean(0, np.float64), train.inputs.std(0, np.float64)
    else:
        return made
    factor = 1 / np.where(std > 0, std, 1.0)
    if train.kind == "image":
        mean, factor = mean[:, None, None], factor[:, None, None]
    return replace(made, shift=mean, factor=factor)


# Texts ----------------------------------------------------------------------------------------------


def _shares(view: Pair, size: int) -> tuple[Examples, Examples | None]:
    words = Words.of(view.train.inputs.tolist(), size)
    train, test = (
        None if p is None else replace(p, inputs=words.shares(p.inputs.tolist()), kind="features")
        for p in (view.train, view.test)
    )
    assert train is not None
    return train, test


class _Sentences(nn.Module):
    """BERT's last hidden state at the first token, of tokens (b, T) with padding at the end."""

    def __init__(self, bert: nn.Module, pad: int) -> None:
        super().__init__()
        self.bert, self.pad = bert, pad

    def forward(self, tokens: Tensor) -> Tensor:
        seen = (tokens != self.pad).long()
        return self.bert(input_ids=tokens, attention_mask=seen).last_hidden_state[:, 0]


def _bert(sizes: Mapping[str, int], view: Pair, weights: str | None) -> Encoded:
    try:
        import transformers
    except ImportError as error:
        fix = "pip install 'raybench[text]', or words, which needs nothing"
        raise InputError.of(KEY, "bert needs the package transformers", fix) from error
    if sizes["width"] % sizes["heads"]:
        what = f"width {sizes['width']} is no multiple of heads {sizes['heads']}"
        raise InputError.of(KEY, what, "such as width=64,heads=4")
    parts = [p for p in (view.train, view.test) if p is not None]
    if weights is None:
        words = Words.of(view.train.inputs.tolist(), sizes["size"])
        config = transformers.BertConfig(
            vocab_size=len(words),
            hidden_size=sizes["width"],
            num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"],
            intermediate_size=4 * sizes["width"],
            max_position_embeddings=sizes["length"],
        )
        net, pad = transformers.BertModel(config, add_pooling_layer=False), 0
        tokens = [words.tokens(p.inputs.tolist(), sizes["length"]) for p in parts]
    else:
        net, pad, tokens = _of_folder(transformers, weights, parts, sizes["length"])
    made = [replace(p, inputs=own) for p, own in zip(parts, tokens, strict=True)]
    return Encoded(_Sentences(net, pad), made[0], made[1] if len(made) > 1 else None)


def _of_folder(
    transformers: Any, folder: str, parts: list[Examples], length: int
) -> tuple[nn.Module, int, list[np.ndarray]]:
    """Return BERT and its tokens of texts, from a folder of the user's: nothing is fetched, no code is run."""
    key, place = "problem.init_from", Path(folder).expanduser()
    fix = "a folder with config.json, model.safetensors and the tokenizer's files"
    if not (place / "config.json").is_file():
        raise InputError.of(key, f"{folder} is no folder of BERT's weights", fix)
    try:
        net = transformers.BertModel.from_pretrained(
            str(place), local_files_only=True, use_safetensors=True, add_pooling_layer=False
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(place), local_files_only=True, trust_remote_code=False
        )
        most = min(length, net.config.max_position_embeddings)
        tokens = [
            np.asarray(
                tokenizer(
                    p.inputs.tolist(), padding="max_length", truncation=True, max_length=most
                )["input_ids"],
                np.int64,
            )
            for p in parts
        ]
        return net, int(tokenizer.pad_token_id), tokens
    except Exception as error:  # transformers raises a dozen kinds on folders that are no weights
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError.of(key, f"cannot read {folder}: {said}"[:300], fix) from error


def plain_name(view: str) -> str:
    """Return a view's name as it may stand in those of tensors."""
    return re.sub(r"\W", "_", view)
