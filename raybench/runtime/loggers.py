"""Loggers of experiments: MLflow, TensorBoard, and Weights & Biases, each imported when it is asked for.

All log a cell's settings, its last values, and its curves, whose step is the bits that a client has sent up to there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.runtime.callbacks import Callback
from raybench.store.files import open_folder
from raybench.store.reader import flatten

if TYPE_CHECKING:
    from raybench.execution.plan import Plan

MEASURES = ("loss", "grad_norm_sq", "suboptimality", "accuracy", "test_loss")
FINALS = (
    *("loss", "grad_norm_sq", "best_grad_norm_sq", "accuracy"),
    *("bits_up", "bits_down", "seconds"),
)
MOST_METRICS, MOST_PARAMS, MOST_LETTERS = 1000, 100, 500  # of one call of MLflow, and of a value
Row = Mapping[str, Any]


def params_of(row: Row) -> dict[str, Any]:
    """Return the settings of a cell on one level: ``algorithm.name``, ``compressor.k``, ``problem.dataset``."""
    return {key: value for key, value in flatten(row["config"]).items() if value is not None}


def finals_of(row: Row) -> dict[str, float]:
    """Return the last values of a cell that are known numbers."""
    return {name: float(row[name]) for name in FINALS if row[name] is not None}


def points_of(curve: pd.DataFrame) -> list[tuple[str, int, float]]:
    """Return what a curve measures as (name, bits sent per client up to there, value), without what is unknown."""
    bits = curve["bits_up"].astype(float).round()
    return [
        (name, int(at), float(value))
        for name in MEASURES
        for at, value in zip(bits, curve[name], strict=True)
        if pd.notna(value) and pd.notna(at)
    ]


class MLflow(Callback):
    """Writes where ``MLFLOW_TRACKING_URI`` says, into an experiment of the sweep's name.

    A run per sweep, and below it a run per cell, whose status is FAILED where the cell failed.
    """

    def __init__(self) -> None:
        import mlflow

        self.client, self.entities = mlflow.MlflowClient(), mlflow.entities

    def begin(self, plan: Plan, folder: str) -> None:
        name = plan.sweep.name
        there = self.client.get_experiment_by_name(name)
        self.experiment = there.experiment_id if there else self.client.create_experiment(name)
        run = self.client.create_run(self.experiment, run_name=f"{name}: {plan.missing} cells")
        self.sweep = run.info.run_id
        self.client.set_tag(self.sweep, "raybench.folder", folder)

    def cell(self, row: Row, curve: pd.DataFrame) -> None:
        tags = {"mlflow.parentRunId": self.sweep, "raybench.status": row["status"]}
        name = f"{row['label']} {row['cell']}"
        run = self.client.create_run(self.experiment, tags=tags, run_name=name).info.run_id
        param, metric, now = self.entities.Param, self.entities.Metric, int(1000 * time.time())
        params = [param(key, str(value)[:MOST_LETTERS]) for key, value in params_of(row).items()]
        metrics = [metric(f"final.{key}", value, now, 0) for key, value in finals_of(row).items()]
        metrics += [metric(key, value, now, at) for key, at, value in points_of(curve)]
        for at in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(run, params=params[at : at + MOST_PARAMS])
        for at in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(run, metrics=metrics[at : at + MOST_METRICS])
        self.client.set_terminated(run, "FAILED" if row["status"] == "failed" else "FINISHED")

    def end(self, outcome: Any) -> None:
        for status, count in (outcome.counts if outcome else {}).items():
            if count:
                self.client.set_tag(self.sweep, f"raybench.cells.{status}", str(count))
        broken = outcome is None or outcome.interrupted
        self.client.set_terminated(self.sweep, "KILLED" if broken else "FINISHED")


class TensorBoard(Callback):
    """Writes to ``DIR/tensorboard``, or ``./NAME-tensorboard`` where results go to an object store.

    A cell is a run ``<method>/<cell>``; its settings are in the tab of hyperparameters.
    """

    def __init__(self) -> None:
        import tensorboardX

        self.tensorboard = tensorboardX

    def begin(self, plan: Plan, folder: str) -> None:
        away = "://" in folder
        there = open_folder(folder).path("tensorboard")
        self.folder = Path(f"{plan.sweep.name}-tensorboard" if away else there)

    def cell(self, row: Row, curve: pd.DataFrame) -> None:
        place = self.folder / re.sub(r"[^\w.%=-]+", "_", row["label"]) / row["cell"]
        kinds = (bool, str, float, int)
        params = {k: v if isinstance(v, kinds) else str(v) for k, v in params_of(row).items()}
        finals = {f"final/{k}": v for k, v in finals_of(row).items()}
        with self.tensorboard.SummaryWriter(logdir=str(place)) as writer:
            for summary in self.tensorboard.summary.hparams(params, finals):
                writer.file_writer.add_summary(summary)
            for name, at, value in [(n, None, v) for n, v in finals.items()] + points_of(curve):
                writer.add_scalar(name, value, at)


class WeightsAndBiases(Callback):
    """Writes to ``WANDB_DIR`` (default ``./wandb``), in the project ``WANDB_PROJECT`` (default ``raybench``).

    A run per cell in the sweep's group, offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` uploads it.
    """

    def __init__(self) -> None:
        import wandb

        self.wandb = wandb

    def begin(self, plan: Plan, folder: str) -> None:
        self.name, self.folder = plan.sweep.name, folder

    def cell(self, row: Row, curve: pd.DataFrame) -> None:
        run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "raybench"),
            group=self.name,
            name=f"{row['label']} {row['cell']}",
            config={**params_of(row), "folder": self.folder, "cell": row["cell"]},
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=self.wandb.Settings(silent=True, console="off", disable_git=True),
        )
        run.define_metric("*", step_metric="bits_up")
        points: dict[int, dict[str, float]] = {}
        for name, at, value in points_of(curve):
            points.setdefault(at, {})[name] = value
        for at, point in sorted(points.items()):
            run.log({"bits_up": at, **point})
        run.summary.update({f"final.{k}": v for k, v in finals_of(row).items()})
        run.summary["status"] = row["status"]
        run.finish(exit_code=int(row["status"] == "failed"))

    def end(self, outcome: Any) -> None:
        self.wandb.teardown()
