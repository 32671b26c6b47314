"""raybench: sweeps and benchmarks of communication-compressed distributed optimization.

Light on import: every name below is fetched from its module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raybench.api import compressor, run, sweep
    from raybench.compressors import unpack
    from raybench.core.errors import InputError
    from raybench.core.streams import stream
    from raybench.store import load

__all__ = ["InputError", "compressor", "load", "run", "stream", "sweep", "unpack"]

_WHERE = {
    "InputError": "raybench.core.errors",
    "compressor": "raybench.api",
    "load": "raybench.store",
    "run": "raybench.api",
    "stream": "raybench.core.streams",
    "sweep": "raybench.api",
    "unpack": "raybench.compressors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("raybench")
    if name not in _WHERE:
        raise AttributeError(f"module 'raybench' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, "__version__"])
