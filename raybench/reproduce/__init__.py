"""Published results, run again and judged by criteria that are data (``sweeps/paper/``).

A reproduction is a claims file, which states what a source has published and what counts as agreement, beside a
sweep, or a script where a grid does not fit. ``raybench reproduce NAME`` runs it and says of every claim whether it
AGREES, DISAGREES, is UNDECIDED or NOT RUN, with the figures.
"""

from raybench.reproduce.claims import Claim, Reproduction, catalogue, find, read_claims
from raybench.reproduce.judge import ClaimVerdict, Compared, judge

__all__ = [
    "Claim",
    "ClaimVerdict",
    "Compared",
    "Reproduction",
    "catalogue",
    "find",
    "judge",
    "read_claims",
]
