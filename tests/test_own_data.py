"""Data of a user's own: CSV, Parquet and .npz files, labels of text, clients by a column, a test set."""

import contextlib
import re

import numpy as np
import pandas as pd
import pytest
import torch
from cli_kit import cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybench import data, problems
from raybench.core.errors import InputError

pytestmark = pytest.mark.thorough

HOSPITALS = np.array(["Basel", "Arles", "Basel", "Cork", "Arles", "Basel"] * 5)
KINDS = np.array(["flu", "cold", "none", "flu", "none", "cold"] * 5)


def frame(rows=30, seed=0):
    """Two features, a label of text with three classes, and a column that tells one of three hospitals."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal((rows, 2))
    return pd.DataFrame(
        {
            "age": numbers[:, 0],
            "hospital": HOSPITALS[:rows],
            "label": KINDS[:rows],
            "dose": numbers[:, 1],
        }
    )


def write(table, path):
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif path.suffix == ".npz":
        np.savez(path, **{name: table[name].to_numpy(dtype=table[name].dtype if table[name].dtype.kind == "f" else str) for name in table})  # fmt: skip
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return str(path)


ENDINGS = (".csv", ".tsv", ".csv.gz", ".parquet", ".npz")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_table_is_the_same_from_every_kind_of_file(tmp_path, ending):
    table = frame()
    result = data.load(write(table, tmp_path / f"mine{ending}"), client="hospital")
    assert np.array_equal(result.features, table[["age", "dose"]].to_numpy())  # to the last bit
    assert result.labels.tolist() == KINDS.tolist()
    assert result.classes.tolist() == ["cold", "flu", "none"]
    assert result.clients.tolist() == HOSPITALS.tolist()
    assert result.names == ("age", "dose")


def test_arrays_of_an_npz(tmp_path):
    table = frame()
    X, path = table[["age", "dose"]].to_numpy(), tmp_path / "mine.npz"
    np.savez(path, X=X, y=KINDS, client=np.arange(30) % 4)
    result = data.load(path, client="client")
    assert np.array_equal(result.features, X)
    assert result.labels.tolist() == KINDS.tolist()
    assert result.clients.tolist() == [i % 4 for i in range(30)]
    np.savez(path, X=X, y=KINDS, other=np.arange(30) % 2)
    assert data.load(path, label="other").classes.tolist() == [0, 1]


def test_categories_become_columns_and_truth_values_numbers(tmp_path):
    table = frame()
    table["hospital"] = table["hospital"].astype("category")
    table["smokes"] = np.arange(30) % 2 == 0
    result = data.load(write(table, tmp_path / "mine.parquet"))
    hospitals = [f"hospital={name}" for name in ("Arles", "Basel", "Cork")]
    assert result.names == ("age", *hospitals, "dose", "smokes")
    assert result.features[:, 2].tolist() == (HOSPITALS == "Basel").astype(float).tolist()
    assert result.features[:, 5].tolist() == [1.0, 0.0] * 15


def test_clients_are_those_of_the_column(tmp_path):
    path = write(frame(), tmp_path / "mine.csv")
    asked = {"dataset": path, "clients": 3, "split": {"column": "hospital"}}
    problem = problems.build("softmax", asked)
    for i, name in enumerate(("Arles", "Basel", "Cork")):
        A, y = problem.rows.parts()[i]
        own = frame()[name == HOSPITALS]
        assert np.array_equal(A, own[["age", "dose"]].to_numpy())
        assert y.tolist() == np.searchsorted(["cold", "flu", "none"], own["label"]).tolist()
    held = problems.build("softmax", {**asked, "test_size": 0.3})
    assert sum(held.rows.counts) + sum(held.test.counts) == 30
    with pytest.raises(InputError, match=r"tells 3 apart(.|\n)*clients: 3, or leave it out"):
        problems.build("softmax", {**asked, "clients": 4})


@pytest.mark.parametrize(
    "name", ["softmax", "least_squares", "logistic", "nonconvex_classification"]
)
def test_clients_of_a_column_need_no_number(tmp_path, name):
    asked = {"name": name, "dataset": write(frame(), tmp_path / "mine.csv")}
    asked |= {} if name in ("softmax", "least_squares") else {"positive": [["flu"]]}
    grouped = {**asked, "split": {"column": "hospital"}}
    two = [problems.read({**grouped, **clients}) for clients in ({}, {"clients": 3})]
    assert [p.n for p in two] == [3, 3]
    x = torch.randn(2, two[0].dim, generator=torch.Generator().manual_seed(0)).double()
    for a, b in zip(*(p.oracle(x) for p in two), strict=True):
        assert torch.equal(a, b)
    for split in ({}, {"split": "shuffled"}):
        with pytest.raises(InputError, match=r"problem.clients: required(.|\n)*column: NAME"):
            problems.read({**asked, **split})


@pytest.mark.parametrize("name", ["softmax", "least_squares"])
def test_labels_of_text_are_numbered_in_their_order(tmp_path, name):
    path, table = write(frame(), tmp_path / "a.csv"), frame()
    table["label"] = np.searchsorted(["cold", "flu", "none"], KINDS)
    numbers = write(table, tmp_path / "b.csv")
    common = {"clients": 3, "split": {"column": "hospital"}}
    one, two = (problems.build(name, {"dataset": p, **common}) for p in (path, numbers))
    x = torch.randn(2, one.dim, generator=torch.Generator().manual_seed(0)).double()
    for a, b in zip(one.oracle(x), two.oracle(x), strict=True):
        assert torch.equal(a, b)


def test_two_classes_of_text(tmp_path):
    path = write(frame().drop(columns="hospital"), tmp_path / "mine.csv")
    problem = problems.build("logistic", {"dataset": path, "clients": 2, "positive": ["flu"]})
    assert problem.data.binary().tolist() == np.where(KINDS == "flu", 1.0, -1.0).tolist()
    with pytest.raises(InputError, match=r"no label cough(.|\n)*cold, flu, none"):
        problems.build("logistic", {"dataset": path, "clients": 2, "positive": ["cough"]})
    with pytest.raises(InputError, match=r"two classes are needed(.|\n)*softmax"):
        problems.build("logistic", {"dataset": path, "clients": 2})


@pytest.mark.parametrize("scale", ["none", "rows", "columns"])
def test_a_test_set_is_prepared_as_the_training_set(tmp_path, scale):
    train, test = frame(), frame(12, seed=5)[["label", "dose", "age"]]  # in another order
    asked = {"dataset": write(train, tmp_path / "train.csv"), "clients": 3, "scale": scale}
    asked |= {"split": {"column": "hospital"}, "intercept": True}
    problem = problems.build("softmax", {**asked, "test_set": write(test, tmp_path / "test.csv")})
    X = test[["age", "dose"]].to_numpy()
    if scale == "rows":
        X = X / np.linalg.norm(X, axis=1, keepdims=True)
    elif scale == "columns":
        X = X / train[["age", "dose"]].abs().max().to_numpy()
    assert np.allclose(problem.test.features, np.hstack([X, np.ones((12, 1))]), rtol=1e-14)
    assert sum(problem.rows.counts) == 30
    assert set(problem.evaluate(problem.start()[None])) == {"accuracy", "test_loss"}


def test_a_test_set_of_one_class_and_fewer_features(tmp_path):
    (tmp_path / "train").write_text("1 1:1 3:2\n2 2:1\n1 1:3\n2 3:1\n")
    (tmp_path / "test").write_text("2 1:1\n2 2:4\n")
    asked = {"dataset": f"{tmp_path}/train", "clients": 2, "test_set": f"{tmp_path}/test"}
    problem = problems.build("logistic", asked)
    assert problem.test.labels.tolist() == [1, 1]
    assert problem.test.features.toarray().tolist() == [[1, 0, 0], [0, 4, 0]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.assign(label=["cough"] * 12), "the label cough, which train.csv lacks"),
        (
            lambda t: t.drop(columns="dose"),
            "column 'dose' is in one of train.csv and test.csv only",
        ),
    ],
)
def test_test_sets_that_do_not_fit(tmp_path, change, said):
    asked = {
        "dataset": write(frame().drop(columns="hospital"), tmp_path / "train.csv"),
        "clients": 3,
    }
    test = write(change(frame(12).drop(columns="hospital")), tmp_path / "test.csv")
    with pytest.raises(InputError, match="test_set") as error:
        problems.build("softmax", {**asked, "test_set": test})
    assert said in str(error.value)
    with pytest.raises(InputError, match="test_size as well"):
        problems.build("softmax", {**asked, "test_set": asked["dataset"], "test_size": 0.2})


# What is wrong ---------------------------------------------------------------------------------------

WRONG = {
    "text.csv": (
        "label,a,city\n1,2,Basel\n0,3,Cork\n",
        "'city' of text.csv holds text, 'Basel' in row 2",
    ),
    "word.csv": ("label,a\n1,2\n0,3\n1,four\n", "'a' of word.csv holds text, 'four' in row 4"),
    "gap.csv": ("label,a,b\n1,2,3\n0,,4\n", "column 'a' of gap.csv lacks a value in row 3"),
    "nolabel.csv": ("label,a\n1,2\n,3\n", "column 'label' of nolabel.csv lacks a value in row 3"),
    "inf.csv": ("label,a\n1,2\n0,inf\n", "'a' of inf.csv is not finite in row 3"),
    "other.csv": ("kind,a\n1,2\n0,3\n", "other.csv has no column label, target or y"),
    "empty.csv": ("", "empty.csv is empty"),
    "heads.csv": ("label,a\n", "heads.csv has columns and no rows"),
    "alone.csv": ("label\n1\n0\n", "alone.csv has no column of features"),
    "long.csv": ("label,a\n1,2\n1,2,3\n", "long.csv"),
    "bare.csv": ("1,2.5\n0,3\n", "bare.csv starts with a line of numbers"),
    "index.csv": (",label,a\n0,1,2\n1,0,3\n", "column 1 of index.csv has no name"),
    "latin.csv": ("label,größe\n1,2\n".encode("latin-1"), "latin.csv is not UTF-8 text"),
    "binary.csv": (b"PAR1\x15\x04\x00", "binary.csv is no text, but Parquet"),
    "zeros.csv": (b"label,a\n\0\0\0", "zeros.csv is no text"),
    "csv.parquet": ("label,a\n1,2\n", "csv.parquet is not Parquet"),
    "cut.parquet": (b"PAR1\x15\x04PAR1", "cannot read cut.parquet"),
    "parquet.txt": (b"PAR1\x15\x04PAR1", "parquet.txt is no text, but Parquet"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_file_column_and_fix(tmp_path, name):
    content, said = WRONG[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        data.load(tmp_path / name)
    (complaint,) = error.value.complaints
    assert said in complaint.what
    assert complaint.where.startswith("problem.")
    assert complaint.fix
    if name == "text.csv":
        assert "pandas.get_dummies(frame, columns=['city'], dtype=float)" in complaint.fix


def test_columns_that_are_not_there(tmp_path):
    path = write(frame(), tmp_path / "mine.csv")
    for asked in ({"label": "lable"}, {"client": "hospitol"}):
        with pytest.raises(InputError, match=r"mine.csv has no column(.|\n)*did you mean"):
            data.load(path, **asked)
    with pytest.raises(InputError, match="cannot tell the client as well"):
        data.load(path, client="label")
    with pytest.raises(InputError, match="digits has no column 'hospital'"):
        data.load("digits", client="hospital")
    np.savez(tmp_path / "short.npz", X=np.ones((4, 2)), y=np.arange(4), client=np.arange(3))
    with pytest.raises(InputError, match=r"short.npz has 4 rows and client of shape \(3,\)"):
        data.load(tmp_path / "short.npz", client="client")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.text("label,y a1.-e\n\"'\t\r", max_size=80).map(str.encode),
    ),
    ending=st.sampled_from([".csv", ".tsv", ".parquet", ".npz"]),
)
def test_any_content_loads_or_is_an_input_error(tmp_path, content, ending):
    path = tmp_path / f"any{ending}"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        result = data.load(path)
        assert np.isfinite(result.features).all()
        assert len(result.labels) == len(result.features)


# At the command line ---------------------------------------------------------------------------------


def test_a_table_runs_from_the_command_line(tmp_path, monkeypatch):
    write(frame(), tmp_path / "mine.parquet")
    write(frame(12, seed=4).drop(columns="hospital"), tmp_path / "held.csv")
    monkeypatch.chdir(tmp_path)
    problem = "softmax:dataset=./mine.parquet,split={column: hospital},test_set=./held.csv"
    told = cli("run", "--algorithm", "gd", "--problem", problem, "--rounds", 3)
    assert told.code == 0, told.err
    shown = cli("show", problem)  # the column's clients, not those of the usual problem
    assert shown.code == 0, shown.err
    assert re.search(r"^ +n +3$", shown.out, re.MULTILINE), shown.out
    missing = cli("run", "--algorithm", "gd", "--problem", "softmax:dataset=./mine.parquet")
    assert missing.code == 2
    assert "error: problem.clients: required\n" in missing.err
    assert "split: {column: NAME}" in missing.err
