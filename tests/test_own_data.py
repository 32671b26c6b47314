"""Data of a user's own: files, arrays and frames, labels of text, clients by a column, splits, a test set."""

import io
import re
import zipfile

import numpy as np
import pandas as pd
import polars
import pytest
import scipy.sparse
import torch
from cli_kit import cli, ran
from data_kit import complaint
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import first_of_each

import raybench
from raybench import data, problems
from raybench.core.errors import InputError
from raybench.data.session import packed

HOSPITALS = np.array(["Basel", "Arles", "Basel", "Cork", "Arles", "Basel"] * 5)
KINDS = np.array(["flu", "cold", "none", "flu", "none", "cold"] * 5)


def frame(rows=30, seed=0):
    """Two features, a label of text with three classes, and a column that tells one of three hospitals."""
    random = np.random.default_rng(seed)
    age, dose = random.standard_normal((rows, 2)).T
    text = {"hospital": HOSPITALS[:rows], "label": KINDS[:rows]}
    return pd.DataFrame({"age": age, **text, "dose": dose})


def write(table, path):
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif path.suffix == ".npz":
        kinds = {name: float if table[name].dtype.kind == "f" else str for name in table}
        np.savez(path, **{name: table[name].to_numpy(dtype=kinds[name]) for name in table})
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
    first = data.load(tmp_path / f"mine{ending}", client="hospital", rows=4)
    assert first.clients.tolist() == HOSPITALS[:4].tolist()


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
    "name", first_of_each(["softmax", "least_squares", "logistic", "nonconvex_classification"])
)
def test_clients_of_a_column_need_no_number(tmp_path, name):
    asked = {"name": name, "dataset": write(frame(), tmp_path / "mine.csv")}
    asked |= {} if name in ("softmax", "least_squares") else {"positive": [["flu"]]}
    grouped = {**asked, "split": {"column": "hospital"}}
    two = [problems.read_problem({**grouped, **clients}) for clients in ({}, {"clients": 3})]
    assert [p.n for p in two] == [3, 3]
    x = torch.randn(2, two[0].dim, generator=torch.Generator().manual_seed(0)).double()
    for a, b in zip(*(p.oracle(x) for p in two), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match=r"problem.clients: required(.|\n)*column: NAME"):
        problems.read_problem({**asked, "split": "shuffled"})


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.assign(label=["cough"] * 12), "the label cough, which train.csv lacks"),
        (lambda t: t.drop(columns="dose"), "'dose' is in one of train.csv and test.csv only"),
    ],
)
def test_test_sets_that_do_not_fit(tmp_path, change, said):
    train = write(frame().drop(columns="hospital"), tmp_path / "train.csv")
    asked = {"dataset": train, "clients": 3}
    test = write(change(frame(12).drop(columns="hospital")), tmp_path / "test.csv")
    with pytest.raises(InputError, match="test_set") as error:
        problems.build("softmax", {**asked, "test_set": test})
    assert said in str(error.value)
    with pytest.raises(InputError, match="test_size as well"):
        problems.build("softmax", {**asked, "test_set": asked["dataset"], "test_size": 0.2})


# What is wrong ---------------------------------------------------------------------------------------

WRONG = {
    "text.csv": ("label,a,city\n1,2,Basel\n0,3,Cork\n", "'city' of text.csv holds text, 'Basel'"),
    "word.csv": ("label,a\n1,2\n0,3\n1,four\n", "'a' of word.csv holds text, 'four' in row 4"),
    "gap.csv": ("label,a,b\n1,2,3\n0,,4\n", "column 'a' of gap.csv lacks a value in row 3"),
    "inf.csv": ("label,a\n1,2\n0,inf\n", "'a' of inf.csv is not finite in row 3"),
    "other.csv": ("kind,a\n1,2\n0,3\n", "other.csv has no column label, target or y"),
    "heads.csv": ("label,a\n", "heads.csv has columns and no rows"),
    "alone.csv": ("label\n1\n0\n", "alone.csv has no column of features"),
    "index.csv": (",label,a\n0,1,2\n1,0,3\n", "column 1 of index.csv has no name"),
    "latin.csv": ("label,größe\n1,2\n".encode("latin-1"), "latin.csv is not UTF-8 text"),
    "binary.csv": (b"PAR1\x15\x04\x00", "binary.csv is no text, but Parquet"),
    "csv.parquet": ("label,a\n1,2\n", "csv.parquet is not Parquet"),
    "cut.parquet": (b"PAR1\x15\x04PAR1", "cannot read cut.parquet"),
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


# At the command line ---------------------------------------------------------------------------------


def test_a_table_runs_from_the_command_line(tmp_path, monkeypatch):
    write(frame(), tmp_path / "mine.parquet")
    write(frame(12, seed=4).drop(columns="hospital"), tmp_path / "held.csv")
    monkeypatch.chdir(tmp_path)
    problem = "softmax:dataset=./mine.parquet,split={column: hospital},test_set=./held.csv"
    ran("run", "--algorithm", "gd", "--problem", problem, "--rounds", 3)
    shown = ran("show", problem)  # the column's clients, not those of the usual problem
    assert re.search(r"^ +n +3$", shown.out, re.MULTILINE), shown.out
    plain = ("run", "--algorithm", "gd", "--problem", "softmax", "--dataset", "./held.csv")
    usual = ran(*plain, "--rounds", 3)
    assert "10 clients: --clients N takes another number" in usual.err
    asked = cli(*plain, "--rounds", 3, "--clients", 2)
    assert (asked.code, "--clients N" in asked.err) == (0, False), asked.err


# Arrays and frames --------------------------------------------------------------------------------


random = np.random.default_rng(0)
X = random.standard_normal((40, 3))
Y = np.array(["a", "b", "c"])[X.argmax(1)]
CLIENT = np.arange(40) % 4
FRAME = pd.DataFrame(X, columns=["u", "v", "w"]).assign(label=Y, client=CLIENT)


def config(**problem):
    section = {"name": "softmax", "dataset": "mine", "clients": 4, "split": {"column": "client"}}
    return {
        "problem": {**section, "regularizer": "l2", "lambda": 0.01, **problem},
        "algorithm": "gd",
        "rounds": 5,
    }


def test_equal_data_make_equal_files():
    one = packed("mine", (np.arange(6).reshape(3, 2), ["a", "b", "a"]))
    same = np.array(["a", "b", "a"], "<U9")
    assert one == packed("mine", (np.arange(6.0).reshape(3, 2).tolist(), same))
    assert one != packed("mine", (np.arange(6).reshape(3, 2), ["a", "b", "b"]))
    with zipfile.ZipFile(io.BytesIO(one)) as file:
        assert [entry.date_time[0] for entry in file.infolist()] == [1980, 1980]


def test_all_forms_give_the_same_curve():
    forms = [(X, Y, CLIENT), {"X": X, "y": Y, "client": CLIENT}, FRAME]
    forms += [FRAME.astype({"label": kind}) for kind in ("category", object)]
    forms += [polars.DataFrame({name: FRAME[name].to_list() for name in FRAME})]
    curves = [raybench.run(config(), data={"mine": form})["loss"].tolist() for form in forms]
    assert all(curve == curves[0] for curve in curves)
    assert curves[0][-1] < curves[0][0]


def test_a_sweep_finds_its_data_again(tmp_path):
    given = {"mine": (X, Y, CLIENT), "held": (X[:9], Y[:9])}
    asked = {**config(test_set="held"), "step_size": {"theory": [1, 2]}}
    out = tmp_path / "results"
    first = raybench.sweep(asked, out, inline=True, data=given)
    assert first.counts["ok"] == 2
    files = sorted((out / "data").rglob("*.npz"))
    assert [file.name for file in files if file.name != "mine.npz"] == ["held.npz"]
    again = raybench.sweep(asked, out, inline=True, data=given)
    assert again.plan.missing == 0
    alone = raybench.sweep(out / "sweep.yaml", out, inline=True)  # without the arrays
    assert alone.plan.missing == 0
    fresh = raybench.sweep(asked, out, inline=True, fresh=True, data=given)
    assert fresh.counts["ok"] == 2
    assert sorted((out / "data").rglob("*.npz")) == files
    curve = raybench.load(out)
    assert curve["test_loss"].notna().all()


NO_DATA = {
    "sparse": (scipy.sparse.csr_array(X), r"data.mine.X: is a sparse matrix(.|\n)*toarray"),
    "list": ([1, 2], "data.mine: list is no data set"),
    "objects": ((X, [None, *Y[1:]]), "data.mine.y: holds object, such as None"),
    "gap": (FRAME.assign(u=[np.nan, *X[1:, 0]]), "data.mine.u: lacks a value in row 0"),
    "text": (FRAME.assign(city="Basel"), "column 'city' of mine.npz holds text"),
    "clients": ((X, Y), "has no column 'client'"),
}


@pytest.mark.parametrize("case", NO_DATA)
def test_what_is_no_data_is_refused_and_nothing_is_run(tmp_path, case):
    given, said = NO_DATA[case]
    given = (given, Y) if case == "sparse" else given
    with pytest.raises(InputError, match=said):
        raybench.run(config(), data={"mine": given})


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("digits", {"dataset": "digits"}, "a data set that raybench knows"),
        ("a/b", {"dataset": "a/b"}, "is no name for data"),
        ("mine", {"dataset": "digits"}, r"no problem names it(.|\n)*dataset: mine"),
        ("mine", {"clents": 3}, "did you mean clients"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, name, change, said):
    out = tmp_path / "new" / "results"
    with pytest.raises(InputError, match=said):
        raybench.sweep(config(**change), out, inline=True, data={name: (X, Y, CLIENT)})
    assert list(tmp_path.iterdir()) == []


def test_data_is_not_written_through_a_link(tmp_path):
    for name in ("out", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "out/data").symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match="data is a link"):
        raybench.sweep(config(), tmp_path / "out", data={"mine": (X, Y, CLIENT)}, inline=True)
    assert not any((tmp_path / "theirs").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        raybench.sweep(config(), tmp_path / "file", inline=True, data={"mine": (X, Y, CLIENT)})


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_workers_of_ray_find_the_data(tmp_path):
    """Two batches on two workers, each with a test set of its own: what they record is what one process does."""
    given = {"mine": (X, Y, CLIENT), "held": (X[:9], Y[:9])}
    methods = {"algorithm": ["gd", "ef21"], "compressor": {"name": "top_k", "k": 2}}
    asked = {**config(test_set="held"), **methods}
    more = {"data": given, "sets": ["resources.workers=2"]}
    one = raybench.sweep(asked, tmp_path / "one", inline=True, **more)
    two = raybench.sweep(asked, tmp_path / "two", address="local", **more)
    assert one.counts["ok"] == two.counts["ok"] == 2
    here, there = raybench.load(tmp_path / "one"), raybench.load(tmp_path / "two")
    assert set(there["cell"]) == set(here["cell"])
    for name in ("loss", "test_loss", "bits_up"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-12)
    assert raybench.sweep(asked, tmp_path / "two", inline=True, **more).plan.missing == 0


# How rows are dealt out to clients ----------------------------------------------------------------


SPLITS = st.sampled_from(["contiguous", "shuffled", "sorted_by_label"])
LABELS = st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=60).map(np.array)


@example(np.array([1.0, 0, 2, 0, 1]), 2, "sorted_by_label", "drop", 0)
@given(LABELS, st.integers(1, 20), SPLITS, st.sampled_from(["drop", "last"]), st.integers(0, 5))
def test_equal_splits_are_partitions(labels, clients, how, remainder, seed):
    if clients > len(labels):
        said = complaint(data.split, labels, clients, how, remainder=remainder, seed=seed)
        assert "problem.clients" in said
        return
    parts = data.split(labels, clients, how, remainder=remainder, seed=seed)
    size, rest = divmod(len(labels), clients)
    sizes = [len(p) for p in parts]
    assert sizes[:-1] == [size] * (clients - 1)
    assert sizes[-1] == size + (rest if remainder == "last" else 0)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows) == sum(sizes)
    if how == "contiguous":
        assert np.array_equal(rows, np.arange(len(rows)))
    if how == "sorted_by_label":  # and within a label in the order of the file
        assert rows.tolist() == sorted(range(len(labels)), key=labels.__getitem__)[: len(rows)]
    again = data.split(labels, clients, how, remainder=remainder, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))


@given(LABELS, st.integers(1, 6), st.floats(0.05, 100), st.integers(0, 5))
def test_dirichlet_is_a_partition(labels, clients, alpha, seed):
    if clients > len(labels):
        said = complaint(data.split, labels, clients, {"dirichlet": alpha})
        assert "problem.clients" in said
        return
    try:
        parts = data.split(labels, clients, {"dirichlet": alpha}, seed=seed)
    except InputError:
        assert clients > 1  # one client can never be empty
        return
    assert len(parts) == clients
    assert min(map(len, parts)) > 0
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


def test_clients_draw_their_rows_of_a_class():
    parts = data.split(np.zeros(60), 2, {"dirichlet": 100.0})
    assert not np.array_equal(parts[0], np.arange(len(parts[0]))), "the first rows of the file"


@example(20, 3, 0.0, 0)
@example(20, 3, 1.0, 0)
@given(st.integers(2, 60), st.integers(1, 20), st.floats(0, 1), st.integers(0, 3))
def test_holdout_mix(rows, clients, p, seed):
    labels = np.zeros(rows)
    if clients > rows - 1:
        assert "problem.clients" in complaint(data.split, labels, clients, {"holdout_mix": p})
        return
    parts = data.split(labels, clients, {"holdout_mix": p}, seed=seed)
    assert {len(q) for q in parts} == {rows // (clients + 1)}
    held, *others = data.split(labels, clients, {"holdout_mix": 1.0}, seed=seed)
    assert all(np.array_equal(other, held) for other in others)
    apart = data.split(labels, clients, {"holdout_mix": 0.0}, seed=seed)
    assert len(np.unique([*apart, held])) == sum(map(len, apart)) + len(held)
    for mixed, own in zip(parts, apart, strict=True):
        assert ((mixed == own) | (mixed == held)).all()
    if p in (0, 1):
        assert all(np.array_equal(q, held if p else own) for q, own in zip(parts, apart))


@given(st.integers(2, 200), st.floats(0, 0.99), st.integers(0, 9))
def test_hold_out(rows, share, seed):
    size = round(rows * share)
    if share > 0 and not 0 < size < rows:
        assert "problem.test_size" in complaint(data.hold_out, rows, share, seed)
        return
    train, test = data.hold_out(rows, share, seed)
    assert len(test) == size
    assert (np.diff(train) > 0).all(), "in the order of the file"
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(rows))
