"""Least squares split by features: clients hold columns and send vectors of one entry per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from raybench import data
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.limits import need_memory
from raybench.core.registry import Param, problem
from raybench.problems.accuracy import share_signed
from raybench.problems.base import DTYPES, Constants, Fact, Problem
from raybench.problems.clients import DataProblem, Rows
from raybench.problems.spectra import lmax_gram

_SHARED = ("dataset", "clients", "dtype", "seed", "rows", "intercept", "scale", "test_size")


@problem("vertical_least_squares", x0="problem")
class VerticalLeastSquares(Problem):
    """Vertical least squares: F(x) = ||sum_j A_j x_j - b||^2, client j holding the columns A_j.

    Columns fall into contiguous blocks, as equal as may be; labels are -1 and +1; starts at
    U(0,1)^d. Messages have length N, the number of rows (``message_dim``). F is no mean over
    clients: ``oracle`` gives every hosted client the full gradient and the full loss, so that means
    over clients are right (and L_i = L). A method works on blocks: ``split``, ``products``,
    ``block_grad``, ``assemble``; blocks are padded with zeros to the widest, w. After the vertical
    experiment of naryst/marina. A minibatch of b rows stands for N/b times its part of F. Raises InputError
    for more clients than features.
    """

    __params__: ClassVar[Mapping[str, Param]] = {
        **{k: DataProblem.__params__[k] for k in _SHARED},
        "positive": DataProblem.__params__["positive"],
    }
    per_client = ("blocks", "columns", "present")

    def __init__(
        self,
        dataset: str,
        clients: int,
        *,
        dtype: str = "float64",
        seed: int = 0,
        rows: int | None = None,
        intercept: bool = False,
        scale: str = "none",
        test_size: float = 0.0,
        positive: Sequence[float] | None = None,
    ) -> None:
        loaded = data.load(dataset, rows=rows, scale=scale, intercept=intercept, positive=positive)
        signs, d = loaded.binary(), loaded.shape[1]
        if not 1 <= clients <= d:
            fix = f"at most {d:,} clients can hold a feature"
            raise InputError.of("problem.clients", f"{clients} clients on {d:,} features", fix)
        train, test = data.hold_out(len(signs), test_size, seed)
        need_memory(
            2 * DTYPES[dtype].itemsize * len(train) * d,
            f"{len(train):,} rows of {d:,} features without gaps, twice,",
            "fewer problem.rows: features are split over clients as dense columns",
        )
        super().__init__(clients, d, dtype=DTYPES[dtype])
        self.test = Rows.of(loaded.features, signs, [test]) if len(test) else None
        self.train = Rows.of(loaded.features, signs, [train])
        pieces = np.array_split(np.arange(d), clients)
        columns = np.zeros((clients, max(map(len, pieces))), dtype=np.int64)
        present = np.zeros(columns.shape)
        for j, piece in enumerate(pieces):
            columns[j, : len(piece)] = piece
            present[j, : len(piece)] = 1
        self.columns = torch.from_numpy(columns)  # (n, w)
        # (n, w): 1, and 0 where a narrower block is padded
        self.present = torch.from_numpy(present).to(self.dtype)
        self.At = torch.from_numpy(np.ascontiguousarray(self.train.dense().T)).to(self.dtype)
        self.b = torch.from_numpy(self.train.labels).to(self.dtype)
        self.blocks = self.At[self.columns] * self.present[..., None]  # (n, w, N): A_j'
        self.first = np.random.default_rng([seed, *b"start"]).random(d)

    @property
    def message_dim(self) -> int:
        """Return N, the number of rows."""
        return len(self.b)

    @property
    def sample_count(self) -> int:
        """Return N, the number of rows."""
        return len(self.b)

    def message_layout(self, batch: object = None) -> Layout:
        """Return the layout of a vector with an entry per row of a message."""
        b = batch if isinstance(batch, int) else len(self.b)
        if b > len(self.b):
            raise InputError.of("algorithm.batch", f"{b:,} of {len(self.b):,} rows", "fewer")
        return Layout.vector(b)

    def places(self, rows: torch.Tensor) -> torch.Tensor:
        """Return where the entries of rows (B, b) stand in a message of all rows: there."""
        return rows

    def products(self, blocks: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return A_j x_j, (B, n_here, b), of the hosted clients' blocks (B, n_here, w), at rows (B, b)."""
        if rows is None:
            return (blocks.transpose(0, 1) @ self.blocks).transpose(0, 1)
        return torch.einsum("bnw,nwbk->bnk", blocks, self.blocks[..., rows])

    def change(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """Return A_j (new_j - old_j), (B, n_here, N)."""
        return self.products(new - old)

    def residual(self, v: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return 2 (v - b), (B, b), for v (B, b) that stands for Ax; of rows (B, b) N/b times that."""
        if rows is None:
            return 2 * (v - self.b)
        return 2 * (v - self.b[rows]) * (len(self.b) / rows.shape[1])

    def block_grad(
        self, blocks: torch.Tensor, r: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return A_j' r, (B, n_here, w), for r (B, b)."""
        n, w, N = self.blocks.shape
        if rows is None:
            return (r @ self.blocks.view(n * w, N).T).view(-1, n, w)
        return torch.einsum("bk,nwbk->bnw", r, self.blocks[..., rows])

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return the hosted clients' blocks (B, n_here, w) of x (B, d), padded with zeros."""
        return x[:, self.columns] * self.present

    def assemble(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return x (B, d) from the blocks (B, n, w) of all clients."""
        whole = self.whole
        assert isinstance(whole, VerticalLeastSquares)
        kept = whole.present.to(
            blocks.device
        ).bool()  # blocks hold consecutive columns, so this puts them in order
        return blocks[:, kept]

    def oracle(
        self, x: torch.Tensor, loss: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return grad F(x) and F(x), the same for every hosted client: (B, n_here, d), (B, n_here)."""
        residual = x @ self.At - self.b  # (B[, n], N)
        grads = 2 * residual @ self.At.T
        losses = residual.square().sum(-1) if loss else None
        if x.ndim == 3:
            return grads, losses
        here = len(self.clients)
        return (
            grads[:, None].expand(-1, here, -1).contiguous(),
            losses[:, None].expand(-1, here).contiguous() if losses is not None else None,
        )

    def find_constants(self) -> Constants:
        """L = 2 ||A||^2; extra L_blk = 2 max_j ||A_j||^2; mu = twice the smallest nonzero eigenvalue."""
        A, b = self.train.dense(), self.train.labels
        x, _, rank, singular = np.linalg.lstsq(A, b, rcond=None)
        L = 2 * float(singular[0]) ** 2
        f_star = float(((A @ x - b) ** 2).sum())
        facts = {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES, Fact.BOUNDED_CLIENTS}
        if rank == self.dim:
            facts.add(Fact.STRONGLY_CONVEX)
        blocks = (A[:, c[p > 0]] for c, p in zip(self.columns.numpy(), self.present.numpy()))
        return Constants(
            L=L,
            L_i=(L,) * self.n,
            L_plus=L,
            L_pm=0.0,
            mu=2 * float(singular[rank - 1]) ** 2 if rank else None,
            f_inf=f_star,
            f_star=f_star,
            L_samples=L,
            L_sample_i=(L,) * self.n,
            sample_variance=0.0,
            facts=frozenset(facts),
            extra={"L_blk": 2 * max(lmax_gram(block) for block in blocks)},
        )

    def start(self) -> torch.Tensor:
        """Return a draw from U(0,1)^d, seeded by the problem's seed."""
        return torch.from_numpy(self.first).to(self.dtype).to(self.device)

    def evaluate(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the accuracy of sign(a'x) on the test part, else on all rows; mean squared test loss.

        A score of 0 counts as half right.
        """
        rows = self.test or self.train
        scores = torch.from_numpy(rows.features @ x.detach().cpu().double().numpy().T)
        labels = torch.from_numpy(rows.labels)[:, None]
        found = {"accuracy": share_signed((scores * labels).T)}
        if self.test is not None:
            found["test_loss"] = (scores - labels).square().mean(0)
        return {k: v.to(x.device) for k, v in found.items()}
