"""TensorBoard: event files with each cell's curves by bits, and its settings in the tab of hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from raybench.runtime.callbacks import Callback, curves_of, finals_of, params_of
from raybench.store.files import open_folder

if TYPE_CHECKING:
    import pandas as pd

    from raybench.execution.plan import Plan


class TensorBoard(Callback):
    """Writes to ``DIR/tensorboard``, or ``./NAME-tensorboard`` where results go to an object store.

    A cell is a run ``<method>/<cell>``; the step of a scalar is the bits that a client has sent up to there.
    """

    def begin(self, plan: Plan, folder: str) -> None:
        """Choose the folder."""
        away = "://" in folder
        there = open_folder(folder).path("tensorboard")
        self.folder = Path(f"{plan.sweep.name}-tensorboard" if away else there)

    def cell(self, row: Mapping[str, Any], curve: pd.DataFrame) -> None:
        """Write a cell's event file."""
        place = self.folder / re.sub(r"[^\w.%=-]+", "_", row["label"]) / row["cell"]
        kinds = (bool, str, float, int)
        params = {k: v if isinstance(v, kinds) else str(v) for k, v in params_of(row).items()}
        finals = {f"final/{k}": v for k, v in finals_of(row).items()}
        with SummaryWriter(logdir=str(place)) as writer:
            for summary in hparams(params, finals):
                writer.file_writer.add_summary(summary)
            for name, value in finals.items():
                writer.add_scalar(name, value)
            for name, (bits, values) in curves_of(curve).items():
                for at, value in zip(bits, values, strict=True):
                    writer.add_scalar(name, value, at)
