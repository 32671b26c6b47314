"""Problems split by features: clients hold columns, or views, of every sample, and send an entry per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raybench import data
from raybench.core.errors import InputError, nearest
from raybench.core.layout import Layout
from raybench.core.limits import need_memory
from raybench.core.params import declared
from raybench.core.registry import Choice, Integer, List, Number, Param, Text, problem
from raybench.problems.base import DTYPES, Constants, Fact, Problem, share_right, share_signed
from raybench.problems.clients import DataProblem, Rows
from raybench.problems.minimum import lmax_gram
from raybench.problems.networks import build
from raybench.problems.networks.parties import LinearParty, Party, encoded, parties_of
from raybench.problems.networks.passes import cross_entropy

_SHARED = (
    *("dataset", "clients", "dtype", "seed", "rows", "intercept"),
    *("scale", "test_size", "positive", "label", "features"),
)


class VerticalProblem(Problem):
    """A problem whose clients hold features of all N samples, and send ``width`` entries for each of them.

    f is no mean over clients: ``oracle`` gives every hosted client the full gradient and loss, so that means
    over clients are right (and L_i = L). Methods work on blocks (see ``SplitByFeatures``).
    """

    width: int = 1
    sample_count: int  # N

    @property
    def message_dim(self) -> int:
        """Return the number of entries of all samples, N width."""
        return self.sample_count * self.width

    def places(self, rows: Tensor) -> Tensor:
        """Return where the entries of rows (B, b) stand in a message of all samples, (B, b width)."""
        return (rows[..., None] * self.width + torch.arange(self.width).to(rows)).flatten(-2)

    def batch_size(self, batch: object) -> int:
        """Return the samples of a message: of a minibatch, an integer, or all. Raises InputError for too many."""
        size = batch if isinstance(batch, int) else self.sample_count
        if size > self.sample_count:
            what = f"{size:,} of {self.sample_count:,} samples"
            raise InputError.of("algorithm.batch", what, f"at most {self.sample_count:,}")
        return size

    def everywhere(
        self, x: Tensor, grads: Tensor, losses: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return gradients (.., d) and losses (..) at x (B, d) or (B, n_here, d) for every client here."""
        if x.ndim == 3:
            return grads.view(x.shape), None if losses is None else losses.view(x.shape[:2])
        here = len(self.clients)
        spread = grads[:, None].expand(-1, here, -1).contiguous()
        return spread, None if losses is None else losses[:, None].expand(-1, here).contiguous()

    def constants_of(
        self,
        L: float,
        L_blk: float,
        mu: float | None,
        f_inf: float,
        facts: set[Fact],
        **more: float,
    ) -> Constants:
        """Return the constants of an L-smooth f that every client has whole; L_blk: the largest of a block."""
        every = {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES, Fact.BOUNDED_CLIENTS}
        return Constants(
            L=L,
            L_i=(L,) * self.n,
            L_plus=L,
            L_pm=0.0,
            mu=mu,
            f_inf=f_inf,
            L_samples=L,
            L_sample_i=(L,) * self.n,
            sample_variance=0.0,
            facts=frozenset(every | facts),
            extra={"L_blk": L_blk},
            **more,  # type: ignore[arg-type]
        )


@problem("vertical_least_squares", x0="problem")
class VerticalLeastSquares(VerticalProblem):
    """Vertical least squares: F(x) = ||sum_j A_j x_j - b||^2, client j holding the columns A_j.

    Columns fall into contiguous blocks, as equal as may be, padded with zeros to the widest, w; labels are -1
    and +1; starts at U(0,1)^d. A minibatch of b rows stands for N/b times its part of F. After the vertical
    experiment of naryst/marina. Raises InputError for more clients than features.
    """

    __params__: ClassVar[Mapping[str, Param]] = {
        **{key: declared(DataProblem, as_record=False)[key] for key in _SHARED},
        "clients": Integer(low=1, help="number of clients n"),
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
        label: str | None = None,
        features: int | None = None,
    ) -> None:
        reading: dict[str, Any] = {"scale": scale, "intercept": intercept, "label": label}
        table = data.load(dataset, rows=rows, positive=positive, features=features, **reading)
        signs, d = table.binary(), table.shape[1]
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
        self.test = Rows.of(table.features, signs, [test]) if len(test) else None
        self.train = Rows.of(table.features, signs, [train])
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
        self.sample_count = len(self.b)
        self.blocks = self.At[self.columns] * self.present[..., None]  # (n, w, N): A_j'
        self.first = np.random.default_rng([seed, *b"start"]).random(d)

    def message_layout(self, batch: object = None) -> Layout:
        return Layout.vector(self.batch_size(batch))

    def products(self, blocks: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return A_j x_j, (B, n_here, b), of the hosted clients' blocks (B, n_here, w), at rows (B, b)."""
        if rows is None:
            return (blocks.transpose(0, 1) @ self.blocks).transpose(0, 1)
        return torch.einsum("bnw,nwbk->bnk", blocks, self.blocks[..., rows])

    def change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return A_j (new_j - old_j), (B, n_here, N)."""
        return self.products(new - old)

    def residual(self, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return 2 (v - b), (B, b), for v (B, b) that stands for Ax; of rows (B, b) N/b times that."""
        if rows is None:
            return 2 * (v - self.b)
        return 2 * (v - self.b[rows]) * (len(self.b) / rows.shape[1])

    def block_grad(self, blocks: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return A_j' r, (B, n_here, w), for r (B, b)."""
        n, w, N = self.blocks.shape
        if rows is None:
            return (r @ self.blocks.view(n * w, N).T).view(-1, n, w)
        return torch.einsum("bk,nwbk->bnw", r, self.blocks[..., rows])

    def split(self, x: Tensor) -> Tensor:
        return x[:, self.columns] * self.present

    def assemble(self, blocks: Tensor) -> Tensor:
        whole = self.whole
        # Blocks hold consecutive columns, so this puts them in order.
        return blocks[:, whole.present.to(blocks.device).bool()]

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        residual = x @ self.At - self.b  # (B[, n], N)
        grads = 2 * residual @ self.At.T
        losses = residual.square().sum(-1) if loss else None
        return self.everywhere(x, grads, losses)

    def find_constants(self) -> Constants:
        """L = 2 ||A||^2; extra L_blk = 2 max_j ||A_j||^2; mu = twice the smallest nonzero eigenvalue."""
        A, b = self.train.dense(), self.train.labels
        x, _, rank, singular = np.linalg.lstsq(A, b, rcond=None)
        L = 2 * float(singular[0]) ** 2
        f_star = float(((A @ x - b) ** 2).sum())
        blocks = (A[:, c[p > 0]] for c, p in zip(self.columns.numpy(), self.present.numpy()))
        L_blk = 2 * max(lmax_gram(block) for block in blocks)
        mu = 2 * float(singular[rank - 1]) ** 2 if rank else None
        facts = {Fact.STRONGLY_CONVEX} if rank == self.dim else set()
        return self.constants_of(L, L_blk, mu, f_star, facts, f_star=f_star)

    def start(self) -> Tensor:
        """Return a draw from U(0,1)^d, seeded by the problem's seed."""
        return torch.from_numpy(self.first).to(self.dtype).to(self.device)

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return the accuracy of sign(a'x) on the test part, else on all rows; mean squared test loss.

        A score of 0 counts as half right.
        """
        rows = self.test or self.train
        scores = torch.from_numpy(rows.features @ x.detach().cpu().double().numpy().T)
        labels = torch.from_numpy(rows.labels)[:, None]
        result = {"accuracy": share_signed((scores * labels).T)}
        if self.test is not None:
            result["test_loss"] = (scores - labels).square().mean(0)
        return {k: v.to(x.device) for k, v in result.items()}


# Views: encoders and linear heads -----------------------------------------------------------------


@problem("vertical_network", x0="problem")
class VerticalNetwork(VerticalProblem):
    """Multimodal network: f(x) = mean_a -log p_y(a), p = softmax(sum_j W_j phi_j(a_j)), + weight_decay/2 ||x||^2.

    Client j holds view j of every sample, such as its picture or its text, an encoder phi_j of it and a linear
    head W_j. Its variable x_j is W_j and what of phi_j is not frozen; x is all of them. Clients send their
    contributions W_j phi_j(a_j), so messages have an entry per sample and class, N C (``message_layout``). The
    server has the labels and sends back the loss's gradient in the scores. Where all encoders are
    frozen, or features are precomputed, f is convex and its constants are known. Encoders run without dropout and
    BatchNorm by the statistics it starts with, so that the contribution of a sample depends on x alone.

    Raises InputError for bad input.
    """

    def __init__(
        self,
        dataset: str = Text(help="wikipedia, wikipedia_tfidf, or a path to views"),
        *,
        views: Sequence[str] = List(
            (), help="which views, a client each, in this order; all by default"
        ),
        encoders: Sequence[str] = List(
            (), help="an encoder per client: identity, mlp, torchvision:resnet18, bert, .."
        ),
        init_from: Sequence[str | None] = List(
            (), help="weights per client: a file of torch.save, a folder of BERT's, or null"
        ),
        freeze: Sequence[str] = List(
            (), help="patterns of parameters that stay, such as image.encoder.*"
        ),
        batch: int | str = Integer(
            "full", low=1, words=("full",), help="samples of a round, the same for all"
        ),
        scale: str = Choice(
            "normal", "none", "imagenet", help="of features and colours: mean 0 and variance 1"
        ),
        weight_decay: float = Number(0.0, low=0, help="w of w/2 ||x||^2, a part of f"),
        init_seed: int = Integer(0, low=0, help="drives the initial weights"),
        dtype: str = Choice("float32", "float64", help="floating-point type"),
        seed: int = Integer(0, low=0, help="drives the test part"),
        rows: int | None = Integer(None, low=1, help="only the first so many samples"),
        test_size: float = Number(
            0.0, low=0, high=0.99, help="share held out where there is no test part"
        ),
        chunk: int = Integer(256, low=1, help="samples of one pass of an encoder"),
    ) -> None:
        pairs = _chosen(data.views(dataset), views)
        pairs = {name: build.parted(pair, rows, test_size, seed) for name, pair in pairs.items()}
        first = next(iter(pairs.values()))
        names = _each(encoders, len(pairs), "encoders", "identity")
        weights = _each(init_from, len(pairs), "init_from", None)
        encoded_views = {
            view: encoded(str(name), pair, scale, init_seed, weight)
            for (view, pair), name, weight in zip(pairs.items(), names, weights, strict=True)
        }
        self.classes = self.width = first.train.classes
        self.weight_decay = weight_decay
        parties = parties_of(encoded_views, self.classes, freeze, DTYPES[dtype], chunk)
        tensors = [tensor for party in parties for tensor in party.layout]
        super().__init__(len(parties), Layout(tuple(tensors)), dtype=DTYPES[dtype])
        self.networks = parties
        self.batch = batch if isinstance(batch, int) else None
        self.labels = torch.from_numpy(first.train.targets)
        self.sample_count = len(self.labels)
        self.test_labels = None if first.test is None else torch.from_numpy(first.test.targets)
        self.linear = all(isinstance(party, LinearParty) for party in self.parties)
        self.costly = not self.linear
        self.sizes = [party.layout.dim for party in self.parties]

    @property
    def parties(self) -> list[Party]:
        """The clients' views and encoders, of all clients."""
        return self.networks

    # What clients send ----------------------------------------------------------------------------

    def message_layout(self, batch: object = None) -> Layout:
        """Return the layout of contributions: a matrix of samples by classes."""
        return Layout((("contributions", (self.batch_size(batch), self.classes)),))

    def split(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), len(self.clients), max(self.sizes))
        parts = x.split(self.sizes, -1)
        for j, i in enumerate(self.clients):
            out[:, j, : self.sizes[i]] = parts[i]
        return out

    def assemble(self, blocks: Tensor) -> Tensor:
        return torch.cat([blocks[:, j, :w] for j, w in enumerate(self.sizes)], -1)

    def products(self, blocks: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the contributions (B, n_here, b C) of rows (B, b), of all samples where None."""
        result = [self.parties[i].outputs(x, rows) for i, x in self._own(blocks)]
        return torch.stack([u.flatten(1) for u in result], 1)

    def change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return products(new) - products(old), which is products(new - old) where all are linear."""
        return self.products(new - old) if self.linear else self.products(new) - self.products(old)

    def residual(self, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient (B, b C) of the samples' mean loss in their scores v (B, b C)."""
        scores = v.unflatten(-1, (-1, self.classes))
        labels = self.labels if rows is None else self.labels[rows]
        right = F.one_hot(labels, self.classes).to(scores)
        return ((scores.softmax(-1) - right) / scores.shape[1]).flatten(1)

    def block_grad(self, blocks: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return J_j' r + weight_decay x_j, (B, n_here, w), J_j of the contributions, r (B, b C)."""
        out = self.weight_decay * blocks
        r = r.unflatten(-1, (-1, self.classes))
        for j, (i, x) in enumerate(self._own(blocks)):
            out[:, j, : self.sizes[i]] += self.parties[i].pullback(x, r, rows)
        return out

    def _own(self, blocks: Tensor) -> list[tuple[int, Tensor]]:
        return [(i, blocks[:, j, : self.sizes[i]]) for j, i in enumerate(self.clients)]

    # The whole, for the record ----------------------------------------------------------------------

    def _scores(self, x: Tensor, test: bool = False) -> Tensor:
        """Return the scores (B, N, C) of all training, or test, samples at x (B, d)."""
        pairs = zip(self.parties, x.split(self.sizes, -1), strict=True)
        return sum(p.outputs(weights, test=test) for p, weights in pairs)  # type: ignore[return-value]

    def _losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(scores, labels.expand(scores.shape[:2]))

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        at = x.flatten(0, -2)
        scores = self._scores(at)
        r = self.residual(scores.flatten(1)).view(scores.shape)
        parts = zip(self.parties, at.split(self.sizes, -1), strict=True)
        grads = (
            torch.cat([p.pullback(weights, r) for p, weights in parts], -1) + self.weight_decay * at
        )
        losses = self._losses(scores, self.labels) + self.decay(at) if loss else None
        return self.everywhere(x, grads, losses)

    def losses(self, x: Tensor) -> Tensor:
        f = self._losses(self._scores(x), self.labels) + self.decay(x)
        return f[:, None].expand(-1, len(self.clients))

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return accuracy and test_loss on the test part; without one the accuracy on the training part."""
        test = self.test_labels is not None
        labels = self.labels if self.test_labels is None else self.test_labels
        scores = self._scores(x, test)
        result = {"accuracy": share_right(scores, labels)}
        return {**result, "test_loss": self._losses(scores, labels)} if test else result

    def start(self) -> Tensor:
        """Return the initial weights of all encoders that are trained, and zeros for the heads."""
        return torch.cat([party.start() for party in self.parties])

    def find_constants(self) -> Constants:
        """L = ||Phi||^2/(2N) + weight_decay where all parties are linear: softmax's Hessian is at most 1/2.

        Phi = [Phi_1, .., Phi_n] the features; extra L_blk = max_j ||Phi_j||^2/(2N) + weight_decay. Else only
        that f >= 0.
        """
        w, N = self.weight_decay, self.sample_count
        if not self.linear:
            return Constants(f_inf=0.0, facts=frozenset({Fact.BOUNDED_CLIENTS}))
        features = [p.phi.double().numpy() for p in self.parties if isinstance(p, LinearParty)]
        L = lmax_gram(np.concatenate(features, 1)) / (2 * N) + w
        L_blk = max(map(lmax_gram, features)) / (2 * N) + w
        facts = {Fact.STRONGLY_CONVEX} if w else set()
        return self.constants_of(L, L_blk, w or None, 0.0, facts)


def _chosen(pairs: dict[str, data.Pair], views: Sequence[str]) -> dict[str, data.Pair]:
    """Return the views that are asked for, in that order; raises InputError for one that is not there."""
    for view in views:
        if view not in pairs:
            raise InputError.of("problem.views", f"no view {view!r}", nearest(str(view), pairs))
    if len(set(views)) < len(views):
        raise InputError.of("problem.views", "a view is named twice", "a client per view")
    return {view: pairs[view] for view in views} if views else pairs


def _each(
    values: Sequence[str | None], count: int, key: str, usual: str | None
) -> list[str | None]:
    """Return a value for every client. Raises InputError where there are more or fewer of them."""
    if not values:
        return [usual] * count
    if len(values) != count or not all(v is None or isinstance(v, str) for v in values):
        what = f"{len(values)} values for {count} views"
        raise InputError.of(f"problem.{key}", what, f"a list of {count} texts in a list: [[..]]")
    return [usual if v is None else v for v in values]
