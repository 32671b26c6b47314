"""The conformance kit: what is asked of every plug-in, ours and users' alike (``raybench check``).

Each check is a function that raises AssertionError with a readable message; ``findings`` runs a set
of them and reports one line each.
"""

from raybench.testing.checks import Checks, Finding, findings

__all__ = ["Checks", "Finding", "findings"]
