"""Data of a user's own: tables and images in files and folders, labels of text, clients by a column."""

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch
from cli_kit import succeeds
from data_kit import forged_npz, npy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from test_images import refused

from raybench import data, problems
from raybench.core.errors import InputError
from raybench.data import Examples, images

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
    assert result.names == (
        "age",
        "hospital=Arles",
        "hospital=Basel",
        "hospital=Cork",
        "dose",
        "smokes",
    )
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
    with pytest.raises(InputError, match=r"tells 3 apart(.|\n)*clients: 3"):
        problems.build("softmax", {**asked, "clients": 4})


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
    problem = (
        "softmax:dataset=./mine.parquet,clients=3,split={column: hospital},test_set=./held.csv"
    )
    succeeds("run", "--algorithm", "gd", "--problem", problem, "--rounds", 3)


# Images of one's own ------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 3, 5, 4), np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])


def saved(path, **arrays):
    np.savez(path, **{"labels": LABELS, **arrays})
    return path


# npz ------------------------------------------------------------------------------------------------


def test_the_layouts_of_an_npz_are_the_same_data(tmp_path):
    first = images(saved(tmp_path / "a.npz", images=PIXELS)).train
    assert np.array_equal(first.inputs, PIXELS)
    assert np.array_equal(first.targets, LABELS)
    assert (first.name, first.kind, first.classes) == ("a.npz", "image", 3)
    assert (first.inputs.dtype, first.targets.dtype) == (np.uint8, np.int64)
    last = images(saved(tmp_path / "b.npz", images=PIXELS.transpose(0, 2, 3, 1))).train
    packed = tmp_path / "c.npz"
    np.savez_compressed(packed, images=PIXELS, labels=LABELS.astype(np.uint8))
    assert first.checksum == last.checksum == images(packed).train.checksum
    grey = images(saved(tmp_path / "d.npz", images=PIXELS[:, 0])).train
    assert np.array_equal(grey.inputs, PIXELS[:, :1])
    assert grey.checksum != first.checksum


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4"])
def test_floats_of_an_npz(tmp_path, kind):
    values = (PIXELS / 255).astype(kind)
    pair = images(
        saved(tmp_path / "a.npz", images=values, test_images=values[:2], test_labels=[3, 0])
    )
    assert pair.train.inputs.dtype == np.dtype("f4")
    assert np.array_equal(pair.train.inputs, values.astype("f4"))
    assert len(pair.test) == 2
    assert pair.train.classes == pair.test.classes == 4


GOOD = {"images": PIXELS, "labels": LABELS}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": PIXELS.astype("i8")}, ["images holds int64", "uint8 or floats in [0, 1]"]),
        ({"images": PIXELS > 9}, ["images holds bool"]),
        ({"images": PIXELS.astype(complex)}, ["holds complex128"]),
        ({"images": PIXELS.astype(object)}, ["images: Object arrays cannot be loaded"]),
        ({"images": PIXELS.astype("f4")}, ["outside of [0, 1]"]),
        ({"images": PIXELS / 255 - 1e-9}, ["outside of [0, 1]"]),
        ({"images": np.full((6, 4, 4), np.nan)}, ["not finite"]),
        ({"images": PIXELS[:, :2]}, ["(6, 2, 5, 4)", "C = 1 or 3"]),
        ({"images": PIXELS[:, 0, 0]}, ["(6, 4)", "(N, H, W)"]),
        ({"images": PIXELS[:, :, :0]}, ["(6, 3, 0, 4)"]),
        ({"images": np.uint8(3)}, ["the shape ()"]),
        ({"labels": LABELS[:5]}, ["6 images and 5 labels"]),
        ({"labels": LABELS[:, None]}, ["labels is int64 of shape (6, 1)", "one per image"]),
        ({"labels": LABELS / 2}, ["float64"]),
        ({"labels": LABELS - 1}, ["labels from -1 to 1", "from 0 to"]),
        ({"labels": LABELS * 10**6}, ["labels from 0 to 2,000,000", "0 to 65,535"]),
        ({"labels": np.full(6, 2**64 - 1)}, ["labels from 18,446,744,073,709,551,615"]),
        ({"labels": LABELS * 0 + 4}, ["a single class (4)"]),
        ({"test_images": PIXELS}, ["lacks the array test_labels"]),
        (
            {"test_images": PIXELS[:, :1], "test_labels": LABELS},
            ["differ, (3, 5, 4) and (1, 5, 4)"],
        ),
    ],
)
def test_arrays_that_are_no_images(tmp_path, change, words):
    path = tmp_path / "mine.npz"
    np.savez(path, **{**GOOD, **change})
    refused(path, *words)


def test_archives_that_lie(tmp_path):
    good, labels = npy(PIXELS), npy(LABELS)
    lie = npy(PIXELS, shape=(2**40, 3, 5, 4))
    path = forged_npz(tmp_path / "lie.npz", images=lie, labels=labels)
    refused(path, "lie.npz: images: ", "allocate")
    refused(forged_npz(tmp_path / "none.npz", images=good), "lacks the array labels", "numpy.savez")
    whole = forged_npz(tmp_path / "whole.npz", images=good, labels=labels).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-30])
    refused(tmp_path / "cut.npz", "cannot read cut.npz")
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", "is no image data", "a folder of pictures")


# Folders --------------------------------------------------------------------------------------------


def drawn(top, names, mode="RGB", size=(4, 5), ending=".png", count=3):
    """Write pictures of each class; return those that can be compared, (N, C, H, W)."""
    made = []
    for name in names:
        (top / name).mkdir(parents=True, exist_ok=True)
        for j in range(count):
            shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
            pixels = RANDOM.integers(0, 256, shape, np.uint8)
            Image.fromarray(pixels).save(top / name / f"{j}{ending}")
            made.append(np.atleast_3d(pixels).transpose(2, 0, 1))
    return np.stack(made)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_folder_is_what_was_drawn(tmp_path, mode):
    want = drawn(tmp_path / "mine", ["cat", "dog"], mode)
    (tmp_path / "mine" / "README.txt").write_text("beside the classes anything may lie")
    (tmp_path / "mine" / "cat" / ".hidden").write_text("")
    pair = images(tmp_path / "mine")
    assert pair.test is None
    assert np.array_equal(pair.train.inputs, want)
    assert list(pair.train.targets) == [0, 0, 0, 1, 1, 1]
    assert (pair.train.name, pair.train.classes) == ("mine", 2)
    same = saved(tmp_path / "a.npz", images=want, labels=pair.train.targets)
    assert images(same).train.checksum == pair.train.checksum


def test_a_folder_in_two_parts_and_resized(tmp_path):
    train = drawn(tmp_path / "train", ["a", "b", "c"])
    test = drawn(tmp_path / "test", ["c"], ending=".bmp")
    pair = images(tmp_path)
    assert np.array_equal(pair.train.inputs, train)
    assert np.array_equal(pair.test.inputs, test)
    assert (list(pair.test.targets), pair.test.classes) == ([2, 2, 2], 3)
    drawn(tmp_path / "test", ["b"], mode="L", size=(9, 9), ending=".jpg")
    refused(tmp_path, "9 x 9 pixels", "4 x 5", "such as size=32")
    sized = images(tmp_path, size=8)
    assert sized.train.inputs.shape == (9, 3, 8, 8)
    assert sized.test.inputs.shape == (6, 3, 8, 8)


def test_folders_that_are_no_images(tmp_path):
    refused(tmp_path, "has no folder of a class", "FOLDER/CLASS/PICTURES")
    drawn(tmp_path, ["a"])
    refused(tmp_path, "a single class (0)")
    (tmp_path / "b").mkdir()
    refused(tmp_path, "no valid file for the classes b")
    file = tmp_path / "b" / "0.txt"
    file.write_text("text")
    file = file.rename(file.with_suffix(".png"))
    refused(tmp_path, "cannot read", "b/0.png", "no format that is read")
    whole = (tmp_path / "a" / "0.png").read_bytes()
    for cut in (b"", whole[:-40], whole[:20], whole[:33] + whole[40:]):
        file.write_bytes(cut)
        refused(tmp_path, "cannot read", "b/0.png")
    # A picture of one colour: 12 KB that would become 48 MB.
    Image.new("RGB", (4000, 4000)).save(file)
    refused(tmp_path, "4000 x 4000 pixels", "more than 100 times", size=8)
    Image.fromarray(np.zeros((5, 4), np.uint16)).save(file)
    refused(tmp_path, "mode I;16", "8 bits per channel")
    file.unlink()
    drawn(tmp_path / "test", ["a"])
    refused(tmp_path, "has a folder test and no train")


# Examples -------------------------------------------------------------------------------------------


def test_rows_and_channels(tmp_path):
    train = images(saved(tmp_path / "a.npz", images=PIXELS)).train
    assert len(train.first(2)) == len(train[:2]) == len(train[LABELS == 1]) == 2
    assert np.array_equal(train[[3, 0]].inputs, PIXELS[[3, 0]])
    assert train[4].targets.tolist() == [1]
    assert train[:2].checksum == train.checksum
    with pytest.raises(InputError, match=r"first 7 examples[\s\S]*a.npz has 6"):
        train.first(7)
    values = PIXELS.transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert train.mean == pytest.approx(values.mean(1), rel=1e-14)
    assert train.std == pytest.approx(values.std(1), rel=1e-14)
    rows = Examples.of("x", np.ones((2, 3)), LABELS[:2], classes=2, source="", kind="features")
    with pytest.raises(ValueError, match="no channels"):
        rows.mean  # noqa: B018
