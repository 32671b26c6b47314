"""Analysis: frames in, frames out. Which step is best, what a target costs, how curves spread."""

from raybench.analysis.aligned import curves
from raybench.analysis.bands import bands
from raybench.analysis.by_bandwidth import by_bandwidth
from raybench.analysis.closing import Frames, How, closing_table, frames, keep_targets
from raybench.analysis.compare import compare, differences
from raybench.analysis.crossing import first_crossing
from raybench.analysis.instances import instances
from raybench.analysis.intervals import Interval, interval, ranks
from raybench.analysis.links import Network
from raybench.analysis.methods import annotate, describe
from raybench.analysis.profile import profile
from raybench.analysis.rank import rank
from raybench.analysis.scaling import scaling
from raybench.analysis.search import BestSteps, best_steps
from raybench.analysis.simulated import SECONDS, simulated
from raybench.analysis.source import Source, Where, opened
from raybench.analysis.to_target import to_target
from raybench.analysis.trials import trials
from raybench.analysis.tuned import (
    candidates,
    default_target,
    final_vs_step,
    first_reached,
    main_metric,
    tuned,
)

__all__ = [
    "SECONDS",
    "BestSteps",
    "Frames",
    "How",
    "Interval",
    "Network",
    "Source",
    "Where",
    "annotate",
    "bands",
    "best_steps",
    "by_bandwidth",
    "candidates",
    "closing_table",
    "compare",
    "curves",
    "default_target",
    "describe",
    "differences",
    "final_vs_step",
    "first_crossing",
    "first_reached",
    "frames",
    "instances",
    "interval",
    "keep_targets",
    "main_metric",
    "opened",
    "profile",
    "rank",
    "ranks",
    "scaling",
    "simulated",
    "to_target",
    "trials",
    "tuned",
]
