"""An operator at work in a method: bound to a dimension, its time taken, its share of k changeable."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raybench.compressors.base import Bound, Compressor
from raybench.compressors.keeping import keeping
from raybench.core.clock import Clock
from raybench.core.layout import Layout
from raybench.core.streams import Stream
from raybench.wire import Message


@dataclass(frozen=True)
class Applied:
    """What a method calls: a.C(x, stream) is the message of x.

    declared, n: the operator before it was bound and the number of clients, for ``fitted``.
    """

    bound: Bound
    clock: Clock
    declared: Compressor
    n: int

    def __call__(self, x: Tensor, source: Stream) -> Message:
        with self.clock.on("compress"):
            return self.bound(x, source)

    def fitted(self, layout: Layout, share: float | str | None = None) -> Applied:
        """Return the same operator for vectors of this layout, keeping that share of them.

        share: in place of its ``k``, wherever that is; None leaves it. Raises InputError where the
        operator has no ``k``.
        """
        op = self.declared if share is None else keeping(self.declared, share)
        bound = op.bind(layout.dim, self.n, layout, self.bound.role)
        return Applied(bound, self.clock, op, self.n)
