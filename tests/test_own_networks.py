"""Model, data, loss and metrics of a user's own file: what they may return, what is refused and how it is told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cli_kit import cli, ran
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import IterableDataset, Subset, TensorDataset

import raybench
from raybench import spec
from raybench.core.errors import InputError
from raybench.problems import build
from raybench.problems.networks import own

MINE = """
import torch
from torch.utils.data import TensorDataset

def model():
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))

def data():
    x = torch.randn(600, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return TensorDataset(x, y)
"""
SWEEP = """
problem: {name: network, model: my.py:model, dataset: my.py:data, clients: 4, test_size: 0.2}
algorithm: [{name: ef21_sgd, compressor: {name: top_k, k: 5%}}, sgd]
step_size: {value: 0.3}
rounds: 40
"""


def written(path, text):
    path.write_text(text)
    own._dataset.cache_clear()
    return str(path)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a newcomer's two files, in which commands run."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "my.py", MINE)
    (tmp_path / "my.yaml").write_text(SWEEP)
    return tmp_path


def test_ten_lines_of_python_and_five_of_yaml(mine):
    ran("sweep", "my.yaml", "--inline")
    cells = raybench.load("results/my")
    last = cells[cells["round"] == 40]
    assert (last["accuracy"] > 0.5).all(), "three classes are learnt"
    assert sum(bool(line.strip()) for line in MINE.splitlines()) <= 10


def problem(path, **more):
    given = {"model": f"{path}:model", "dataset": f"{path}:data", "clients": 3, **more}
    return build("network", given)


REGRESSION = """
import torch, torch.nn.functional as F
from torch.utils.data import TensorDataset
def model():
    return torch.nn.Linear(4, 2)
def data():
    x = torch.randn(30, 4, dtype=torch.float64)
    return TensorDataset(x, x[:, :2] ** 2)
def cubic(out, y):
    return ((out - y).abs() ** 3).sum(1)
smooth = torch.nn.HuberLoss()
def worst(out, y):
    return (out - y).abs().amax(1)
def both(out, y):
    return {"a": out[:, 0], "b": out[:, 1]}
def mean(out, y):
    return (out - y).square().mean()
def loss(out, y):
    return out[:, 0]
"""


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (None, lambda out, y: F.mse_loss(out, y)),
        ("absolute_error", lambda out, y: F.l1_loss(out, y)),
        ("cubic", lambda out, y: ((out - y).abs() ** 3).sum(1).mean()),
        ("smooth", lambda out, y: F.huber_loss(out, y)),
    ],
)
def test_gradients_are_those_of_the_loss_that_is_asked_for(tmp_path, loss, formula):
    path = written(tmp_path / "own.py", REGRESSION)
    own_loss = f"{path}:{loss}" if loss in ("cubic", "smooth") else loss
    made = problem(path, loss=own_loss, dtype="float64")
    assert not made.labelled
    x = made.start()
    rows = made.rows[1]
    inputs, targets = (torch.from_numpy(a)[rows] for a in (made.train.inputs, made.train.targets))
    weight, bias = (v.clone().requires_grad_() for v in made.layout.views(x))
    want = torch.autograd.grad(formula(inputs @ weight.T + bias, targets), (weight, bias))
    got = made.grad(x[None])[0, 1]
    torch.testing.assert_close(got, torch.cat([g.flatten() for g in want]), rtol=1e-9, atol=1e-12)


def test_metrics_are_means_over_the_test_part(tmp_path):
    path = written(tmp_path / "own.py", REGRESSION)
    names = ["absolute_error", f"{path}:worst", f"{path}:both"]
    made = problem(path, metrics=names, test_size=0.5, dtype="float64")
    found = made.evaluate(made.start()[None])
    inputs, targets = (torch.from_numpy(a) for a in (made.test.inputs, made.test.targets))
    weight, bias = made.layout.views(made.start())
    out = inputs @ weight.T + bias
    want = {
        "test_loss": (out - targets).square().mean(),
        "absolute_error": (out - targets).abs().mean(),
        "worst": (out - targets).abs().amax(1).mean(),
        "a": out[:, 0].mean(),
        "b": out[:, 1].mean(),
    }
    assert set(found) == set(want)
    for name, value in want.items():
        assert float(found[name][0]) == pytest.approx(float(value), rel=1e-9), name


def test_a_single_score_is_binary():
    from raybench.problems.networks.passes import LOSSES, accuracy

    scores, y = torch.tensor([[2.0], [-1.0], [0.5], [0.0]]), torch.tensor([1, 1, 0, 0])
    assert accuracy(scores, y)["accuracy"].tolist() == [1.0, 0.0, 0.0, 0.5]
    want = F.binary_cross_entropy_with_logits(scores[:, 0], y.float(), reduction="none")
    torch.testing.assert_close(LOSSES["binary_cross_entropy"](scores, y), want)


# What data may be -----------------------------------------------------------------------------------


X = torch.arange(24.0).view(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Columns:
    """As a Dataset of Hugging Face: samples by number, each a mapping of columns."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i):
        return {name: values[i] for name, values in self.columns.items()}


@pytest.mark.parametrize(
    "given",
    [
        TensorDataset(X, Y),
        [(x.tolist(), int(y)) for x, y in zip(X, Y)],
        [(x.numpy(), np.int32(y)) for x, y in zip(X, Y)],
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(6)),
        Columns(features=X.tolist(), label=Y.tolist()),
        Columns(anything=X.half(), y=Y.int()),
    ],
    ids=["tensors", "lists", "arrays", "subset", "columns", "one column and a target"],
)
def test_one_data_set(given):
    found = own.pair(given, "my.py:data")
    assert found.test is None
    np.testing.assert_array_equal(found.train.inputs, X.numpy())
    np.testing.assert_array_equal(found.train.targets, Y.numpy())
    assert (found.train.kind, found.train.classes) == ("features", 3)


@pytest.mark.parametrize("form", ["pair", "mapping"])
def test_a_training_and_a_test_part(form):
    train, test = TensorDataset(X[:4], Y[:4]), TensorDataset(X[4:], Y[4:])
    given = (train, test) if form == "pair" else {"train": train, "test": test}
    found = own.pair(given, "my.py:data")
    assert (len(found.train), len(found.test)) == (4, 2)
    assert found.train.classes == found.test.classes == 3


def test_pictures_and_tokens_keep_what_they_are():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    found = own.pair([(Image.fromarray(p), i % 2) for i, p in enumerate(pixels)], "p").train
    assert found.kind == "image"
    np.testing.assert_array_equal(found.inputs, pixels.transpose(0, 3, 1, 2))
    grey = own.pair([(Image.fromarray(p[..., 0]), 0) for p in pixels], "p").train
    np.testing.assert_array_equal(grey.inputs[:, 0], pixels[..., 0])
    words = Columns(input_ids=[[1, 2, 3], [3, 2, 9]], labels=[[2, 3, 4], [2, 9, 1]])
    text = own.pair(words, "w").train
    assert (text.kind, text.classes, text.targets.shape) == ("text", 10, (2, 3))


def test_a_dataset_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    both = {"x": X.tolist(), "label": Y.tolist()}
    made = datasets.DatasetDict(
        train=datasets.Dataset.from_dict(both), test=datasets.Dataset.from_dict(both)
    )
    made.save_to_disk(str(tmp_path / "kept"))
    found = own.pair(datasets.load_from_disk(str(tmp_path / "kept")), "hf")
    np.testing.assert_array_equal(found.train.inputs, X.numpy())
    np.testing.assert_array_equal(found.test.targets, Y.numpy())
    again = own.pair(datasets.Dataset.from_dict(both).with_format("torch"), "hf").train
    np.testing.assert_array_equal(again.inputs, X.numpy())


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], 0


class Noisy(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + torch.rand(4), y


class Broken(TensorDataset):
    def __getitem__(self, i):
        return (X[0], 0) if i < 3 else 1 / 0


def changed(i, x=None, y=None):
    """Return six samples of which one has another input or target."""
    samples = [(a, b) for a, b in zip(X, Y)]
    samples[i] = (X[i] if x is None else x, Y[i] if y is None else y)
    return samples


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (changed(3, x=X[3, :3]), "sample 3 has as input float32 of shape (3,), and sample 0 has float32 of shape (4,)"),
        (changed(4, x=X[4] * float("nan")), "sample 4 has a value as input that is not finite"),
        (changed(2, y=torch.tensor(-1)), "sample 2 has the label -1"),
        (changed(4, x="a text"), "sample 4 has as input str"),
        ((TensorDataset(X, Y), changed(1, x=X[1, :2])), "test sample 1 has as input float32 of shape (2,), and sample 0"),
        (Columns(a=X, b=X, c=Y), "sample 0 is a dict of a, b, c"),
        (Broken(X, Y), "sample 3: ZeroDivisionError"),
        (Noisy(X, Y), "sample 0 is another one when it is read again"),
        (Endless(), "no samples by number"),
        ((X, Y), "TensorDataset(x, y)"),
        ({"train": X, "validation": X}, "returned the parts train, validation"),
        ([], "no samples"),
        (None, "NoneType"),
    ],
)  # fmt: skip
def test_the_sample_that_is_wrong_is_named(given, says):
    with pytest.raises(InputError) as told:
        own.pair(given, "my.py:data")
    assert says in str(told.value).replace("str32", "str").replace("str192", "str")
    assert str(told.value).startswith("problem.dataset: my.py:data")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("(x[:, 1] > 0).long()", "3 * (x[:, 1] > 0).long()"), "has the label 3, and"),
        (("Linear(20,", "Linear(19,"), "does not take inputs of float32 (20,), as of sample 0"),
        (("Linear(20,", "LazyLinear("), "the parameter 0.weight has no shape before data"),
        (("torch.nn.Linear(32, 3))", "torch.nn.LSTM(32, 3))"), "its forward returns tuple"),
        (("y = (", "y = 0.5 * ("), "a sample has 3 outputs and 1 targets"),
        (("def model():", "def model(\n"), "my.py, line 5: SyntaxError"),
        (("torch.nn.Linear(32, 3)", "torch.nn.Linear(32)"), "my.py:model, line 6: TypeError"),
        (("def data", "def date"), "did you mean date"),
        (("import torch\n", "import torch, no_such\n"), "my.py, line 2: ModuleNotFoundError"),
    ],
)
def test_mistakes_in_ones_file_are_told_in_a_few_lines(mine, change, says):
    assert change[0] in MINE
    written(mine / "my.py", MINE.replace(*change))
    said = cli("plan", "my.yaml")
    assert said.code == 2
    assert says in said.err
    assert len(said.err.splitlines()) <= 4


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"loss": "squared_eror"}, "did you mean squared_error"),
        ({"loss": "OWN:mean"}, "reduction='none'"),
        ({"metrics": ["OWN:loss"]}, "loss is a column of its own"),
        ({"loss": "cross_entropy"}, "for targets of float64 (2,), as of sample 0"),
    ],
)
def test_losses_and_metrics_that_do_not_fit(tmp_path, more, says):
    path = written(tmp_path / "own.py", REGRESSION)
    more = {
        key: [v.replace("OWN", path) for v in value] if isinstance(value, list) else value.replace("OWN", path)
        for key, value in more.items()
    }  # fmt: skip
    with pytest.raises(InputError) as told:
        problem(path, **more)
    assert says in str(told.value)


# Identity -------------------------------------------------------------------------------------------


def ids(folder):
    return [cell.id for cell in spec.load(folder / "my.yaml").cells]


def test_ids_hold_the_content_of_data_and_not_its_name(mine):
    before = ids(mine)
    (mine / "model.py").write_text(MINE)
    (mine / "my.yaml").write_text(SWEEP.replace("my.py:model", "model.py:model"))
    assert ids(mine) == before, "the file is known by what it holds"
    written(mine / "my.py", MINE.replace("    y =", "    # a remark\n    y ="))
    assert ids(mine) == before, "and data by their numbers"
    written(mine / "my.py", MINE.replace("manual_seed(0)", "manual_seed(1)"))
    assert ids(mine) != before
    written(mine / "my.py", MINE)
    (mine / "model.py").write_text(MINE.replace("32", "33"))
    assert ids(mine) != before


def test_random_numbers_of_data_are_the_same_in_every_process_and_disturb_nobody(mine):
    """A generator without a seed begins where every process has it."""
    text = MINE.replace(", generator=torch.Generator().manual_seed(0)", "")
    assert text != MINE
    written(mine / "my.py", text)
    torch.manual_seed(1)
    first, after = ids(mine), torch.rand(1)
    own._dataset.cache_clear()
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)
    assert ids(mine) == first


# A smoke test ---------------------------------------------------------------------------------------

FAULTY = """
def worst(out, y):
    if len(out) > 2:
        raise RuntimeError("this metric is broken")
    return out[:, 0]
"""
BROKEN_METHOD = """
from raybench.plugins import Estimator, algorithm

@algorithm("broken")
class Broken(Estimator):
    def estimate(a, wire, s, c, grad):
        raise ArithmeticError("this method is broken")
"""


def test_a_smoke_test_runs_every_kind_and_saves_nothing(mine):
    said = ran("sweep", "my.yaml", "--smoke")
    lines = [line for line in said.out.splitlines() if line]
    assert [line.split()[0] for line in lines] == ["ef21_sgd", "sgd", "my"]
    assert "two rounds of 2 kinds of cells" in lines[-1]
    assert lines[-1].endswith("none raised")
    assert not (mine / "results").exists()


def test_a_smoke_test_tells_all_errors_with_their_lines(mine):
    """Of a method, while the others go on; and of a metric that only evaluation calls."""
    (mine / "broken.py").write_text(BROKEN_METHOD)
    text = SWEEP.replace("sgd]", "sgd, broken]")
    assert text != SWEEP
    (mine / "my.yaml").write_text(text)
    said = cli("sweep", "my.yaml", "--smoke", "--plugin", "broken.py")
    assert said.code == 1
    assert "this method is broken" in said.out
    assert 'broken.py", line 7' in said.out
    assert "3 kinds of cells" in said.out
    assert "1 of them raised" in said.out
    written(mine / "my.py", MINE + FAULTY)
    (mine / "my.yaml").write_text(
        SWEEP.replace("test_size: 0.2", "metrics: [[my.py:worst]], test_size: 0.2")
    )
    said = cli("sweep", "my.yaml", "--smoke")
    assert said.code == 1
    assert "this metric is broken" in said.out
    assert "2 of them raised" in said.out
    assert not (mine / "results").exists()


def test_a_smoke_test_takes_a_kind_for_all_of_its_numbers(mine):
    from raybench.execution.execute import smoke
    from raybench.execution.plan import make_plan
    from raybench.execution.run import Options

    text = SWEEP.replace("k: 5%", "k: [1, 2, 3]").replace("0.3", "[0.1, 0.2, 0.3]")
    (mine / "my.yaml").write_text(text)
    plan = make_plan(spec.load(mine / "my.yaml"))
    assert plan.missing == 12
    assert len(list(smoke(plan.batches, Options()))) == 2
    few = build("network", {**plan.cells[0].cell.problem.params, "batch": 5}).few()
    assert few.samples == (5, 5, 5, 5)
    assert len(few.test) == 5
