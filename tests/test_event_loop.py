"""Methods that do not wait, and rounds given by speed, against an event loop in numpy: points, seconds, what is wasted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import event_methods as server
import numpy as np
import pytest
import torch
from event_loop import Loop, World

from raybench.clock.clients import Clients, Rounds, uniform
from raybench.core.streams import Sample, stream
from raybench.spec.clocks import typed
from raybench.testing.trial import TrialMethod, started
from raybench.wire.ledger import COLUMNS

SPEEDS = [1.0, 1.3, 2.9, 4.4]
MESSAGES = COLUMNS.index("messages")
JITTER = {"exponential": 0.5}
OWN = {"up": [96, 48, 96, 24], "down": [8, 48, 96, 192], "latency": 0.3}
CLOCKS: dict[str, dict[str, Any]] = {  # a model has 96 bytes
    "no links": {"compute": SPEEDS},
    "own links": {"compute": SPEEDS, "jitter": JITTER, "link": OWN},
    "vanish": {
        **{"compute": SPEEDS, "jitter": JITTER, "link": {"up": 96, "latency": 0.3}},
        "dropout": {"p": 0.3, "back_after": 7.0},
    },
    "by sample, ties": {"compute": 0.5, "per": "sample", "link": "768bit,0s,server"},
    "all": {
        **{"compute": SPEEDS, "jitter": JITTER, "link": "768bit,0.2s,server"},
        "dropout": {"p": 0.15, "back_after": 4.0},
    },
}
PROBLEM = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.3, "lambda": 0.01}
NOISY = {**PROBLEM, "gradient_noise": 0.05}
STEPS, GAMMAS, BATCH = 20, (0.3, 0.12), 2
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}


def uniforms(n: int, k: int, seed: int = 0) -> np.ndarray:
    """Return what the jitter of all clients in their k-th call is drawn from."""
    keys = stream([seed]).fold("clock").fold("jitter").each(range(n)).keys.numpy().view(np.uint64)
    return uniform(keys[0], np.array([k]))


def seconds_of(clock: Mapping[str, Any], n: int, i: int, k: int, seed: int = 0) -> float:
    """Return the seconds of the k-th call of client i, told anew."""
    tau = np.broadcast_to(clock["compute"]["fixed"], n)[i]
    tau = tau * (BATCH if clock["per"] == "sample" else 1)
    late = 0.0 if clock["jitter"] is None else -np.log1p(-uniforms(n, k, seed)[i])
    return tau + JITTER["exponential"] * late


def leaves(clients: Clients, i: int, k: int, attempt: int) -> float | None:
    """Return the place where client i vanishes in its k-th call."""
    call = np.array([k]), attempt, slice(i, i + 1)
    return clients.place(*call)[0, 0] if clients.vanishes(*call)[0, 0] else None


def travel(clock: Mapping[str, Any], n: int, direction: str, size: float) -> Any:
    """Return the seconds of a message without the latency, None where it needs none."""
    rate = (clock["link"] or {}).get(direction)
    return None if rate is None else np.broadcast_to(size / np.asarray(rate, float), n)


def world_of(run: Any, clock: Mapping[str, Any]) -> World:
    """Return the clients of a run: samples and compressors are raybench's, seconds and links are told anew."""
    roots, problem, n = run.net.roots, run.problem, run.problem.n
    clients = Clients(clock, n, [0], problem.samples)
    link, alone = clock["link"] or {}, [problem.host(range(i, i + 1)) for i in range(n)]
    trial = run.a.Q(torch.ones(1, 1, problem.dim, dtype=torch.float64), roots[:1].each([0]))

    def grad(i, x, k):
        source = roots.fold("round").fold(k).fold("batch").each([i])
        sample = Sample.drawn(source, BATCH, torch.as_tensor(problem.samples[i : i + 1]))
        return alone[i].grad(torch.from_numpy(x)[:, None], sample)[:, 0].numpy()

    def compressed(i, v, k):
        source = roots.fold("round").fold(k).fold("uplink").each([i])
        return run.a.Q(torch.from_numpy(v)[:, None], source).decode()[:, 0].numpy()

    return World(
        n=n,
        seconds=lambda i, k: seconds_of(clock, n, i, k),
        leaves=lambda i, k, attempt: leaves(clients, i, k, attempt),
        grad=grad,
        compressed=compressed,
        back_after=(clock["dropout"] or {}).get("back_after", 0.0),
        up=travel(clock, n, "up", float(trial.cost.bytes)),
        down=travel(clock, n, "down", 8.0 * problem.dim),
        latency=link.get("latency", 0.0),
        shared=link.get("shared", False),
    )


def euclidean(m):
    return m / np.linalg.norm(m, axis=1, keepdims=True)


class Compared(NamedTuple):
    """A method with its parameters, what its server does in numpy, and how the loop differs."""

    name: str
    act: Callable
    arguments: tuple[Any, ...] = ()
    params: Mapping[str, Any] = {}
    compressor: Any = None
    loop: Mapping[str, Any] = {}


LATE = {"steps": 3, "local_step_size": 0.2}
LOCAL = {"calls": 3, "eta": 0.2}
COMPARED = {
    "async_sgd": Compared("async_sgd", server.immediate, compressor=RAND),
    "adaptive": Compared("async_sgd", server.immediate, (True,), {"adaptive": True}),
    "async_ef14": Compared("async_ef14", server.immediate, (), {}, TOP, {"memory": "error"}),
    "iaasgd": Compared("iaasgd", server.iaasgd, loop={"memory": "shift"}),
    "iaasgd, top": Compared("iaasgd", server.iaasgd, (), {}, TOP, {"memory": "shift"}),
    "ringleader": Compared("ringleader_asgd", server.ringleader),
    "fastest": Compared(
        *("fastest_sgd", server.collecting, (2,), {"collect": 2}, None),
        {"limit": 1, "stop": True, "waits": True},
    ),
    "fedbuff": Compared(
        *("fedbuff", server.collecting, (3, True), {"collect": 3, "damped": True, **LATE}),
        loop=LOCAL,
    ),
    "fedbuff, gamma": Compared(
        *("fedbuff", server.collecting, (2,), {"collect": 2, "steps": 2}, RAND, {"calls": 2}),
    ),
    "async_local_sgd": Compared(
        *("async_local_sgd", server.late_momentum, (3, 0.6)),
        *({"every": 3, "momentum": 0.6, **LATE}, None, LOCAL),
    ),
}
for stop, word in ((True, "stop"), (False, "ignore")):
    late, bounded, fresh = {"threshold": 3, "stop": stop}, {"limit": 3, "stop": stop}, {"limit": 1}
    lmo = {"momentum": 0.4, "norm": "euclidean", **late}
    COMPARED |= {
        f"ringmaster, {word}": Compared(
            *("ringmaster_asgd", server.immediate, (), late, None, bounded)
        ),
        f"ringmaster_lmo, {word}": Compared(
            *("ringmaster_lmo", server.lmo, (0.4, euclidean), lmo, None, bounded)
        ),
        f"rennala, {word}": Compared(
            *("rennala_sgd", server.collecting, (3,), {"collect": 3, "stop": stop}, RAND),
            {"stop": stop, **fresh},
        ),
        f"malenia, {word}": Compared(
            *("malenia_sgd", server.malenia, (6,), {"collect": 6, "stop": stop}, None),
            {"stop": stop, **fresh},
        ),
    }

CASES = [
    *((name, "all") for name in COMPARED),
    *((name, clock) for name in ("fastest", "fedbuff", "rennala, stop") for clock in CLOCKS),
    *((name, "no links") for name in ("adaptive", "rennala, ignore")),  # long delays
]


@pytest.mark.parametrize(("name", "clock"), dict.fromkeys(CASES))
def test_methods_are_those_of_an_event_loop_in_numpy(name, clock) -> None:
    """Two step sizes in a batch: x to 1e-12; the clock, and what clients computed and computed in vain, to 1e-10."""
    method, clock = COMPARED[name], CLOCKS[clock]
    keys = {"clock": clock, "x0": {"normal": 1.0}}
    problem, params = NOISY if "dropout" in clock else PROBLEM, {"batch": BATCH, **method.params}
    m = TrialMethod(method.name, params, method.compressor, problem, step=1.0, more=keys)
    run = started(m.batch(GAMMAS))
    world, gamma = world_of(run, typed(clock)), np.array(GAMMAS)[:, None]
    act = method.act(4, *method.arguments)
    loop = Loop(world, act, run.s.x.numpy().copy(), gamma, **method.loop)
    for x, *seconds in islice(loop.steps(), STEPS):
        run.advance(1)
        np.testing.assert_allclose(run.s.x.numpy(), x, rtol=0, atol=1e-12)
        columns = [values[0] for values in run.net.timing.columns(2).values()]
        np.testing.assert_allclose(columns, seconds, rtol=1e-10)
    on_their_way = [what for _, what in loop.event].count("arrives")
    arrived = sum(loop.ended) / loop.per - on_their_way
    assert run.net.ledger.up[MESSAGES].tolist() == [arrived / 4] * 2
    assert run.net.ledger.down[MESSAGES].tolist() == [loop.models / 4] * 2
    assert run.net.oracle.evals == pytest.approx(arrived * loop.per * BATCH / 4)


# Rounds that give every client work by its speed ---------------------------------------------------------


def arrivals(clock, start, work, sizes, model=96.0) -> tuple[np.ndarray, np.ndarray]:
    """Return when clients that get a model have done their work, and when messages of these sizes have arrived."""
    link, n = clock["link"] or {}, len(work)
    up, down = travel(clock, n, "up", sizes), travel(clock, n, "down", model)
    if not link:
        return start + work, start + work
    shared, latency = link["shared"], link["latency"]
    ready = start + (np.cumsum(down) if shared else down) + latency * (model > 0) + work
    there, free = np.where(sizes > 0, ready + up + latency, ready), 0.0
    for i in np.argsort(ready, kind="stable") if shared else ():
        if sizes[i]:
            free = max(free, ready[i]) + up[i]
            there[i] = free + latency
    return ready, there


def started_by_speed(name: str, clock: Mapping[str, Any], compressor: Any, **params: Any) -> Any:
    keys = {"clock": clock, "x0": {"normal": 1.0}}
    m = TrialMethod(name, {"batch": BATCH, **params}, compressor, NOISY, step=1.0, more=keys)
    return started(m.batch(GAMMAS))


def gradient(run: Any, i: int, t: int, purpose: str, size: int) -> torch.Tensor:
    """Return the gradient of client i at x of so many samples of round t."""
    source = run.net.roots.fold("round").fold(t).fold(purpose).each([i])
    sample = Sample.drawn(source, size, torch.as_tensor(run.problem.samples[i : i + 1]))
    return run.problem.host(range(i, i + 1)).grad(run.s.x[:, None], sample)


def compare(run: Any, g: torch.Tensor, now: float) -> None:
    """Compare a round of the run with a step along g that ends now."""
    x = run.s.x - torch.tensor(GAMMAS, dtype=torch.float64)[:, None] * g
    run.advance(1)
    assert torch.allclose(run.s.x, x, rtol=0, atol=1e-12)
    assert run.net.timing.columns(2)["clock_seconds"] == pytest.approx(now, rel=1e-10)


SPEEDY = {**CLOCKS["own links"], "link": {**OWN, "up": [72, 36, 200, 24]}}
SLOW = {"compute": 0.1, "per": "sample", "link": "768bit,0.2s,server"}  # to send


@pytest.mark.parametrize(
    ("noise", "clock"),
    [(0.7, CLOCKS["no links"]), (0.7, SPEEDY), (0.0, SLOW), (2.0, SLOW)],
    ids=["at once", "own links", "without noise", "server"],
)
def test_shadowheart_gives_every_client_b_gradients_and_m_messages(noise, clock) -> None:
    run, clock, n, now = (
        started_by_speed("shadowheart_sgd", clock, RAND, noise=noise),
        typed(clock),
        4,
        0.0,
    )
    ramp = torch.ones(1, 1, 12, dtype=torch.float64)
    size = float(run.a.Q(ramp, run.net.roots[:1].each([0])).cost.bytes)
    h = np.array([seconds_of({**clock, "jitter": None}, n, i, 0) for i in range(n)])
    h = h + (JITTER["exponential"] if clock["jitter"] else 0.0)
    up = travel(clock, n, "up", size)
    b, m, w = server.by_speed(
        h, np.zeros(n) if up is None else up + clock["link"]["latency"], 3.0, noise
    )
    calls = np.zeros(n, int)
    for t in range(1, 6):
        g, work = torch.zeros_like(run.s.x), np.zeros(n)
        for i in np.flatnonzero(b * m):
            total = b[i] * gradient(run, i, t, f"batch {b[i]}", b[i] * BATCH)
            for j in range(m[i]):
                source = run.net.roots.fold("round").fold(t).fold(f"copy {j}").each([i])
                g += w[i] * run.a.Q(total, source).decode()[:, 0]
            work[i] = sum(seconds_of(clock, n, i, calls[i] + k) for k in range(b[i]))
            calls[i] += b[i]
        now = arrivals(clock, now, work, size * m * (b > 0))[1][work > 0].max()
        compare(run, g, now)


BY_SAMPLE = {"compute": 0.5, "per": "sample", "jitter": JITTER}


@pytest.mark.parametrize(
    "clock", [CLOCKS["own links"], CLOCKS["all"], BY_SAMPLE], ids=["links", "all", "by sample"]
)
def test_mindflayer_cuts_trials_that_take_longer_than_most(clock) -> None:
    """Of three trials a round those arrive that are done within the 60 % quantile and whose client has not vanished."""
    run = started_by_speed("mindflayer_sgd", clock, None, patience=0.6, trials=3)
    clock, n, now = typed(clock), 4, 0.0
    clients = Clients(clock, n, [0], run.problem.samples)
    drop = clock["dropout"] or {"p": 0.0, "back_after": 0.0}
    each = [seconds_of({**clock, "jitter": None}, n, i, 0) for i in range(n)]
    patience = np.array(each) - JITTER["exponential"] * np.log(0.4)
    for t in range(1, 8):
        total, work = torch.zeros_like(run.s.x), np.zeros(n)
        for trial in range(3):
            for i in range(n):
                k, away, attempt = 3 * (t - 1) + trial, 0.0, 0
                seconds = seconds_of(clock, n, i, k)
                while (place := leaves(clients, i, k, attempt)) is not None:
                    away, attempt = away + place * seconds + drop["back_after"], attempt + 1
                work[i] += min(away + seconds, patience[i])
                if seconds <= patience[i] and not attempt:
                    total += gradient(run, i, t, f"batch {trial}", BATCH)[:, 0]
        now = arrivals(clock, now, work, np.full(n, 96.0))[1].max()
        compare(run, total / (3 * n * 0.6 * (1 - drop["p"])), now)


# Rounds of methods that wait ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["own links", "all", "graph"])
def test_rounds_are_those_of_a_loop_over_clients(name) -> None:
    """Two cells with seeds of their own: who sits out, who vanishes, models and messages that are not always sent."""
    clock, n, random = (
        typed(CLOCKS["all" if name == "all" else "own links"]),
        4,
        np.random.default_rng(0),
    )
    each = [Clients(clock, n, [seed], [1] * n) for seed in (0, 1)]
    path = np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1) > 0
    rounds = Rounds(Clients(clock, n, [0, 1], [1] * n), path if name == "graph" else None)
    calls, told, now = np.zeros((2, n), int), 0.0, np.zeros((2, n))
    for _ in range(8):
        who = random.random((2, n)) < 0.6
        who[:, 0] |= ~who.any(1)
        sizes, model = who * 240.0 * random.integers(0, 3, (2, n)), 96.0 * random.integers(0, 2)
        told += model
        work = np.zeros((2, n))
        for cell, i in np.argwhere(who):
            seconds, attempt = seconds_of(clock, n, i, calls[cell, i], cell), 0
            while (place := leaves(each[cell], i, calls[cell, i], attempt)) is not None:
                work[cell, i] += place * seconds + clock["dropout"]["back_after"]
                attempt += 1
            work[cell, i] += seconds
            calls[cell, i] += 1
        rounds.compute(slice(None), who, 1)
        rounds.end(sizes, np.full(2, told))
        for cell in range(2):
            ready, there = arrivals(clock, now[cell], work[cell], sizes[cell], model)
            if name == "graph":
                now[cell] = [max(ready[i], there[path[i]].max()) for i in range(n)]
            else:
                now[cell] = there[who[cell]].max()
        assert rounds.columns(2)["clock_seconds"] == pytest.approx(now.max(1), rel=1e-10)
