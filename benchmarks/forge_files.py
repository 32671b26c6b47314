"""Forged data files, sweep files and results folders: honest ones with bytes changed, cut, doubled or replaced.

Of a results folder a table may also lie under a seal that is in order.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

LIBSVM = b"".join(b"%d %d:%d.5 %d:1e-3\n" % (j % 2 * 2 - 1, j + 1, j, j + 9) for j in range(20))
SWEEP = b"""name: tiny
problem: {name: logistic, dataset: breast_cancer, clients: [5, 10], split: {dirichlet: 0.5}}
algorithm: [gd, {name: ef21, init: full}]
compressor: {name: top_k, k: [1, 10%]}
step_size: {theory: 2^-2..2^2}
seed: 0..3
rounds: 100
exclude: {algorithm: gd, seed: [1, 2]}
"""
PARTS = (
    *(b"", b"\0", b"\xff", b"\n", b" ", b":", b",", b"-", b"#", b"[", b"]", b"{", b"}"),
    *(b"&a ", b"*a", b"1e999", b"nan", b"inf", b"-1", b"0", b"2147483647", b"2147483648"),
    *(b"9" * 400, b"0..10", b"2^0..2^9", b"1e18", b"1:", b":1", b"0:1", b"1:1", b"? ", b"- "),
    *(b"!!python/name:os.system", b"\xef\xbb\xbf", b"\r", b"<<: *a", b"true", b"~", b"'"),
    *(b'"', b"10%", b"PK\x03\x04", b"|O"),
)


def honest_files() -> dict[str, bytes]:
    """Return a file of every kind that is read, by its name."""
    import bz2
    import gzip
    import io
    import lzma

    import numpy as np

    result = {"a.libsvm": LIBSVM, "b.gz": gzip.compress(LIBSVM), "c.bz2": bz2.compress(LIBSVM)}
    result |= {"d.xz": lzma.compress(LIBSVM), "s.yaml": SWEEP}
    for j, save in enumerate((np.savez, np.savez_compressed)):
        out = io.BytesIO()
        save(out, features=np.ones((6, 3), ("f4", "i2")[j]), labels=np.array([0, 1, 0, 1, 1, 0]))
        result[f"{j}.npz"] = out.getvalue()
    return result


def changed_file(pick: random.Random, data: bytes) -> bytes:
    """Return a file's bytes with some changed, cut, doubled or replaced by what readers trip over."""
    out = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 5))):
        at, how = pick.randrange(len(out) + 1), pick.randrange(6)
        end = min(len(out), at + pick.choice((1, 1, 4, 20)))
        if how == 0 and at < len(out):
            out[at] ^= 1 << pick.randrange(8)
        elif how == 1:
            out[at:end] = pick.choice(PARTS)
        elif how == 2:
            out[at:at] = pick.choice(PARTS) * pick.choice((1, 1, 3, 2000))
        elif how == 3:
            del out[at:end]
        elif how == 4:
            out[at:at] = out[: pick.randrange(len(out) + 1)]
        else:
            del out[at:]
    return bytes(out)


def read_file(path: Path) -> str:
    """Return what reading a data file or sweep file gave: refused, or read."""
    from raybench.core.errors import InputError
    from raybench.data import load as load_data
    from raybench.spec import load as load_sweep
    from raybench.store import identity

    try:
        if path.suffix != ".yaml":
            data = load_data(str(path))
            assert len(data.labels) == data.shape[0]
            return "read"
        sweep = load_sweep(path)
        assert sweep.cells
        identity.parse(sweep.text)
        return "read"
    except InputError as error:
        text = str(error)
        if text.count("\n") > 3 * 21 or len(text) > 2**15:
            raise RuntimeError(f"an error of {len(text):,} letters") from error
        return "refused"


def forge_files(count: int, seed: int, tally: Any) -> Any:
    """Try that many changed data files and sweep files."""
    pick, honest = random.Random(seed), honest_files()
    with tempfile.TemporaryDirectory() as folder:
        for name, data in honest.items():  # what is imported at first use is no part of an answer
            (Path(folder) / name).write_bytes(data)
            assert read_file(Path(folder) / name) == "read", name
        for j in range(count):
            name = pick.choice(sorted(honest))
            data = changed_file(pick, honest[name])
            path = Path(folder) / f"{j}{Path(name).suffix}"
            path.write_bytes(data)
            tally.trial(
                f"file {j} of seed {seed}, {name}: {data[:1500]!r}",
                len(data),
                lambda p=path: read_file(p),  # type: ignore[misc]
            )
            path.unlink()
    return tally


# Results folders --------------------------------------------------------------------------------

FOLDER_SWEEP = {
    "name": "forged",
    "problem": {"name": "quadratic", "dim": 4, "clients": 2},
    "algorithm": ["gd", "ef21"],
    "compressor": [{"name": "top_k", "k": [1, 2]}],
    "step_size": {"theory": [1, 2]},
    "rounds": 6,
}
WORDS = ("", "weird", "skipped", "failed", "ok", "\0", "9" * 400, "{}", "[1]", "{", None)


def lying_table(pick: random.Random, table: Any) -> Any:
    """Return a table with one thing changed: a column gone, renamed, of another type or with odd values."""
    import pyarrow as pa

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


def forged(pick: random.Random, folder: Path) -> str:
    """Change one file of a folder; return which, and how."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raybench.store.log import sealed

    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    file = pick.choice(files)
    if file.suffix == ".parquet" and pick.random() < 0.5:
        data = file.read_bytes()
        table = lying_table(pick, pq.read_table(pa.BufferReader(data)))
        table = table.replace_schema_metadata(
            {"raybench_schema": pick.choice(("3", "2", "99", "x"))}
        )
        cells, curves = (folder / part / file.name for part in ("cells", "curves"))
        if file == curves:
            pq.write_table(table, curves)
            table = pq.read_table(cells)
        owner = json.loads((folder / "plan/owner.json").read_text())["folder"]
        held = curves.read_bytes() if curves.exists() else None
        cells.write_bytes(sealed(table, file.stem, owner, held))
        return f"{file.relative_to(folder)}: a table that lies"
    file.write_bytes(changed_file(pick, file.read_bytes()))
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


def forge_results(count: int, seed: int, tally: Any) -> Any:
    """Try that many changed results folders."""
    import raybench

    pick = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        honest, copy = Path(place) / "honest", Path(place) / "copy"
        raybench.sweep(FOLDER_SWEEP, honest, inline=True)
        size = sum(p.stat().st_size for p in honest.rglob("*") if p.is_file())
        for _ in range(5):  # what is imported and kept at first use is no part of an answer
            assert read_folder(honest) == "read"
        for j in range(count):
            shutil.copytree(honest, copy)
            what = forged(pick, copy)
            tally.trial(f"folder {j} of seed {seed}: {what}", size, lambda: read_folder(copy))
            shutil.rmtree(copy)
    return tally
