"""A cheater: it books fewer bits than it sends, by charging a negative number of them."""

from raybench.plugins import Contractive, Estimator, algorithm


@algorithm("taken_back", up=Contractive)
class TakenBack(Estimator):
    """DCGD that takes back 64 bits a round."""

    def estimate(a, wire, s, c, grad):
        wire.charge(-64)
        return wire.up(a.C(grad, wire.stream("up"))).mean()
