"""Deep gradient compression: momentum and clipping at the clients, before what is sent is selected."""

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Dense,
    Estimator,
    Flag,
    Integer,
    List,
    Number,
    algorithm,
    clipped,
    matrices,
    shares,
    where,
    zeros_like,
)


@algorithm(
    "dgc",
    up=Contractive,
    theory=None,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    momentum=Number(0.9, low=0, high=0.999, per_cell=True, help="eta, at the clients"),
    nesterov=Flag(help="u <- eta (u + g), v <- v + u + g"),
    masking=Flag(True, help="momentum of what was sent is cleared (factor masking)"),
    clip=Number("off", low=0, open_low=True, words=("off",), help="norm of a tensor, all clients"),
    decay=Number(0.0, low=0, per_cell=True, help="weight decay, added to the gradient"),
    vectors=Choice("compressed", "dense", help="how tensors of one axis (biases) are sent"),
    warmup=List("off", words=("off", "paper", "geometric"), help="shares kept at first"),
    warmup_rounds=Integer(10, low=1, help="rounds at each share of the warm-up, often an epoch"),
)
class DGC(Estimator):
    """u_i <- eta u_i + g_i; v_i <- v_i + u_i; m_i = C(v_i); v_i <- v_i - m_i; x <- x - gamma mean m_i.

    g_i: the gradient, each tensor clipped to the norm clip/sqrt(n), plus decay x. With ``masking`` u_i
    becomes 0 where m_i is not; without, all m_i sent + v_i is the sum of all u_i. The paper's C is
    ``dgc``, on every tensor of its own: ``per_tensor`` of it. warmup: shares in place of C's ``k``,
    ``warmup_rounds`` each: a list; ``paper``: 25%, 6.25%, 1.5625%, 0.4%; ``geometric``: (k/d)^(j/6), j
    = 1..5. A share of 100% sends all and masks nothing: momentum SGD. Up: one message. Down: d
    values. Source: Lin et al. 2018, Deep Gradient Compression, algorithm 4.
    """

    errors = ("v",)
    left_to_loops = {
        "clip": "torch.nn.utils.clip_grad_norm_ before the step, at clip/sqrt(n)",
        "decay": "the weight_decay of your optimizer",
    }

    @classmethod
    def check(cls, params, op, d):
        shares(params["warmup"], op, d)

    def setup(a, wire, s, c):
        c.u, c.v = wire.zeros(), wire.zeros()
        a.split = matrices(wire.layout, a.vectors == "dense")
        layout = a.split.layout
        # None stands for the compressor's own k
        kept = [*shares(a.warmup, a.C.declared, wire.layout.dim), None]
        a.stages = [a.C.fitted(layout, k) if layout.dim and k != "100%" else None for k in kept]

    def source(a, net, s, c):
        g = a.gradient(net, s.x)
        if a.clip != "off":
            g = clipped(net.layout, g, a.clip / net.n**0.5)
        return g + a.decay * s.x[:, None]

    def estimate(a, wire, s, c, g):
        c.u = a.momentum * (c.u + g) if a.nesterov else a.momentum * c.u + g
        v = c.v + c.u + g if a.nesterov else c.v + c.u
        C = a.stages[min((wire.t - 1) // a.warmup_rounds, len(a.stages) - 1)]
        if C is None:
            c.v = zeros_like(v)
            return wire.up(Dense(v)).mean()
        wide, narrow = a.split(v)
        m = C(wide, wire.stream("up"))
        sent, mean = m.decode(), wire.up(m).mean()
        if a.split.narrow:
            mean = a.split.join(mean, wire.up(Dense(narrow)).mean())
        c.v = a.split.join(wide - sent, zeros_like(narrow))
        if a.masking:  # only tensors that are sent compressed have their momentum masked
            c.u = where(a.split.join(sent != 0, zeros_like(narrow).bool()), 0.0, c.u)
        return mean
