"""Transports: virtual ranks and real processes over gloo give what one process gives."""

from typing import Any

import numpy as np
import pytest
import torch
from gloo_kit import run_processes, serve
from hypothesis import given
from hypothesis import strategies as st

from raybench.testing.trial import DATA, Method, finished
from raybench.wire.transport import Transport, on_virtual_ranks, share_of


@given(st.integers(1, 40), st.integers(1, 200))
def test_clients_are_dealt_evenly(size, n):
    shares = [share_of(rank, size, n) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(n))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)  # rank 0 has most: the padding relies on it


@pytest.mark.parametrize(("size", "n"), [(2, 5), (3, 7), (4, 4)])
def test_rows_are_gathered_in_client_order(size, n):
    x = torch.arange(2 * n * 3, dtype=torch.float64).view(2, n, 3)

    def work(transport):
        here = share_of(transport.rank, size, n)
        rows, rank = transport.gather_rows(x[:, here.start : here.stop], n), transport.rank
        return rows, transport.agree(rank), transport.everyone(rank)

    for got, zero, ranks in on_virtual_ranks(size, work):
        assert torch.equal(got, x)
        assert zero == 0
        assert ranks == list(range(size))


def test_an_error_on_one_rank_is_raised_and_nobody_waits():
    def work(transport):
        if transport.rank == 1:
            raise ArithmeticError("rank 1 fails")
        return transport.agree(0)

    with pytest.raises(ArithmeticError, match="rank 1"):
        on_virtual_ranks(3, work)


# Real processes ------------------------------------------------------------------------------

QUADRATIC = {"name": "quadratic", "shape": [[4, 5]], "clients": 5, "heterogeneity": 0.4}
FAR = {"x0": {"normal": 1.0}}
METHODS = [
    Method("ef21", {"init": "full"}, {"name": "top_k", "k": 3}, QUADRATIC, rounds=20, more=FAR),
    Method("marina", {"p": 0.4}, {"name": "rand_k", "k": 3}, QUADRATIC, rounds=20, more=FAR),
    Method("ef21_pp", {"p": 0.5}, {"name": "top_k", "k": 3}, QUADRATIC, rounds=20, more=FAR),
    Method("power_sgd", {"rank": 2}, None, QUADRATIC, rounds=20, more=FAR),
    Method("prox_lead", {}, "natural", QUADRATIC, rounds=20, more=FAR),
    Method("vr_marina", {"p": 0.4, "batch": 3}, {"name": "rand_k", "k": 3},
           {"name": "least_squares", **DATA}, rounds=20, more=FAR),
    Method("vertical_marina", {"p": 0.4}, {"name": "rand_k", "k": 9},
           {"name": "vertical_least_squares", **DATA}, rounds=20, more=FAR),
    Method("marina_p", {"p": 0.4}, None, QUADRATIC, {"name": "random_sparsification", "p": 0.3},
           rounds=20, more=FAR),
    Method("ef21_p_diana", {}, {"name": "rand_k", "k": 3}, QUADRATIC, {"name": "top_k", "k": 4},
           rounds=20, more=FAR),
]  # fmt: skip
COLUMNS = ("loss", "grad_norm_sq", "bytes_up", "bytes_down", "values_up", "grad_evals")


def result(method: Method, transport: Transport | None = None) -> dict[str, Any]:
    """Return what a batch of mixed seeds, steps and one diverging cell ends with."""
    batch = method.batch((1.0, 0.5, 1e9, 1e9, 1e9), (0, 1, 2, 3, 4))
    run = finished(batch, transport=transport)
    out = {name: run.recorder.column(name) for name in COLUMNS}
    out["x"] = run.a.point(run.net, run.s, run.c).numpy()
    out["status"] = run.status
    return out


@pytest.fixture(scope="module")
def over_gloo(tmp_path_factory):
    """What two processes found, each in a list over METHODS."""
    return run_processes(__file__, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("at", range(len(METHODS)), ids=[m.name for m in METHODS])
def test_two_processes_over_gloo_are_one_process(over_gloo, at):
    here = result(METHODS[at])
    assert list(here["status"][:2]) == ["ok", "ok"]
    for results in over_gloo:
        there = results[at]
        assert list(there["status"]) == list(here["status"])
        assert there["x"].shape == here["x"].shape
        assert np.abs(there["x"] - here["x"]).max() <= 1e-10 * max(1.0, np.abs(here["x"]).max())
        for name in COLUMNS:
            for b in (0, 1):  # those that did not blow up
                np.testing.assert_allclose(there[name][b], here[name][b], rtol=1e-10, err_msg=name)
    assert np.array_equal(over_gloo[0][at]["x"], over_gloo[1][at]["x"])  # replicas are bit-equal


if __name__ == "__main__":
    serve(lambda transport: [result(method, transport) for method in METHODS])
