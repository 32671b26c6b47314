"""The sweeps that come with raybench: package data of an installed one, ``sweeps/`` in a checkout."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def sweeps() -> dict[str, str]:
    """Return the text of every shipped sweep by name."""
    try:
        files = list(resources.files("raybench.sweeps").iterdir())
    except (ImportError, OSError):
        folder = Path(__file__).resolve().parents[2] / "sweeps"
        files = list(folder.iterdir()) if folder.is_dir() else []
    found = {f.name.removesuffix(".yaml"): f for f in files if f.name.endswith(".yaml")}
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def summary(text: str) -> str:
    """Return the first line of a sweep's head comment: the question it answers."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.lstrip("# ").strip() if first.startswith("#") else ""
