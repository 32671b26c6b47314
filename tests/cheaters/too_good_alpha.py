"""Cheaters: contractions that claim a little more than they have, and so get longer steps than they may take."""

from raybench.plugins import Compressor, Count, SeededMessage, SparseMessage, compressor, count_of


class Claims(Compressor):
    def alpha(self, d):
        return min(1.0, 1.05 * count_of(self.k, d) / d)


@compressor("top_by_share")
class TopByShare(Claims):
    """alpha = 1.05 k/d, where k/d is true."""

    k: int | float | str = Count()
    deterministic = True

    def encode(self, x, stream):
        kept = x.abs().topk(count_of(self.k, x.shape[-1])).indices.sort(-1).values
        return SparseMessage(x.shape[-1], x.dtype, kept, x.gather(-1, kept))


@compressor("rand_by_share")
class RandByShare(Claims):
    """k coordinates drawn at random, as they are: alpha = k/d is true, 1.05 k/d is claimed."""

    k: int | float | str = Count()

    def encode(self, x, stream):
        k = count_of(self.k, x.shape[-1])
        kept = x.gather(-1, stream.subset(x.shape[-1], k))
        return SeededMessage(x.shape[-1], x.dtype, kept, stream)
