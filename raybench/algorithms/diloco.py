"""Many local steps of a strong inner optimizer, few messages: DiLoCo, MuLoCo, DES-LOC, SparseLoCo, Streaming DiLoCo."""

import torch

from raybench.algorithms.base import (
    Algorithm,
    Any_,
    Choice,
    Contractive,
    Dense,
    Estimator,
    Integer,
    Local,
    Number,
    Outer,
    algorithm,
)
from raybench.algorithms.gd import GD
from raybench.algorithms.parts import directions
from raybench.core.errors import InputError

STEPS = Integer(30, low=1, help="H, local steps per round")
INNER_STEP = Number(3e-4, low=0, open_low=True, help="step of the inner optimizer")
BATCH = Integer("full", low=1, words=("full",), help="samples per client and local step")
DECAY = Number(0.0, low=0, help="decoupled weight decay of the local steps")
MOMENTUM = Number(0.9, low=0, high=0.999, per_cell=True, help="of the outer optimizer")

LEFT = {
    "inner_step": "the lr of your optimizer, which does the local steps",
    "weight_decay": "that of your optimizer, which does the local steps",
}


def inner(a: Algorithm, optimizer: str, steps: int | None = None) -> Local:
    """Return the local steps that a preset's parameters say, or so many of them."""
    return Local(
        steps or a.steps, optimizer, a.inner_step, weight_decay=a.weight_decay, nesterov=True
    )


@algorithm(
    "diloco",
    title="DiLoCo",
    up=None,
    theory=None,
    steps=STEPS,
    inner_step=INNER_STEP,
    weight_decay=DECAY,
    momentum=MOMENTUM,
    batch=BATCH,
)
class DiLoCo(GD):
    """y_i = x; H steps of AdamW on y_i; v_i = x - y_i; x moves along mean v_i by Nesterov's momentum.

    u <- momentum u + mean v_i; x <- x - gamma (mean v_i + momentum u), gamma = ``step_size`` (0.7 in the
    paper). It is ``gd`` with ``local: {optimizer: adamw}`` and ``outer: {optimizer: nesterov}``. Adam's
    moments stay with the client. Up: d values every H local steps. Down: d values. No guarantee here.
    Source: Douillard et al. 2023, DiLoCo, algorithm 1.
    """

    presets = ("local", "outer")
    refused_in_loops = LEFT
    optimizer = "adamw"

    def setup(a, wire, s, c):
        a.local = inner(a, a.optimizer)
        a.outer = Outer("nesterov", a.momentum)
        s.outer = wire.zero()


@algorithm(
    "muloco",
    title="MuLoCo",
    up=None,
    theory=None,
    inner_step=Number(0.01, low=0, open_low=True, help="step of the inner optimizer"),
)
class MuLoCo(DiLoCo):
    """DiLoCo whose inner optimizer is Muon: matrices move along their orthogonalised momentum.

    Vectors, embeddings and heads are left to AdamW with the same step. Up: d values every H local steps.
    Down: d values. No guarantee here. Source: Therien et al. 2025, MuLoCo; Jordan et al. 2024, Muon.
    """

    optimizer = "muon"


@algorithm(
    "desloc",
    title="DES-LOC",
    up=None,
    theory=None,
    steps=STEPS,
    inner_step=INNER_STEP,
    weight_decay=DECAY,
    momentum_every=Integer(3, low=1, help="rounds between two means of the first moments"),
    variance_every=Integer(6, low=1, help="rounds between two means of the second moments"),
    batch=BATCH,
)
class DESLOC(Algorithm):
    """y_i = x; H steps of AdamW on y_i; x <- x - gamma mean (x - y_i); in some rounds m_i <- mean m_i, v_i <- mean v_i.

    m_i, v_i: Adam's moments, which stay with the client otherwise. gamma = ``step_size`` = 1 is the paper's: x is the
    mean of the points. With both periods 1 this is local AdamW of which everything is averaged, without any it is
    DiLoCo with a plain outer step. Up: d values every H local steps, and d for each moment in its rounds. Down: the
    same. No guarantee here. Source: Iacob et al. 2025, DES-LOC, algorithm 1.
    """

    def round(a, net, s, c):
        v = directions(inner(a, "adamw"), net, s, c, a.batch, a.gamma)
        a.step(net, s, net.up(Dense(v)).mean())
        for moment, every in enumerate((a.momentum_every, a.variance_every)):
            if net.t % every == 0:
                mean = net.model(net.up(Dense(c.inner[moment])).mean())
                c.inner[moment] = mean[:, None].expand_as(v).clone()


@algorithm(
    "sparseloco",
    title="SparseLoCo",
    version="2",
    up=Contractive,
    averaged=False,  # it may ask who sent what
    theory=None,
    steps=STEPS,
    inner_step=INNER_STEP,
    weight_decay=DECAY,
    beta=Number(0.95, low=0, high=1, per_cell=True, help="what is kept of the error"),
    combine=Choice(
        "senders", "mean", help="senders: over those that sent a coordinate, as in its code"
    ),
    batch=BATCH,
)
class SparseLoCo(Estimator):
    """e_i <- beta e_i + v_i; c_i = C(e_i); e_i <- e_i - c_i; x <- x - gamma mean c_i; v_i as in DiLoCo.

    The mean of a coordinate is over the clients that sent it, as in the released code (tplr-ai: CCLoco, templar), or
    with ``combine: mean`` over all n, as the paper has it. The released optimizer can also shrink x in the outer step,
    as ``outer: {weight_decay: w}`` does; its training script leaves that at 0 where there are local steps. Its clipping
    of messages to the median norm is not here.

    C is meant to be ``block_top_k`` with blocks of 4,096 and 32 to 64 values each, coarsely quantised.
    beta = 1 with ``combine: mean`` is EF14 with a memory of directions. Up: one message every H local steps. Down: d
    values. No guarantee here. Source: Sarfi et al. 2025, SparseLoCo, algorithm 1.
    """

    presets = ("local",)
    refused_in_loops = LEFT
    unsent_state = ("e",)

    def setup(a, wire, s, c):
        a.local = inner(a, "adamw")
        c.e = wire.zeros()

    def estimate(a, wire, s, c, grad):
        v = a.beta * c.e + grad
        m = a.C(v, wire.stream("up"))
        c.e = v.sub_(m.decode())  # messages share no memory with what they are made of
        message = wire.up(m)
        return message.mean() if a.combine == "mean" else message.mean_of_senders()


@algorithm(
    "streaming_diloco",
    title="Streaming DiLoCo",
    up=Any_,
    theory=None,
    fragments=Integer(2, low=1, help="P, groups of tensors that are exchanged in turns"),
    steps=Integer(15, low=1, help="local steps per round, H/P"),
    late=Integer(
        0, low=0, help="local steps after which what was exchanged is applied, below steps"
    ),
    mix=Number(
        0.0, low=0, high=1, per_cell=True, help="weight of the client's own in y when it is applied"
    ),
    inner_step=INNER_STEP,
    weight_decay=DECAY,
    momentum=MOMENTUM,
    batch=BATCH,
)
class StreamingDiLoCo(Estimator):
    """y_i: ``steps`` steps of AdamW a round; then of fragment p, in turns, Delta_i = C(x_p - y_ip) is exchanged.

    ``late`` steps afterwards x_p moves along mean Delta_i by Nesterov's momentum, as in DiLoCo, and y_ip <-
    mix y_ip + (1 - mix) x_p. The clients' points are reset in no other way. A fragment is a group of consecutive
    tensors of about d/P coordinates; C is meant to be the identity or a quantiser to 16 values. One fragment that is
    applied at once without mixing is DiLoCo. Up: one message of a fragment. Down: the fragment. No guarantee
    here. Source: Douillard et al. 2025, Streaming DiLoCo, algorithm 2.
    """

    presets = ("local",)
    broadcasts_model = False

    @classmethod
    def check(cls, params, op, d):
        if params["late"] >= params["steps"]:
            what = f"{params['late']} is not below steps = {params['steps']}"
            raise InputError.of("algorithm.late", what, "fewer than the steps of a round")

    def setup(a, wire, s, c):
        a.local = inner(a, "adamw")
        a.parts = wire.layout.fragments(a.fragments)
        a.compressors = [a.C.fitted(layout) for _, layout in a.parts]
        s.v = wire.zero()
        c.y = wire.zeros() + s.x[:, None]

    def round(a, net, s, c):
        n = len(a.parts)
        if a.late and net.t > 1:
            a.work(net, s, c, a.late, "overlap")
            a.move_fragment(net, s, c, a.parts[(net.t - 2) % n][0])
            a.work(net, s, c, a.steps - a.late, "batch")
        else:
            a.work(net, s, c, a.steps, "batch")
        part, C = a.parts[(net.t - 1) % n][0], a.compressors[(net.t - 1) % n]
        # mean Delta_i, Delta_i = C(x_p - y_ip), applied now or ``late`` steps into the next round
        s.waiting = net.up(C((s.x[:, None] - c.y)[..., part], net.stream("up"))).mean()
        if not a.late:
            a.move_fragment(net, s, c, part)

    def work(a, net, s, c, steps, purpose):
        """Let the clients take so many steps of their own."""
        local = inner(a, "adamw", steps)
        v = directions(local, net, s, c, a.batch, a.gamma, begin=c.y, purpose=purpose)
        c.y = c.y - v

    def move_fragment(a, net, s, c, part):
        """Move a fragment of x along what was exchanged, and mix it into the clients' points."""
        # v <- mu v + Delta; x_p <- x_p - gamma (Delta + mu v)
        v = a.momentum * s.v[..., part] + s.waiting
        x = net.down(Dense(s.x[..., part] - a.gamma * (s.waiting + a.momentum * v)))
        # y_ip <- mix y_ip + (1 - mix) x_p
        mixed = a.mix * c.y[..., part] + (1 - a.mix) * x[:, None]
        s.v, s.x, c.y = (put(old, part, new) for old, new in ((s.v, v), (s.x, x), (c.y, mixed)))


def put(old, part, new):
    """Return old (.., d) with new in place of a part."""
    return torch.cat((old[..., : part.start], new, old[..., part.stop :]), -1)
