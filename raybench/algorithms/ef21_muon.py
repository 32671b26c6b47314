"""EF21-Muon: error feedback for steps in the unit ball of another norm."""

import torch

from raybench.algorithms.base import Choice, Contractive, Integer, Number, algorithm
from raybench.algorithms.ef21 import EF21
from raybench.algorithms.parts import orthogonalised


@algorithm(
    "ef21_muon",
    title="EF21-Muon",
    up=Contractive,
    theory=None,
    eta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of a fresh gradient"),
    norm=Choice(
        "spectral", "sign", "euclidean", help="of matrices; vectors move by signs unless euclidean"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class EF21Muon(EF21):
    """M_i <- (1 - eta) M_i + eta g_i; G_i <- G_i + C(M_i - G_i); G = mean G_i; x <- x + gamma LMO(G).

    For each tensor, LMO(G) is the steepest step of norm 1: -U V' of a matrix G = U S V' (spectral, by
    Newton-Schulz, times sqrt(max(1, a/b))), -sign(G), or -G/||G||. With LMO(G) = -G it is EF21-SGDM. Up:
    one message. Down: d values. No guarantee here. Source: Gruntkowska et al. 2025, EF21-Muon.
    """

    def setup(a, wire, s, c):
        super().setup(wire, s, c)
        a.layout, c.m = wire.layout, wire.zeros()

    def open(a, wire, s, c, grad):
        c.m = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.m = (1 - a.eta) * c.m + a.eta * grad
        return super().estimate(wire, s, c, c.m)

    def outer_step(a, s, g):
        return a.layout.concat([a.steepest(tensor) for tensor in a.layout.views(g)])

    def steepest(a, G):
        """Return -LMO(G) of one tensor G (B, ..)."""
        if a.norm == "euclidean":
            flat = G.flatten(1)
            size = flat.norm(dim=1, keepdim=True).clamp(min=torch.finfo(G.dtype).tiny)
            return (flat / size).view(G.shape)
        if a.norm == "sign" or G.ndim < 3:
            return torch.sign(G)
        M = G.flatten(2)
        scale = max(1.0, M.shape[-2] / M.shape[-1]) ** 0.5
        return scale * orthogonalised(M).view(G.shape)
