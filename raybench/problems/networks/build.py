"""From the text of ``model`` to a network: a name with sizes, torchvision's, or a user's function."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raybench.core.errors import InputError, nearest
from raybench.core.registry import module_of
from raybench.data import Examples
from raybench.problems.networks.models import NAMED, Seen
from raybench.problems.networks.passes import Task, task_of
from raybench.spec.sections import parse

KEY = "problem.model"
TORCHVISION = "torchvision:"


@dataclass(frozen=True)
class Network:
    """What a user's function returns: model, data, and what is minimised and measured.

    model: a torch module; its parameters that require gradients are the variable. train, test: examples;
    None leaves those of ``problem.dataset``. losses: outputs (b, ..), targets (b, ..) -> the loss of every
    sample (b,); None: cross-entropy. metrics: outputs, targets -> {name: value of every sample (b,)}.
    """

    model: nn.Module
    train: Examples | None = None
    test: Examples | None = None
    losses: Callable[[Tensor, Tensor], Tensor] | None = None
    metrics: Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None = None


def network_of(text: str, train: Examples | None, seed: int) -> tuple[Network, Task]:
    """Return the network that ``model`` stands for, initialised from ``seed``, and its task.

    text: a name of ``NAMED`` with sizes (``mlp:hidden=[64,64]``), ``torchvision:resnet18``, or
    ``module:function`` of a user's. torch's own random numbers stay as they were. Raises InputError for
    an unknown name, or sizes that do not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if text.startswith(TORCHVISION):
            made = Network(_torchvision(text.removeprefix(TORCHVISION), train))
        elif text.partition(":")[0] in NAMED:
            made = Network(_named(text, train))
        elif ":" in text:
            made = _of_user(text, train)
        else:
            fix = f"{nearest(text, NAMED)}; or torchvision:NAME, or my_module:function"
            raise InputError.of(KEY, f"unknown model {text!r}", fix)
    kind = text.partition(":")[0]
    examples = made.train or train
    assert examples is not None
    return made, Task(made.losses, made.metrics) if made.losses else task_of(kind, examples)


def sizes_of(text: str, names: Collection[str], key: str) -> dict[str, Any]:
    """Return the sizes that follow a name, as of ``mlp:hidden=[64]``, which must be of ``names``."""
    sizes = parse(text, key)
    name = sizes.pop("name")
    for size in sizes:
        if size not in names:
            fix = nearest(size, names) if names else "it has none"
            raise InputError.of(f"{key}.{size}", f"{name} has no such size", fix)
    return sizes


def reason(error: Exception) -> str:
    """Return the first line of an error of torch, a dozen kinds of which files and networks raise."""
    return (str(error) or type(error).__name__).splitlines()[0]


def inputs_at(
    source: Examples,
    rows: Tensor,
    dtype: torch.dtype,
    device: torch.device | str,
    shift: Tensor | None,
    factor: Tensor | None,
) -> Tensor:
    """Return inputs (*rows, ..): tokens as integers, others, pictures in [0, 1], as (input - shift) factor."""
    values = torch.from_numpy(source.inputs[rows.flatten().cpu().numpy()]).to(device)
    if source.kind in ("text", "texts"):
        return values.long().unflatten(0, tuple(rows.shape))
    full = 255.0 if source.kind == "image" and values.dtype == torch.uint8 else 1.0
    values = values.to(dtype) / full
    if shift is not None and factor is not None:
        values = (values - shift.to(values)) * factor.to(values)
    return values.unflatten(0, tuple(rows.shape))


def _seen(train: Examples | None) -> Seen:
    if train is None:
        raise InputError.of("problem.dataset", "is missing", "such as digits, mnist or shakespeare")
    return Seen(tuple(train.inputs.shape[1:]), train.classes)


def _named(text: str, train: Examples | None) -> nn.Module:
    function = NAMED[text.partition(":")[0]]
    sizes = sizes_of(text, list(inspect.signature(function).parameters)[1:], KEY)
    seen = _seen(train)
    wants_text = function.__name__ == "transformer"
    assert train is not None
    if wants_text != (train.kind == "text"):
        fix = "model: transformer" if train.kind == "text" else "a text, such as shakespeare"
        raise InputError.of(KEY, f"{function.__name__} does not fit {train.name}", fix)
    try:
        return function(seen, **sizes)
    except (TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        what = f"{text} cannot be made for inputs of shape {seen.shape}: {error}"
        raise InputError.of(KEY, what.splitlines()[0], "other sizes, or other data") from error


def _torchvision(name: str, train: Examples | None) -> nn.Module:
    from torchvision import models

    sizes = parse(name, KEY)
    name = sizes.pop("name")
    allowed = models.list_models(module=models)
    if name not in allowed:
        raise InputError.of(KEY, f"torchvision has no model {name!r}", nearest(name, allowed))
    try:
        return models.get_model(name, num_classes=_seen(train).classes, **sizes)
    except (TypeError, ValueError) as error:
        raise InputError.of(KEY, f"torchvision:{name}: {error}", "other parameters") from error


def _of_user(text: str, train: Examples | None) -> Network:
    """Return what a user's function gives; it may take the training examples as its one argument."""
    where, _, name = text.rpartition(":")
    try:
        module = _module(where)
    except ImportError as error:
        fix = f"{nearest(text, NAMED)}; or the path of a file, ./my_module.py:function"
        raise InputError.of(KEY, f"cannot import {where}: {error}", fix) from error
    function = vars(module).get(name)
    if not callable(function):
        names = [n for n, value in vars(module).items() if callable(value)]
        raise InputError.of(KEY, f"{where} has no function {name!r}", nearest(name, names))
    made = function(train) if inspect.signature(function).parameters else function()
    if isinstance(made, nn.Module):
        made = Network(made)
    if not isinstance(made, Network):
        what = f"{text} returned {type(made).__name__}"
        raise InputError.of(KEY, what, "return a torch module, or raybench.plugins.Network")
    if made.train is None and train is None:
        raise InputError.of("problem.dataset", f"is missing, and {text} returned no data either")
    return made


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as ``python -m`` does
        return importlib.import_module(where)
    path = Path(where).resolve()
    if not path.is_file():
        raise ImportError(f"no file {where}")
    # No name leads to the module afterwards: workers could not import it by that name, and what no name leads
    # to is sent to them whole.
    return module_of(path, f"raybench_network_{path.stem}")


def load_weights(model: nn.Module, path: str) -> None:
    """Read the weights of a file that ``torch.save`` made of a ``state_dict``; nothing else is read.

    A last layer of another shape is left as it is initialised, as one does for other classes. Raises
    InputError where the file is no such thing or does not fit.
    """
    key = "problem.init_from"
    try:
        result = torch.load(Path(path).expanduser(), map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError.of(key, f"cannot read {path}: {reason(error)}", "a state_dict") from error
    if not isinstance(result, Mapping) or not all(isinstance(v, Tensor) for v in result.values()):
        raise InputError.of(key, f"{path} holds no weights", "save model.state_dict()")
    tensors = model.state_dict()
    other = [
        name for name in tensors if name in result and tensors[name].shape != result[name].shape
    ]
    kept = {n: v for n, v in result.items() if n in tensors and n not in other}
    layers = {name.rpartition(".")[0] for name in other}
    if not kept or len(layers) > 1:
        what = f"{path} fits {len(kept)} of {len(tensors)} tensors of the model"
        raise InputError.of(key, what, "weights of the same network")
    model.load_state_dict(kept, strict=False)


def trainable(model: nn.Module, freeze: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """Return the parameters that are the variable, by name: those that no pattern of ``freeze`` names.

    Raises InputError for a pattern that names none, and if nothing is left.
    """
    every = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for pattern in freeze:
        if not any(fnmatchcase(name, pattern) for name in every):
            fix = nearest(pattern, every)
            raise InputError.of("problem.freeze", f"{pattern!r} names no parameter", fix)
    left = {n: p for n, p in every.items() if not any(fnmatchcase(n, f) for f in freeze)}
    if not left:
        raise InputError.of("problem.freeze", "every parameter is frozen", "leave some to train")
    return left
