"""A synthetic results folder of realistic curves, written through ``Store.commit``."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raybench.store import CELLS, CURVES, Store, shard_name, to_table

D = 112  # coordinates


@dataclass(frozen=True)
class Method:
    """How fast a made-up method converges: f(step) = speed, beyond ``limit`` it diverges."""

    algorithm: str
    compressor: str | None = None
    ks: tuple[int | None, ...] = (None,)
    speed: float = 1.0
    limit: float = 64.0
    noise: float = 0.0
    floor: float = 0.0
    dense_share: float = 0.0  # probability of a dense round
    init_dense: bool = True


METHODS = (
    Method("gd", speed=1.0, limit=2.0),
    Method("ef21", "top_k", (1, 5, 11), speed=0.9, limit=64.0),
    Method("marina", "rand_k", (1, 5, 11), speed=0.7, limit=32.0, dense_share=0.05),
    Method("diana", "rand_k", (1, 5, 11), speed=0.4, limit=16.0, init_dense=False),
    Method("ef14", "top_k", (1, 5, 11), speed=0.8, limit=32.0, floor=1e-9, init_dense=False),
)
STOCHASTIC = (
    Method("sgd", speed=0.5, limit=8, noise=0.3, floor=1e-5),
    Method("vr_marina", "rand_k", (5,), speed=0.6, limit=16, noise=0.2, dense_share=0.1),
)


def fill(
    store: Store,
    methods: tuple[Method, ...] = METHODS,
    datasets: tuple[str, ...] = ("mushrooms",),
    multiples: tuple[float, ...] | None = tuple(2.0**j for j in range(8)),
    seeds: int = 3,
    rounds: int = 400,
    every: int = 1,
    seconds: bool = True,
    failed: int = 1,
    skipped: int = 2,
    stop: float = 0.0,
) -> list[tuple[str, pa.Table, pa.Table]]:
    """Commit one shard per (dataset, method, K); return the (shard, curves, cells) tables."""
    store.claim({"name": "fake", "problem": {"name": "logistic", "dataset": list(datasets)}})
    steps = [(m, None) for m in multiples] if multiples else [(None, v) for v in (0.1, 0.5)]
    grid = [(m, v, s) for m, v in steps for s in range(seeds)]
    shards = [
        _batch(method, dataset, k, grid, rounds, every, seconds, stop)
        for dataset in datasets
        for method in methods
        for k in method.ks
    ]
    for shard in shards:
        store.commit(*shard)
    _others(store, failed, skipped, datasets[0])
    return shards


def _config(method: Method, dataset: str, k: int | None, seed: int, step: dict) -> dict:
    compressor = {"name": method.compressor, "params": {"k": k}} if method.compressor else None
    data = {"dataset": dataset, "clients": 20, "split": "contiguous"}
    loss = {"regularizer": "nonconvex", "lambda": 0.1, "dtype": "float64"}
    return {
        "problem": {"name": "logistic", "params": {**data, **loss}},
        "algorithm": {
            "name": method.algorithm,
            "params": {"p": k / D} if method.dense_share and k else {},
        },
        "compressor": compressor,
        "downlink": None,
        "step": step,
        "seed": seed,
        "rounds": 400,
    }


def _ids(config: dict) -> tuple[str, str]:
    group = {k: v for k, v in config.items() if k not in ("seed", "step")}
    digest = [hashlib.sha256(json.dumps(c, sort_keys=True).encode()) for c in (config, group)]
    return digest[0].hexdigest()[:16], digest[1].hexdigest()[:16]


def _identity(configs: list[dict]) -> dict[str, np.ndarray]:
    """Return the ids and groups of cells."""
    return dict(zip(("cell", "group"), np.array([_ids(c) for c in configs], object).T, strict=True))


def label_of(method: Method, k: int | None) -> str:
    if method.compressor is None:
        return method.algorithm
    return f"{method.algorithm} {method.compressor} k={k}"


def _batch(method, dataset, k, grid, rounds, every, seconds, stop):
    multiple = np.array([[m if m else np.nan] for m, _, _ in grid], float)
    theory = 0.08 if dataset == "mushrooms" else 0.03
    value = np.array([[v if v else np.nan] for _, v, _ in grid], float)
    step = np.where(np.isnan(multiple), value, multiple * theory * (k or D) ** 0.5 / D**0.5)
    relative = np.where(np.isnan(multiple), value / theory, multiple)
    t = np.arange(0, rounds + 1, every, dtype=float)
    seed = np.array([[s] for _, _, s in grid])
    name = repr((method.algorithm, dataset, k)).encode()
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % 2**32)
    wobble = 1 + 0.05 * rng.standard_normal((len(grid), 1))
    share = ((k or D) / D) ** 0.35
    rate = 0.012 * relative * method.speed * share * wobble
    diverged = relative > method.limit * (1 + 1e-9)
    rate = np.where(diverged, -0.25 * relative / method.limit, np.minimum(rate, 0.9))
    power = np.clip(-rate * t, -700, 60)
    noise = np.exp(
        0.15 * rng.standard_normal((len(grid), len(t))).cumsum(axis=1) / np.sqrt(t + 1)
        + method.noise * rng.standard_normal((len(grid), len(t)))
    )
    noise[:, 0] = 1
    g = 0.04 * np.exp(power) * noise * (1 + 0.3 * np.sin(t / 9)) + method.floor * (t > 0)
    g = np.maximum(g, 3e-33)
    where = g < 1e12
    if stop:
        where &= np.cumsum(g <= stop, axis=1) <= 1
    where[:, 0] = True
    last = where.cumsum(axis=1).argmax(axis=1)
    rows = np.arange(len(grid))

    kk = k or D
    dense = rng.random((len(grid), len(t))) < method.dense_share
    dense[:, 0] = False
    sent = np.where(dense, D, kk).cumsum(axis=1).astype(float) * every
    sent = sent - sent[:, :1] + (D if method.init_dense else 0)
    sparse = np.where(dense, 0, kk if k else 0).cumsum(axis=1).astype(float) * every
    sparse = sparse - sparse[:, :1]
    explicit = sparse * math.ceil(math.log2(D))
    auto = np.minimum(explicit, explicit / kk / 7 * D)
    mask = sparse / kk * D
    down = np.broadcast_to(D * t, g.shape)
    clock = t * 4e-4 * (1 + 0.1 * rng.random((len(grid), 1)))
    configs = [
        _config(method, dataset, k, s, {"kind": "theory" if m else "value", "number": m or v})
        for m, v, s in grid
    ]
    same = {
        **_identity(configs),
        "label": label_of(method, k),
        "problem": "logistic",
        "dataset": dataset,
        "clients": 20,
        "split": "contiguous",
        "algorithm": method.algorithm,
        "compressor": method.compressor,
        "k": k,
        "step_size": step[:, 0],
        "step_multiple": np.ma.masked_invalid(multiple[:, 0]),
        "seed": seed[:, 0],
    }
    zeros = ("raw_bits_up", "index_explicit_down", "index_auto_down", "raw_bits_down")
    measured = {
        "bits_up": 64 * sent + auto,
        "bits_down": 64 * down,
        "loss": 0.4 + 3 * np.minimum(g, 1e6),
        "grad_norm_sq": g,
        **({"seconds": clock} if seconds else {}),
    }
    curves = to_table(
        {
            **{n: v[:, None] if isinstance(v, np.ndarray) else v for n, v in same.items()},
            **measured,
            "round": t.astype(int),
            **dict.fromkeys(("epoch", "grad_evals", "messages_up", "messages_down"), t),
            **dict.fromkeys(("bytes_up", "bytes_up_max"), measured["bits_up"] / 8),
            "bytes_down": measured["bits_down"] / 8,
            "values_up": sent,
            "values_down": down,
            "index_explicit_up": explicit,
            "index_auto_up": auto,
            **dict.fromkeys(zeros, 0.0),
            "extra": {"index_bitmask_up": mask, "index_list_or_bitmask_up": auto},
        },
        CURVES,
        where=where,
    )
    cells = to_table(
        {
            **same,
            **{name: values[rows, last] for name, values in measured.items()},
            "status": np.where(diverged[:, 0], "diverged", "ok").astype(object),
            "compressor_params": json.dumps({"k": k}) if k else None,
            "theory_step": theory if np.isfinite(multiple).any() else None,
            "rounds": (last * every).astype(int),
            "best_grad_norm_sq": np.where(where, g, np.inf).min(axis=1),
            "d": D,
            **{"L": 2.6, "L_tilde": 2.9},
            "constants": json.dumps({"L": 2.6, "L_tilde": 2.9, "L_max": 3.4}),
            **{"workers": 1, "mode": "simulate", "device": "cpu", "host": "node-1"},
            **{"value_bits": 64, "exchange": "gather", "on_clock": False},
            **{"baseline": method.algorithm == "gd", "batch": "b", "batch_cells": len(grid)},
            "config": [json.dumps(c) for c in configs],
            "attempts": 1,
            "raybench_version": "0.1.0",
        },
        CELLS,
    )
    return shard_name(same["cell"]), curves, cells


def _others(store: Store, failed: int, skipped: int, dataset: str) -> None:
    def rows(compressed: Method, ks, seeds, **more):
        step = {"kind": "theory", "number": 1}
        configs = [_config(compressed, dataset, k, s, step) for k, s in zip(ks, seeds, strict=True)]
        return to_table(
            {
                **_identity(configs),
                "config": [json.dumps(c) for c in configs],
                **{"problem": "logistic", "dataset": dataset, "seed": list(seeds)},
                **{"algorithm": compressed.algorithm, "compressor": compressed.compressor},
                **{"on_clock": False, "baseline": False},
                **more,
            },
            CELLS,
        )

    for j in range(failed):
        said = {"status": "failed", "error": "RuntimeError: out of memory", "k": 7}
        row = rows(METHODS[1], [7], [j], label="ef21 top_k k=7", step_multiple=1.0, **said)
        store.commit(row["cell"][0].as_py(), None, row)
    if skipped:
        said = {
            "status": "skipped",
            "reason": "marina needs an unbiased compressor, top_k is biased",
        }
        biased = Method("marina", "top_k")
        store.skip(rows(biased, range(1, skipped + 1), [0] * skipped, label="marina top_k", **said))


def batch(ids, rounds=3, status="ok", shift=0.0, extra=None, first_down=0.0):
    """Return the tables of one batch: cell i has loss shift + i + round.

    first_down: values that the server sends before the first round.
    """
    ids, t = list(ids), np.arange(rounds + 1)
    base = shift + np.arange(len(ids), dtype=float)[:, None]
    row = {"algorithm": "ef21", "compressor": "top_k", "k": 5, "label": "ef21 top_k k=5"}
    counts = {
        "values_up": 10.0 + 5 * t,
        "index_explicit_up": 30.0 * t,
        "index_auto_up": 20.0 * t,
        "raw_bits_up": 1.0 * t,
        "values_down": first_down + 100.0 * t,
        **dict.fromkeys(("index_explicit_down", "index_auto_down", "raw_bits_down"), 0.0),
    }
    curves = to_table(
        {
            "cell": np.array(ids, object)[:, None],
            "group": "g",
            **row,
            **counts,
            "round": t,
            "loss": base + t,
            "seed": np.arange(len(ids))[:, None],
            "bits_up": 64 * counts["values_up"] + counts["index_auto_up"] + t,
            "bits_down": 64 * counts["values_down"],
            "seconds": np.random.default_rng(0).random((len(ids), len(t))),
            "extra": extra or {},
        },
        CURVES,
    )
    columns = {**row, "cell": ids, "group": "g", "status": status, "rounds": rounds}
    columns |= {"value_bits": 64, "exchange": "gather", "on_clock": False, "baseline": False}
    return curves, to_table({**columns, "seed": np.arange(len(ids))}, CELLS)


def put(store, ids, **kw):
    store.commit(shard_name(ids), *batch(ids, **kw))
