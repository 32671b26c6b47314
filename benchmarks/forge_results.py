"""Forged results folders: files that were changed, and tables that lie under a seal that is in order."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SWEEP = {
    "name": "forged",
    "problem": {"name": "quadratic", "dim": 4, "clients": 2},
    "algorithm": ["gd", "ef21"],
    "compressor": [{"name": "top_k", "k": [1, 2]}],
    "step_size": {"theory": [1, 2]},
    "rounds": 6,
}
WORDS = ("", "weird", "skipped", "failed", "ok", "\0", "9" * 400, "{}", "[1]", "{", None)


def honest_folder(folder: Path) -> None:
    """Write a small results folder."""
    import raybench

    raybench.sweep(SWEEP, folder, inline=True)


def lying_table(pick: random.Random, table: pa.Table) -> pa.Table:
    """Return a table with one thing changed: a column gone, renamed, of another type or with odd values."""
    name = pick.choice([*table.column_names, "cell", "status", "round", "config", "extra"])
    if name not in table.column_names:
        return table
    at, how = table.column_names.index(name), pick.randrange(6)
    kind = table.schema.field(name).type
    if how == 0:
        return table.drop_columns([name])
    if how == 1:
        return table.rename_columns([n if n != name else n + "_" for n in table.column_names])
    if how == 2:
        odd: Any = pa.array([pick.choice(WORDS) for _ in range(len(table))], pa.string())
    elif how == 3:
        odd = pa.nulls(len(table), kind)
    elif how == 4 and pa.types.is_floating(kind):
        odd = pa.array([pick.choice((1e308, -1.0, float("nan"), float("inf")))] * len(table))
    else:
        odd = pa.array([pick.choice((-1, 0, 2**62))] * len(table), pa.int64())
    return table.set_column(at, name, odd)


def forged(
    pick: random.Random, folder: Path, change: Callable[[random.Random, bytes], bytes]
) -> str:
    """Change one file of a folder; return which, and how."""
    from raybench.store.log import sealed

    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    file = pick.choice(files)
    if file.suffix == ".parquet" and pick.random() < 0.5:
        data = file.read_bytes()
        table = lying_table(pick, pq.read_table(pa.BufferReader(data)))
        table = table.replace_schema_metadata(
            {"raybench_schema": pick.choice(("3", "2", "99", "x"))}
        )
        if file.parent.name == "cells":
            curves = folder / "curves" / file.name
            owner = json.loads((folder / "plan/owner.json").read_text())["folder"]
            held = curves.read_bytes() if curves.exists() else None
            file.write_bytes(sealed(table, file.stem, owner, held))
        else:
            pq.write_table(table, file)
            cells = folder / "cells" / file.name
            rows = pq.read_table(cells)
            owner = json.loads((folder / "plan/owner.json").read_text())["folder"]
            cells.write_bytes(sealed(rows, file.stem, owner, file.read_bytes()))
        return f"{file.relative_to(folder)}: a table that lies"
    file.write_bytes(change(pick, file.read_bytes()))
    return f"{file.relative_to(folder)}: bytes"


def read_folder(folder: Path) -> str:
    """Return what reading a folder gave: refused, or read; then repair it, after which it is readable."""
    from raybench.core.errors import InputError
    from raybench.store import Store, cells, load
    from raybench.store.files import open_folder
    from raybench.store.log import verified

    answer = "read"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for read in (load, cells, lambda f: Store(f).done(), lambda f: Store(f).repair(), load):
            try:
                read(folder)
            except InputError:
                answer = "refused"
    verified(open_folder(folder))
    return answer


def forge_results(count: int, seed: int, tally: Any, change: Callable[..., bytes]) -> Any:
    """Try that many changed results folders."""
    pick = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        honest, copy = Path(place) / "honest", Path(place) / "copy"
        honest_folder(honest)
        size = sum(p.stat().st_size for p in honest.rglob("*") if p.is_file())
        for _ in range(5):  # what is imported and kept at first use is no part of an answer
            assert read_folder(honest) == "read"
        for j in range(count):
            shutil.copytree(honest, copy)
            what = forged(pick, copy, change)
            tally.trial(f"folder {j} of seed {seed}: {what}", size, lambda: read_folder(copy))
            shutil.rmtree(copy)
    return tally
