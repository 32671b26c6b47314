"""The conformance kit finds what is broken in a compressor, whatever it is."""

import math

import pytest
import torch

from raybench.compressors import Compressor, Dense
from raybench.compressors.selection import TopK
from raybench.core.registry import lookup
from raybench.core.streams import stream
from raybench.testing.compressors import CHECKS, check_entry, conformance, examples
from raybench.wire import DenseMessage, SparseMessage

pytestmark = pytest.mark.thorough


def test_check_entry_covers_every_example():
    entry = lookup("compressor", "rand_k")
    result = list(check_entry(entry, samples=500, big=0))
    assert {f.about for f in result} == set(examples(entry))
    assert len(result) == len(CHECKS) * len(examples(entry))
    assert all(f.ok and str(f).startswith("ok") for f in result)


# The kit finds what is broken ------------------------------------------------------------------


class Claims(Compressor):
    """Rand-1/4 by hand; the broken compressors below differ from it in one thing."""

    mask = False

    def omega(self, d):
        return 3.0

    def encode(self, x, stream):
        keep = stream.uniform(x.shape[-1]) < 0.25
        return Dense(x * keep * 4)


class Shrinks(Claims):
    def encode(self, x, stream):
        return super().encode(x * 0.9, stream)


class Understates(Claims):
    def omega(self, d):
        return 2.0


class Overstates(TopK):
    def alpha(self, d):
        return 0.5


class Negative(Claims):
    def omega(self, d):
        return -1.0


class NotZero(Compressor):
    def encode(self, x, stream):
        return Dense(x + 1e-30)


class DividesByNorm(Compressor):
    def encode(self, x, stream):
        return Dense(x / x.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True))


class HidesNaN(Compressor):
    def encode(self, x, stream):
        return Dense(x.nan_to_num(1.0, 1.0, -1.0))


class UsesTorchRandom(Claims):
    def encode(self, x, stream):
        return Dense(x * (torch.rand_like(x) < 0.25) * 4)


class SaysDeterministic(Claims):
    deterministic = True


class OneMaskForAll(Claims):
    def encode(self, x, stream):
        keep = stream.shared().uniform(x.shape[-1]) < 0.25
        return Dense(x * (keep if stream.ids is None else keep.unsqueeze(-2)) * 4)


class SameEveryRound(Claims):
    def encode(self, x, source):
        own = stream(0).each(range(math.prod(x.shape[:-1]))).uniform(x.shape[-1])
        return Dense(x * (own.view(x.shape) < 0.25) * 4)


class LooksAtTheBatch(Compressor):
    def encode(self, x, stream):
        return Dense(x / x.abs().max().clamp(min=1e-300))


class OverstatesBeta(TopK):
    def b1(self, d):
        return 0.9, 1.0


class UnderstatesBeta(Claims):
    def b2(self, d):
        return 1.0, 2.0


class Garbage(Compressor):
    """Noise of the right size."""

    def encode(self, x, stream):
        return Dense(stream.normal(x.shape[-1]).to(x.dtype) * x.norm(dim=-1, keepdim=True))


class ReturnsItsInput(Compressor):
    """Signs are charged, all of x is decoded (as in a published natural dithering)."""

    def encode(self, x, stream):
        return FreeDense(x.shape[-1], x.dtype, x.clone())


class Threebits(DenseMessage):
    kind = "test-three-bits"

    def _cost(self):
        return super()._cost()._replace(values=0, raw=self.d * 3)


class TooManyOutputs(Compressor):
    def encode(self, x, stream):
        return Threebits(x.shape[-1], x.dtype, x / 2)


class SingleLead(Compressor):
    def encode(self, x, stream):
        return Dense(x.reshape(-1, x.shape[-1]))


class Aliases(Compressor):
    def encode(self, x, stream):
        return DenseMessage(x.shape[-1], x.dtype, x)


class ChangesX(Compressor):
    def encode(self, x, stream):
        return Dense(x.mul_(1.0000001))


class Strided(Compressor):
    def compress(self, x, stream=None):  # encode is always given a contiguous x
        return Dense(x * x.stride()[-1])

    encode = compress


class FreeDense(DenseMessage):
    """All values, a tenth of them charged."""

    kind = "test-free"

    def _cost(self):
        return super()._cost()._replace(values=self.d // 10)

    def _size(self):
        return self.d * self.dtype.itemsize


class FreeBytes(FreeDense):
    kind = "test-free-bytes"

    def _size(self):
        return self.d // 10 * self.dtype.itemsize

    @classmethod
    def demand(cls, known, width):
        return 16 * known["d"]


class Smuggles(FreeBytes):
    """The values travel in the header."""

    kind = "test-smuggles"

    def known(self):
        return {**super().known(), "gift": self.values.tolist()}


class Remembers(FreeBytes):
    """The receiver looks into the sender's memory."""

    kind = "test-remembers"
    last: DenseMessage

    def _payload(self):
        type(self).last = self
        return super()._payload()[..., : self._size()]

    @classmethod
    def read(cls, known, payload, stream):
        return cls.last


class BelowEntropy(SparseMessage):
    kind = "test-below-entropy"

    def _cost(self):
        return super()._cost()._replace(index_auto=0)


class KeepsSix(Compressor):
    def encode(self, x, stream):
        k = min(6, x.shape[-1])
        where = torch.arange(k).expand(*x.shape[:-1], k).clone()
        return BelowEntropy(x.shape[-1], x.dtype, where, x[..., :k].clone())


class WrongSum(DenseMessage):
    kind = "test-wrong-sum"

    def sum_clients(self):
        return self.values.mean(-2)


class WrongSelect(DenseMessage):
    kind = "test-wrong-select"

    def select(self, cells):
        return super().select(cells.sort().values)


def sends(kind):
    class Sends(Compressor):
        def encode(self, x, stream):
            return kind(x.shape[-1], x.dtype, x.clone())

    return Sends()


def small_only():
    class SmallOnly(Compressor):
        def encode(self, x, stream):
            return Dense(x.clamp(max=3.0) if x.shape[-1] < 1000 else x / 0.0)

    return SmallOnly()


BROKEN = [
    (Negative(), "constants make sense", "omega(24) = -1.0"),
    (Shrinks(), "unbiased", "mean of C(x) is"),
    (Understates(), "second moment within omega", "against omega"),
    (Overstates(3), "contraction at least alpha", "0.875 > 0.5"),
    (OverstatesBeta(3), "biased classes hold", "B1: "),
    (UnderstatesBeta(), "biased classes hold", "B2: E||C(x)||^2 exceeds 2"),
    (Garbage(), "output is made of the input", "on a Gaussian x"),
    (ReturnsItsInput(), "output fits its bits", "returns its input"),
    (TooManyOutputs(), "output fits its bits", "different outputs of 6 bits"),
    (NotZero(), "zero goes to zero", "C(0) = [1e-30"),
    (DividesByNorm(), "finite on hard vectors", "zero, torch.float64"),
    (HidesNaN(), "non finite input shows", "a row of nan became [1.0"),
    (UsesTorchRandom(), "determined by the stream", "with one stream differ"),
    (SaysDeterministic(), "determined by the stream", "says deterministic"),
    (OneMaskForAll(), "clients and rounds independent", "two clients"),
    (SameEveryRound(), "clients and rounds independent", "two rounds"),
    (LooksAtTheBatch(), "batched equals row by row", "row (0, 0) differs alone"),
    (SingleLead(), "decodes to the shape of x", "decoded (1, 24)"),
    (sends(Remembers), "packs and unpacks bit exactly", "changed by packing"),
    (sends(FreeBytes), "bytes are counted exactly", "nbytes is 16, the payload (3, 4, 192)"),
    (sends(FreeDense), "modelled bits fit the bytes", "1408 sent bits are not modelled"),
    (KeepsSix(), "modelled bits fit the bytes", "fewer bits than their entropy"),
    (sends(Smuggles), "header does not depend on x", "gift"),
    (Aliases(), "never aliases its input", "changing x changed the message"),
    (Strided(), "strides do not matter", "strided x differs"),
    (ChangesX(), "never aliases its input", "compress changed its input"),
    (sends(WrongSum), "sums agree with decode", "sum_clients"),
    (sends(WrongSelect), "parts agree with the whole", "select changed the values"),
    (small_only(), "fits a million coordinates", "not finite at d = 1000000"),
]


@pytest.mark.parametrize(("op", "check", "says"), BROKEN, ids=range(len(BROKEN)))
def test_the_kit_finds_a_broken_operator(op, check, says):
    big = 10**6 if "million" in check else 0
    result = {
        f.check: f for f in conformance(lambda d: op, samples=20_000, dims=(1, 2, 8), big=big)
    }
    assert not result[check].ok
    assert says in result[check].detail
    assert str(result[check]).startswith(f"FAIL  compressor: {check}: ")
    assert "\n" not in str(result[check])


def test_a_plugin_that_raises_is_a_finding():
    def broken(d):
        raise RuntimeError("boom")

    result = conformance(broken)
    assert len(result) == len(CHECKS)
    assert all("RuntimeError: boom" in f.detail for f in result)


def test_every_check_is_shown_to_fail():
    elsewhere = {"holds no more than its bytes"}  # takes a plug-in file: tests/test_cheaters.py
    assert set(CHECKS) - {check for _, check, _ in BROKEN} == elsewhere


def test_the_sound_one_passes():
    result = conformance(lambda d: Claims(), samples=20_000, dims=(1, 8))
    assert not [str(f) for f in result if not f.ok]
