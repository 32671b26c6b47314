"""raybench in training frameworks: a callback for Lightning, one for Hugging Face's Trainer, and Accelerate.

Each attaches a method to the model that the framework has put into DistributedDataParallel, and keeps what every rank
remembers in the framework's own checkpoints, so that a resumed run goes on as if it had not stopped. Nothing of a
framework is imported before its class is asked for.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from raybench.compressors.base import Made
from raybench.core.errors import InputError
from raybench.core.safe_files import load_tensors, replacement
from raybench.torch.hook import Attached, attach
from raybench.torch.replicas import rank_here
from raybench.torch.saved import whole

ALONE = "one process has nobody to send to: it trains without raybench"
NOTHING = "nothing of raybench: it was saved without, or the run ended while it was saved"
EARLIER = "an earlier checkpoint, or a new run from its weights"


def accelerate(
    accelerator: Any,
    model: torch.nn.Module,
    algorithm: str | Mapping[str, Any] = "ef21",
    compressor: Made | None = None,
    granularity: str = "bucket",
    **settings: Any,
) -> Attached:
    """Attach a method to a model that ``accelerator.prepare`` has returned, and return the hook.

    ``accelerator.save_state`` then writes a file for every rank, which ``load_state`` reads. settings: those of
    ``raybench.torch.attach``; its ``scaler`` is the accelerator's. Raises InputError as ``attach`` does.
    """
    settings.setdefault("scaler", accelerator.scaler)
    hook = attach(model, algorithm, compressor, granularity, **settings)
    # an accelerator may have several models
    number = accelerator.raybench_hooks = getattr(accelerator, "raybench_hooks", -1) + 1
    name = f"raybench_{number}"
    accelerator.register_save_state_pre_hook(
        lambda models, weights, folder: write_checkpoint(hook, Path(folder), name)
    )
    accelerator.register_load_state_pre_hook(
        lambda models, folder: read_checkpoint(hook, Path(folder), name)
    )
    return hook


def write_checkpoint(hook: Attached, folder: Path, name: str = "raybench") -> None:
    """Write what this rank remembers into a checkpoint's folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {**hook.state_dict(), "weights": hook.replica.digests()}
    with replacement(folder / f"{name}.{rank_here()}.pt") as fresh, fresh.open("wb") as file:
        torch.save(state, file)


def read_checkpoint(
    hook: Attached, folder: Path, name: str = "raybench", loaded: bool = False
) -> None:
    """Go on from the files that ranks have written into a checkpoint's folder; their number may be another now.

    loaded: the model has its weights already. Raises InputError where there are none, not those of all ranks, or files
    that were written beside other weights.
    """
    files = sorted(folder.glob(f"{name}.*.pt"))
    if not files:
        raise InputError.of("checkpoint", f"{folder} holds {NOTHING}", EARLIER)
    mine = folder / f"{name}.{rank_here()}.pt"
    if len(files) == dist.get_world_size() and mine in files:
        files = [mine]
    states = [load_tensors(file, "checkpoint", str(file), EARLIER) for file in files]
    weights = hook.replica.digests() if loaded else None
    # an older raybench has not noted which weights its memories belong to
    if loaded and any(state.get("weights", weights) != weights for state in states):
        what = f"{folder} holds memories of other weights than those that training resumes from"
        raise InputError.of(
            "checkpoint", what, "resume_from=the folder that train(..) resumes from"
        )
    hook.load_state_dict(states[0] if len(states) == 1 else whole(states))


def _parallel() -> bool:
    """Return whether there are several ranks; say so where there is one."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        return True
    warnings.warn(ALONE, stacklevel=3)
    return False


def _lightning() -> type:
    # whichever of the two packages of Lightning the user has imported
    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    Callback: Any = import_module("pytorch_lightning" if older else "lightning.pytorch").Callback

    class LightningCallback(Callback):
        """A callback of Lightning's Trainer that exchanges gradients by a method, with ``strategy="ddp"``.

        settings: those of ``raybench.torch.attach``. hook: what it returned, from the start of the fit on. Checkpoints
        hold what all ranks remember, and another number of ranks may go on from them.
        """

        def __init__(self, **settings: Any) -> None:
            self.settings = settings
            self.hook: Attached | None = None
            self._state: Mapping[str, Any] | None = None  # from a checkpoint, until the fit starts
            self._last: dict[str, Any] = {}  # of this rank, after the fit

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if _parallel():
                scaler = getattr(trainer.precision_plugin, "scaler", None)
                self.hook = attach(trainer.strategy.model, **{"scaler": scaler, **self.settings})
                if self._state is not None:
                    self.hook.load_state_dict(self._state)
                    self._state = None
                elif trainer.ckpt_path:
                    raise InputError.of(
                        "ckpt_path", f"{trainer.ckpt_path} holds {NOTHING}", EARLIER
                    )

        def state_dict(self) -> dict[str, Any]:
            """Return what all ranks remember on rank 0, which writes the checkpoint; every rank is asked."""
            if self.hook is None:
                return {}
            mine = self.hook.state_dict() if self.hook.on else self._last
            states: list[Any] | None = [None] * dist.get_world_size() if rank_here() == 0 else None
            dist.gather_object(mine, states)
            return mine if states is None else whole(states)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Keep what was saved until the model is there."""
            self._state = state_dict

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if self.hook is not None and self.hook.on:
                self._last = self.hook.state_dict()  # for a checkpoint that is saved after the fit
                self.hook.detach()

    return LightningCallback


def _transformers() -> type:
    from transformers import TrainerCallback as Base

    class TrainerCallback(Base):
        """A callback of Hugging Face's Trainer that exchanges gradients by a method.

        ``trainer.add_callback(raybench.torch.TrainerCallback(trainer, algorithm=.., compressor=..))``. settings: those
        of ``raybench.torch.attach``. hook: what it returned, from the start of training on. Every rank writes a file
        into each checkpoint of the trainer. resume_from: the checkpoint that ``train`` was told to resume from, where
        it lies elsewhere than in ``output_dir``.
        """

        def __init__(
            self, trainer: Any, *, resume_from: str | None = None, **settings: Any
        ) -> None:
            self.trainer, self.resume_from, self.settings = trainer, resume_from, settings
            self.hook: Attached | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if _parallel():
                scaler = self.trainer.accelerator.scaler
                settings = {"scaler": scaler, **self.settings}
                self.hook = attach(self.trainer.model_wrapped, **settings)
                if state.global_step > 0:
                    folder = Path(self.resume_from or self._checkpoint(args, state))
                    read_checkpoint(self.hook, folder, loaded=True)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.hook is not None:
                write_checkpoint(self.hook, self._checkpoint(args, state))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.hook is not None:
                self.hook.detach()

        def _checkpoint(self, args: Any, state: Any) -> Path:
            return Path(args.output_dir) / f"checkpoint-{state.global_step}"

    return TrainerCallback


CLASSES = {"LightningCallback": _lightning, "TrainerCallback": _transformers}


def __getattr__(name: str) -> Any:
    """Make a class when it is asked for first: it derives from one of its framework."""
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = CLASSES[name]()
    kind.__qualname__ = name  # so that it can be pickled
    globals()[name] = kind
    return kind
