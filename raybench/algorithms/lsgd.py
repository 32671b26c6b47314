"""Leader SGD: local steps, pulled towards the client whose loss is lowest."""

import torch

from raybench.algorithms.base import Dense, Integer, Number, Points, algorithm, where, zeros_like
from raybench.algorithms.diffusion import HALF


@algorithm(
    "lsgd",
    up=None,
    theory=HALF,
    tau=Integer(1, low=1, help="local steps per round"),
    lam=Number(0.1, low=0, high=1, per_cell=True, help="pull towards the leader of the group"),
    groups=Integer(1, low=1, help="groups of consecutive clients, each with a leader"),
    far=Number(0.1, low=0, high=1, per_cell=True, help="pull towards the best leader of all"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and local step"),
)
class LSGD(Points):
    """tau times x_i <- x_i - gamma g_i(x_i) - lam (x_i - z_group) - far (x_i - z_best), z fixed for a round.

    z_group is the point with the lowest f_i(x_i) of its group as the round begins, z_best the lowest of
    all; a leader feels no pull towards itself. ``far`` counts where there are several groups. Made for
    clients of alike data: elsewhere losses of different f_i are compared. lam = far = 0: independent descent.
    Losses are of all samples, and count as a gradient. Rule of thumb: 0.5/L_max. Up: a
    value, and d values from leaders only. Down: groups d values. Source: Teng et al. 2019, Leader SGD.
    """

    def round(a, net, s, c):
        G, losses = net.oracle.grad_and_loss(c.X)
        losses = net.up(Dense(losses[..., None])).decode()[..., 0]
        groups, d = min(a.groups, net.n), c.X.shape[-1]
        group = torch.arange(net.n, device=losses.device) * groups // net.n
        inside = group == torch.arange(groups, device=losses.device)[:, None]
        leads = where(inside, losses[:, None], torch.inf).argmin(-1)  # (B, groups)
        best = losses.argmin(-1, keepdim=True)
        leads = net.choices(leads, net.n)  # the server says which client leads each group
        first = group[best]
        if groups > 1:
            first = net.choices(first, groups)  # and in which group the best of all is
        leading = zeros_like(losses, dtype=torch.bool).scatter(1, leads, True)
        points = net.up(Dense(c.X).masked(net.here(leading))).decode()
        z = points.gather(1, leads[..., None].expand(-1, -1, d))
        z = net.down(Dense(z.flatten(1))).unflatten(-1, (groups, d))

        own = net.here(group.expand(len(losses), -1))[..., None].expand(-1, -1, d)
        near, top = z.gather(1, own), z.gather(1, first[..., None].expand(-1, -1, d))
        free = net.here(leading)[..., None]
        freest = net.here(zeros_like(leading).scatter(1, leads.gather(1, first), True))[..., None]
        for j in range(a.tau):
            if isinstance(a.batch, int):
                G = net.grad(c.X, net.sample(f"batch {j}", a.batch))
            elif j:
                G = net.grad(c.X)
            pull = where(free, 0.0, a.lam * (c.X - near))
            if groups > 1:
                pull = pull + where(freest, 0.0, a.far * (c.X - top))
            c.X = c.X - a.gamma * G - pull
