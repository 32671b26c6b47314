"""Compressors: the conformance kit on all of ours, roles, and exact laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raybench.compressors import Role, count_of, unpack
from raybench.compressors.dense import Identity, Zero
from raybench.compressors.dithering import ScaledSign
from raybench.compressors.selection import TopK
from raybench.compressors.sparsification import RandK
from raybench.core.errors import InputError
from raybench.core.registry import lookup, names
from raybench.core.streams import stream
from raybench.spec import sections
from raybench.testing import Checks, findings
from raybench.testing.compressors import CHECKS, Subject, examples
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire.base import KINDS

SAMPLES = (
    8000  # drawn in make test; test_claims_hold_in_many_draws draws as many as ``raybench check``
)
CLAIMS = (
    *("unbiased", "second moment within omega", "contraction at least alpha"),
    *("biased classes hold", "clients and rounds independent"),
)
CASES = {
    label: (name, params)
    for name in names("compressor")
    for label, params in examples(lookup("compressor", name)).items()
}
FURTHER = """
dithering:p=1,s=2 dithering:p=1.5,s=3 dithering:p=3,s=2 dithering:p=10,s=1 dithering:s=100 dithering:s=300
dithering:s=2,bucket=7 dithering:s=1,p=inf,bucket=1 qsgd:s=4,bucket=5 terngrad:bucket=9
natural_dithering:p=1,s=4 natural_dithering:p=3,s=2 natural_dithering:s=8 natural_dithering:s=4,bucket=7
exponential_dithering:s=4,base=3,p=1.5 exponential_dithering:s=9,base=1.3,p=inf,bucket=7
exponential_rounding:base=3 exponential_rounding:base=3,unbiased=false
exponential_rounding:base=5,unbiased=false exponential_rounding:unbiased=false
rounding:levels=[[1,1.5]] rounding:levels=[[1,1.25,1.5]] rounding:levels=[[2]],base=9.5
top_k:k=3 rand_k:k=3 svd:rank=2 power_step:rank=2,shape=[[4,6]]
power_step:shape=[[3,2,2,2]],iterations=3 hosvd:dims=[[2,2,2,3]] tucker:dims=[[5,5]],ranks=[[2]]
st_hosvd:dims=[[2,2,2,3]],ranks=[[50%,1,1,2]] tensor_train:dims=[[2,2,2,3]],ranks=[[2,1,1]]
nf4:block=7 mxfp8:block=5 mxfp4:block=3 int8:bucket=11 cp:dims=[[2,3,4]],rank=2
"""
SECTIONS = {text: sections.section("compressor", text) for text in FURTHER.split()}
CASES |= {text: (section.name, section.params) for text, section in SECTIONS.items()}


FIRST = {name: label for label, (name, _) in reversed(CASES.items())}  # of each compressor
OF_EACH_KIND = {  # of messages; and signs, which are the fewest bits
    *("zero", "identity", "top_k", "wangni", "rand_k", "random_sparsification", "block_top_k"),
    *("natural", "sign", "dithering", "mxfp4", "fp16", "power_step", "st_hosvd", "dct_top_k"),
    *("lazy", "masking", "optimal_rescale", "perm_k", "shared_mask", "chain", "two_shot"),
}
BY_KIND = ("output fits its bits", "fits a million coordinates")


def subject(label: str, samples: int = SAMPLES) -> Subject:
    name, params = CASES[label]
    target = lookup("compressor", name).target
    return Subject(lambda d: target(**params), samples=samples)


def wrong(subject: Subject, label: str, checks: set[str]) -> list[str]:
    """Return what some of the kit's checks find fault with."""
    chosen = Checks({name: check for name, check in CHECKS.items() if name in checks})
    return [str(f) for f in findings(chosen, subject, label) if not f.ok]


def thorough_but(labels):
    """Return all labels as parameters, of which these alone run in make test."""
    return [
        pytest.param(label, marks=[] if label in labels else [pytest.mark.thorough])
        for label in sorted(CASES, key=lambda label: label not in labels)
    ]


@pytest.mark.parametrize("label", thorough_but({*FIRST.values()}))
def test_conformance(label):
    """The checks of the kit; each tells what it finds."""
    assert not wrong(subject(label), label, CHECKS.keys() - BY_KIND)


@pytest.mark.parametrize("label", thorough_but({FIRST[name] for name in OF_EACH_KIND}))
def test_conformance_by_kind_of_message(label):
    assert not wrong(subject(label), label, {*BY_KIND})


def test_every_kind_of_message_is_tried():
    """By the compressors above, or by hand in test_messages.py."""
    tried = {"cases", "concat", "flag", "ragged", "seeded_support", "rounded"}
    tried |= {"blocks"}  # of other parameters
    for name in OF_EACH_KIND:
        m = subject(FIRST[name]).op.compress(gaussian(2, 4, 24), cells_and_clients(2, 4))
        tried |= {m.kind, *(leaf.kind for leaf in m.leaves())}
    ours = {kind for kind, one in KINDS.items() if one.__module__.startswith("raybench.")}
    assert ours <= tried, sorted(ours - tried)


@pytest.mark.thorough
@pytest.mark.parametrize("label", CASES)
def test_claims_hold_in_many_draws(label):
    assert not wrong(subject(label, Subject.samples), label, {*CLAIMS})


# Roles and the entry point ----------------------------------------------------------------------


def test_roles():
    d = 10
    bound = RandK(2).bind(d, role=Role.CONTRACTIVE)
    assert (bound.factor, bound.alpha, bound.omega) == (0.2, 0.2, None)
    x = gaussian(d)
    q = stream(3)
    torch.testing.assert_close(
        bound(x, q).decode(), RandK(2).compress(x, q).decode() / 5, rtol=1e-15, atol=0
    )
    assert RandK(2).bind(d, role=Role.UNBIASED).omega == 4
    assert TopK(2).bind(d, role=Role.CONTRACTIVE).factor == 1
    assert (ScaledSign().b1(d), ScaledSign().b2(d)) == (((0.1 / 2) ** 2, 2.0), (0.1 / 2, 2.0))
    with pytest.raises(InputError, match="biased"):
        TopK(2).bind(d, role=Role.UNBIASED)
    with pytest.raises(InputError, match="no contraction"):
        Zero().bind(d, role=Role.CONTRACTIVE)
    with pytest.raises(InputError, match="11 of 10"):
        TopK(11).bind(d)


@pytest.mark.parametrize("bad", [torch.zeros(3).int(), torch.zeros(3).cfloat(), np.zeros(3), [1.0]])
def test_compress_refuses_other_types(bad):
    with pytest.raises(TypeError, match="one of float64, float32, float16, bfloat16, not"):
        Identity().compress(bad)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_compress_refuses_no_coordinates(shape):
    with pytest.raises(ValueError, match="at least one coordinate"):
        Identity().compress(torch.zeros(shape))


@pytest.mark.parametrize("label", FIRST.values())
def test_no_rows_gradients_and_bound_calls(label):
    op = subject(label).op
    empty = torch.zeros(0, 4, 24, dtype=torch.float64)
    assert unpack(op.compress(empty).pack()).decode().shape == empty.shape
    x, q = gaussian(2, 3, 24), cells_and_clients(2, 3)
    assert torch.equal(op.bind(24, 3)(x, q).decode(), op.compress(x, q).decode())
    assert 0 <= op.bind(24, 3).dense_share(torch.float32) <= 1
    kept = gaussian(24).requires_grad_()
    value = op.compress(kept).decode()
    assert not value.requires_grad
    assert len(op.compress(kept).pack())


# Exact laws --------------------------------------------------------------------------------------


def test_common_mask_is_linear_over_clients():
    d, n = 30, 7
    x, q = gaussian(5, n, d), cells_and_clients(5, n)
    op = RandK(4, "common")
    m = op.compress(x, q)
    of_mean = op.compress(x.mean(1, keepdim=True), q.at(torch.tensor([0]))).decode()[:, 0]
    torch.testing.assert_close(m.sum_clients() / n, of_mean, rtol=1e-12, atol=1e-12)
    assert op.correlated
    assert not RandK(4).correlated
    supports = (m.decode() != 0).double()
    assert torch.equal(supports, supports[:, :1].expand_as(supports))
    assert not torch.equal(supports[0], supports[1])  # cells have their own


# What k means: counts and shares of d -------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "d", "count"),
    [
        (5, 10, 5),
        (5.0, 10, 5),
        ("5", 10, 5),
        (" 5 ", 10, 5),
        (np.int64(5), 10, 5),
        (np.float32(0.5), 10, 5),
        (1.0, 10, 1),  # a whole number is a count, however it is written
        ("1.0", 10, 1),
        (0.1, 10, 1),
        ("0.1", 11, 2),
        ("10%", 30, 3),
        (0.07, 100, 7),  # not 8, although 0.07 * 100 > 7 in floating point
        ("7%", 100, 7),
        ("10%", 112, 12),
        ("100%", 10, 10),
        ("1e-9%", 10, 1),
        (0.999999, 10, 10),
        ("30%", 10**9, 3 * 10**8),
        (1, 1, 1),
    ],
)
def test_count_of(k, d, count):
    assert count_of(k, d) == count


@pytest.mark.parametrize(
    "k",
    [0, -1, 11, 0.0, -0.5, 1.5, "0%", "101%", "200%", "-5%", "", "%", "ten", "1/2", "nan", "inf"]
    + [math.nan, math.inf, None, True, False, [3], "1e999999999", "10%%"],
)
def test_count_of_refuses(k):
    with pytest.raises(InputError) as error:
        count_of(k, 10, "compressor.k")
    assert str(error.value).startswith("compressor.k: ")


@pytest.mark.parametrize(
    "name", [n for n in names("compressor") if lookup("compressor", n).target.counted]
)
def test_fit_makes_integers_of_shares(name):
    target, x = lookup("compressor", name).target, gaussian(2, 30)
    own = target(**dict.fromkeys(target.counted, "10%"))
    fitted = own.fit(30, 2)
    assert [getattr(fitted, parameter) for parameter in target.counted] == [3] * len(target.counted)
    assert fitted.compress(x).pack() == own.compress(x).pack()
    with pytest.raises(InputError, match="31 of 30"):
        target(**dict.fromkeys(target.counted, 31)).fit(30, 2)


# Devices ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("label", [c for c in CASES if "p=" not in c])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_agrees_with_the_cpu(label, dtype):
    """The same message from the same keys: bytes where it is made of integers, else to rounding."""
    op = subject(label).op
    x, q = gaussian(3, 4, 24, dtype=dtype), cells_and_clients(3, 4)
    here = op.compress(x, q)
    there = op.compress(x.cuda(), stream(0, "cuda").each(range(3)).each(range(4)))
    torch.testing.assert_close(there.decode().cpu(), here.decode(), rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.as_tensor(there.nbytes).cpu(), torch.as_tensor(here.nbytes))
    assert torch.equal(unpack(there.pack()).decode(), there.decode().cpu())
