"""Methods of practice, vertical, decentralised and led ones in plain numpy, written from the papers.

Every reference is a loop over rounds and clients that yields the recorded point of each round. It knows
k.x0, k.n, k.grad(X, J) of every client, k.losses(X), k.steps and the round's draws; nothing of the engine.
"""

import numpy as np


def top(x: np.ndarray, k: int = 3) -> np.ndarray:
    """Return Top-k of every row."""
    out = np.zeros_like(x)
    for row, kept in zip(out, x):
        best = np.argsort(-np.abs(kept))[:k]
        row[best] = kept[best]
    return out


def sign(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1.0, -1.0)


def scaled_sign(x: np.ndarray) -> np.ndarray:
    return np.abs(x).mean(-1, keepdims=True) * sign(x)


def two_means(x: np.ndarray) -> np.ndarray:
    return np.stack(
        [np.where(r >= 0, r[r >= 0].mean(), r[r < 0].mean() if (r < 0).any() else 0.0) for r in x]
    )


def ring(n: int) -> np.ndarray:
    W = np.zeros((n, n))
    for i in range(n):
        W[i, (i + 1) % n] = W[i, i - 1] = W[i, i] = 1 / 3
    return W


def path_graph(n: int) -> np.ndarray:
    """The Laplacian weights of a path: 1/3 along its edges."""
    W = np.eye(n)
    for i in range(n - 1):
        for a, b in ((i, i + 1), (i + 1, i)):
            W[a, b] += 1 / 3
            W[a, a] -= 1 / 3
    return W


def dgc(k, momentum=0.9, nesterov=False, clip=np.inf, decay=0.0, masking=True):
    x, u, v = k.x0, 0, 0
    for gamma in k.steps:
        g = k.grad(x)
        norms = np.linalg.norm(g, axis=1, keepdims=True)
        g = g * np.minimum(1, clip / np.sqrt(k.n) / norms) + decay * x
        u = momentum * (u + g) if nesterov else momentum * u + g
        v = v + u + (g if nesterov else 0)
        m = top(v)
        v = v - m
        u = np.where(m != 0, 0, u) if masking else u
        x = x - gamma * m.mean(0)
        yield x


def signum(k, momentum=0.0, decay=0.0):
    x, m = k.x0, 0
    for gamma in k.steps:
        m = momentum * m + (1 - momentum) * k.grad(x)
        x = x - gamma * (sign(sign(m).sum(0)) + decay * x)
        yield x


def ef(k, C, inside):
    x, e = k.x0, 0
    for gamma in k.steps:
        p = (gamma if inside else 1) * k.grad(x) + e
        m = C(p)
        e = p - m
        x = x - (1 if inside else gamma) * m.mean(0)
        yield x


def one_bit_adam(k, warmup_rounds=8, beta1=0.9, beta2=0.99, epsilon=1e-3):
    x, m, v, e, E = k.x0, 0, 0, 0, 0
    for t, gamma in enumerate(k.steps):
        g = k.grad(x)
        if t < warmup_rounds:
            m = beta1 * m + (1 - beta1) * g.mean(0)
            v = beta2 * v + (1 - beta2) * g.mean(0) ** 2
        else:
            mi = beta1 * m + (1 - beta1) * g + e
            c = scaled_sign(mi)
            e = mi - c
            u = c.mean(0) + E
            m = scaled_sign(u)
            E = u - m
        x = x - gamma * m / (np.sqrt(v) + epsilon)
        yield x


def zero_one_adam(k, freeze, updates, steps_each, steps_most, beta1=0.9, beta2=0.99, epsilon=1e-3):
    """0/1 Adam as DeepSpeed's loop: counters that are kept, every client's own point."""
    X = np.tile(k.x0, (k.n, 1))
    anchor, m, v = X.copy(), np.zeros_like(X), 0.0
    e, E, u, lrs = 0.0, 0.0, np.zeros_like(X), 0.0
    interval, counter, local, steps = 1, 0, 1, 0

    def one_bit(w):
        nonlocal e, E
        c = scaled_sign(w + e)
        e = w + e - c
        mean = c.mean(0) + E
        told = scaled_sign(mean)
        E = mean - told
        return told

    for t, gamma in enumerate(k.steps, 1):
        g = k.grad(X)
        if t <= freeze:
            if t % interval == 0:
                mean = g.mean(0)
                v = beta2 * v + (1 - beta2) * mean**2
                counter += 1
                if counter == updates:
                    counter, interval = 0, 2 * interval
            else:
                mean = one_bit(g)
            m = beta1 * m + (1 - beta1) * mean
            X = X - gamma * m / (np.sqrt(v) + epsilon)
            anchor = X.copy()
        else:
            if t == freeze + 1:
                e, E = 0.0, 0.0
            m = beta1 * m + (1 - beta1) * g
            lrs += gamma
            u = u + gamma * m
            X = X - gamma * m / (np.sqrt(v) + epsilon)
            if t % local == 0:
                told = one_bit(u)
                m = np.tile(told / lrs, (k.n, 1))
                X = anchor - told / (np.sqrt(v) + epsilon)
                anchor, u, lrs = X.copy(), np.zeros_like(X), 0.0
            steps += 1
            if steps == steps_each:
                steps, local = 0, min(steps_most, 2 * local)
        yield X.mean(0)


def loco(k, beta, reset, levels):
    x, e = k.x0, np.zeros((k.n, len(k.x0)))
    for t, gamma in enumerate(k.steps, 1):
        v = k.grad(x) + e
        c = top(v)
        e = beta * e + (1 - beta) * (v - c)
        if t % reset == 0:
            e = np.zeros_like(e)
        elif levels != "off":
            unit = np.abs(e).max(1, keepdims=True) / levels
            e = np.rint(e / np.where(unit > 0, unit, 1)) * unit
        x = x - gamma * c.mean(0)
        yield x


def power_sgd(k, rank=2, momentum=0.0, nesterov=True, dense_rounds=0):
    """PowerSGD whose memory is what its own message leaves: of the same mean as the authors'."""
    x, e, v, Q = k.x0, 0, 0, k.basis
    for t, gamma in enumerate(k.steps):
        D = k.grad(x) + e
        if t < dense_rounds:
            out, e = D.mean(0), 0
        else:
            M = [d.reshape(5, 4) for d in D]
            P = np.linalg.qr(sum(m @ Q for m in M) / k.n)[0]
            own = [m.T @ P for m in M]
            Q = sum(own) / k.n
            out = (P @ Q.T).ravel()
            e = D - np.stack([(P @ q.T).ravel() for q in own])
        v = momentum * v + out
        x = x - gamma * (out + v if nesterov and momentum else v)
        yield x


def local(k, tau=3, server=1.0, momentum=0.0, mu=0.0, by=None):
    """Local SGD, FedAvg (``by`` samples) and FedProx (mu): clients end at y_i."""
    x, v = k.x0, 0
    for t, gamma in enumerate(k.steps):
        y = np.tile(x, (k.n, 1))
        for j in range(tau):
            y = y - gamma * (k.grad(y, k.batch(t, j)) + mu * (y - x))
        w = k.here(t) * (np.ones(k.n) if by is None else by)
        mean = (w[:, None] * (x - y)).sum(0) / w.sum() if w.any() else 0
        v = momentum * v + mean
        x = x - server * v
        yield x


def scaffold(k, tau=3, server=1.0):
    x, c, ci = k.x0, np.zeros_like(k.x0), np.zeros((k.n, len(k.x0)))
    for t, gamma in enumerate(k.steps):
        S = k.here(t)
        y = np.tile(x, (k.n, 1))
        for j in range(tau):
            y = y - gamma * (k.grad(y, k.batch(t, j)) - ci + c)
        new = np.where(S[:, None], ci - c + (x - y) / (tau * gamma), ci)
        if S.any():
            x = x + server * (y - x)[S].mean(0)
        c, ci = c + (new - ci).sum(0) / k.n, new
        yield x


def local_ef21(k, tau=3):
    def walked(x, gamma):
        y = np.tile(x, (k.n, 1))
        for _ in range(tau):
            y = y - gamma * k.grad(y)
        return (x - y) / gamma

    x = k.x0
    gi = top(walked(x, k.gamma))
    for gamma in k.steps:
        x = x - gamma * gi.mean(0)
        gi = gi + top(walked(x, gamma) - gi)
        yield x


def gossip(k, W, mix=0.4, choco=True):
    X = np.tile(k.x0, (k.n, 1))
    H = X.copy()
    for t, gamma in enumerate(k.steps):
        X = X - gamma * k.grad(X) if choco or t == 0 else X
        H = H + top(X - H)
        X = X + mix * np.stack(
            [sum(W[i, j] * (H[j] - H[i]) for j in range(k.n)) for i in range(k.n)]
        )
        yield X.mean(0)


def diffusion(k, W, order="atc"):
    X = np.tile(k.x0, (k.n, 1))
    for gamma in k.steps:
        if order == "atc":
            X = W @ (X - gamma * k.grad(X))
        elif order == "cta":
            X = W @ X - gamma * k.grad(W @ X)
        else:
            X = W @ X - gamma * k.grad(X)
        yield X.mean(0)


def extra(k, W):
    """The form without differences: X+ = W X - gamma G + sum of (W - (I + W)/2) X over the past."""
    X, past = np.tile(k.x0, (k.n, 1)), 0
    for gamma in k.steps:
        new = W @ X - gamma * k.grad(X) + past
        past = past + (W - (np.eye(k.n) + W) / 2) @ X
        X = new
        yield X.mean(0)


def gradient_tracking(k, W):
    V = (np.eye(k.n) + W) / 2
    X = np.tile(k.x0, (k.n, 1))
    Y = k.grad(X)
    for gamma in k.steps:
        old, X = X, V @ (X - gamma * Y)
        Y = V @ (Y + k.grad(X) - k.grad(old))
        yield X.mean(0)


def exact_diffusion(k, W):
    X = psi = np.tile(k.x0, (k.n, 1))
    for gamma in k.steps:
        new = X - gamma * k.grad(X)
        X, psi = (np.eye(k.n) + W) / 2 @ (new + X - psi), new
        yield X.mean(0)


def lead(k, W, alpha=0.6, mix=0.5):
    X = H = np.tile(k.x0, (k.n, 1))
    D = 0
    for gamma in k.steps:
        Z = X - gamma * (k.grad(X) + D)
        q = top(Z - H, 6)
        diff = (np.eye(k.n) - W) @ (H + q)
        H = H + alpha * q
        D = D + mix / (2 * gamma) * diff
        X = Z - mix / 2 * diff
        yield X.mean(0)


def lsgd(k, tau=2, lam=0.1, far=0.2, groups=3):
    X = np.tile(k.x0, (k.n, 1))
    group = np.arange(k.n) * groups // k.n
    for gamma in k.steps:
        f = k.losses(X)
        best = int(f.argmin())
        leader = [min(np.flatnonzero(group == group[i]), key=lambda j: f[j]) for i in range(k.n)]
        near, top_ = X[leader], X[best]
        for _ in range(tau):
            pull = lam * (X - near) * (np.array(leader) != np.arange(k.n))[:, None]
            pull = pull + far * (X - top_) * (np.arange(k.n) != best)[:, None] * (groups > 1)
            X = X - gamma * k.grad(X) - pull
        yield X.mean(0)


def easgd(k, beta=0.9, tau=2):
    X, z = np.tile(k.x0, (k.n, 1)), k.x0
    for gamma in k.steps:
        mean, spring = X.mean(0), beta / k.n * (X - z)
        X = X - gamma * k.grad(X) - spring
        for _ in range(tau - 1):
            X = X - gamma * k.grad(X)
        z = z + beta * (mean - z)
        yield z


def codistillation(k, w=0.5, ramp=5, exchange="predictions", every=4):
    """Regression: D is half the squared distance; every client's teacher is the mean of the others."""
    X = np.tile(k.x0, (k.n, 1))
    for t, gamma in enumerate(k.steps):
        if exchange == "predictions" or t % every == 0:
            sent = X
        a = k.features[k.common(t)]
        pull = []
        for i in range(k.n):
            teacher = np.mean([a @ sent[j] for j in range(k.n) if j != i], axis=0)
            pull.append(a.T @ (a @ X[i] - teacher) / len(a))
        X = X - gamma * (k.grad(X) + w * min(1, (t + 1) / ramp) * np.stack(pull))
        yield X.mean(0)


def vertical(k, C, coin):
    """Blocks of columns; coin(t): whether the products are sent anew, dense."""
    x, blocks = k.x0, np.array_split(np.arange(len(k.x0)), k.n)

    def products(x):
        return np.stack([k.A[:, j] @ x[j] for j in blocks])

    v = products(x).sum(0)
    for t, gamma in enumerate(k.steps):
        old, x = x, x - gamma * 2 * k.A.T @ (v - k.b)
        v = products(x).sum(0) if coin(t) else v + C(products(x) - products(old)).sum(0)
        yield x


def vertical_naive(k, C):
    x, blocks = k.x0, np.array_split(np.arange(len(k.x0)), k.n)
    for gamma in k.steps:
        v = C(np.stack([k.A[:, j] @ x[j] for j in blocks])).sum(0)
        x = x - gamma * 2 * k.A.T @ (v - k.b)
        yield x
