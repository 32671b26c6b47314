"""What a reference implementation needs: a cell's data as numpy arrays, its compressors and its coins."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch
from toys import each_round

from raybench.testing.trial import TrialMethod, started

ALL = 1.0  # everyone pays
LAMBDA = 0.5  # of the least squares problem's l2 term


class World:
    """A cell's data, compressors and random numbers; ``bits`` up and ``evals`` are means over clients, ``told`` bits down."""

    def __init__(self, method: TrialMethod, multiple: float, seed: int) -> None:
        run = started(method.batch((multiple,), (seed,)))
        self.net, self.a, self.x0 = run.net, run.a, run.s.x[0].numpy().copy()
        parts = run.problem.rows.parts()
        self.data = [(np.asarray(A, float), np.asarray(b, float).ravel()) for A, b in parts]
        self.n, self.m = len(parts), np.array([len(b) for _, b in self.data])
        self.zero = np.zeros((self.n, len(self.x0)))
        self.bits = self.evals = self.told = 0.0
        self.known = None  # where all clients have paid for the full gradient last

    # Gradients: of all samples, or of those in J (n, b); ``pays`` (n,) says who evaluates

    def grad(self, x, J=None, pays=ALL):
        points = np.broadcast_to(x, self.zero.shape)
        rows = [(A, b) if J is None else (A[j], b[j]) for (A, b), j in zip(self.data, J or count())]
        if J is not None or x is not self.known:
            self.evals += np.mean([len(b) for _, b in rows] * np.ones(self.n) * pays)
        if J is None and pays is ALL:
            self.known = x
        of_rows = [A.T @ (A @ p - b) / len(b) for (A, b), p in zip(rows, points)]
        return np.stack(of_rows) + LAMBDA * points

    def hessians(self):
        eye = LAMBDA * np.eye(len(self.x0))
        return np.stack([A.T @ A / len(b) + eye for A, b in self.data])

    # Messages

    def C(self, v, purpose="up", op=None, sent=None):
        """Compress and send the rows of v; ``sent`` (n,) are the clients that do."""
        who = torch.ones(1, self.n, dtype=torch.bool) if sent is None else torch.tensor(sent)[None]
        m = (op or self.a.C)(torch.from_numpy(v)[None], self.net.stream(purpose)).masked(who)
        self.bits += float(m.bits.double().mean())
        return m.decode()[0].numpy()

    def dense(self, v):
        self.bits += 64.0 * v.shape[-1]
        return v

    def D(self, v):
        m = self.a.D(torch.from_numpy(v)[None], self.net.server_stream("down"))
        self.told += float(m.bits)
        return m.decode()[0].numpy()

    def model(self, x):
        self.told += 64.0 * x.shape[-1]
        return x

    def each(self, v):
        """Send every client its own message of the server's v (d,)."""
        rows = torch.from_numpy(np.broadcast_to(v, self.zero.shape).copy())
        m = self.a.D(rows[None], self.net.stream("down"))
        self.told += float(m.bits.double().mean())
        return m.decode()[0].numpy()

    # Random numbers

    def J(self, b, purpose="batch"):
        """Return the samples of the round, (n, b); None where b is ``full`` or 0: all of them."""
        if b in (None, 0, "full"):
            return None
        return list(self.net.sample(purpose, b).indices[0].numpy())

    def coin(self, purpose, p):
        return float(self.net.shared_stream(purpose).uniform(1)) < p

    def coins(self, purpose, p):
        return self.net.stream(purpose).uniform(1)[0, :, 0].numpy() < p


def compare(method: TrialMethod, reference, gamma: float, down: bool = False) -> None:
    """Compare two cells of a method with its reference: iterates, bits up, gradients; with ``down`` bits down too."""
    cells = ((1.0, 0), (0.5, 1))
    run = started(method.batch(*zip(*cells, strict=True)))

    def look(r):
        x = r.a.point(r.net, r.s, r.c).numpy().copy()
        return x, r.bits("up"), r.net.oracle.evals.copy(), r.bits("down")

    seen = each_round(run, look)[: method.rounds + 1]
    for j, (multiple, seed) in enumerate(cells):
        w = World(method, multiple, seed)
        steps = reference(w, w.x0, gamma * multiple, **run.batch.cells[j].params)
        for t, (x, bits, evals, told) in enumerate(seen):
            w.net.begin(t)
            want = next(steps)
            assert np.abs(x[j] - want).max() <= 1e-10 * max(1.0, np.abs(want).max()), (j, t)
            assert bits[j] == pytest.approx(w.bits), (j, t)
            assert evals[j] == pytest.approx(w.evals), (j, t)
            assert not down or told[j] == pytest.approx(w.told), (j, t)
        assert np.abs(x[j] - w.x0).max() > 1e-3
