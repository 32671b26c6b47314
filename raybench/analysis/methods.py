"""What is compared: problems (``facet``), methods (``method``), methods with their K (``series``)."""

from __future__ import annotations

import json
import os
from typing import Literal

import numpy as np
import pandas as pd

from raybench.core import registry
from raybench.store.reader import configs, shared
from raybench.store.schema import config_of

_METHOD_KEYS = (
    *("algorithm.", "compressor.", "downlink", "groups", "local", "outer", "delay", "robust"),
    *("train", "participation", "prox", "graph", "step_size.schedule", "step_size.warmup"),
    "iterate",
)
Kind = Literal["algorithm", "compressor"]
ATTACKERS = "robust.byzantine"
_NOT_METHOD = ("algorithm.name", "compressor.name", "compressor.k", ATTACKERS)
METHOD_KEYS = ["facet", "method", "series", "step"]
"""Columns ``describe`` adds."""


def describe(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with columns ``facet``, ``method``, ``series``, ``step`` and ``title``.

    facet: the parameters of the problem that differ between cells (empty for a lone problem). method: algorithm and
    compressor, with those other parameters that take several values at one K (``EF21 Top-K (init=zero)``); series: the
    same with K as it was asked for (``EF21 Top-5``, ``EF21 Top-10%``). step: the step's place in the grid, ``x8`` for a
    multiple of the theoretical step, ``0.5`` for a value; with the theory where it is not the method's own nonconvex
    one: ``x1 paper``, ``x2 of gd``, ``x1 rule of thumb``. No two groups share a series: where they would, method and
    series say what the groups differ in (``EF21 Top-5 (rounds=800)``), or else in which order they ran (``version 2``).
    title: how the algorithm is written.
    """
    cells = cells.reset_index(drop=True)
    # cells that differ in seed and step number alone are described once
    place, texts = pd.factorize(cells["config"].astype(object))
    short = np.array([*map(shared, texts), None], dtype=object)
    config = pd.factorize(short)[0][place]
    labels = cells["group"].fillna(cells["label"])
    group = labels.fillna(cells["cell"])
    identity = ["algorithm", "compressor", "k", "dataset", "clients", "problem"]
    same = cells[identity].assign(config=config, group=group)
    number = same.groupby(list(same), sort=False, dropna=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    heads = same.iloc[first].assign(config=short[place[first]], asked=labels.iloc[first])
    heads = heads.reset_index(drop=True)
    config = configs(heads).map(_plain, na_action="ignore").astype(object)
    config = config.where(config.notna(), None)
    theory = np.array(_theories(config), dtype=object)[number] if len(heads) else []
    steps = zip(cells["step_multiple"], cells["step_size"], theory, strict=True)
    step = pd.Series([_step(m, s, t) for m, s, t in steps], index=cells.index, dtype=object)
    heads["facet"] = _facets(heads, config)
    plugins = config["plugins"] if "plugins" in config else [None] * len(heads)
    kinds: tuple[tuple[Kind, str], ...] = (
        ("algorithm", "title"),
        ("compressor", "compressor_title"),
    )
    for kind, name in kinds:
        pairs = zip(heads[kind], plugins, strict=True)
        heads[name] = [_title(kind, plain, columns) for plain, columns in pairs]
    extras = _extras(heads, config)
    named = _named(heads, extras)
    series = [named["facet"], named["series"]]
    alike = (heads["asked"].groupby(series).transform("nunique") > 1).to_numpy(bool)
    if alike.any():
        begun = cells.get("started", pd.Series(0, cells.index)).groupby(number).min()
        named = _named(heads, _versions(heads, config, extras, named, alike, begun))
    named = named.assign(title=heads["title"]).iloc[number].reset_index(drop=True)
    return cells.assign(**named, step=step)


def _named(heads: pd.DataFrame, extras: list[str]) -> pd.DataFrame:
    """Return facet, method and series of cells, same rows. heads: with ``facet``, ``title`` and ``compressor``."""
    names = {"facet": heads["facet"].to_list()}
    for name, ks in (("method", [""] * len(heads)), ("series", k_words(heads))):
        parts = zip(heads["title"], heads["compressor_title"], ks, extras, strict=True)
        names[name] = [_joined(*part) for part in parts]
    return pd.DataFrame(names, index=heads.index, dtype=object)


def _versions(
    heads: pd.DataFrame,
    config: pd.DataFrame,
    extras: list[str],
    named: pd.DataFrame,
    alike: np.ndarray,
    begun: pd.Series,
) -> list[str]:
    """Return what tells methods apart, with what tells groups apart that are alike otherwise.

    begun: something that grows with the time at which the cells of each head began.
    """
    results = pd.Series(extras, index=heads.index, dtype=object)
    text = config.map(lambda v: "" if v is None else repr(v))
    keys = [c for c in text if not c.startswith(("resolved", "seed", "step_size.number"))]
    for method in named.loc[alike, "method"].unique():
        rows = named["method"] == method
        texts, series = text.loc[rows, keys], named.loc[rows & alike, ["facet", "series"]]
        places = [series["facet"], series["series"]]
        inside = texts.groupby(heads.loc[rows, "group"]).nunique().max() <= 1
        between = texts[alike[rows]].groupby(places).nunique().max() > 1
        differ = sorted(k for k in keys if inside[k] and between[k])
        differ.sort(key="plugins".__eq__)
        words = config.loc[rows, differ].apply(
            lambda row: ", ".join(_differs(c, row[c]) for c in row.index), axis=1
        )
        words = words if differ else pd.Series("", index=texts.index, dtype=object)
        table = named.loc[rows].assign(words=words, group=heads["group"], begun=begun)
        place = [table[name] for name in ("facet", "series", "words")]
        if table["group"][alike[rows]].groupby([p[alike[rows]] for p in place]).nunique().max() > 1:
            table["begun"] = table.groupby([*place, table["group"]])["begun"].transform("min")
            order = table.sort_values(["begun", "group"]).groupby(["facet", "series", "words"])
            version = 1 + order["group"].transform(lambda part: pd.factorize(part)[0])
            words = (words + ", version ").str.removeprefix(", ") + version.astype(str)
        results[rows] = (results[rows] + ", " + words).str.removeprefix(", ")
    return results.tolist()


def _differs(column: str, value: object) -> str:
    """Return a key and its value, ``rounds=800``; of a plug-in of one's own its name and the beginning of its hash."""
    if column == "plugins":
        plugins = json.loads(str(value)) if value is not None else []
        return ", ".join(
            f"{plugin['name']} {(plugin.get('source') or plugin.get('version') or '')[:6]}"
            for plugin in plugins
        )
    return f"{_key(column)}={_number(value)}" if _known(value) else f"no {_key(column)}"


def annotate(curves: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the curves with the columns ``describe`` added to the cells; unknown cells are dropped."""
    table = cells.set_index("cell")[[*METHOD_KEYS, "group", "status", "exchange"]]
    at = table.index.get_indexer(curves["cell"])
    curves = curves.loc[at >= 0].drop(columns=[c for c in table if c in curves])
    joined = table.iloc[at[at >= 0]].set_index(curves.index)
    return pd.concat([curves, joined], axis=1)


def _plain(value: object) -> str | int | float | bool:
    if isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, sort_keys=True)


def _facets(cells: pd.DataFrame, config: pd.DataFrame) -> pd.Series:
    # f is the mean over honest clients: how many others there are is part of the problem
    problem_columns = [
        c
        for c in config
        if c.startswith(("problem.", "x0.", "clock.")) or c in ("x0", "clock", ATTACKERS)
    ]
    table = config[problem_columns].copy()
    # cells of old folders have no config; the columns tell at least this much
    for name in ("dataset", "clients", "problem"):
        key = "problem.name" if name == "problem" else f"problem.{name}"
        if key not in table:
            table[key] = cells[name].astype(object)
    varied = [c for c in table if table[c].nunique(dropna=False) > 1]
    order = {"problem.name": 0, "problem.dataset": 1, "problem.clients": 2}
    varied.sort(key=lambda c: (order.get(c, 3), c))
    rows = table.to_dict("records")
    words = [", ".join(_word(c, row[c]) for c in varied if _known(row[c])) for row in rows]
    return pd.Series(words, index=cells.index, dtype=object)


def _known(value: object) -> bool:
    return value is not None and value == value


def _word(column: str, value: object) -> str:
    key = column.removeprefix("problem.").removeprefix("split.")
    if key in ("name", "dataset"):
        return os.path.basename(str(value))
    if key == "clients":
        number = f"{value:g}" if isinstance(value, int | float) else str(value)
        return f"{number} client{'' if number == '1' else 's'}"
    if column.startswith("clock."):
        return f"clock {' '.join(column.split('.')[-2:])}={_number(value)}"
    if column == ATTACKERS:
        return f"{_number(value)} Byzantine"
    return f"{key}={_number(value)}"


def _extras(cells: pd.DataFrame, config: pd.DataFrame) -> list[str]:
    """Name the parameters that tell methods apart: several values at one K, one within a group.

    A parameter that some of them do not have, as beta2 of Adam beside SGD, is named where no other of its part does.
    """
    keys = [c for c in config if c.startswith(_METHOD_KEYS) and c not in _NOT_METHOD]
    if not keys or not len(cells):
        return [""] * len(cells)
    group = cells["group"]
    place = [cells["facet"], cells["algorithm"]]
    place += [cells["compressor"].fillna(""), cells["k"].fillna(-1)]
    where = pd.concat(place, axis=1)
    text = config[keys].map(lambda v: "" if v is None else repr(v))
    fixed = text.groupby(group).nunique().max() <= 1
    several = text.groupby(place).nunique().max() > 1
    both = text.where(text != "").groupby(place).nunique().max() > 1
    chosen: list[str] = []
    for key in sorted((k for k in keys if fixed[k] and several[k]), key=lambda k: not both[k]):
        near = [k for k in chosen if k.partition(".")[0] == key.partition(".")[0]]
        ways, more = (
            len(text[some].join(where).drop_duplicates()) for some in (near, [*near, key])
        )
        if both[key] or more > ways:
            chosen.append(key)
    chosen.sort(key=keys.index)
    return [
        ", ".join(f"{_key(c)}={_number(row[c])}" for c in chosen if _known(row[c]))
        for row in config[chosen].to_dict("records")
    ]


def _key(column: str) -> str:
    for prefix in ("algorithm.", "compressor.", "step_size."):
        column = column.removeprefix(prefix)
    return column.removesuffix(".name")


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _theories(config: pd.DataFrame) -> list[str]:
    """Return which theory each step is a multiple of, empty for the method's own nonconvex one."""
    none = [None] * len(config)
    rules, others = (config.get(f"step_size.{key}", none) for key in ("rule", "of"))
    bases = config.get("resolved.basis", none)
    return [
        (f" {rule}" if rule not in (None, "nonconvex") else "")
        + (f" of {of}" if of else "")
        + (f" {basis}" if basis == "rule of thumb" else "")
        for rule, of, basis in zip(rules, others, bases, strict=True)
    ]


def _step(multiple: float, size: float, theory: str = "") -> str:
    if multiple == multiple:
        return f"x{multiple:.12g}{theory}"
    return f"{size:.12g}" if size == size else ""


def algorithm_name(name: str) -> str:
    """Return how tables and figures write an algorithm: ``EF21`` for ``ef21``."""
    return _title("algorithm", name)


def compressor_name(name: str) -> str:
    """Return how tables and figures write a compressor: ``Top-`` for ``top_k``, before its K."""
    return _title("compressor", name)


def _title(kind: Kind, name: object, plugins: object = None) -> str:
    """Return how a method or a compressor is written, of Top-K and its like with the hyphen before K.

    plugins: of a cell, as its config has them: what does not come with raybench states its title there.
    """
    if not isinstance(name, str) or not name:
        return ""
    titles = {(p["kind"], p["name"]): p.get("title") for p in json.loads(str(plugins or "[]"))}
    title = titles.get((kind, name)) or registry.title(kind, name)
    if title is not None:
        return title
    if kind == "algorithm":
        return name.upper().replace("_PLUS", "+").replace("_", "-")
    word = name.removesuffix("_k").replace("_", " ")
    return f"{word[:1].upper()}{word[1:]}-" if name.endswith("_k") else word


def _joined(algorithm: str, compressor: str, k: str, extras: str) -> str:
    if compressor.endswith("-"):
        compressor += k or "K"
    elif compressor and k:
        compressor += f" K={k}"
    words = f"{algorithm} {compressor}".strip()
    return f"{words} ({extras})" if extras else words


def k_words(cells: pd.DataFrame) -> pd.Series:
    """Return each cell's K for reading, same rows: ``10%`` where a share was asked for, else the count.

    Of a cell that was skipped it is the K asked for; empty for a cell without K. A share is a text that ends
    with %, or a number below 1.
    """
    texts = cells["config"].astype(object)
    requests = {text: _asked(text) for text in texts.unique() if isinstance(text, str)}
    results = []
    for text, k in zip(texts, cells["k"].astype(float), strict=True):
        word, share = requests.get(text, ("", False)) if isinstance(text, str) else ("", False)
        results.append(word if share or k != k else f"{k:.0f}")
    return pd.Series(results, index=cells.index, dtype=object)


def _asked(text: str) -> tuple[str, bool]:
    """Return the K that a cell's config (JSON) asks for, spelled, and whether it is a share."""
    k = ((config_of(text).get("compressor") or {}).get("params") or {}).get("k")
    if isinstance(k, str) and k.strip().endswith("%"):
        return "".join(k.split()), True
    if isinstance(k, float) and 0 < k < 1:
        return f"{100 * k:g}%", True
    return (str(k), False) if type(k) is int else ("", False)


def k_order(word: str) -> tuple[int, float]:
    """Return where a word of ``k_words`` stands among others: counts first, then shares, none before all."""
    if not word:
        return 0, 0.0
    share = word.endswith("%")
    try:
        return 1 + share, float(word.removesuffix("%"))
    except ValueError:
        return 3, 0.0


def k_of_rows(cells: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """Return K for reading of rows that have facet, algorithm, compressor and k: the words of their cells."""
    keys = ["facet", "algorithm", "compressor", "k"]
    rows_of_k = cells.assign(word=k_words(cells)).drop_duplicates(keys)
    words = {
        key_of(values): str(word) for *values, word in rows_of_k[[*keys, "word"]].to_numpy(object)
    }
    return [words.get(key_of(values), "") for values in rows[keys].to_numpy(object)]


def key_of(values: list[object]) -> tuple[object, ...]:
    """Return values as a key in which NaN is None, so that what is unknown is equal."""
    return tuple(v if v == v else None for v in values)
