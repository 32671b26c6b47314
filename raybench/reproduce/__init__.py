"""Published results, run again and judged by criteria that are data (``sweeps/paper/``).

A reproduction is a claims file, which states what a source has published and what counts as agreement, beside a
sweep, or a script where a grid does not fit. ``raybench reproduce NAME`` runs it and says of every claim whether it
AGREES, DISAGREES, is UNDECIDED or NOT RUN, with the figures.
"""

from raybench.reproduce.claims import Claim, Reproduction, catalogue, find, read
from raybench.reproduce.judge import Compared, Verdict, judge

__all__ = ["Claim", "Compared", "Reproduction", "Verdict", "catalogue", "find", "judge", "read"]
