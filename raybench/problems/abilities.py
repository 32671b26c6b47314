"""What some problems can do and others cannot: asked for by ``isinstance``, never by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, runtime_checkable

from torch import Tensor

from raybench.core.parts import Train
from raybench.core.streams import Sample


@runtime_checkable
class Predicting(Protocol):
    """A problem whose x predicts: codistillation compares what clients predict."""

    @property
    def outputs(self) -> int:
        """Return how many numbers are predicted per input; 0 where there is nothing to predict."""

    def predict(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return predictions (B, n_here, b, outputs) at x (B, n_here, d) of inputs rows (B, b).

        rows count through the rows of all clients. Probabilities, or regressed values.
        """

    def distill(self, x: Tensor, rows: Tensor, teacher: Tensor) -> Tensor:
        """Return the gradient (B, n_here, d) in x of mean_b D(teacher_b, predict(x, rows)_b).

        D: cross-entropy of probabilities, half the squared distance of regressed values.
        """


@runtime_checkable
class Labelled(Protocol):
    """A problem whose samples have labels that a client may turn around.

    labelled: whether they do; networks may have targets of other kinds.
    """

    @property
    def labelled(self) -> bool: ...

    def flipped(self) -> Self:
        """Return the same problem with wrong labels: -y in place of y, class c - 1 - k in place of k of c."""


@runtime_checkable
class SplitByFeatures(Protocol):
    """A problem whose clients hold features, not rows: client j has a block x_j and contributes u_j(x_j).

    f is a function of v = sum_j u_j, a few entries per sample: with columns A_j of a matrix u_j = A_j x_j. A
    message holds the entries of all N samples, or of a minibatch, rows (B, b), the same for all clients;
    below N and b stand for the entries of those. rows: None for all. sample_count: N.
    """

    sample_count: int

    def places(self, rows: Tensor) -> Tensor:
        """Return where the entries of rows (B, b) stand in a message of all samples."""

    def split(self, x: Tensor) -> Tensor:
        """Return the blocks (B, n_here, w) of x (B, d) that the clients here hold."""

    def products(self, blocks: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return u_j(x_j), (B, n_here, b), of the clients' own blocks (B, n_here, w)."""

    def change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return u_j(new_j) - u_j(old_j), (B, n_here, N), of blocks (B, n_here, w)."""

    def residual(self, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient of f in v, (B, b), or that of a minibatch's estimate of f."""

    def block_grad(self, blocks: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return each client's block of the gradient, (B, n_here, w), at a residual r (B, b)."""

    def assemble(self, blocks: Tensor) -> Tensor:
        """Return the whole x (B, d) of all clients' blocks (B, n, w)."""


@runtime_checkable
class Trained(Protocol):
    """A problem whose gradients are those of a network that is trained.

    A sample's gradients bring its loss along: for the record it is free. They may carry memory along, such as
    BatchNorm's running statistics: buffers, tensors (B, n_here, ..) by name. It belongs to the run, per cell and client:
    a problem itself has no state. tested: whether there is a test part. tokens: of a sample, 0 where it is no text.
    """

    @property
    def tested(self) -> bool: ...

    @property
    def tokens(self) -> int: ...

    @property
    def shares_buffers(self) -> bool:
        """Return whether the clients average their buffers after every gradient, which is booked."""

    def trained(self, train: Train) -> Self:
        """Return the problem with these settings of training."""

    def weights(self, x: Tensor, buffers: Mapping[str, Tensor]) -> bytes:
        """Return the file of the network at x (d,), with buffers (..) by name, as torch saves a state_dict."""

    def buffers(self, cells: int) -> dict[str, Tensor]:
        """Return the buffers of so many cells at the start, by name; empty where gradients carry nothing along."""

    def gradients(
        self, x: Tensor, sample: Sample | None, buffers: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the clients' gradients (B, n_here, d), full or of a sample, its losses (B, n_here), and the buffers
        afterwards.
        """

    def losses(self, x: Tensor, buffers: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return f_i(x) (B, n_here) at x (B, d), with the mean of the clients' buffers, (B, ..) by name."""

    def evaluate(self, x: Tensor, buffers: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return metrics at x (B, d), (B,) each, with the mean of the clients' buffers, (B, ..) by name."""
