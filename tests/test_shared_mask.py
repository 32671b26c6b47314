"""The mask that clients share: who sends which coordinates, its constants, and how messages travel."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from test_random_sparsifiers import within

from raybench.compressors.sparsification import SharedMask
from raybench.core.errors import InputError
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire import unpack

SIZES = [
    (12, 4, 2),
    (13, 4, 3),
    (7, 7, 7),
    (5, 1, 2),
    (3, 12, 2),
    (1, 4, 2),
    (2, 9, 3),
    (300, 5, 1),
]


@pytest.mark.parametrize(("d", "n", "s"), SIZES)
def test_every_coordinate_has_its_senders_and_clients_share_alike(d, n, s):
    op, least = SharedMask(s).fit(d, n), min(s, n)
    m = op.compress(torch.ones(20, n, d, dtype=torch.float64), cells_and_clients(20, n))
    sent = m.decode() != 0
    assert bool((sent.sum(1) == least).all())
    each = sent.sum(-1)
    assert int(each.max()) == -(-d * least // n)
    assert int(each.min()) == d * least // n
    assert torch.equal(torch.as_tensor(m.nbytes).expand(20, n), each * 8)
    # where all clients send the same vector, their mean is it
    x = gaussian(20, 1, d).expand(20, n, d)
    mean = op.compress(x, cells_and_clients(20, n)).sum_clients() / n
    torch.testing.assert_close(mean, x[:, 0], rtol=1e-14, atol=0)


def test_the_senders_are_any_subset_with_equal_chances():
    cells, n, s = 40_000, 5, 2
    sent = (
        SharedMask(s, n).compress(torch.ones(cells, n, 3), cells_and_clients(cells, n)).decode()
        != 0
    )
    for coordinate in range(3):
        for pair in combinations(range(n), s):
            within(sent[:, pair, coordinate].all(1).double(), 1 / 10)


@pytest.mark.parametrize(("d", "n", "s"), [(6, 4, 2), (5, 3, 2), (3, 6, 4), (4, 4, 4), (4, 3, 1)])
def test_the_error_is_that_of_its_constants(d, n, s):
    op, cells = SharedMask(s).fit(d, n), 20_000
    a = gaussian(n, d, seed=2)
    value = op.compress(a.expand(cells, n, d), cells_and_clients(cells, n)).decode()
    for i in range(n):
        within((value[:, i] - a[i]).square().sum(-1), op.omega(d) * a[i].square().sum())
        within(value[:, i], a[i])
    A, B = op.ab(d, n)
    want = A * a.square().sum(-1).mean() - B * a.mean(0).square().sum()
    within((value.mean(1) - a.mean(0)).square().sum(-1), want)


@pytest.mark.parametrize(("d", "n", "s"), SIZES)
def test_messages_survive_rows_choices_and_bytes(d, n, s):
    op, x, q = SharedMask(s, n), gaussian(3, n, d, dtype=torch.float32), cells_and_clients(3, n)
    m = op.compress(x, q)
    value = m.decode()
    assert torch.equal(unpack(m.pack()).decode(), value)
    assert torch.equal(m.select(torch.tensor([2, 0])).decode(), value[[2, 0]])
    for i in range(n):
        row = m.row(1, i)
        assert torch.equal(row.decode(), value[1, i])
        assert torch.equal(unpack(row.scaled(0.5).pack()).decode(), value[1, i] * 0.5)
    # what a receiver makes of what two ranks sent: payloads of their clients, the stream of all
    cut = n // 2
    ranks = [torch.arange(cut), torch.arange(cut, n)]
    sent = [op.compress(x[:, ids], q.at(ids)) for ids in ranks if len(ids)]
    wide = max(p.payload().shape[-1] for p in sent)
    data = [torch.nn.functional.pad(p.payload(), (0, wide - p.payload().shape[-1])) for p in sent]
    everyone = sent[0].stream.at(torch.arange(n))
    whole = type(m).read(sent[0].known(), torch.cat(data, 1), everyone)
    assert torch.equal(whole.decode(), value)


def test_cells_and_rounds_have_masks_of_their_own():
    ones, op = torch.ones(2, 4, 200), SharedMask(2, 4)
    first = op.compress(ones, cells_and_clients(2, 4)).decode()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, op.compress(ones, cells_and_clients(2, 4).fold(1)).decode())


def test_constants_and_fit():
    op = SharedMask(2)
    assert (op.omega(9), op.alpha(9), op.correlated) == (None, None, True)
    assert op.fit(9, 8).omega(9) == 3.0
    assert op.fit(9, 2).alpha(9) == 1.0
    assert not op.fit(9, 2).correlated
    assert op.ab(9, 8) == (6 / 14, 6 / 14)
    assert op.ab(9, 1) == (0.0, 0.0)
    assert SharedMask(1).ab(9, 8) == (1.0, 1.0)  # as PermK
    with pytest.raises(InputError, match="the number of clients is not known"):
        op.ab(9)
