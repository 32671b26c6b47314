"""Messages that add up to one of the same kind and size, so that one all-reduce exchanges them."""

from __future__ import annotations

from torch import Tensor

from raybench.wire.base import Message


class Additive(Message):
    """Base of kinds whose messages add up, all of them or those for which ``additive`` holds."""

    @property
    def additive(self) -> bool:
        """Whether these messages add up: their sum over clients is one of the kind and size."""
        return True

    def summands(self) -> Tensor:
        """Return the numbers (*lead, m) that are added, in the format in which they are sent."""
        raise NotImplementedError

    def of_summands(self, values: Tensor) -> Message:
        """Return the message with these numbers (.., m), whose leading axes are without the clients."""
        raise NotImplementedError
