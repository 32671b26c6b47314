"""Studies of operators by themselves: how well they keep a vector, for how many bits.

``compressors(out)`` measures every operator of ``measure.GRIDS`` on the vectors of ``vectors`` and
writes ``study.parquet``, figures and the CSV behind them (the empirical comparison of Beznosikov et
al., On Biased Compression for Distributed Learning).
"""

from raybench.study.figures import figures
from raybench.study.formulas import gaussian, laplace, uniform
from raybench.study.measure import GRIDS, compressors, measure
from raybench.study.summary import against_sign, top_1_savings, top_k_energy
from raybench.study.vectors import drawn, gradients

__all__ = [
    "GRIDS",
    "against_sign",
    "compressors",
    "drawn",
    "figures",
    "gaussian",
    "gradients",
    "laplace",
    "measure",
    "top_1_savings",
    "top_k_energy",
    "uniform",
]
