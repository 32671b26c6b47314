"""Units on the axes of files: each tick of a logarithmic axis has its own, a linear axis that of its end."""

import pytest
from fake_runs import make

from raybench.analysis.frames import framed
from raybench.report.content import build
from raybench.report.plots import draw


def axis_of(*per_round):
    """Return (figure, texts of the ticks in sight, label) of the axis of bits, of runs of 100 rounds."""
    g = [10 ** (-i / 20) for i in range(101)]
    runs = [{"g": g, "per_round": p, "k": i + 1} for i, p in enumerate(per_round)]
    figure = next(f for f in build(framed(*make(runs))) if f.name == "grad_norm_sq_vs_bits_up")
    canvas = draw(figure)
    canvas.canvas.draw()
    axis = canvas.axes[0]
    low, high = axis.get_xlim()
    ticks = [t for t in axis.xaxis.get_major_ticks() if low <= t.get_loc() <= high]
    return figure, [t.label1.get_text() for t in ticks], axis.get_xlabel()


def test_a_logarithmic_axis_names_the_unit_at_each_tick():
    """It read 10000 kbit where one method needs 11 kbit and another 10 Mbit."""
    figure, ticks, label = axis_of(110.0, 1e5, 3e7)
    assert figure.log_x
    assert label == "Upstream per client"
    assert len(ticks) >= 2
    assert {t.split()[1] for t in ticks} >= {"kbit", "Mbit"}
    assert all(float(t.split()[0]) in (1, 10, 100) for t in ticks)


@pytest.mark.parametrize(
    ("end", "unit"), [(9e2, "bit"), (4e5, "kbit"), (4e6, "Mbit"), (3e9, "Gbit")]
)
def test_a_linear_axis_has_the_unit_of_its_end(end, unit):
    figure, ticks, label = axis_of(end / 100, end / 400)
    assert not figure.log_x
    assert label == f"Upstream per client ({unit})"
    assert 0 < max(float(t) for t in ticks) < 1000
