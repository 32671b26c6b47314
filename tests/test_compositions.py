"""Compressors made of compressors: their constants, their messages, and tensors one by one."""

from __future__ import annotations

import math

import pytest
import torch

import raybench
from raybench.compressors import Role
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.spec.sections import default
from raybench.testing.claims import draws
from raybench.testing.vectors import cells_and_clients, families, gaussian

D = 24
COUNT = 4000


def op(text, **params):
    return raybench.compressor(text, **params)


def error(operator, x, factor=1.0, count=COUNT):
    """Mean of ||factor C(x) - x||^2/||x||^2 and its standard error."""
    one = (factor * draws(operator, x, count) - x).square().sum(-1) / x.square().sum()
    return float(one.mean()), float(one.std(correction=0)) / math.sqrt(count)


# Constants -----------------------------------------------------------------------------------------


def test_unbiased_after_unbiased():
    for first, then, omega in [
        ("natural", "dithering:s=2", (9 / 8) * (1 + min(D / 4, math.sqrt(D) / 2)) - 1),
        ("rand_k:k=6", "natural", 4 * 9 / 8 - 1),
        ("rand_k:k=6", "rand_k:k=2", 4 * 3 - 1),  # of the six kept
    ]:
        both = op("chain", first=first, then=then)
        assert both.omega(D) == pytest.approx(omega)
        assert both.alpha(D) is None
        assert both.b1(D) == both.b2(D) == (1, both.omega(D) + 1)


@pytest.mark.parametrize(
    "then", ["natural", "dithering:s=3", "natural_dithering:s=4", "rand_k:k=3"]
)
def test_unbiased_after_a_selection(then):
    """B1 = B2 = (alpha, zeta(k)); times 1/zeta alpha/zeta, unscaled (2 - zeta) alpha, never better."""
    k, both = 6, op("chain", first="top_k:k=6", then=then)
    alpha, zeta = k / D, op(then).omega(k) + 1
    assert both.omega(D) is None
    assert both.alpha(D) is None
    assert both.b1(D) == both.b2(D) == pytest.approx((alpha, zeta))
    bound = both.bind(D, role=Role.CONTRACTIVE)
    assert bound.alpha == pytest.approx(alpha / zeta)
    assert bound.factor == pytest.approx(1 / zeta)
    assert (2 - zeta) * alpha <= bound.alpha


def test_unbiased_after_any_biased_operator_keeps_its_class():
    sign, both = op("scaled_sign"), op("chain:first=scaled_sign,then=natural")
    assert both.alpha(D) is None
    for of in ("b1", "b2"):
        low, beta = getattr(sign, of)(D)
        assert getattr(both, of)(D) == pytest.approx((low, beta * 9 / 8))


@pytest.mark.parametrize(
    ("first", "then", "alpha"),
    [
        ("top_k:k=12", "top_k:k=3", 3 / D),
        ("top_k:k=12", "scaled_sign", 1 / D),
        ("rand_k:k=12,scaled=false", "top_k:k=3", 3 / D),
        ("top_k:k=12", "rand_k:k=3,scaled=false", 3 / D),
        ("chain:first=(top_k:k=12),then=(top_k:k=6)", "top_k:k=3", 3 / D),
        ("identity", "scaled_sign", 1 / D),
        ("top_k:k=24", "scaled_sign", 1 / D),
        ("scaled_sign", "identity", 1 / D),
        ("natural", "top_k:k=3", None),
        ("scaled_sign", "top_k:k=3", None),
        ("rand_k:k=12", "top_k:k=3", None),
    ],
)
def test_contractive_after_something(first, then, alpha):
    both = op("chain", first=first, then=then)
    assert both.alpha(D) == (None if alpha is None else pytest.approx(alpha))
    for name, x in families(D).items():
        if alpha is not None:
            mean, spread = error(both, x, count=1 if both.deterministic else 4000)
            assert mean <= 1 - alpha + (0 if both.deterministic else 5 * spread) + 1e-12, name


def test_nested_selections_are_selections():
    both = op("chain:first=(top_k:k=12),then=(rand_k:k=3,scaled=false)")
    assert both.selection
    assert both.b1(D) == both.b2(D) == (3 / D, 1)
    assert not op("chain:first=(top_k:k=12),then=natural").selection
    assert not op("rand_k:k=3").selection
    x = gaussian(D)
    kept = both.compress(x).decode()
    assert int((kept != 0).sum()) == 3
    assert ((kept == x) | (kept == 0)).all()


def test_top_k_of_top_k_is_top_k():
    x = gaussian(3, 4, 50)
    both = op("chain:first=(top_k:k=20),then=(top_k:k=5)").compress(x)
    assert torch.equal(both.decode(), op("top_k:k=5").compress(x).decode())


def test_two_shot():
    assert op("two_shot:first=(top_k:k=6),then=(top_k:k=12)").alpha(D) == 1 - (3 / 4) * (1 / 2)
    assert op("two_shot:first=natural,then=(top_k:k=12)").alpha(D) == 1 - (1 / 8) * (1 / 2)
    assert op("two_shot:first=(rand_k:k=1),then=(top_k:k=1)").alpha(D) is None
    assert op("two_shot:first=(rand_k:k=1),then=natural").omega(D) == 23 / 8
    assert op("two_shot:first=zero,then=natural").omega(D) is None
    flat = torch.ones(D, dtype=torch.float64)
    sent = op("two_shot:first=(top_k:k=6),then=(top_k:k=6)").compress(flat).decode()
    assert (sent - flat).square().sum() == 12  # the second finds other coordinates


def test_induced_measured():
    """Top-4 with Rand-6 in 24 dimensions: omega = 3 (1 - 1/6) = 2.5, nearly met on flat vectors."""
    both = op("induced:first=(top_k:k=4),then=(rand_k:k=6)")
    assert both.omega(D) == pytest.approx(2.5)
    mean, spread = error(both, torch.ones(D, dtype=torch.float64))
    assert abs(mean - 2.5) <= 5 * spread
    with pytest.raises(InputError, match="unbiased second"):
        op("induced:then=(top_k:k=1)").bind(D)


@pytest.mark.parametrize(
    "inner", ["scaled_sign", "top_k:k=6", "rand_k:k=6", "natural", "chain", "zero"]
)
def test_optimal_rescale_is_the_projection(inner):
    x, q = gaussian(5, 7, D), cells_and_clients(5, 7)
    c = op(inner).compress(x, q).decode()
    got = op("optimal_rescale", of=inner).compress(x, q).decode()
    size, along = c.square().sum(-1), (c * x).sum(-1)
    left = x.square().sum(-1) - along.square() / size.where(size > 0, 1.0)
    torch.testing.assert_close((got - x).square().sum(-1), left)
    assert ((got - x).square().sum(-1) <= (c - x).square().sum(-1) * (1 + 1e-12)).all()


def test_optimal_rescale_constants():
    assert op("optimal_rescale:of=(top_k:k=6)").alpha(D) == pytest.approx(1 / 4)
    assert op("optimal_rescale:of=natural").alpha(D) == pytest.approx(8 / 9)
    assert op("optimal_rescale:of=(chain:first=(top_k:k=6))").alpha(D) == pytest.approx(2 / 9)
    assert op("optimal_rescale:of=zero").alpha(D) is None
    assert op("optimal_rescale:of=zero,correct=true").alpha(D) == pytest.approx(1 / D)
    both = op("optimal_rescale:of=(top_k:k=6),correct=true")
    assert both.alpha(D) == pytest.approx(1 - (3 / 4) * (23 / 24))
    flat = torch.ones(D, dtype=torch.float64)
    assert (both.compress(flat).decode() == 1).sum() == 7


SIZES = {
    torch.float32: (1e-20, 1.0, 1e20, 1e37),
    torch.float64: (1e-320, 1e-300, 1e-40, 1e-20, 1.0, 1e20, 1e37, 1e150, 1e300),
}


@pytest.mark.parametrize(("dtype", "size"), [(t, size) for t in SIZES for size in SIZES[t]])
def test_optimal_rescale_at_any_size(dtype, size):
    """The angle does not depend on the length, though squares may over- or underflow."""
    x = (gaussian(2, 3, D).double() * size).to(dtype)
    kept = op("optimal_rescale:of=(top_k:k=6)").compress(x).decode()
    want = op("top_k:k=6").compress(x).decode()
    torch.testing.assert_close(kept, want, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)
    assert not op("optimal_rescale").compress(torch.zeros(3, D, dtype=dtype)).decode().any()


def test_as_contractive_is_what_roles_do():
    x, q = gaussian(3, 4, D), cells_and_clients(3, 4)
    for inner in ("natural", "rand_k:k=6", "chain", "top_k:k=6"):
        ours, bound = op("as_contractive", of=inner), op(inner).bind(D, role=Role.CONTRACTIVE)
        assert ours.alpha(D) == pytest.approx(bound.alpha)
        m = ours.compress(x, q)
        assert torch.equal(m.decode(), bound(x, q).decode())
        assert torch.equal(m.bits, op(inner).compress(x, q).bits)
    with pytest.raises(InputError, match="of: has no constants"):
        op("as_contractive:of=zero").bind(D)


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("top_k_natural:k=25%", "chain:first=(top_k:k=25%),then=natural"),
        ("top_k_dithering:k=6,s=4,p=inf", "chain:first=(top_k:k=6),then=(dithering:s=4,p=inf)"),
        ("top_k_natural_dithering:k=6", "chain:first=(top_k:k=6),then=natural_dithering"),
    ],
)
def test_names_of_usual_chains(name, chain):
    short, long = op(name), op(chain)
    assert (short.b1(D), short.b2(D), short.b3(D)) == (long.b1(D), long.b2(D), long.b3(D))
    x, q = gaussian(3, 4, D), cells_and_clients(3, 4)
    assert short.compress(x, q).pack() == long.compress(x, q).pack()


def test_constants_of_the_last_rows_of_the_table():
    k, s = 6, 4
    u = math.sqrt(k) * 2.0 ** (1 - s)
    zeta = 9 / 8 + u * min(1, u)
    both = op("top_k_natural_dithering:k=6,s=4")
    assert both.b1(D) == both.b2(D) == pytest.approx((k / D, zeta))
    assert both.b3(D) == pytest.approx((zeta * D / k, 1 / zeta))
    assert op("top_k_natural:k=6").b1(D) == pytest.approx((k / D, 9 / 8))


def test_facts_follow_from_the_parts():
    assert op("chain:first=(top_k:k=3),then=scaled_sign").deterministic
    assert not op("chain:first=(top_k:k=3),then=natural").deterministic
    assert op("two_shot:first=(top_k:k=3),then=(rand_k:k=3,mask=common)").correlated
    assert not op("two_shot").correlated


# How they are named --------------------------------------------------------------------------------


def test_parameters_that_do_not_fit_are_named_by_their_path():
    for text, where in [
        ("chain:first=(top_k:k=50)", "first.k"),
        ("chain:first=(top_k:k=5),then=(rand_k:k=6)", "then.k"),
        ("two_shot:then=(chain:first=(top_k:k=50))", "then.first.k"),
        ("per_tensor:of=(top_k:k=13),sizes=[[12,12]]", "of.k"),
    ]:
        with pytest.raises(InputError) as caught:
            op(text).bind(D)
        assert [c.where for c in caught.value.complaints] == [where]
    for params, where in [({"first": "topk"}, "first.name"), ({"then": "top_k:k=0"}, "then.k")]:
        with pytest.raises(InputError) as caught:
            registry.lookup("compressor", "chain").target(**params)
        assert [c.where for c in caught.value.complaints] == [where]


def test_defaults_are_canonical():
    for name in ("chain", "two_shot", "induced", "optimal_rescale", "as_contractive", "per_tensor"):
        for param in registry.lookup("compressor", name).params.values():
            assert default(param) == param.default


# Tensors one by one --------------------------------------------------------------------------------

LAYOUT = Layout((("w", (3, 4)), ("b", (4,)), ("v", (4,)), ("u", (2, 2)), ("s", ()), ("none", (0,))))


def test_sizes_come_from_the_problem():
    own = op("per_tensor:of=(top_k:k=25%)").fit(25, 3, LAYOUT)
    assert own.sizes == (12, 4, 4, 4, 1)
    x = gaussian(2, 3, 25)
    value = own.compress(x).decode()
    kept = [int((piece != 0).sum(-1).unique()) for piece in value.split(own.sizes, -1)]
    assert kept == [3, 1, 1, 1, 1]  # ceil(rho d_l)
    assert own.alpha(25) == 1 / 4
    for layout in (None, Layout.vector(25), Layout.vector(24)):
        assert op("per_tensor").fit(25, 3, layout).sizes == (25,)
    whole, alone = op("per_tensor").compress(x), op("top_k:k=25%").compress(x)
    assert torch.equal(whole.decode(), alone.decode())


@pytest.mark.parametrize("of", ["top_k:k=25%", "rand_k:k=25%", "natural", "chain", "scaled_sign"])
def test_tensors_are_compressed_alone(of):
    """Whether equal ones are done together or not, each is the message of its own stream."""
    own = op("per_tensor", of=of).fit(25, 3, LAYOUT)
    x, q = gaussian(2, 3, 25), cells_and_clients(2, 3)
    m = own.compress(x, q)
    bits = torch.zeros(2, 3, dtype=torch.int64)
    for i, (piece, got) in enumerate(
        zip(x.split(own.sizes, -1), m.decode().split(own.sizes, -1), strict=True)
    ):
        alone = op(of).compress(piece, q.fold(i))
        assert torch.equal(alone.decode(), got)
        assert torch.equal(alone.bits, m.parts[i].bits)
        bits += alone.bits
    assert torch.equal(m.bits, bits)


def test_constants_are_those_of_the_worst_tensor():
    own = op("per_tensor:of=(rand_k:k=2),sizes=[[4,8,12]]")
    assert own.omega(24) == 5
    assert op("per_tensor:of=(top_k:k=2),sizes=[[4,8,12]]").alpha(24) == 1 / 6
    mixed = op("per_tensor:of=scaled_sign,sizes=[[1,8,15]]")
    assert mixed.alpha(24) == 1 / 15
    assert mixed.omega(24) is None
    inner = op("per_tensor:of=(chain:first=(top_k:k=2)),sizes=[[4,8,12]]")
    assert inner.b1(24) == inner.b2(24) == pytest.approx((1 / 6, 9 / 8))
    assert inner.bind(24, role=Role.CONTRACTIVE).alpha == pytest.approx(8 / 54)
    x = gaussian(D)
    mean, spread = error(inner, x, 8 / 9)
    assert mean <= 1 - 8 / 54 + 5 * spread


@pytest.mark.parametrize(
    ("sizes", "said"),
    [([[10, 10]], "sum to 20"), ([[]], "no sizes"), ([[24.5, 1]], "no sizes"), ([[0, 24]], "0")],
)
def test_sizes_that_do_not_fit(sizes, said):
    with pytest.raises(InputError, match=said):
        op("per_tensor", sizes=sizes).bind(24)


def test_what_is_fitted_stays():
    own = op("per_tensor:of=perm_k").bind(25, 3, LAYOUT).compressor
    assert own.bind(25, role=Role.UNBIASED).omega == own.omega(25) == 2
    assert own.fit(25, 1) is own
    with pytest.raises(InputError, match="sum to 25"):
        own.fit(24, 3)


def test_shapes_reach_the_operator():
    seen = []

    class Spy(type(op("natural"))):
        def fit(self, d, n, layout=None):
            seen.append((d, n, None if layout is None else list(layout)))
            return self

    registry.lookup("compressor", "per_tensor").target(of=Spy()).fit(25, 3, LAYOUT)
    assert seen[0] == (12, 3, [("w", (3, 4))])
    assert [d for d, *_ in seen] == [12, 4, 4, 4, 1]
