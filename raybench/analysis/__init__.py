"""Analysis: frames in, frames out. Which step is best, what a target costs, how curves spread."""

from raybench.analysis.aligned import bands, curves
from raybench.analysis.by_bandwidth import by_bandwidth
from raybench.analysis.curves import first_crossing
from raybench.analysis.frames import (
    BestSteps,
    Frames,
    How,
    Source,
    Where,
    best_steps,
    closing_table,
    frames,
    frames_of,
    keep_targets,
)
from raybench.analysis.methods import annotate, describe
from raybench.analysis.rankings import compare, differences, profile, rank, trials
from raybench.analysis.readings import audit
from raybench.analysis.simulated import SECONDS, simulated
from raybench.analysis.statistics import Interval, interval, ranks
from raybench.analysis.to_target import instances, scaling, to_target
from raybench.analysis.tuned import (
    candidates,
    default_target,
    final_vs_step,
    first_reached,
    main_metric,
    tuned,
)
from raybench.clock.links import LinkNetwork
from raybench.store.reader import configs

__all__ = [
    "SECONDS",
    "BestSteps",
    "Frames",
    "How",
    "Interval",
    "LinkNetwork",
    "Source",
    "Where",
    "annotate",
    "audit",
    "bands",
    "best_steps",
    "by_bandwidth",
    "candidates",
    "closing_table",
    "compare",
    "configs",
    "curves",
    "default_target",
    "describe",
    "differences",
    "final_vs_step",
    "first_crossing",
    "first_reached",
    "frames",
    "frames_of",
    "instances",
    "interval",
    "keep_targets",
    "main_metric",
    "profile",
    "rank",
    "ranks",
    "scaling",
    "simulated",
    "to_target",
    "trials",
    "tuned",
]
