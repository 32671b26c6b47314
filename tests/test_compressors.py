"""Compressors: the conformance kit on all of ours, roles, and exact laws."""

import numpy as np
import pytest
import torch

from raybench.compressors import Role, unpack
from raybench.compressors.dense import Identity, Zero
from raybench.compressors.dithering import Dithering
from raybench.compressors.selection import TopK
from raybench.compressors.sparsification import RandK
from raybench.core.errors import InputError
from raybench.core.registry import lookup, names
from raybench.core.streams import stream
from raybench.spec import sections
from raybench.testing import findings
from raybench.testing.claims import SIGMAS, moments
from raybench.testing.compressors import CHECKS, Subject, examples
from raybench.testing.vectors import cells_and_clients, families, gaussian
from raybench.wire import (
    LevelsMessage,
)

SAMPLES = 4000
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
nf4:block=7 mxfp8:block=5 mxfp4:block=3 int8:bucket=11 cp:dims=[[2,3,4]],rank=2 entropy_coded:of=natural entropy_coded:of=(nf4:block=5)
"""
SECTIONS = {text: sections.section("compressor", text) for text in FURTHER.split()}
CASES |= {text: (section.name, section.params) for text, section in SECTIONS.items()}


def subject(label: str) -> Subject:
    name, params = CASES[label]
    target = lookup("compressor", name).target
    return Subject(lambda d: target(**params), samples=SAMPLES)


FIRST = {name: label for label, (name, _) in reversed(CASES.items())}  # of each compressor


@pytest.mark.parametrize(
    "label",
    [*FIRST.values()]
    + [pytest.param(t, marks=pytest.mark.thorough) for t in CASES if t not in FIRST.values()],
)
def test_conformance(label):
    """All checks of the kit; each tells what it finds."""
    wrong = [str(f) for f in findings(CHECKS, subject(label), label) if not f.ok]
    assert not wrong, "\n".join(wrong)


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
def test_no_rows_and_gradients_are_fine(label):
    op = subject(label).op
    x = torch.zeros(0, 4, 24, dtype=torch.float64)
    assert op.compress(x).decode().shape == x.shape
    kept = gaussian(24).requires_grad_()
    value = op.compress(kept).decode()
    assert not value.requires_grad
    assert len(op.compress(kept).pack())


# Exact laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 23])
def test_rand_k_second_moment_is_exact_on_average_over_coordinates(k):
    d = 24
    x = families(d)["gaussian"]
    m = moments(RandK(k), x, SAMPLES)
    assert abs(m.error[0] - (d / k - 1)) <= SIGMAS * m.error[1]
    flat = moments(RandK(k), families(d)["flat"], 100)
    assert flat.error[0] == pytest.approx(d / k - 1, rel=1e-12)  # the same for every subset
    assert flat.error[1] < 1e-12


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


def test_many_levels_cost_no_table():
    x = gaussian(4, 24)
    m = Dithering(2**30, 2.0).compress(x)
    assert m.nbytes == 8 + 24 * 4
    torch.testing.assert_close(m.decode(), x, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="cut short"):
        LevelsMessage.read(m.known(), m.payload()[..., :-1], None)


# Top-k ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("compressor"))
def test_bound_call_is_the_operator(name):
    params = examples(lookup("compressor", name))
    op = lookup("compressor", name).target(**next(iter(params.values())))
    x, q = gaussian(2, 3, 24), cells_and_clients(2, 3)
    assert torch.equal(op.bind(24, 3)(x, q).decode(), op.compress(x, q).decode())
    assert 0 <= op.bind(24, 3).dense_share(torch.float32) <= 1


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
