"""From the text of ``model`` to a network: a name with sizes, torchvision's, or a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raybench.core.errors import InputError, nearest
from raybench.core.registry import is_function
from raybench.core.safe_files import load_tensors
from raybench.data import Examples, Pair, hold_out
from raybench.data.files import input_errors
from raybench.data.text import EXTRA
from raybench.problems.networks import own
from raybench.problems.networks.adapted import matching
from raybench.problems.networks.models import NAMED, InputSpec
from raybench.problems.networks.passes import LOSSES, Task, accuracy, cross_entropy, squared_error
from raybench.spec.sections import parse_short_form

KEY = "problem.model"
TORCHVISION = "torchvision:"
CAUSAL_LM = "causal_lm"


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


def network_of(
    text: str,
    train: Examples | None,
    seed: int,
    loss: str | None = None,
    metrics: Sequence[str] = (),
    folder: str | None = None,
) -> tuple[Network, Task]:
    """Return the network that ``model`` stands for, initialised from ``seed``, and its task.

    loss, metrics: what is minimised and measured in place of what is usual for the data. folder: of ``causal_lm``.
    text: a name of ``NAMED`` with sizes (``mlp:hidden=[64,64]``), ``torchvision:resnet18``, or ``module:function`` of a
    user's. torch's own random numbers stay as they were. Raises InputError for an unknown name, or sizes that do not
    fit.
    """
    with own.seeded(seed):
        if text.startswith(TORCHVISION):
            network = Network(_torchvision(text.removeprefix(TORCHVISION), train))
        elif text == CAUSAL_LM:
            network = Network(_causal_lm(folder))
        elif text.partition(":")[0] in NAMED:
            network = Network(_named(text, train))
        elif ":" in text:
            network = _of_user(text, train)
        else:
            fix = (
                f"{nearest(text, (*NAMED, CAUSAL_LM))}; or torchvision:NAME, or my_module:function"
            )
            raise InputError.of(KEY, f"unknown model {text!r}", fix)
    examples = network.train or train
    assert examples is not None
    return network, _task(network, text.partition(":")[0] == "autoencoder", examples, loss, metrics)


def _task(
    network: Network, on_inputs: bool, train: Examples, loss: str | None, metrics: Sequence[str]
) -> Task:
    """Return what is minimised and measured: as the sweep says, as the user's function does, or as the data are."""
    numbers = on_inputs or train.targets.dtype.kind == "f"
    losses = network.losses or (squared_error if numbers else cross_entropy)
    measured = network.metrics or (None if network.losses or numbers else accuracy)
    if loss is not None:
        losses = _of_task(loss, "problem.loss", LOSSES)
        if not metrics and losses not in (cross_entropy, LOSSES["binary_cross_entropy"]):
            measured = network.metrics
    if metrics:
        usual = {**LOSSES, "accuracy": accuracy}
        named = {
            name.rpartition(":")[2]: _of_task(name, "problem.metrics", usual) for name in metrics
        }
        measured = partial(_measured, named)
    return Task(losses, measured, on_inputs)


def _measured(metrics: Mapping[str, Any], outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return values by name, (b,) each, of metrics that return one of every sample, or a mapping of such values."""
    values: dict[str, Tensor] = {}
    for name, metric in metrics.items():
        value = metric(outputs, targets)
        values |= value if isinstance(value, Mapping) else {name: value}
    return values


def _of_task(text: str, key: str, usual: Mapping[str, Any]) -> Callable[[Tensor, Tensor], Any]:
    if text in usual:
        return usual[text]
    if not is_function(text):
        fix = f"{nearest(text, usual)}; or my.py:function of outputs and targets"
        raise InputError.of(key, f"{text!r} is unknown", fix)
    function = own.function(text, key)
    if isinstance(function, nn.Module) and hasattr(function, "reduction"):
        setattr(function, "reduction", "none")  # noqa: B010 - of torch's own, which then give a value for every entry
        return partial(_by_sample, function)
    return function


def _by_sample(loss: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
    values = loss(outputs, targets)
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def sizes_of(text: str, names: Collection[str], key: str) -> dict[str, Any]:
    """Return the sizes that follow a name, as of ``mlp:hidden=[64]``, which must be of ``names``."""
    sizes = parse_short_form(text, key)
    name = sizes.pop("name")
    for size in sizes:
        if size not in names:
            fix = nearest(size, names) if names else "it has none"
            raise InputError.of(f"{key}.{size}", f"{name} has no such size", fix)
    return sizes


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


def parted(pair: Pair, rows: int | None, test_size: float, seed: int) -> Pair:
    """Return the first ``rows`` for training, and that share of them held out where there is no test part."""
    train = pair.train if rows is None else pair.train.first(rows)
    if pair.test is not None or not test_size:
        return Pair(train, pair.test)
    rest, test = hold_out(len(train), test_size, seed)
    return Pair(train[rest], train[test])


def _spec(train: Examples | None) -> InputSpec:
    if train is None:
        raise InputError.of("problem.dataset", "is missing", "such as digits, mnist or shakespeare")
    return InputSpec(tuple(train.inputs.shape[1:]), train.classes)


def _named(text: str, train: Examples | None) -> nn.Module:
    function = NAMED[text.partition(":")[0]]
    sizes = sizes_of(text, list(inspect.signature(function).parameters)[1:], KEY)
    spec = _spec(train)
    wants_text = function.__name__ == "transformer"
    assert train is not None
    if wants_text != (train.kind == "text"):
        fix = "model: transformer" if train.kind == "text" else "a text, such as shakespeare"
        raise InputError.of(KEY, f"{function.__name__} does not fit {train.name}", fix)
    what = f"{text} cannot be made for inputs of shape {spec.shape}"
    with input_errors(KEY, what, "other sizes, or other data"):
        return function(spec, **sizes)


def _torchvision(name: str, train: Examples | None) -> nn.Module:
    from torchvision import models

    sizes = parse_short_form(name, KEY)
    name = sizes.pop("name")
    allowed = models.list_models(module=models)
    if name not in allowed:
        raise InputError.of(KEY, f"torchvision has no model {name!r}", nearest(name, allowed))
    with input_errors(KEY, f"torchvision:{name}", "other parameters"):
        return models.get_model(name, num_classes=_spec(train).classes, **sizes)


def _of_user(text: str, train: Examples | None) -> Network:
    """Return what a user's function gives; it may take the training examples as its one argument."""
    function = own.function(text, KEY)
    with input_errors(KEY, text, "return a torch module, or raybench.plugins.Network"):
        result = function(train) if inspect.signature(function).parameters else function()
    if isinstance(result, nn.Module):
        result = Network(result)
    if not isinstance(result, Network):
        what = f"{text} returned {type(result).__name__}"
        raise InputError.of(KEY, what, "return a torch module, or raybench.plugins.Network")
    if result.train is None and train is None:
        raise InputError.of("problem.dataset", f"is missing, and {text} returned no data either")
    return result


class _Scores(nn.Module):
    """Tokens (b, T) to scores (b, T, tokens) by a model of the library transformers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        return self.net(input_ids=tokens, use_cache=False).logits


def _causal_lm(folder: str | None) -> nn.Module:
    more = {"attn_implementation": "eager", "dtype": torch.float32, "use_safetensors": True}
    instead = "a model of your own, my.py:function"
    return _Scores(pretrained("AutoModelForCausalLM", folder, CAUSAL_LM, instead, **more))


def pretrained(kind: str, folder: str | None, name: str, instead: str, **more: Any) -> Any:
    """Return what a class of the library transformers reads from a folder: nothing is fetched, no code of it is run.

    name: what needs it; instead: what needs no such library. Raises InputError where the folder is not given, is no
    such folder or cannot be read, and where the library is missing.
    """
    key = "problem.init_from"
    fix = "a folder with config.json, model.safetensors and, for bert, the tokenizer's files"
    if folder is None:
        raise InputError.of(key, f"{name} needs it", fix)
    try:
        import transformers
    except ImportError as error:
        what = f"{name} needs the package transformers"
        raise InputError.of(key, what, f"{EXTRA}; or {instead}") from error
    safetensors_of(folder)
    place, safe = Path(folder).expanduser(), {"local_files_only": True, "trust_remote_code": False}
    with input_errors(key, f"cannot read {folder}", fix):
        return getattr(transformers, kind).from_pretrained(str(place), **safe, **more)


def safetensors_of(path: str) -> list[Path]:
    """Return the files of weights of a folder of Hugging Face, or the one file, in the format of safetensors alone."""
    place = Path(path).expanduser()
    if not place.is_dir():
        return [place]
    files = sorted(place.glob("*.safetensors"))
    lacks = "config.json" if not (place / "config.json").is_file() else "" if files else "weights"
    if lacks:
        what = f"{path} has no {lacks} as Hugging Face's folders have"
        fix = "config.json and model.safetensors; files of pickles may run code and are not read"
        raise InputError.of("problem.init_from", what, fix)
    return files


def _weights(path: str) -> Mapping[str, Any]:
    """Return the tensors of a file or folder by name, from formats that run no code."""
    place = Path(path).expanduser()
    if not (place.is_dir() or place.suffix == ".safetensors"):
        return load_tensors(place, "problem.init_from", path, "save model.state_dict()")
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        what = f"{path} needs the package safetensors"
        raise InputError.of("problem.init_from", what, EXTRA) from error
    return {n: v for file in safetensors_of(path) for n, v in load_file(file).items()}


def load_weights(model: nn.Module, path: str) -> None:
    """Read the weights of a file that ``torch.save`` made of a ``state_dict``, or of safetensors; nothing else is read.

    A last layer of another shape is left as it is initialised, as one does for other classes. Raises
    InputError where the file is no such thing or does not fit.
    """
    key = "problem.init_from"
    with input_errors(key, f"cannot read {path}", "a state_dict"):
        result = _weights(path)
    if not isinstance(result, Mapping) or not all(isinstance(v, Tensor) for v in result.values()):
        raise InputError.of(key, f"{path} holds no weights", "save model.state_dict()")
    tensors = model.state_dict()
    other = [
        name for name in tensors if name in result and tensors[name].shape != result[name].shape
    ]
    fitting = {n: v for n, v in result.items() if n in tensors and n not in other}
    layers = {name.rpartition(".")[0] for name in other}
    if not fitting or len(layers) > 1:
        what = f"{path} fits {len(fitting)} of {len(tensors)} tensors of the model"
        raise InputError.of(key, what, "weights of the same network")
    model.load_state_dict(fitting, strict=False)


def trainable(model: nn.Module, freeze: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """Return the parameters that are the variable, by name: those that no pattern of ``freeze`` names.

    Raises InputError for a pattern that names none, for a parameter that has no shape yet, and if nothing is left.
    """
    every = {n: p for n, p in model.named_parameters() if p.requires_grad}
    lazy = [name for name, parameter in every.items() if nn.parameter.is_lazy(parameter)]
    if lazy:
        what = f"the parameter {lazy[0]} has no shape before data has passed"
        raise InputError.of(KEY, what, "give its layer its sizes, or call it once in your function")
    frozen = matching(every, freeze, "problem.freeze")
    left = {n: p for n, p in every.items() if n not in frozen}
    if not left:
        raise InputError.of("problem.freeze", "every parameter is frozen", "leave some to train")
    return left
