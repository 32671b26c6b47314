"""DeMo: momentum stays with the clients, its largest cosine coefficients are exchanged."""

import torch

from raybench.algorithms.base import Choice, Contractive, Estimator, Integer, Number, algorithm


@algorithm(
    "demo",
    title="DeMo",
    up=Contractive,
    averaged=False,  # it may ask who sent what
    theory=None,
    beta=Number(0.999, low=0, high=1, per_cell=True, help="what is kept of the momentum"),
    decay=Number(0.0, low=0, per_cell=True, help="decoupled weight decay"),
    combine=Choice(
        "mean", "senders", help="senders: over those that sent a coefficient, as in its code"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DeMo(Estimator):
    """m_i <- beta m_i + gamma g_i; c_i = C(m_i); m_i <- m_i - c_i; x <- (1 - gamma decay) x - gamma sign(mean c_i).

    C is meant to be ``dct_top_k``: the k largest cosine coefficients of every chunk of 64 x 64. What is sent
    leaves the momentum, the rest accumulates; clients step themselves. ``senders`` divides each coefficient by
    the number of those that sent it. Up: one message. Down: what all sent. No guarantee here. Source: Peng,
    Quesnelle, Kingma 2024, DeMo, algorithm 1.
    """

    broadcasts_model = False
    in_steps = True
    errors = ("m",)
    left_to_loops = {"decay": "the weight_decay of your optimizer"}

    def setup(a, wire, s, c):
        c.m = wire.zeros()

    def estimate(a, wire, s, c, grad):
        m = a.beta * c.m + a.gamma * grad
        sent = a.C(m, wire.stream("up"))
        c.m = m - sent.decode()
        got = wire.all_gather(sent)
        return a.gamma * torch.sign(got.mean() if a.combine == "mean" else got.mean_of_senders())

    def outer_step(a, s, g):
        return g + a.gamma * a.decay * s.x
