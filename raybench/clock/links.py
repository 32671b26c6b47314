"""How long a round takes on a network: the alpha-beta model of links and of collective operations.

A message of m bytes needs a + m/B seconds on a link of latency a (seconds for a message, however short) and
bandwidth B (bytes per second). A machine has one link, sends and receives at once, each at B. From that follow
the times of collectives on n machines. For a dense vector of S bytes that is summed on its way (all-reduce):

    ring            2 (n - 1) a + 2 (n - 1)/n S/B
    tree            2 ceil(log2 n) a + 2 S/B
    server          2 a + 2 n S/B                                (all go through the one link of the server)
    two_shot        2 (n - 1) a + 2 (n - 1)/n S/B                (as the ring, in two exchanges of all with all)
    hierarchical    reduce-scatter within nodes, ring over the N nodes, all-gather within nodes

and for compressed messages of m bytes, which do not add up, so that each machine needs those of all (all-gather):

    ring            (n - 1) (a + m/B)
    tree            ceil(log2 n) a + (n - 1) m/B
    server          2 a + n (m_up + m_down)/B
    two_shot        2 ((n - 1) a + (n - 1)/n m/B)                (part j to machine j, its mean compressed again)
    hierarchical    gathered within nodes, between them, and spread within them

``gather`` is what the train mode of raybench does over gloo, see ``all_gather`` and ``all_reduce``. Sources: R.
Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005 (ring, tree,
all-gather); P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
Functions of numbers broadcast over numpy arrays. One machine needs no network: n = 1 costs nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from raybench.core.counts import ALL_TO_ALL, GATHER, MIX, REDUCE, SERVER
from raybench.core.errors import InputError, nearest

Number = Any  # a float, or a numpy array of floats

FORMS = ("ring", "tree", "server", "gather", "two_shot", "hierarchical")
"""How machines exchange what they have."""


@dataclass(frozen=True)
class Link:
    """One link: a message of m bytes takes ``latency`` + m / ``bandwidth`` seconds.

    latency: seconds for each message. bandwidth: bytes per second, in each direction. start: seconds that each
    collective takes before its first message (NCCL's launch of a kernel). Raises ValueError for numbers that no
    link has.
    """

    latency: float
    bandwidth: float
    name: str = ""
    start: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.latency < math.inf and self.bandwidth > 0 and 0 <= self.start < math.inf):
            raise ValueError(f"no link has latency {self.latency}, bandwidth {self.bandwidth}")

    def __str__(self) -> str:
        return f"{rate_word(self.bandwidth)}, {time_word(self.latency)}"


@dataclass(frozen=True)
class LinkNetwork:
    """Equal links between machines, and how these exchange what they have.

    form: one of ``FORMS``. Of ``hierarchical``: ``per_node`` processes share a node and talk by ``inner``; ``link``
    is then the link of a node. Raises ValueError for an unknown form or a node without an inner link.
    """

    link: Link
    form: str = "ring"
    inner: Link | None = None
    per_node: int = 1

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form {self.form!r} is none of {', '.join(FORMS)}")
        if self.form == "hierarchical" and (self.inner is None or self.per_node < 1):
            raise ValueError("a hierarchical network needs the inner link of its nodes")

    def __str__(self) -> str:
        name = f"{self.link.name}: " if self.link.name else ""
        text = f"{name}{self.link}, {self.form}"
        if self.inner is not None:
            text += f", {self.per_node} x {self.inner.name or 'inner'} ({self.inner})"
        return text


NCCL_START = 8.4e-6
"""Seconds that NCCL's own model charges a ring before its first step (NVIDIA/nccl, src/graph/tuning.cc)."""
NCCL_STEP = {"nvlink": 3.4e-6, "pcie": 5.7e-6, "network": 14.0e-6}
"""Seconds that it charges a step of a ring by the protocol ``Simple``, which carries long messages."""


def nccl(kind: str, bandwidth: float, name: str = "") -> Link:
    """Return a link of NCCL: its published latencies, with a bandwidth in bytes per second.

    kind: ``nvlink``, ``pcie`` or ``network``.
    """
    return Link(NCCL_STEP[kind], bandwidth, name, NCCL_START)


_PRESETS = (
    Link(50e-3, 40e6, "internet"),
    Link(20e-3, 11e6, "100Mbit"),
    Link(100e-6, 110e6, "1Gbit"),
    Link(50e-6, 1.1e9, "10Gbit"),
    Link(40e-6, 2.5e9, "25Gbit"),
    nccl("network", 11e9, "100Gbit"),
    nccl("network", 45e9, "400Gbit-rdma"),
    nccl("pcie", 20e9, "pcie4"),
    nccl("nvlink", 360e9, "nvlink4"),
)
PRESETS: dict[str, Link] = {link.name: link for link in _PRESETS}
"""Links by name: what gets through (some 90 % of the line's rate), with a usual latency for one way.

``100Mbit`` is a wide-area link, ``internet`` a path between sites; the latencies of TCP links up to 25 Gbit/s are
assumptions, to be replaced by what ``raybench bench link`` measures; the others are NCCL's.
"""


def rate_word(bandwidth: float) -> str:
    """Return a bandwidth in bytes per second as bits per second: ``880 Mbit/s``."""
    bits = 8 * bandwidth
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= size:
            return f"{bits / size:.3g} {unit}" if bits < 1e12 else f"{bits / size:,.0f} {unit}"
    return f"{bits:.3g} bit/s"


def time_word(seconds: float) -> str:
    """Return seconds in a unit that reads well: ``50 ms``, ``3.4 µs``."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


# How a network is written ----------------------------------------------------------------

WHERE = "--link"
EXAMPLE = "1Gbit,ring or 10Gbit,20ms,server or 31MB/s,80us,gather or 100Gbit,hierarchical,8xnvlink4"
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
RATES = {
    "bit": 0.125,
    "kbit": 125.0,
    "mbit": 125e3,
    "gbit": 125e6,
    "tbit": 125e9,
    "kb/s": 1e3,
    "mb/s": 1e6,
    "gb/s": 1e9,
}
_NUMBER = r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)"
_TIME = re.compile(_NUMBER + r"\s*(s|ms|us|µs|ns)")
_RATE = re.compile(_NUMBER + r"\s*([kmgt]?bit|[kmg]b/s)(?:/s)?")
_NODE = re.compile(r"(\d+)\s*[x×*]\s*(.+)")


def parse_network(text: str, where: str = WHERE) -> LinkNetwork:
    """Return the network that a text names: ``1Gbit``, ``10Gbit,20ms,server``, ``100Gbit,hierarchical,8xnvlink4``.

    First a link: one of ``PRESETS``, or a rate (``250Mbit``, ``31MB/s``) with a latency; then, in any order and
    each at most once, a latency (``20ms``, ``80us``), a form of ``FORMS``, and how many processes share a node
    by which inner link. The form is ``ring`` unless given. where: what names the text in complaints. Raises InputError
    that names the nearest name.
    """
    first, *words = [word.strip() for word in str(text).split(",")]
    if not first:
        raise InputError.of(where, "no link is named", f"such as {EXAMPLE}")
    link, settings = _link(first, where), dict[str, Any]()
    for word in words:
        kind, value = _part(word, where)
        if kind in settings:
            raise InputError.of(where, f"{text!r} has a second {kind}", f"give one {kind}")
        settings[kind] = value
    if "latency" in settings:
        link = replace(link, latency=settings["latency"])
    elif not link.name:
        fix = f"add a latency, such as {first},0.1ms, or take one of {', '.join(PRESETS)}"
        raise InputError.of(where, f"{first} has no latency", fix)
    count, inner = settings.get("inner link", (1, None))
    form = settings.get("form", "ring" if inner is None else "hierarchical")
    if inner is not None and form != "hierarchical":
        raise InputError.of(where, f"{form} has no nodes", "leave out the inner link")
    if inner is None and form == "hierarchical":
        fix = f"{first},hierarchical,8xnvlink4"
        raise InputError.of(where, "hierarchical has no inner link", fix)
    return LinkNetwork(link, form, inner, count)


def _part(word: str, where: str) -> tuple[str, Any]:
    """Return what a word after the first one gives, and its value: a form, a latency or an inner link."""
    form = word.lower().replace("-", "_")
    time, node = _TIME.fullmatch(word.lower()), _NODE.fullmatch(word)
    if form in FORMS:
        return "form", form
    if time is not None:
        latency = float(time[1]) * TIMES[time[2]]
        if not math.isfinite(latency):
            raise InputError.of(where, f"{word} is no latency", "such as 20ms")
        return "latency", latency
    if node is None:
        fix = nearest(word.lower(), FORMS)
        raise InputError.of(where, f"{word!r} is no form and no latency such as 20ms", fix)
    count, inner = int(node[1]), _link(node[2], where)
    if count < 1:
        raise InputError.of(where, f"{word}: a node has one process at least", "8xnvlink4")
    if not inner.name:
        fix = f"take one of {', '.join(PRESETS)}"
        raise InputError.of(where, f"the inner link {node[2]!r} has no latency", fix)
    return "inner link", (count, inner)


def _link(word: str, where: str) -> Link:
    """Return the preset of a name, or a link of a rate without a name and latency."""
    names = {name.lower(): link for name, link in PRESETS.items()}
    lowered = word.lower().removesuffix("/s") if "bit" in word.lower() else word.lower()
    if lowered in names:
        return names[lowered]
    rate = _RATE.fullmatch(word.lower())
    if rate is None or not 0 < float(rate[1]) < 1e15:
        what = f"unknown link {word!r}"
        raise InputError.of(where, what, f"{_near(word)}; or a rate with a latency: 250Mbit,2ms")
    return Link(0.0, float(rate[1]) * RATES[rate[2]])


def rate(text: str, where: str) -> float:
    """Return the bytes per second that a text names: ``10Mbit``, ``1Gbit``. Raises InputError as ``parse_network``."""
    return _link(text.strip(), where).bandwidth


def to_server(text: str, where: str) -> dict[str, Any]:
    """Return clients' links to a server that a text names, as a clock has them.

    ``up`` and ``down`` in bytes per second, ``latency``, and ``shared``, whether the server's one link carries all.
    Raises InputError as ``parse_network``, and for a form that has no server.
    """
    network, words = parse_network(text, where), text.lower().replace(" ", "").split(",")
    shared = network.form == "server"
    if not shared and any(form in words for form in FORMS):
        what = f"clients that talk to a server form no {network.form}"
        raise InputError.of(where, what, f"{words[0]}, or {words[0]},server")
    link = network.link
    return {
        "up": link.bandwidth,
        "down": link.bandwidth,
        "latency": link.latency,
        "shared": shared,
    }


def _near(word: str) -> str:
    """Return ``did you mean X``, whatever the case of the letters, or all names."""
    names = {name.lower(): name for name in PRESETS}
    close = get_close_matches(word.lower(), names, n=1, cutoff=0.55)
    return f"did you mean {names[close[0]]}" if close else nearest(word, PRESETS)


def written(latency: float, bandwidth: float, form: str) -> str:
    """Return the text of a measured link for ``--link``: ``118MB/s,85us,gather``."""
    units = ((1e9, "GB/s"), (1e6, "MB/s"), (0.0, "kB/s"))
    size, unit = next((size or 1e3, unit) for size, unit in units if bandwidth >= size)
    return f"{bandwidth / size:.4g}{unit},{latency * 1e6:.4g}us,{form}"


# The times of collectives ------------------------------------------------------------------

GLOO_SEGMENT = 2**20
"""Bytes at most of a segment in gloo's ring all-reduce, of which two are under way at a time."""
GLOO_WORKERS = 2
"""Collectives that torch's gloo backend works on at a time."""


def log2_up(n: Number) -> Number:
    """Return the rounds in which a tree reaches n machines: ceil(log2 n)."""
    return np.ceil(np.log2(np.maximum(n, 1)))


def all_reduce(network: LinkNetwork, n: Number, size: Number) -> Number:
    """Return the seconds in which n machines all hold the sum of their vectors of ``size`` bytes.

    By the formulas at the top of this module. ``gather``: gloo's ring cuts the vector into n p segments of S/(n p)
    bytes, which take h seconds, p = max(2, ceil(S / (n MiB))). Two of them are under way at a time, and each leaves
    when the receiver has said that it waits for it, so a pair of segments pays 2 a: the two phases take

        (I/2 - 1) max(2 h, h + 2 a) + 2 h + 2 a,    I = (n - 1) p,

    each, which without latency is the ring's (n - 1)/n S/B (facebookincubator/gloo, gloo/allreduce.cc).
    """
    link, form = network.link, network.form
    a, rate = link.latency, link.bandwidth
    n, size = np.asarray(n, float), np.asarray(size, float)
    if form == "hierarchical":
        inner, g, nodes = _nodes(network, n)
        scatter = (g - 1) * inner.latency + (g - 1) / g * size / inner.bandwidth
        spent = 2 * scatter + 2 * (nodes - 1) * a + 2 * (nodes - 1) / nodes * size / rate
    elif form == "tree":
        spent = 2 * log2_up(n) * a + 2 * size / rate
    elif form == "server":
        return server(network, n, size, size)
    elif form == "gather":
        parts = np.maximum(2, np.ceil(size / (n * GLOO_SEGMENT)))
        h = size / (n * parts) / rate
        pairs = (n - 1) * parts / 2
        spent = 2 * ((pairs - 1) * np.maximum(2 * h, h + 2 * a) + 2 * h + 2 * a)
    else:
        spent = 2 * (n - 1) * a + 2 * (n - 1) / n * size / rate
    return _alone(n, spent + link.start)


def all_gather(
    network: LinkNetwork, n: Number, message: Number, largest: Number | None = None
) -> Number:
    """Return the seconds in which n machines all hold the messages of all.

    message: bytes of a mean machine; largest: of the largest, if they differ. Messages of collectives are padded
    to the largest; a server takes each as it is and sends all to all. By the formulas at the top of this module.

    ``gather``: over gloo raybench lets every machine broadcast its message, which is faster than gloo's own
    all-gather. A broadcast goes along a binomial tree: floor(log2 n) messages one after the other at most, after the
    word of the first receiver that it waits; a machine that passes it on to c others shares its link among them. So it
    takes (1 + floor(log2 n)) a + w(n) m/B (``broadcast_copies``). torch works on two broadcasts at a time, which
    different machines begin, so there are ceil(n/2) turns; where the last one is of one broadcast alone, its receivers
    have long been waiting, which saves a (facebookincubator/gloo, gloo/broadcast.cc; ``raybench/wire/transport.py``).
    """
    link, form = network.link, network.form
    a, rate = link.latency, link.bandwidth
    n, message = np.asarray(n, float), np.asarray(message, float)
    most = message if largest is None else np.maximum(message, largest)
    if form == "hierarchical":
        inner, g, nodes = _nodes(network, n)
        # bytes from other nodes: each process took a share, all need all
        others = (nodes - 1) * g * most
        spread = (g - 1) * inner.latency + (g - 1) / g * others / inner.bandwidth
        spent = (g - 1) * (inner.latency + most / inner.bandwidth)
        spent += (nodes - 1) * (a + g * most / rate) + np.where(nodes > 1, spread, 0.0)
    elif form == "tree":
        spent = log2_up(n) * a + (n - 1) * most / rate
    elif form == "server":
        return server(network, n, message, n * message)
    elif form == "gather":
        hops = np.floor(np.log2(np.maximum(n, 1)))
        turns = np.ceil(n / GLOO_WORKERS)
        words = turns - n % 2
        spent = (turns * hops + words) * a + turns * broadcast_copies(n) * most / rate
    else:
        spent = (n - 1) * (a + most / rate)
    return _alone(n, spent + link.start)


def broadcast_copies(n: Number) -> Number:
    """Return w(n): copies of a message that a binomial broadcast to n machines sends one after the other, at most.

    Machine v of 0 .. n - 1 passes the message on to each v + 2^i < n with 2^i > v, all at once over its one link;
    w(n) is the largest sum of these numbers of receivers along a path: 1, 2, 3, 4, 5, 5, 6 for n = 2, 3, 4, 5, 6, 7, 8.
    """
    return np.vectorize(_copies, otypes=[float])(n)


def _copies(n: float) -> float:
    count = int(n)
    done = [0.0] * max(count, 1)
    for v in range(count):
        receivers = [
            v + 2**i for i in range(v.bit_length(), count.bit_length()) if v + 2**i < count
        ]
        for receiver in receivers:
            done[receiver] = done[v] + len(receivers)
    return max(done)


def server(network: LinkNetwork, n: Number, up: Number, down: Number) -> Number:
    """Return the seconds in which n clients send ``up`` bytes each to a server and get ``down`` bytes each.

    2 a + n (up + down)/B: the server's one link carries all of it, and begins to answer when it has all.
    """
    link = network.link
    n, moved = np.asarray(n, float), np.asarray(up, float) + down
    return _alone(n, 2 * link.latency + n * moved / link.bandwidth + link.start)


def all_to_all(network: LinkNetwork, n: Number, size: Number) -> Number:
    """Return the seconds in which n machines send each other their n-th parts of ``size`` bytes: each n - 1 of them.

    (n - 1) a + (n - 1)/n size/B. Processes of one node exchange by its inner link; of several nodes, those of a node
    share its link.
    """
    n, size = np.asarray(n, float), np.asarray(size, float)

    def exchanged(link: Link, moved: Number) -> Number:
        spent = (n - 1) * link.latency + (n - 1) / n * moved / link.bandwidth
        return _alone(n, spent + link.start)

    spent = exchanged(network.link, size * network.per_node)
    if network.inner is not None:
        spent = np.where(n <= network.per_node, exchanged(network.inner, size), spent)
    return spent


def travel(
    network: LinkNetwork,
    n: Number,
    exchange: str = GATHER,
    *,
    up: Number,
    down: Number,
    up_max: Number | None = None,
    messages_up: Number = 1,
    messages_down: Number = 1,
    dense: bool = False,
) -> Number:
    """Return the seconds in which the messages of a round travel, as the wire books them.

    exchange: what becomes of them, one of ``EXCHANGES``. up, down: packed bytes of a mean client and of the broadcast;
    up_max: of the largest client; messages_up, messages_down: in how many messages; dense: whether they are whole
    vectors, which can be summed on their way. A round without a message costs nothing.

    ``reduce``: all-reduces, as many as messages. So are dense messages that are gathered, unless in the form ``gather``,
    which is raybench's own and gathers them too. ``all_to_all``: of n parts n - 1 are sent up, and of the means n - 1
    down. ``gather``: as many all-gathers as messages; every machine does the server's work, so ``down`` does not travel.
    In the form ``two_shot`` these are parts and means as well. In the form ``server``, and whatever the form for what
    clients send to a ``server``: (messages_up + messages_down) a + n (up + down)/B, and no less than the largest
    client's up_max/B on its way. ``mix``: to one neighbour after the other, messages_up a + up_max/B.
    """
    link, n = network.link, np.asarray(n, float)
    up, down, sent, told = (np.asarray(x, float) for x in (up, down, messages_up, messages_down))
    most = up if up_max is None else np.maximum(up, up_max)
    if exchange == MIX:
        return _alone(n, sent * link.latency + most / link.bandwidth)
    in_parts = exchange == ALL_TO_ALL and not dense
    if in_parts:  # in whole messages, of which each keeps a part
        others = np.maximum(n - 1, 1)
        up, most, down = (size * n / others for size in (up, most, down))
        sent, told = sent / others, told / others
    if exchange == SERVER or network.form == "server":
        carried = np.maximum(n * up, most) + n * down
        latency = (sent + told) * link.latency + sent * link.start
        return _alone(n, latency + carried / link.bandwidth)
    per, back = (np.where(count > 0, count, 1.0) for count in (sent, told))
    summed = exchange == REDUCE or (dense and (exchange == ALL_TO_ALL or network.form != "gather"))
    if summed:
        return sent * all_reduce(network, n, up / per)
    if in_parts or network.form == "two_shot":
        parts = sent * all_to_all(network, n, most / per)
        return parts + told * all_to_all(network, n, down / back)
    return sent * all_gather(network, n, up / per, most / per)


def overlapped(backward: Number, per_bucket_seconds: Number, buckets: Number) -> Number:
    """Return the seconds of backward pass and exchange when buckets are exchanged while later ones are computed.

    max(T_backward, (b - 1) T_bucket) + T_bucket: of b buckets all but the last one can hide behind the backward pass.
    Without overlap, as where a compressor needs the whole gradient, it is T_backward + b T_bucket.
    Source: S. Agarwal, H. Wang, S. Venkataraman, D. Papailiopoulos, On the utility of gradient compression in
    distributed training systems, 2022.
    """
    hidden = (np.asarray(buckets, float) - 1) * per_bucket_seconds
    return np.maximum(backward, hidden) + per_bucket_seconds


def _nodes(network: LinkNetwork, n: Number) -> tuple[Link, Number, Number]:
    """Return the inner link, the processes of a node and the number of nodes."""
    assert network.inner is not None
    within = np.minimum(network.per_node, n)
    return network.inner, within, np.ceil(n / within)


def _alone(n: Number, spent: Number) -> Number:
    """Return the seconds, none for a machine alone; a float for floats."""
    seconds = np.where(np.asarray(n) > 1, spent, 0.0)
    return float(seconds) if seconds.ndim == 0 else seconds
