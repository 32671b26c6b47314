"""Weights & Biases: a run per cell in the sweep's group, offline unless ``WANDB_MODE`` says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import wandb

from raybench.runtime.callbacks import Callback, curves_of, finals_of, params_of

if TYPE_CHECKING:
    import pandas as pd

    from raybench.execution.plan import Plan


class WeightsAndBiases(Callback):
    """Writes to ``WANDB_DIR`` (default ``./wandb``), in the project ``WANDB_PROJECT`` (default ``raybench``).

    ``wandb sync`` uploads what was written offline. Curves have ``bits_up`` as their axis.
    """

    def begin(self, plan: Plan, folder: str) -> None:
        """Note whose cells they are."""
        self.name, self.folder = plan.sweep.name, folder

    def cell(self, row: Mapping[str, Any], curve: pd.DataFrame) -> None:
        """Log a cell as a run."""
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "raybench"),
            group=self.name,
            name=f"{row['label']} {row['cell']}",
            config={**params_of(row), "folder": self.folder, "cell": row["cell"]},
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        run.define_metric("*", step_metric="bits_up")
        points: dict[int, dict[str, float]] = {}
        for name, (bits, values) in curves_of(curve).items():
            for at, value in zip(bits, values, strict=True):
                points.setdefault(at, {})[name] = value
        for at, point in sorted(points.items()):
            run.log({"bits_up": at, **point})
        run.summary.update({f"final.{k}": v for k, v in finals_of(row).items()})
        run.summary["status"] = row["status"]
        run.finish(exit_code=int(row["status"] == "failed"))

    def end(self, outcome: Any) -> None:
        """End the process that wandb has started for its runs."""
        wandb.teardown()
