"""One table, whatever door it comes through: random frames as CSV, Parquet, frames in memory and arrays agree."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybench import data
from raybench.core.errors import InputError
from raybench.data.session import save

WORDS = st.sampled_from(["Basel", "Cork", "NA", "None", "7", "007", "1.5", "a,b", 'say "hi"', "ü"])
KINDS = ("int64", "float", "bool", "text", "text category", "number category", "date", "missing")
NAMES = st.sampled_from(["a", "b", "c", "d", "label", "y", "site", "5"])


def column(draw, kind: str, rows: int) -> pd.Series:
    """Draw a column of a kind; "missing" is one of floats in which a value is missing."""

    def values(each):
        return draw(st.lists(each, min_size=rows, max_size=rows))

    small, large = st.integers(-3, 3), st.integers(2**60, 2**60 + 2)
    if kind == "int64":
        return pd.Series(values(draw(st.sampled_from([small, large]))), dtype="int64")
    if kind == "float":
        return pd.Series(values(st.sampled_from([0.1, -2.5, 1e-7, 3.0, 1e22])), dtype=float)
    if kind == "bool":
        return pd.Series(values(st.booleans()), dtype=bool)
    if kind == "text":
        return pd.Series(values(WORDS), dtype=draw(st.sampled_from(["object", "str"])))
    if kind == "text category":
        return pd.Series(values(WORDS), dtype=object).astype("category")
    if kind == "number category":
        each = draw(st.sampled_from([small, large, st.sampled_from([0.5, 2.0])]))
        return pd.Series(values(each)).astype("category")
    if kind == "date":
        days = st.sampled_from([datetime.date(2024, 5, 17), datetime.date(2023, 1, 2)])
        return pd.Series(pd.to_datetime(values(days)))
    return pd.Series([1.0, None] + [2.0] * (rows - 2))


@st.composite
def frames(draw) -> tuple[pd.DataFrame, str | None, str | None]:
    """Draw a frame, and the columns that are asked for as label and client: mostly such as can be read."""
    rows = draw(st.integers(2, 12))
    odd = draw(st.integers(0, 4)) == 0
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=draw(st.integers(0, 9)) > 0))
    label = draw(st.sampled_from([None, *names] if odd or "label" in names else names))
    client = draw(st.sampled_from([None, *names]))
    drawn = []
    for name in names:
        free = odd or name in (label, client)
        kinds = KINDS[: -1 if free else 3] if draw(st.integers(0, 9)) else KINDS
        kinds = kinds if free else (*kinds, *KINDS[4:6])
        drawn.append(column(draw, draw(st.sampled_from(kinds)), rows))
    table = pd.concat(drawn, axis=1)
    table.columns = names
    if draw(st.booleans()):
        table.index = pd.Index(range(1, rows + 1), name=draw(st.sampled_from([None, "id"])))
    return table, label, client


def through(door: str, table: pd.DataFrame, folder: Path) -> Path:
    """Return the file that a table becomes behind a door."""
    path = folder / f"mine.{door}"
    if door == "csv":
        table.to_csv(path, index=False)
    elif door == "parquet":
        table.to_parquet(path)
    elif door == "polars":
        return save({"mine": polars.from_pandas(table)}, folder)[0]["mine"]
    elif door == "pandas":
        return save({"mine": table}, folder)[0]["mine"]
    else:
        words = {name: str for name in table if table[name].dtype.kind == "O"}
        np.savez(path, **{name: table[name].to_numpy(dtype=words.get(name)) for name in table})
    return path


def reading(door: str, table: pd.DataFrame, label, client, folder: Path):
    """Return features by name, labels and clients as places in their sorted order; or that it is refused."""
    try:
        result = data.load(through(door, table, folder), label=label, client=client)
    except (InputError, pa.ArrowException, ValueError) as error:
        # pandas writes no Parquet with two columns of a name, numpy no archive; that is no reading of ours
        assert isinstance(error, InputError) or not table.columns.is_unique, error
        return "refused"
    codes = [
        None if of is None else np.unique(of, return_inverse=True)[1].tolist()
        for of in (result.labels, result.clients)
    ]
    return dict(zip(result.names, result.features.T.tolist(), strict=True)), *codes


def agreement(drawn, folder: Path) -> None:
    table, label, client = drawn
    typed = reading("parquet", table, label, client, folder)
    assert reading("pandas", table, label, client, folder) == typed
    if not any(
        isinstance(t, pd.CategoricalDtype) and pd.api.types.is_numeric_dtype(t.categories.dtype)
        for t in table.dtypes
    ):
        assert reading("polars", table, label, client, folder) == typed
    asked = {label or next((n for n in ("label", "target", "y") if n in table), None), client}
    plain = all(
        table.iloc[:, i].dtype.kind in "ifb" or name in asked for i, name in enumerate(table)
    )
    # CSV has no categories: such a column is text there, or numbers; and NA among numbers is a missing value
    words = [
        set(map(str, table[name])) for name in asked if name in table and table.columns.is_unique
    ]
    unsaid = any({"NA", "None"} & w and w <= {"NA", "None", "7", "1.5"} for w in words)
    if plain and not unsaid:
        assert reading("csv", table, label, client, folder) == typed
    kinds = {str(kind) for kind in table.dtypes}
    arrays = not kinds & {"category"} and not any("datetime" in kind for kind in kinds)
    if plain and arrays and table.columns.is_unique:
        assert reading("npz", table, label, client, folder) == typed


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=frames())
def test_all_doors_read_a_frame_alike(drawn, tmp_path_factory):
    agreement(drawn, tmp_path_factory.mktemp("doors"))


@pytest.mark.thorough
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=frames())
def test_all_doors_read_two_thousand_frames_alike(drawn, tmp_path_factory):
    agreement(drawn, tmp_path_factory.mktemp("doors"))
