"""A compressor of one's own: a random block of neighbouring coordinates."""

import torch

from raybench.plugins import Compressor, Count, SparseMessage, compressor, count_of


@compressor("rand_block")
class RandBlock(Compressor):
    """C(x) = (d/K) x_S, S a random block of K coordinates (cyclic): unbiased, omega = d/K - 1."""

    k: int | float | str = Count(help="length of the block")

    def encode(self, x, stream):
        d = x.shape[-1]
        k = count_of(self.k, d)
        start = stream.integers(1, d)
        block = ((start + torch.arange(k, device=x.device)) % d).sort(dim=-1).values
        return SparseMessage(d, x.dtype, block, x.gather(-1, block), scale=d / k)

    def omega(self, d):
        return d / count_of(self.k, d) - 1

    def alpha(self, d):
        return 1.0 if count_of(self.k, d) == d else None
