"""Cheaters: unbiased compressors that claim 95 % of their variance."""

from raybench.plugins import Compressor, Dense, Number, compressor


class Kept(Compressor):
    def omega(self, d):
        return 0.95 * (1 / self.p - 1)


@compressor("bernoulli_coordinates")
class BernoulliCoordinates(Kept):
    """x_j/p with probability p, each coordinate by itself: omega = 1/p - 1."""

    p: float = Number(0.25, low=0, high=1, open_low=True)

    def encode(self, x, stream):
        return Dense(x * (stream.uniform(x.shape[-1]) < self.p) / self.p)


@compressor("bernoulli_vectors")
class BernoulliVectors(Kept):
    """x/p with probability p, as a whole: omega = 1/p - 1."""

    p: float = Number(0.1, low=0, high=1, open_low=True)

    def encode(self, x, stream):
        return Dense(x * (stream.uniform(1) < self.p) / self.p)
