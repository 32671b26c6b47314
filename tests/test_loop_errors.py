"""What a training loop is told when parts do not fit, and what changes of the number of ranks keep."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loop_kit import D, loss, memory, network, sgd, steps, vector
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import raybench.torch as rt
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.torch.saved import resized

SAID = {
    "a method with rounds of its own": ({"algorithm": "vr_marina"}, "rounds are its own"),
    "gossip": ({"algorithm": "choco_sgd"}, "rounds are its own"),
    "momentum": ({"algorithm": "heavy_ball"}, "momentum that belongs to your optimizer"),
    "momentum of PowerSGD": (
        {"algorithm": "power_sgd:momentum=0.9", "compressor": None},
        "leaves momentum to your loop",
    ),
    "clipping of DGC": ({"algorithm": {"name": "dgc", "clip": 1.0}}, "leaves clip to your loop"),
    "an inner step": ({"algorithm": "sparseloco:inner_step=0.1"}, "leaves inner_step to your loop"),
    "local steps": ({"algorithm": "local_sgd"}, "local work of its own"),
    "two points": ({"algorithm": "dasha_mvr", "compressor": "rand_k:k=1"}, "further points"),
    "constants": ({"algorithm": "ef21_w"}, "needs to know the problem"),
    "unknown method": ({"algorithm": "ef12"}, "did you mean"),
    "no method": ({"algorithm": 3}, "is no method"),
    "unknown compressor": ({"compressor": "topk"}, "did you mean"),
    "no compressor": ({"compressor": None}, "needs a compressor"),
    "a compressor too many": ({"algorithm": "power_sgd"}, "takes none"),
    "a biased one": ({"algorithm": "diana"}, "allow_unproven=True"),
    "unknown granularity": ({"granularity": "layer"}, "unknown 'layer'"),
    "unknown collective": ({"collective": "ring"}, "unknown 'ring'"),
    "groups of a whole": ({"groups": [("*", "identity")]}, "granularity='tensor'"),
    "a pattern without a tensor": (
        {"groups": [("x*", "identity")], "granularity": "tensor"},
        "names no tensor",
    ),
    "a start": ({"start_after": -1}, "an integer >= 0"),
    "an outer optimizer": ({"outer": {"optimizer": "adam"}}, "without local steps"),
    "an inner optimizer": ({"local": {"steps": 2, "optimizer": "adamw"}}, "your optimizer does"),
    "no steps": ({"local": {"steps": 0}}, "local.steps"),
    "unknown key": ({"local": {"step": 2}}, "did you mean steps"),
    "a wrong outer step": ({"local": {"steps": 2}, "outer": {"step_size": -1}}, "above 0"),
    "a delay": ({"delay": {"rounds": -1}}, "delay.rounds"),
    "comparisons": ({"check_every": -1}, "check_every"),
    "a downlink": ({"downlink": "top_k:k=1"}, "your loop sends no model"),
}


@pytest.mark.parametrize("case", SAID)
def test_what_does_not_fit_is_said(case):
    settings, said = SAID[case]
    settings = {"compressor": "top_k:k=10%", "algorithm": "ef21", **settings}
    with pytest.raises(InputError, match=said) as error:
        rt.CompressedOptimizer(sgd(network()), **settings)
    assert len(str(error.value).splitlines()) <= 4


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_memories_in_units_of_the_step_need_plain_sgd(kind):
    model = network()
    options = {"momentum": 0.9} if kind == "SGD" else {}
    inner = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    with pytest.raises(InputError, match="plain SGD only"):
        rt.CompressedOptimizer(inner, "top_k:k=10%", "ef14")
    rt.CompressedOptimizer(inner, "top_k:k=10%", "ef14:memory=gradient")


def test_a_step_of_zero_cannot_be_inside_messages():
    model = network()
    opt = rt.CompressedOptimizer(sgd(model, 0.0), "top_k:k=10%", "ef14")
    with pytest.raises(InputError, match="above 0"):
        steps(model, opt, 0, [0])


RUN = """
ef21 ef21_sgdm ef21_plus ef21_pp ef21_bc ef14 ec_sgd diana dcgd gd sgd marina dasha clag lag three_pc_v2 dgc power_sgd
double_squeeze sign_sgd signum one_bit_adam dion demo loco ef21_muon diloco muloco sparseloco local_ef21
"""
REFUSED = "vr_marina pp_marina lead scaffold vertical_gd fedprox ef21_p"


def test_every_estimator_runs_or_says_why_not():
    """All methods there are: estimators train alone, the others answer with a short error."""
    ran, said = [], {}
    for name in registry.names("algorithm"):
        if not registry.lookup("algorithm", name).target.__module__.startswith("raybench."):
            continue
        entry = registry.lookup("algorithm", name)
        facts = entry.facts
        operator = None
        if facts.up is not None and facts.own is None:
            operator = "rand_k:k=20%" if facts.up == "unbiased" else "top_k:k=20%"
        model = network()
        local = "local" in getattr(entry.target, "presets", ())
        settings = {"local": {"steps": 2}} if local else {}
        try:
            opt = rt.CompressedOptimizer(sgd(model, 0.05), operator, name, **settings)
        except InputError as error:
            said[name] = str(error)
            continue
        before = float(loss(model, 0, 0).detach())
        steps(model, opt, 0, [0] * 4)
        assert float(loss(model, 0, 0).detach()) != before, name
        ran.append(name)
    assert set(RUN.split()) <= set(ran)
    assert set(REFUSED.split()) <= set(said)
    assert all(len(text) < 400 for text in said.values())


def test_states_and_models_of_something_else_are_refused():
    with pytest.raises(InputError, match="a Sequential has no hook"):
        rt.attach(network(), "ef21", "top_k:k=10%")
    opt = rt.CompressedOptimizer(sgd(network()), "top_k:k=10%", "ef21")
    with pytest.raises(InputError, match="before wrapping it"):
        opt.load_state_dict(sgd(network()).state_dict())
    other = rt.CompressedOptimizer(sgd(network()), "top_k:k=10%", "ef14")
    with pytest.raises(InputError, match="it is of ef14, this of ef21"):
        opt.load_state_dict(other.state_dict())
    small = rt.CompressedOptimizer(sgd(nn.Linear(3, 2).double()), "top_k:k=10%", "ef21")
    with pytest.raises(InputError, match="the same model"):
        opt.load_state_dict(small.state_dict())
    with pytest.raises(InputError, match="then wrap"):
        opt.add_param_group({"params": []})
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), "top_k:k=10%", "ef21")
    steps(model, opt, 0, [0])
    opt.zero_grad()
    before = opt.state_dict()
    with pytest.raises(InputError, match="beside the model's"):
        get_state_dict(model, opt)
    assert str(opt.state_dict()) == str(before)


@given(before=st.integers(1, 5), after=st.integers(1, 5), d=st.integers(1, 4), error=st.booleans())
def test_another_number_of_ranks_keeps_means(before, after, d, error):
    x = torch.randn(1, before, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    y = resized(x, after, error)
    assert y.shape == (1, after, d)
    torch.testing.assert_close(y.mean(1), x.mean(1), rtol=1e-12, atol=1e-14)
    if before == after:
        assert torch.equal(x, y)
    if error and after > before:  # newcomers have nothing that they did not send
        assert not y[:, before:].any()


def test_reports_are_tables_and_lines(tmp_path):
    import pandas as pd

    model = network()
    opt = rt.CompressedOptimizer(sgd(model), "top_k:k=10%", "ef14", watch=2)
    steps(model, opt, 0, range(4))
    report = opt.report()
    report.to_parquet(tmp_path / "log.parquet")
    frame = pd.read_parquet(tmp_path / "log.parquet")
    assert len(frame) == 4
    assert set(frame.algorithm) == {"ef14"}
    assert frame.residual_norm.notna().tolist() == [True, False, True, False]
    assert (frame.bytes_up == report.bytes_up).all()
    assert 8 * report.bytes_up >= report.bits_up > 0
    assert 0 < report.compression_error < 1
    line = str(report)
    assert "\n" not in line
    assert "ef14 top_k:k=10%" in line
    assert "residual" in line


@pytest.mark.parametrize(
    ("dtype", "operator", "local", "sent", "line"),
    [
        (
            torch.float64,
            None,
            3,
            8 * D * 2 / 7,
            "step 7 · 2 exchanges · 3.92 kB a step (3.5x less)",
        ),
        (torch.float64, None, 0, 8 * D, "step 7 · 13.7 kB a step (1x less)"),
        (torch.bfloat16, None, 0, 4 * D, "step 7 · 6.86 kB a step (2x more)"),
        (torch.bfloat16, "bf16", 0, 2 * D, "step 7 · 3.43 kB a step (1x less)"),
        (torch.bfloat16, "bf16", 7, 2 * D / 7, "step 7 · 1 exchange · 490 B a step (7x less)"),
    ],
)
def test_reports_count_per_step_and_in_the_type_of_gradients(dtype, operator, local, sent, line):
    """Beside what data-parallel training would have sent: a gradient in every step, in the model's type."""
    model = network(dtype)
    more = {"local": {"steps": local}} if local else {}
    opt = rt.CompressedOptimizer(sgd(model), operator, "dcgd" if operator else "gd", **more)
    steps(model, opt, 0, range(7), dtype)
    report = opt.report()
    assert report.bytes_up == pytest.approx(sent, rel=1e-12)
    assert report.bytes_dense == dtype.itemsize * D
    assert [report.steps, report.exchanges] == [7, 7 // local if local else 7]
    assert line in str(report)


def test_steps_that_are_skipped_are_counted():
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), None, "gd")

    def step(t: int) -> None:
        opt.zero_grad()
        (loss(model, t, 0) * (torch.nan if t in (1, 2) else 1.0)).backward()
        opt.step()

    step(0)
    with pytest.warns(UserWarning, match=r"step 1: .* of 1 of 1 ranks \(rank 0\)"):
        step(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        step(2)
    step(3)
    report = opt.report()
    assert [report.steps, report.skipped, report.exchanges] == [4, 2, 4]
    assert report.rows["skipped"].tolist() == [0, 1, 1, 0]
    assert report.bytes_up == report.bytes_dense / 2
    assert "2 skipped" in str(report)


def test_random_operators_follow_the_seed():
    ends = []
    for seed in (0, 0, 1):
        model = network()
        opt = rt.CompressedOptimizer(sgd(model), "rand_k:k=10%", "diana", seed=seed)
        steps(model, opt, 0, range(2))
        ends.append(vector(model))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_norms_of_a_watched_step_are_exact():
    """What is kept after the first step of EF14 is gamma grad - C(gamma grad)."""
    model = network()
    opt = rt.CompressedOptimizer(sgd(model, 1.0), "top_k:k=10%", "ef14", watch=1)
    steps(model, opt, 0, [0])
    kept = memory(opt, "e")
    report = opt.report()
    assert report.residual_norm == pytest.approx(float(kept.norm()), rel=1e-12)
    size = kept.square().sum() + sum(p.grad.square().sum() for p in model.parameters())
    error = float(kept.square().sum() / size)
    assert report.compression_error == pytest.approx(error, rel=1e-12)
