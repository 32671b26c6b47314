"""Streaming DiLoCo: fragments of the model are exchanged in turns, while the clients work on."""

import torch

from raybench.algorithms.base import Any_, Dense, Estimator, Integer, Number, algorithm
from raybench.algorithms.diloco import BATCH, DECAY, INNER_STEP, MOMENTUM, inner
from raybench.algorithms.parts import directions
from raybench.core.errors import InputError


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
        a.operators = [a.C.fitted(layout) for _, layout in a.parts]
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
        part, C = a.parts[(net.t - 1) % n][0], a.operators[(net.t - 1) % n]
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
        v = a.momentum * s.v[..., part] + s.waiting
        x = net.down(Dense(s.x[..., part] - a.gamma * (s.waiting + a.momentum * v)))
        mixed = a.mix * c.y[..., part] + (1 - a.mix) * x[:, None]
        s.v, s.x, c.y = (put(old, part, new) for old, new in ((s.v, v), (s.x, x), (c.y, mixed)))


def put(old, part, new):
    """Return old (.., d) with new in place of a part."""
    return torch.cat((old[..., : part.start], new, old[..., part.stop :]), -1)
