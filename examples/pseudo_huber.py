"""A problem of one's own: f_i, its gradient, the dimension, and the constants that are known."""

import torch

from raybench.plugins import Integer, Problem, problem


@problem("pseudo_huber")
class PseudoHuber(Problem):
    """f_i(x) = sum_l sqrt(1 + (x_l - c_il)^2) - 1, the robust distance to the centre c_i."""

    def __init__(
        self,
        clients: int = Integer(10, low=1),
        d: int = Integer(50, low=1),
        seed: int = Integer(0, low=0),
    ):
        super().__init__(clients, d)
        noise = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(clients, d, generator=noise, dtype=torch.float64)
        self.L, self.L_i = 1.0, (1.0,) * clients  # optional, as are L_pm, mu, f_inf and f_star
        self.f_inf = 0.0

    def f_i(self, i, x):
        return ((1 + (x - self.centres[i]) ** 2).sqrt() - 1).sum(-1)

    def grad_i(self, i, x):
        away = x - self.centres[i]
        return away / (1 + away**2).sqrt()
