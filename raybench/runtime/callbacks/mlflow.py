"""MLflow: a run per sweep, and in it a run per cell with its settings, its last values and its curves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from raybench.runtime.callbacks import Callback, curves_of, finals_of, params_of

if TYPE_CHECKING:
    import pandas as pd

    from raybench.execution.plan import Plan

AT_ONCE = 1000  # metrics, and 100 params: the most that one call takes
LETTERS = 500  # of a parameter's value


class MLflow(Callback):
    """Writes where ``MLFLOW_TRACKING_URI`` says, into an experiment of the sweep's name.

    The step of a metric is the bits that a client has sent up to there. A run's status is FAILED where its
    cell failed.
    """

    def begin(self, plan: Plan, folder: str) -> None:
        """Open the sweep's run."""
        self.client = MlflowClient()
        name = plan.sweep.name
        found = self.client.get_experiment_by_name(name)
        self.experiment = found.experiment_id if found else self.client.create_experiment(name)
        run = self.client.create_run(self.experiment, run_name=f"{name}: {plan.missing} cells")
        self.sweep = run.info.run_id
        self.client.set_tag(self.sweep, "raybench.folder", folder)

    def cell(self, row: Mapping[str, Any], curve: pd.DataFrame) -> None:
        """Log a cell as a run of its own below the sweep's."""
        tags = {"mlflow.parentRunId": self.sweep, "raybench.status": row["status"]}
        name = f"{row['label']} {row['cell']}"
        run = self.client.create_run(self.experiment, tags=tags, run_name=name).info.run_id
        params = [Param(k, str(v)[:LETTERS]) for k, v in params_of(row).items()]
        for at in range(0, len(params), 100):
            self.client.log_batch(run, params=params[at : at + 100])
        now = int(1000 * time.time())
        metrics = [Metric(f"final.{k}", v, now, 0) for k, v in finals_of(row).items()]
        for key, (bits, values) in curves_of(curve).items():
            metrics += [Metric(key, v, now, b) for b, v in zip(bits, values, strict=True)]
        for at in range(0, len(metrics), AT_ONCE):
            self.client.log_batch(run, metrics=metrics[at : at + AT_ONCE])
        self.client.set_terminated(run, "FAILED" if row["status"] == "failed" else "FINISHED")

    def end(self, outcome: Any) -> None:
        """Close the sweep's run, with how many cells ended how."""
        counts = outcome.counts if outcome else {}
        tags = [RunTag(f"raybench.cells.{status}", str(n)) for status, n in counts.items() if n]
        self.client.log_batch(self.sweep, tags=tags)
        broken = outcome is None or outcome.interrupted
        self.client.set_terminated(self.sweep, "KILLED" if broken else "FINISHED")
