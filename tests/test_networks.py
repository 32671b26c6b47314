"""Networks as problems: their gradients are torch's, samples are repeatable, small ones run stacked."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import raybench
from raybench import spec
from raybench.core.errors import InputError
from raybench.core.parts import Train
from raybench.core.streams import Sample, Stream, stream
from raybench.problems import build
from raybench.problems.networks import passes
from raybench.problems.networks.models import NAMED, InputSpec
from raybench.problems.networks.passes import shifted_and_flipped
from raybench.testing.trial import TrialMethod, started

DIGITS = {"model": "mlp", "dataset": "digits", "clients": 3, "rows": 90, "dtype": "float64"}
CNN = {**DIGITS, "model": "mnist_cnn:dropout=0.4", "rows": 60}
NORMED = {**DIGITS, "model": "resnet20:depth=8", "rows": 36, "batch": 8}


def network(**more):
    return build("network", {**DIGITS, **more})


def point(problem, B=2, seed=1):
    x = problem.start().expand(B, -1)
    return x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)


def sample(problem, B=2, b=4, seed=3):
    source = stream(range(B)).fold(seed).each(range(len(problem.clients)))
    counts = torch.tensor([len(rows) for rows in problem.rows])
    return Sample(source.integers(b, counts), source.fold("sample"))


def by_hand(problem, x, indices, i, train=False):
    """Return the gradient of the mean loss at x (d,) of samples of client i, by plain torch."""
    model = copy.deepcopy(problem.passes.model).train(train)
    parts = zip(problem.layout, problem.layout.views(x))
    views = {name: part.clone().requires_grad_() for (name, _), part in parts}
    inputs, targets = problem.examples(problem.train, problem.rows[i][indices])
    loss = F.cross_entropy(functional_call(model, views, (inputs,)), targets)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(views.values()))]), loss


@pytest.mark.parametrize(
    ("model", "shape", "classes", "d"),
    [
        ("mnist_cnn", (1, 28, 28), 10, 3_274_634),  # the DGC experiments'
        ("autoencoder", (1, 28, 28), 10, 25_088),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet20", (3, 32, 32), 10, 269_722),
        ("vgg11", (3, 32, 32), 10, 9_225_610),
        ("transformer", (64,), 65, 816_128),
        ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 640 + 10),
    ],
)
def test_networks_have_the_published_sizes(model, shape, classes, d):
    with torch.device("meta"):
        net = NAMED[model](InputSpec(shape, classes))
    assert sum(p.numel() for p in net.parameters()) == d


@pytest.mark.parametrize("params", [DIGITS, CNN], ids=["stacked", "row by row"])
def test_gradients_are_those_of_torch(params):
    problem = build("network", params)
    assert problem.passes.stacks == (params is DIGITS)
    x = point(problem)
    full, losses = problem.oracle(x)
    for b in range(2):
        for i in range(3):
            want, loss = by_hand(problem, x[b], slice(None), i)
            torch.testing.assert_close(full[b, i], want, rtol=1e-10, atol=1e-13)
            torch.testing.assert_close(losses[b, i], loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(problem.losses(x), losses, rtol=1e-12, atol=0)


def test_clients_of_unequal_sizes_take_means_of_their_own():
    problem = network(rows=95, remainder="last", chunk=7)
    x = point(problem)
    full, losses = problem.oracle(x)
    assert problem.samples == (31, 31, 33)
    for i in range(3):
        want, loss = by_hand(problem, x[1], slice(None), i)
        torch.testing.assert_close(full[1, i], want, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(losses[1, i], loss.detach(), rtol=1e-12, atol=0)


def test_stacked_rows_equal_rows_one_by_one(monkeypatch):
    params = {"model": "mlp:hidden=[16,16],activation=tanh", "test_size": 0.3, "chunk": 7}
    problem = network(**params)
    x, J = point(problem, 5), sample(problem, 5)

    def found(one):
        return {"grad": one.grad(x, J), "losses": one.losses(x), **one.evaluate(x)}

    together = found(problem)
    monkeypatch.setattr(passes, "AT_ONCE", 7 * problem.dim)  # two rows at once, of fifteen
    torch.testing.assert_close(found(problem), together, rtol=1e-10, atol=1e-14)
    monkeypatch.setattr(passes, "MOST_STACKED", 0)
    apart = network(**params)
    assert problem.passes.stacks
    assert not apart.passes.stacks
    torch.testing.assert_close(found(apart), together, rtol=1e-10, atol=1e-14)


def test_what_cannot_be_vectorised_runs_row_by_row(own):
    problem = network(model=f"{own}:branches")
    assert not problem.passes.stacks
    x, J = point(problem), sample(problem)
    want, _ = by_hand(problem, x[1], J.indices[1, 2], 2)
    torch.testing.assert_close(problem.grad(x, J)[1, 2], want, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("params", [DIGITS, CNN, NORMED], ids=["mlp", "dropout", "batchnorm"])
def test_a_full_gradient_does_not_hang_on_the_passes(params):
    """But for BatchNorm, which normalises by the samples of a pass."""
    whole, parts = (build("network", {**params, "chunk": c}) for c in (1000, 7))
    x = point(whole)
    same = torch.allclose(whole.oracle(x)[0], parts.oracle(x)[0], rtol=1e-9, atol=1e-13)
    assert same == (params is not NORMED)


def test_a_sample_is_the_same_at_two_points_and_again():
    """Dropout and augmentation are functions of the sample, as variance reduction needs."""
    problem = build("network", {**CNN, "augment": "shift_flip"})
    x = point(problem, B=1)
    J = sample(problem, B=1)
    first = problem.grad(x, J)
    assert torch.equal(problem.grad(x, J), first)
    other = Sample(J.indices, J.stream.fold("other"))
    assert not torch.allclose(problem.grad(x, other), first)
    # the difference of two points goes to zero with their distance: the masks are the same
    near = problem.grad(x + 1e-9, J) - first
    assert float(near.norm()) < 1e-4 * float(first.norm())
    # each client has a mask of its own
    same_rows = Sample(J.indices[:, :1].expand(-1, 3, -1), J.stream)
    problem.rows = [problem.rows[0]] * 3
    g = problem.grad(x, same_rows)
    assert not torch.allclose(g[0, 0], g[0, 1])


def test_dropout_keeps_the_mean():
    """E over streams of a linear function of dropped units is the function without dropout."""
    layer = passes.StreamDropout(0.4)
    x = torch.arange(1.0, 7.0, dtype=torch.float64)
    total = torch.zeros(6, dtype=torch.float64)
    for seed in range(4000):
        with passes.drawing(Stream(stream(seed).keys)):
            total += layer(x)
    torch.testing.assert_close(total / 4000, x, rtol=0.06, atol=0)
    assert torch.equal(layer(x), x)  # off where no sample is taken


def test_augmented_images_are_shifts_and_mirrors():
    image = torch.arange(1.0, 65.0).view(1, 1, 8, 8)
    wide = F.pad(image, (4, 4, 4, 4))[0, 0]
    result = shifted_and_flipped(image.expand(200, -1, -1, -1), stream(5))
    kinds = []
    for made in result[:, 0]:
        ways = [
            (r, c, flip)
            for r in range(9)
            for c in range(9)
            for flip in (False, True)
            if torch.equal(made, (lambda w: w.flip(1) if flip else w)(wide[r : r + 8, c : c + 8]))
        ]
        assert ways
        kinds.append(ways[0])
    assert len(set(kinds)) > 80
    down, right, flips = zip(*kinds)
    assert set(down) == set(right) == set(range(9))  # from -4 to 4 pixels
    assert np.mean(flips) == pytest.approx(0.5, abs=0.1)


def test_every_client_of_every_cell_shifts_its_images_by_itself():
    problem = network(augment="shift_flip")
    problem.rows = [problem.rows[0]] * 3
    J = sample(problem)
    same = Sample(J.indices[:1, :1].expand(2, 3, -1), J.stream)
    made = problem.minibatch(same)[0].flatten(0, 1)
    assert len(made.flatten(1).unique(dim=0)) == 6


# BatchNorm ------------------------------------------------------------------------------------------


def test_running_statistics_are_those_of_torch():
    """One client: as a torch model in training mode that sees the same minibatches."""
    problem = build("network", {**NORMED, "clients": 1})
    model = copy.deepcopy(problem.passes.model)
    for m in model.modules():
        if isinstance(m, passes.NORMS):
            m.running_mean.zero_()
            m.running_var.fill_(1.0)
            m.train()
    x, buffers = problem.start()[None], problem.buffers(1)
    for seed in range(3):
        J = sample(problem, B=1, b=8, seed=seed)
        _, _, buffers = problem.gradients(x, J, buffers)
        model(problem.examples(problem.train, problem.rows[0][J.indices[0, 0]])[0])
    own = dict(model.named_buffers())
    assert buffers
    for name, value in buffers.items():
        torch.testing.assert_close(value[0, 0], own[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("together", [True, False], ids=["stacked", "row by row"])
def test_frozen_statistics_are_what_normalises(together, monkeypatch):
    """In f, its gradient and the evaluation: as torch in evaluation mode; nothing is learnt from the data."""
    monkeypatch.setattr(passes, "MOST_STACKED", 10**6 if together else 0)
    problem = build("network", {**NORMED, "batchnorm": "frozen"})
    assert problem.passes.stacks == together
    before = {name: own.clone() for name, own in problem.passes.model.named_buffers()}
    x = point(problem)
    full, losses = problem.oracle(x)
    want, loss = by_hand(problem, x[1], slice(None), 2)
    torch.testing.assert_close(full[1, 2], want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(losses[1, 2], loss.detach())
    torch.testing.assert_close(problem.losses(x), losses)
    for name, own in problem.passes.model.named_buffers():
        assert torch.equal(own, before[name])


# What users bring -----------------------------------------------------------------------------------


OWN = """
import torch
from raybench.data import Examples
from raybench.plugins import Network

def make(train):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

def whole():
    import numpy as np
    inputs = np.linspace(0, 1, 40, dtype=np.float32).reshape(20, 2)
    train = Examples.of("line", inputs, np.zeros(20, int), classes=1, source="made", kind="features")
    losses = lambda out, target: out[:, 0].square() / 2
    return Network(torch.nn.Linear(2, 1, bias=False), train, train, losses)

def wrong():
    return 3

def mean_loss(train):
    return Network(make(train), losses=torch.nn.functional.cross_entropy)

def random(train):
    class Noisy(torch.nn.Module):
        def forward(self, x):
            return self.layer(x + torch.randn_like(x))
    net = Noisy()
    net.layer = make(train)
    return net

class Branches(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x)
        return out if float(out.detach().sum()) > 0 else 2 * out

def branches(train):
    own = lambda out, y: torch.nn.functional.cross_entropy(out, y, reduction="none")
    return Network(Branches(make(train)), losses=own)

def spatial(train):
    return torch.nn.Sequential(torch.nn.Dropout2d(0.5), make(train))
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_a_function_of_ones_own(own):
    assert network(model=f"{own}:make").dim == 650
    whole = {"model": f"{own}:whole", "dataset": None, "clients": 2}
    line = build("network", {**whole, "dtype": "float64"})
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    inputs = torch.from_numpy(line.train.inputs).double()
    want = (inputs * (inputs @ x[0])[:, None])[line.rows[0]].mean(0)
    torch.testing.assert_close(line.grad(x)[0, 0], want, rtol=1e-12, atol=0)
    loss = float((inputs @ x[0]).square().mean() / 2)
    assert float(line.evaluate(x)["test_loss"][0]) == pytest.approx(loss)
    held = {**whole, "test_size": 0.5}
    assert build("network", held).samples == (10, 10), "there is a test part already"
    again = pickle.loads(pickle.dumps(network(model=f"{own}:make")))
    assert torch.equal(again.start(), network(model=f"{own}:make").start())


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"model": "mpl"}, "did you mean mlp"),
        ({"model": "mlp:hiden=[3]"}, "did you mean hidden"),
        ({"model": "torchvision:resnet81"}, "did you mean resnet"),
        ({"model": "no_such_module:make"}, "cannot import no_such_module"),
        ({"model": "OWN:mak"}, "did you mean make"),
        ({"model": "OWN:wrong"}, "returned int"),
        ({"model": "OWN:mean_loss"}, "one loss for every sample"),
        ({"model": "OWN:random"}, "draws random numbers"),
        ({"model": "OWN:spatial"}, "Dropout2d"),
        ({"dataset": None}, "is missing"),
        ({"freeze": ["nothing.*"]}, "names no parameter"),
        ({"freeze": ["*"]}, "every parameter is frozen"),
        ({"init_from": "missing.pt"}, "cannot read missing.pt"),
    ],
)
def test_mistakes_are_told(own, params, says):
    given = {k: v.replace("OWN", own) if isinstance(v, str) else v for k, v in params.items()}
    with pytest.raises(InputError) as told:
        network(**given)
    assert says in str(told.value)
    assert len(str(told.value).splitlines()) <= 4


def test_weights_of_a_file_and_frozen_layers(tmp_path):
    torch.manual_seed(0)
    model = NAMED["mlp"](InputSpec((1, 8, 8), 10))
    torch.save(model.state_dict(), tmp_path / "w.pt")
    problem = network(init_from=str(tmp_path / "w.pt"), freeze=["1.*"])
    assert [name for name, _ in problem.layout] == ["3.weight", "3.bias"]
    want = torch.cat([p.detach().flatten() for p in list(model.parameters())[2:]])
    assert torch.equal(problem.start(), want.double())
    assert torch.equal(problem.passes.model[1].weight, model[1].weight.double())
    # a last layer of other classes is initialised, the rest is read
    other = NAMED["mlp"](InputSpec((1, 8, 8), 7))
    torch.save(other.state_dict(), tmp_path / "other.pt")
    taken = network(init_from=str(tmp_path / "other.pt"))
    assert torch.equal(taken.start()[:4096], other[1].weight.detach().flatten().double())
    torch.save({"a": nn.Linear(2, 2).weight}, tmp_path / "foreign.pt")
    with pytest.raises(InputError, match="fits 0 of 4"):
        network(init_from=str(tmp_path / "foreign.pt"))
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(print))
    with pytest.raises(InputError, match="could run code"):
        network(init_from=str(tmp_path / "evil.pt"))


def test_initial_weights_follow_their_seed_and_leave_torch_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    a, b, c = network(), network(), network(init_seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a.start(), b.start())
    assert not torch.equal(a.start(), c.start())


# Settings of training: weight decay, clipping, accumulation, bfloat16 layers, weights that are kept


SMALL = {"model": "mlp:hidden=[8]", "dataset": "digits", "clients": 3, "rows": 90}
SMALL |= {"dtype": "float64", "batch": 6}
SMALL_NORMED = {**SMALL, "model": "resnet20:depth=8", "clients": 2, "rows": 24}
DROPPED = {**SMALL, "model": "mnist_cnn:dropout=0.4"}  # evaluated row by row
BOTH = pytest.mark.parametrize("params", [SMALL, DROPPED], ids=["stacked", "row by row"])


@BOTH
def test_weight_decay_is_a_part_of_f(params):
    plain = build("network", params)
    decayed = plain.trained(Train(weight_decay=0.3))
    x, J = point(plain), sample(plain, b=6)
    full, losses = plain.oracle(x)
    grads, more = decayed.oracle(x)
    penalty = 0.15 * x.square().sum(-1, keepdim=True)
    torch.testing.assert_close(grads, full + 0.3 * x[:, None], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(more, losses + penalty, rtol=1e-12, atol=0)
    torch.testing.assert_close(decayed.losses(x), plain.losses(x) + penalty, rtol=1e-12, atol=0)
    want = plain.grad(x, J) + 0.3 * x[:, None]
    torch.testing.assert_close(decayed.grad(x, J), want, rtol=1e-12, atol=1e-15)
    assert torch.equal(decayed.evaluate(x)["accuracy"], plain.evaluate(x)["accuracy"])
    again = build("network", params)
    assert torch.equal(plain.grad(x, J), again.grad(x, J)), "plain stays as it is"


@BOTH
def test_autocast_computes_in_bfloat16(params):
    plain = build("network", {**params, "dtype": "float32"})
    lower = plain.trained(Train(autocast="bfloat16"))
    x, J = point(plain).float(), sample(plain, b=16)
    near, want = lower.grad(x, J), plain.grad(x, J)
    apart = (near - want).norm() / want.norm()
    assert near.dtype == torch.float32
    assert 1e-5 < apart < 0.1
    inputs = lower.examples(lower.train, torch.arange(4))[0]
    result = lower.passes.outputs(x[0], inputs)
    assert torch.equal(result.bfloat16().float(), result)
    assert not torch.equal(plain.passes.outputs(x[0], inputs), result), "plain stays as it is"
    task, types = lower.passes.task, set()

    def losses(outputs, targets):
        types.add(outputs.dtype)
        return task.losses(outputs, targets)

    lower.passes.task = lower._task = replace(task, losses=losses)
    lower.oracle(x)
    lower.losses(x)
    assert types == {torch.float32}, "losses are of float32"
    with pytest.raises(InputError, match=r"train\.autocast[\s\S]*float32"):
        build("network", params).trained(Train(autocast="bfloat16"))


def net_of(params, **train):
    problem = {"name": "network", **params}
    method = TrialMethod("gd", {}, None, problem, step=0.1, rounds=3, more={"train": train})
    return started(method.batch())


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_methods_get_gradients_clipped_and_the_record_gets_them_whole(decay):
    """As torch does: the gradient is clipped, and the optimizer adds the decay of weights to what is left."""
    free = net_of(SMALL)
    full = free.net.grad(free.s.x)
    shrinking = decay * free.s.x[:, None]
    norms = full.norm(dim=-1, keepdim=True)
    bound = float(norms.mean())  # some are above it, some below
    assert (norms > bound).any()
    assert (norms < bound).any()
    clipped = net_of(SMALL, clip=bound, weight_decay=decay)
    want = torch.where(norms > bound, full * bound / norms, full) + shrinking
    near = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(clipped.net.grad(clipped.s.x), want, **near)
    of_points = clipped.net.oracle.grad_and_loss(clipped.s.x[:, None].expand_as(full))[0]
    torch.testing.assert_close(of_points, want, **near)
    measured = clipped.net.oracle.measure(clipped.s.x, frozenset({"grad_norm_sq"}))
    torch.testing.assert_close(measured.grads, full + shrinking, **near)


def test_accumulated_minibatches_make_one_gradient():
    """Three of six samples are one of eighteen, in passes of six; the method draws and pays for eighteen."""
    params = {**SMALL, "batch": 6}
    three = build("network", params).trained(Train(accumulate=3))
    eighteen = build("network", {**params, "batch": 18})
    assert (three.batch, three.most, three.chunk) == (18, 6, eighteen.chunk)
    x, J = point(eighteen), sample(eighteen, b=18)
    torch.testing.assert_close(three.grad(x, J), eighteen.grad(x, J), rtol=1e-12, atol=1e-15)
    runs = [net_of(params, accumulate=3), net_of({**params, "batch": 18})]
    for run in runs:
        run.advance(3)
    assert runs[0].net.oracle.evals.tolist() == runs[1].net.oracle.evals.tolist() == [54.0]
    torch.testing.assert_close(runs[0].s.x, runs[1].s.x, rtol=1e-12, atol=1e-15)
    with pytest.raises(InputError, match=r"train\.accumulate"):
        build("network", {**params, "batch": "full"}).trained(Train(accumulate=2))


@pytest.mark.parametrize("params", [SMALL, SMALL_NORMED], ids=["mlp", "with BatchNorm"])
def test_weights_that_are_kept_are_those_of_the_last_point(params, tmp_path):
    sweep = {
        "name": "kept",
        "problem": {"name": "network", **params},
        "algorithm": "gd",
        "train": {"save": "weights", "weight_decay": 0.01},
        "step_size": {"value": [0.05, 0.1]},
        "rounds": 3,
    }
    raybench.sweep(sweep, tmp_path, inline=True)
    cells = raybench.load(tmp_path).query("round == 3").set_index("cell")
    assert len(cells) == 2
    for cell, row in cells.iterrows():
        again = {**params, "init_from": str(tmp_path / "weights" / f"{cell}.pt")}
        problem = build("network", again)
        x = problem.start()[None]
        held = problem.evaluate(x)
        assert held["accuracy"].item() == row["accuracy"], "BatchNorm's statistics are kept too"
        loss = problem.trained(Train(weight_decay=0.01)).losses(x).mean().item()
        assert loss == pytest.approx(row["loss"], rel=1e-9)
    raybench.sweep({**sweep, "rounds": 4}, tmp_path, inline=True, fresh=True)
    names = {path.stem for path in (tmp_path / "weights").iterdir()}
    assert names == set(raybench.load(tmp_path)["cell"])
    assert not names & set(cells.index)


def test_settings_of_training_are_for_networks_and_part_of_ids():
    base = {"algorithm": "gd", "step_size": {"value": 0.1}, "rounds": 3}
    net = {**base, "problem": {"name": "network", **SMALL}}
    (plain,) = spec.load(net).cells
    (same,) = spec.load({**net, "train": {"weight_decay": 0, "clip": None}}).cells
    other = spec.load({**net, "train": {"clip": [1, 2]}}).cells
    assert plain.id == same.id
    assert len({plain.id, *(cell.id for cell in other)}) == 3
    (own,) = spec.load({**net, "algorithm": {"name": "gd", "train": {"clip": 1}}}).cells
    assert own.id == other[0].id
    convex = {**base, "problem": {"name": "logistic", "dataset": "breast_cancer", "clients": 2}}
    (cell,) = spec.load({**convex, "train": {"clip": 1}}).cells
    assert cell.train is None
    with pytest.raises(InputError, match=r"train\.save[\s\S]*weights"):
        spec.load({**net, "train": {"save": "wieghts"}})
