"""A metric of one's own: a number per cell, stored in the curves' column ``extra``."""

from raybench.plugins import metric


@metric("largest")
def largest(problem, x):
    """max_j |x_j|."""
    return x.abs().amax(-1)
