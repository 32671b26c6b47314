"""One table, whatever door it comes through: random frames as CSV, Parquet, frames in memory and arrays agree."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_kit import cli, ran
from data_kit import complaint, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import memory, reset_peak
from sklearn.datasets import load_svmlight_file

from raybench import data, problems
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
    except InputError:
        return "refused"
    except (pa.ArrowException, ValueError):
        if table.columns.is_unique:  # else pandas writes no Parquet
            raise
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.thorough)])
def test_all_doors_read_a_frame_alike(count, tmp_path_factory):
    @settings(max_examples=count)
    @given(frames())
    def read(drawn):
        agreement(drawn, tmp_path_factory.mktemp("doors"))

    read()


# What people bring ----------------------------------------------------------------------------------

IDS = np.array([1234567890123456789 + i for i in (0, 1, 2, 3)] * 5)
PLAIN = pd.DataFrame({"a": np.arange(20.0), "label": [0, 1] * 10, "user": IDS})


@pytest.mark.parametrize("door", ["csv", "parquet", "pandas", "polars", "npz"])
def test_ids_of_64_bits_stay_apart(door, tmp_path):
    result = data.load(through(door, PLAIN, tmp_path), client="user")
    assert result.clients.tolist() == IDS.tolist()
    assert result.about()[-1] == ("clients", f"4, with 5 ({IDS[0]}) to 5 ({IDS[0]}) rows")


@pytest.mark.parametrize("door", ["parquet", "pandas", "polars", "npz"])
def test_text_that_spells_numbers_is_no_feature(door, tmp_path):
    table = PLAIN.drop(columns="user").assign(code="7")
    refused(data.load, through(door, table, tmp_path), "column 'code'", "holds text, '7'")


def test_clients_and_classes_are_told_apart_as_they_are_spelled(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,label,site\n1,NA,007\n2,None,7\n3,NA,7\n")
    result = data.load(path, client="site")
    assert result.clients.tolist() == ["007", "7", "7"]
    assert result.classes.tolist() == ["NA", "None"]
    path.write_text("a,label\n1,0\n2,NA\n3,1\n")
    assert "lacks a value in row 3" in complaint(data.load, path)
    path.write_text("a,label,site\n+1,+1,10\n2,-1,9\n3,-1,9\n")
    result = data.load(path, client="site")
    assert result.features.tolist() == [[1.0], [2.0], [3.0]]
    assert result.labels.tolist() == [1.0, -1.0, -1.0]
    assert result.clients.tolist() == [10, 9, 9]


def test_categories_of_numbers_are_categories_behind_every_door(tmp_path):
    table = PLAIN.assign(kind=pd.Categorical([3, 1] * 10, categories=[1, 2, 3]))
    for door in ("parquet", "pandas"):
        result = data.load(through(door, table.drop(columns="user"), tmp_path))
        assert result.names == ("a", "kind=1", "kind=3")
        assert result.features[:2].tolist() == [[0, 0, 1], [1, 1, 0]]
        assert result.categories == ("kind",)


def test_names_of_rows_are_no_feature(tmp_path):
    table = PLAIN.set_index("user")
    result = data.load(through("parquet", table, tmp_path))
    assert result.names == ("a",)
    said = complaint(data.load, tmp_path / "mine.parquet", client="user")
    assert "names of the rows" in said
    assert "reset_index()" in said


def test_frames_in_memory_keep_categories_of_labels_and_clients(tmp_path):
    words = polars.Series(["x", "y"] * 10)
    kinds = [polars.Categorical, polars.Enum(["y", "x"]), polars.String]
    for kind in kinds:
        frame = polars.DataFrame({"a": np.arange(20.0), "label": words.cast(kind), "site": words})
        path = save({"mine": frame}, tmp_path)[0]["mine"]
        result = data.load(path, client="site")
        assert result.labels.tolist() == result.clients.tolist() == ["x", "y"] * 10
    table = PLAIN.astype({"label": "category", "user": "category"})
    result = data.load(save({"mine": table}, tmp_path)[0]["mine"], client="user")
    assert result.labels.tolist() == [0.0, 1.0] * 10
    assert result.clients.tolist() == IDS.tolist()


def test_a_test_part_may_lack_a_category_and_have_no_new_one(tmp_path):
    train = pd.DataFrame({"city": list("abc"), "label": [0, 1, 0]}).astype({"city": "category"})
    test = pd.DataFrame({"city": list("ca"), "label": [0, 1]}).astype({"city": "category"})
    like = data.load(through("parquet", train, tmp_path))
    features, _ = data.load_test(through("parquet", test, tmp_path), like)
    assert features.tolist() == [[0, 0, 1], [1, 0, 0]]
    test["city"] = test["city"].cat.rename_categories({"c": "d"})
    assert "'city=d'" in complaint(data.load_test, through("parquet", test, tmp_path), like)


WRONG = {
    "r.csv": (b'"a","label"\n"1",0.5,1\n"2",0.7,0\n', "if the first is the row's name"),
    "twice.csv": (b"a,label,label\n1,0,1\n2,1,0\n", "two columns 'label'"),
    "german.csv": (b"a;label\n1;0\n2;1\n", "separated by ';'"),
    "book.xlsx": (b"PK\x03\x04", "an Excel workbook"),
    "one.npy": (b"\x93NUMPY", "a single array of numpy"),
    "rows.json": (b"[]", "JSON"),
    "all.zip": (b"PK\x03\x04", "a zip archive"),
    "large.csv": (b"a,label\n1,1234567890123456789\n2,0\n", "tells the client"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_as_it_was_meant_is_refused(name, tmp_path):
    content, says = WRONG[name]
    (tmp_path / name).write_bytes(content)
    assert says in complaint(data.load, tmp_path / name)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (pd.DataFrame([[1.0, 2.0, 0]], columns=["a", "a", "label"]), "two columns 'a'"),
        (polars.DataFrame({"a": [[1.0, 2.0]] * 3, "label": [0, 1, 0]}), "list"),
        (pd.DataFrame({"a": [1, "x"], "label": [0, 1]}), "x"),
    ],
)
def test_frames_that_cannot_be_data_are_refused(value, says, tmp_path):
    with pytest.raises(InputError, match=says):
        data.load(save({"mine": value}, tmp_path)[0]["mine"])


def test_a_tensor_with_a_gradient_is_refused_with_the_way_out(tmp_path):
    import torch

    X = torch.ones(4, 2, requires_grad=True)
    with pytest.raises(InputError, match="detach"):
        save({"mine": (X, [0, 1, 0, 1])}, tmp_path)


def test_few_bytes_become_few_bytes(tmp_path):
    """A dictionary page of one value for millions of rows, and one long text for many rows."""
    zeros, long = pa.array(np.zeros(10**7, np.int8)), "x" * 10**5
    table = pa.table({"a": zeros, "label": zeros})
    rows = len(zeros)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows, max_rows_per_page=rows)
    refused(data.load, tmp_path / "a.parquet", "more than 10,000 times")
    text = pa.DictionaryArray.from_arrays(pa.array(np.arange(4000) % 2), pa.array([long, "y"]))
    numbers = pa.array(np.arange(4000.0))
    pq.write_table(
        pa.table({"a": numbers, "label": text.cast(pa.string())}), tmp_path / "b.parquet"
    )
    before = reset_peak()
    assert data.load(tmp_path / "b.parquet").classes.tolist() == [long, "y"]
    (tmp_path / "c.csv").write_text("a,label\n" + f"1,{'x' * 10**5}\n" + "2,y\n" * 5000)
    assert data.load(tmp_path / "c.csv").shape == (5001, 1)
    assert memory("VmHWM") - before < 100 * 2**20  # of 200 MB where each row had its own text


# LIBSVM -----------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.sampled_from([-1.0, 1.0, 2.5]),
        st.dictionaries(st.integers(1, 9), st.floats(-1e9, 1e9, allow_nan=False), max_size=4),
    ),
    min_size=2,
    max_size=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, mark=st.booleans(), d=st.sampled_from([None, 9, 12]))
def test_libsvm_text_is_what_scikit_learn_reads(rows, mark, d, tmp_path):
    text = "".join(
        f"{y!r} {' '.join(f'{i}:{v!r}' for i, v in sorted(x.items()))}\n" for y, x in rows
    )
    X, y = load_svmlight_file(io.BytesIO(text.encode()), n_features=d, zero_based=False)
    path = tmp_path / "mine"
    path.write_bytes(b"\xef\xbb\xbf" * mark + text.encode())
    if len(set(y)) < 2:
        assert "single class" in complaint(data.load, path, features=d)
        return
    result = data.load(path, features=d)
    assert np.array_equal(result.features.toarray(), X.toarray())
    assert np.array_equal(result.labels, y)


def test_a_training_file_may_lack_the_last_features(tmp_path):
    (tmp_path / "train").write_text("1 1:1 3:2\n2 2:1\n1 1:3\n2 3:1\n")
    (tmp_path / "test").write_text("2 1:1\n1 5:4\n")
    asked = {"dataset": f"{tmp_path}/train", "clients": 2, "test_set": f"{tmp_path}/test"}
    assert "features: 5" in complaint(problems.build, "logistic", asked)
    problem = problems.build("logistic", {**asked, "features": 5})
    assert problem.dim == 5
    assert problem.test.features.toarray()[1].tolist() == [0, 0, 0, 0, 4]


# Seen before it is run ----------------------------------------------------------------------------------


def test_show_and_plan_say_what_was_read(tmp_path, monkeypatch):
    through("csv", PLAIN, tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = ran("show", "./mine.csv")
    assert "label, 2 classes (rows): 0 (10), 1 (10)" in " ".join(shown.out.split())
    problem = "{name: logistic, dataset: ./mine.csv, split: {column: user}}"
    (tmp_path / "s.yaml").write_text(f"name: s\nproblem: {problem}\nalgorithm: gd\nrounds: 2\n")
    planned = cli("plan", "s.yaml", "--no-measure")
    said = " ".join(planned.out.split())
    assert "regularizer=nonconvex, lambda=0.1" in said, planned.err
    assert "features: 1: a" in said
    assert "clients: 4, with 5" in said
