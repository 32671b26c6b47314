"""How tests load sweep files: a plain one to which they add lines, and what is said about wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from raybench.core.errors import InputError
from raybench.spec import load

BASE = """
problem: {name: logistic, dataset: mushrooms, clients: 20}
algorithm: ef21
compressor: {name: top_k, k: 1}
"""


def wrong(source: Any, **more: Any) -> dict[str, str]:
    """Load what must be refused; return the messages by key path."""
    with pytest.raises(InputError) as caught:
        load(source, **more)
    return {c.where: f"{c.what} / {c.fix}" for c in caught.value.complaints}
