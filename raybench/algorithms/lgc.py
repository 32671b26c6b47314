"""Learned gradient compression: an autoencoder, fitted during the training, compresses what top-k selects."""

import torch

from raybench.algorithms import autoencoder
from raybench.algorithms.base import (
    Choice,
    Contractive,
    Count,
    Dense,
    Estimator,
    Flag,
    InputError,
    Integer,
    Number,
    Support,
    algorithm,
    keeping,
    where,
    zeros_like,
)


@algorithm(
    "lgc",
    up=Contractive,
    broadcast=None,
    theory=None,
    variant=Choice("all_reduce", "server", help="mean latents, or a leader's with innovations"),
    dense_rounds=Integer(200, low=0, help="first rounds, sent uncompressed"),
    fit_rounds=Integer(300, low=1, help="rounds of top-k after them, in which it is fitted"),
    leader=Choice("rotating", "first", help="whose coordinates are sent"),
    innovation=Count("0.1%", words=("off",), help="sent as they are; off: memories may grow"),
    momentum=Number(0.9, low=0, high=0.999, per_cell=True, help="eta, at the clients"),
    masking=Flag(True, help="momentum of what was sent is cleared (factor masking)"),
    width=Integer(16, low=2, help="channels of the autoencoder's first layer"),
    fit_steps=Integer(1, low=1, help="steps of Adam a round that fit it"),
    fit_step=Number(1e-3, low=0, help="their size"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class LGC(Estimator):
    """u_i <- eta u_i + g_i; v_i <- v_i + u_i; v_i <- v_i - sent_i; x <- x - gamma mean sent_i.

    First sent_i = v_i; then sent_i = C(v_i), C being top-k, and E and D are fitted to what the server receives. At
    last one client leads: S is the support of its C(v), and h = D(mean E(v_i[S])), with ``server`` D(E(v[S])) of the
    leader alone. sent_i is <h, v_i[S]>/||h||^2 h on S, and the ``innovation`` largest entries of v_i - that, with
    ``all_reduce`` those at the leader's places: ||v_i||^2 never grows by it, with ``server`` it loses the share
    innovation/d. Up: d values; a message of C; the leader's S, 4 latents for 16 values of it (all clients' with
    ``all_reduce``), a factor, innovations. Down: d values; at last with ``all_reduce`` as up; once all weights.
    Source: Abrahamyan et al. 2021, LGC; layers as in public code, without biases. Factor, rotation, memory of what
    D misses are not theirs, nor innovations with ``all_reduce``.
    """

    @classmethod
    def check(cls, params, op, d):
        few = params["innovation"]
        for part in [op] if few == "off" else [op, keeping(op, few)]:
            try:
                Support(part.compress(torch.zeros(1, d)))
            except TypeError:
                raise InputError.of("compressor", "sends no fixed number", "top_k") from None

    def setup(a, wire, s, c):
        a.broadcasts_model = (
            a.variant == "server"
        )  # else every client knows the mean, and steps itself
        a.T = None if a.innovation == "off" else a.C.fitted(wire.layout, a.innovation)
        c.u, c.v = wire.zeros(), wire.zeros()
        s.W = autoencoder.initial(wire.shared_stream("autoencoder"), a.width, wire.zero())
        s.moments = [[zeros_like(w) for w in s.W] for _ in range(2)]

    def estimate(a, wire, s, c, grad):
        # u_i <- eta u_i + g_i; v_i <- v_i + u_i; fits: rounds of top-k so far
        c.u = a.momentum * c.u + grad
        v, fits = c.v + c.u, wire.t - a.dense_rounds
        if fits > a.fit_rounds:
            sent, mean = a.learned(wire, s, v)
        else:
            m = a.C(v, wire.stream("up")) if fits > 0 else Dense(v)  # sent_i = C(v_i), first v_i
            sent, got = m.decode(), wire.up(m)
            mean = got.mean() if a.broadcasts_model else wire.down(Dense(got.mean()))
            if fits > 0:
                a.fit(wire, s, got, fits)
        c.v = v - sent  # v_i <- v_i - sent_i
        if a.masking and fits > 0:
            c.u = where(sent != 0, 0.0, c.u)
        return mean

    def fit(a, wire, s, got, fits):
        """Fit E and D to the values received: of every client, or of all at the leader's coordinates."""
        S = Support(got.message).indices
        S = S if a.broadcasts_model else S[:, a.leads(wire), None].expand_as(S)
        values = got.decode().gather(-1, S)
        for t in range((fits - 1) * a.fit_steps + 1, fits * a.fit_steps + 1):
            s.W, s.moments = autoencoder.fitted(
                s.W, s.moments, values, not a.broadcasts_model, a.fit_step, t
            )

    def learned(a, wire, s, v):
        """Return what every client sends of v (B, n_here, d), and the mean over all clients, (B, d)."""
        if s.moments:  # the server, which fitted the weights, tells them once
            s.W = autoencoder.cut(wire.down(Dense(torch.cat([w.flatten(1) for w in s.W], 1))), s.W)
            s.moments = []
        S, common = a.shared(wire, a.C(v, wire.stream("up")), v)
        z = Dense(autoencoder.encoded(s.W, common))  # E(v_i[S])
        z = a.passed_on(wire, z).decode() if a.broadcasts_model else wire.mean(z.values)
        h = autoencoder.decoded(s.W, z[:, None], common.shape[-1])  # h = D(mean E(v_i[S]))
        # sent_i = <h, v_i[S]>/||h||^2 h on S, the best multiple of h
        size = h.square().sum(-1, keepdim=True)
        factor = where(size != 0, (h * common).sum(-1, keepdim=True) / size, 0.0)
        sent = zeros_like(v).scatter(-1, S, factor * h)
        both = wire.up(Dense(factor)).mean() if a.broadcasts_model else wire.mean(factor)
        mean = wire.zero().scatter(-1, S[:, 0], both * h[:, 0])
        if a.T is not None:
            # of what that leaves of v_i the largest entries
            more = a.T(v - sent, wire.stream("innovation"))
            if a.broadcasts_model:
                return sent + more.decode(), mean + wire.up(more).mean()
            S, common = a.shared(wire, more, v - sent)
            sent, mean = (
                sent.scatter_add(-1, S, common),
                mean.scatter_add(-1, S[:, 0], wire.mean(common)),
            )
        return sent, mean

    def shared(a, wire, message, v):
        """Return the leader's coordinates, (B, n_here, k), known to all, and the entries of v there."""
        S = a.passed_on(wire, Support(message)).indices[:, None].expand(-1, v.shape[1], -1)
        return S, v.gather(-1, S)

    def passed_on(a, wire, message):
        """Send the leader's message to the server, which passes it on; return it, without clients."""
        leads = torch.arange(wire.n, device=message.device) == a.leads(wire)
        message = message.masked(wire.here(leads.expand(message.lead[0], -1)))
        relayed = wire.up(message).message.map(lambda x: x[:, a.leads(wire)])
        wire.down(relayed)
        return relayed

    def leads(a, wire):
        return (wire.t - 1) % wire.n if a.leader == "rotating" else 0
