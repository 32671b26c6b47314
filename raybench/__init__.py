"""raybench: sweeps and benchmarks of communication-compressed distributed optimization.

Light on import: every name below is fetched from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raybench.core import fetching

if TYPE_CHECKING:
    from raybench.api import compressor, run, sweep
    from raybench.certificates.certify import certify
    from raybench.compressors import unpack
    from raybench.core.errors import InputError
    from raybench.core.streams import stream
    from raybench.report.custom import plot
    from raybench.store import load

__all__ = [
    "InputError",
    "certify",
    "compressor",
    "load",
    "plot",
    "run",
    "stream",
    "sweep",
    "unpack",
]

_WHERE = {
    "InputError": "core.errors",
    "certify": "certificates.certify",
    "compressor": "api",
    "load": "store",
    "plot": "report.custom",
    "run": "api",
    "stream": "core.streams",
    "sweep": "api",
    "unpack": "compressors",
}
_fetched = fetching(__name__, _WHERE)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("raybench")
    return _fetched(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, "__version__"])
