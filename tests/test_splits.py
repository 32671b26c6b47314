"""How rows are dealt out to clients."""

import numpy as np
import pytest
from data_kit import complaint
from hypothesis import given
from hypothesis import strategies as st

from raybench import data, spec
from raybench.core.errors import InputError

pytestmark = pytest.mark.thorough


SPLITS = st.sampled_from(["contiguous", "shuffled", "sorted_by_label"])
LABELS = st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=60).map(np.array)


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
    if how == "sorted_by_label":
        assert (np.diff(labels[rows]) >= 0).all()
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


def test_dirichlet_parameter_sets_the_heterogeneity():
    labels = np.repeat([0.0, 1.0], 5000)

    def spread(alpha):
        parts = data.split(labels, 10, {"dirichlet": alpha}, seed=1)
        return np.std([labels[p].mean() for p in parts])

    assert spread(0.1) > 3 * spread(100)


@given(st.integers(2, 60), st.integers(1, 20), st.floats(0, 1), st.integers(0, 3))
def test_holdout_mix(rows, clients, p, seed):
    labels = np.zeros(rows)
    if clients > rows - 1:
        assert "problem.clients" in complaint(data.split, labels, clients, {"holdout_mix": p})
        return
    parts = data.split(labels, clients, {"holdout_mix": p}, seed=seed)
    assert {len(q) for q in parts} == {rows // (clients + 1)}
    if p == 0:
        assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    if p == 1:
        assert all(np.array_equal(q, parts[0]) for q in parts)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("contigous", "did you mean contiguous?"),
        ("dirichlet", "{dirichlet: NUMBER}"),
        ({"dirichlt": 1}, "did you mean dirichlet?"),
    ],
)
def test_unknown_splits(how, what):
    said = complaint(data.split, np.arange(9.0), 3, how)
    assert "problem.split" in said
    assert what in said


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"dirichlet": 0}, "> 0"),
        ({"dirichlet": "a"}, "a number"),
        ({"holdout_mix": 1.5}, "<= 1"),
        ({"dirichlet": 1, "holdout_mix": 1}, "write one of"),
    ],
)
def test_splits_of_a_sweep_file_are_typed(how, what):
    problem = {"name": "logistic", "dataset": "breast_cancer", "clients": 3, "split": how}
    said = complaint(spec.load, {"problem": problem, "algorithm": "gd"})
    assert "problem.split" in said
    assert what in said


@given(st.integers(2, 200), st.floats(0, 0.99), st.integers(0, 9))
def test_hold_out(rows, share, seed):
    size = round(rows * share)
    if share > 0 and not 0 < size < rows:
        assert "problem.test_size" in complaint(data.hold_out, rows, share, seed)
        return
    train, test = data.hold_out(rows, share, seed)
    assert len(test) == size
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(rows))
