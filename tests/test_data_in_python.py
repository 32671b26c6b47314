"""Arrays and frames given to ``raybench.sweep`` and ``raybench.run``: saved by content, found again, refused."""

import io
import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import raybench
from raybench.core.errors import InputError
from raybench.data.session import packed

pytestmark = pytest.mark.thorough

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


def cells(config, **kwargs):
    return set(raybench.run(config, **kwargs)["cell"])


def test_equal_data_make_equal_files():
    one = packed("mine", (np.arange(6).reshape(3, 2), ["a", "b", "a"]))
    same = np.array(["a", "b", "a"], "<U9")
    assert one == packed("mine", (np.arange(6.0).reshape(3, 2).tolist(), same))
    assert one != packed("mine", (np.arange(6).reshape(3, 2), ["a", "b", "b"]))
    with zipfile.ZipFile(io.BytesIO(one)) as file:
        assert [entry.date_time[0] for entry in file.infolist()] == [1980, 1980]


def test_all_forms_give_the_same_curve():
    forms = [
        (X, Y, CLIENT),
        {"X": X, "y": Y, "client": CLIENT},
        FRAME,
        FRAME.astype({"label": "category"}),
        FRAME.astype({"label": object}),
    ]
    curves = [raybench.run(config(), data={"mine": form})["loss"].tolist() for form in forms]
    assert all(curve == curves[0] for curve in curves)
    assert curves[0][-1] < curves[0][0]


def test_a_polars_frame():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({name: FRAME[name].to_list() for name in FRAME})
    result = raybench.run(config(), data={"mine": frame})["loss"].tolist()
    assert result == raybench.run(config(), data={"mine": FRAME})["loss"].tolist()


def test_the_id_is_that_of_the_content():
    one = cells(config(), data={"mine": (X, Y, CLIENT)})
    assert one == cells(config(), data={"mine": (X.copy(), Y.astype(object), CLIENT)})
    assert one == cells(config(dataset="other"), data={"other": (X, Y, CLIENT)})
    assert one != cells(config(), data={"mine": (X + 1e-12, Y, CLIENT)})
    held = (X[:9], Y[:9])
    assert one != cells(config(test_set="held"), data={"mine": (X, Y, CLIENT), "held": held})


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


WRONG = {
    "sparse": (scipy.sparse.csr_array(X), r"data.mine.X: is a sparse matrix(.|\n)*toarray"),
    "list": ([1, 2], "data.mine: list is no data set"),
    "lengths": ((X, Y[:-1]), "different lengths: X 40, y 39"),
    "objects": ((X, [None, *Y[1:]]), "data.mine.y: holds object, such as None"),
    "gap": (FRAME.assign(u=[np.nan, *X[1:, 0]]), "data.mine.u: lacks a value in row 0"),
    "text": (FRAME.assign(city="Basel"), "column 'city' of mine.npz holds text"),
    "nan": ((X * np.nan, Y, CLIENT), "mine.npz holds values that are not finite, in X"),
    "clients": ((X, Y), "has no column 'client'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_is_refused_and_nothing_is_run(tmp_path, case):
    given, said = WRONG[case]
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


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        raybench.sweep(config(), tmp_path / "file", inline=True, data={"mine": (X, Y, CLIENT)})


@pytest.mark.ray
@pytest.mark.timeout(280)
def test_workers_of_ray_find_the_data(tmp_path):
    """Two batches on two workers, each with a test set of its own: what they record is what one process does."""
    given = {"mine": (X, Y, CLIENT), "held": (X[:9], Y[:9])}
    asked = {
        **config(test_set="held"),
        "algorithm": ["gd", "ef21"],
        "compressor": {"name": "top_k", "k": 2},
    }
    more = {"data": given, "sets": ["resources.workers=2"]}
    one = raybench.sweep(asked, tmp_path / "one", inline=True, **more)
    two = raybench.sweep(asked, tmp_path / "two", address="local", **more)
    assert one.counts["ok"] == two.counts["ok"] == 2
    here, there = raybench.load(tmp_path / "one"), raybench.load(tmp_path / "two")
    assert set(there["cell"]) == set(here["cell"])
    for name in ("loss", "test_loss", "bits_up"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-12)
    assert raybench.sweep(asked, tmp_path / "two", inline=True, **more).plan.missing == 0
