"""raybench advise: compressors replayed on real gradients, what is said, the sweep that is written, errors."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict

import pytest
import torch
from cli_kit import cli, ran, tidy, tree

import raybench.torch
from raybench.cli.advise import METHODS, MODELS
from raybench.clock.links import parse_network
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.measure.advise import CATALOGUE, baseline, candidates, gradients, on_gpu, replay
from raybench.measure.payoff import GPU_FORMAT, Codecs, Compute, step_of
from raybench.measure.study import measure
from raybench.problems.networks.build import CAUSAL_LM
from raybench.problems.networks.models import NAMED
from raybench.testing.vectors import gaussian

LAYOUT = Layout((("a", (30, 40)), ("b", (50,))))
D = LAYOUT.dim
FEW = ("--compressor", "top_k:k=1%", "--compressor", "mxfp4")


def of(name: str):
    return next(one for one in CATALOGUE if one.name == name)


# Replaying -------------------------------------------------------------------------------------


def test_errors_are_those_of_the_operators_alone():
    x = gaussian(D, dtype=torch.float32)
    names = ("top_k:k=10%", "scaled_sign", "fp16", "float32", "rand_k:k=1%,mask=common")
    *result, fed = replay(map(of, names), LAYOUT, [x])
    grid = {"a": ["top_k:k=10%"], "b": ["scaled_sign"], "c": ["fp16"], "d": ["identity"]}
    alone = measure({"x": x[None]}, grid)
    assert [row.error for row in result] == pytest.approx(list(alone["error"]), rel=1e-5)
    assert [row.size for row in result] == list(alone["bytes"])
    assert [row.encode > 0 and row.decode > 0 for row in result] == [True, True, True, False]
    assert result[3].encode == result[3].decode == 0  # a cast is not charged
    # with error feedback it is rescaled as the method does it: 1 - k/d, not d/k - 1
    assert fed.error == pytest.approx(0.99, abs=0.01)


def test_low_rank_is_by_matrix_and_sends_vectors_whole():
    x = gaussian(D, dtype=torch.float32)
    (result,) = replay([of("power_sgd:rank=4")], LAYOUT, [x])
    assert result.size == 4 * (4 * (30 + 40) + 50)
    (svd,) = replay(candidates(["svd:rank=4"]), LAYOUT, [x])
    assert svd.size == result.size
    assert svd.error < result.error < 1


@pytest.mark.thorough
def test_what_takes_too_long_or_does_not_fit_is_left_out_with_the_reason():
    x = gaussian(D, dtype=torch.float32)
    wrong = replay(candidates(["top_k:k=5000"]), LAYOUT, [x])
    assert "5000 of 1250" in wrong[0].left_out
    assert math.isnan(wrong[0].size)
    long = gaussian(1 << 17, dtype=torch.float32)
    (slow,) = replay([of("int8")], Layout.vector(1 << 17), [long], limit=1e-9)
    assert "takes about" in slow.left_out


@pytest.mark.thorough
def test_digits_stand_in_for_images_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    result = gradients("resnet20:depth=8", batch=2, steps=(0,))
    assert "2 samples of digits" in result.about
    assert "cifar10_part is not in the data folder" in result.note
    with pytest.raises(InputError, match="cifar10_part is not in the data folder"):
        gradients("torchvision:squeezenet1_1", batch=2, steps=(0,))
    with pytest.raises(InputError, match="shakespeare"):
        gradients("transformer", batch=2, steps=(0,))
    with pytest.raises(InputError, match="resnet18 fails on 1 sample: ValueError: Expected more"):
        gradients("resnet18", batch=1, steps=(0,))  # normalised over nothing


@pytest.mark.thorough
def test_what_waiting_for_slow_workers_costs_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clock = "{compute: [1.0, 1.0, 1.0, 10.0]}"
    said = ran("advise", "mlp", "--gpus", "4", "--link", "1Gbit", *FEW, "--clock", clock)
    rows = re.findall(r"^ +(all|nobody) +(\S+) +(\S+) +(\S+)$", said.out, re.MULTILINE)
    assert rows == [("all", "0.4", "13%", "68%"), ("nobody", "3.1", "100%", "0%")]
    said = cli("advise", "mlp", "--gpus", "4", "--link", "1Gbit", *FEW, "--clock", clock, "--json")
    waits = {row["who"]: row["rate"] for row in json.loads(said.out)["waiting"]}
    assert (waits["all"], waits["nobody"]) == pytest.approx((0.4, 3.1))


@pytest.mark.thorough
def test_a_function_of_the_user_is_told_which_data_to_take(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\ndef net(train):\n    d, m = train.inputs[0].size, train.classes\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(d, m))\n"
    )
    said = cli("advise", "./mine.py:net", *FEW)
    assert (said.code, said.out) == (2, "")
    assert "such as --dataset digits" in said.err
    args = ("--dataset", "digits", "--gpus", 8, "--link", "1Gbit")
    assert cli("advise", "./mine.py:net", *FEW, *args).code == 0


# The command line ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_table_and_one_sentence_for_each_network():
    said = ran("advise", "mlp", *FEW, "--gpus", "2,64", "--link", "100Mbit", "--link", "nvlink4")
    tidy(said.out)
    text = " ".join(said.out.split())
    for part in ("k/d < 4/(c n)", "bf16, the baseline", "measured on this machine's CPU"):
        assert part in text
    for case in ("2 workers, 100Mbit", "64 workers, nvlink4", "64 workers, 100Mbit"):
        assert text.count(case) == 1
    assert text.count("none pays") >= 2
    assert "is unknown" in text


@pytest.mark.thorough
def test_figures_as_json_and_the_time_that_is_given():
    said = cli(
        *("advise", "mlp", *FEW, "--gpus", 8, "--link", "1Gbit", "--link", "10Gbit,20ms,server"),
        *("--backward", 0.2, "--json"),
    )
    result = json.loads(said.out)
    assert (result["forward"], result["backward"]) == (0.1, 0.2)
    assert "as given" in result["passes"]
    assert result["parameters"] == 4810
    assert [one["name"] for one in result["operators"]] == ["top_k:k=1%", "mxfp4"]
    ring, server = result["networks"]
    step = step_of(baseline(4810), parse_network("1Gbit"), 8, Compute(0.1, 0.2))
    assert ring["baseline"] == asdict(step)
    assert "20 ms, server" in server["network"]
    for one in (ring, server):
        assert one["recommendation"].endswith(".")
        assert [m["name"] for m in one["methods"]] == ["top_k:k=1%", "mxfp4"]
    assert result["steps_to_target"] is None


@pytest.mark.thorough
def test_recorded_gradients_are_replayed(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 5))
    folder = tmp_path / "gradients"
    with raybench.torch.record(folder, model, every=1, most=3) as rec:
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(4, 30)).square().sum().backward()
            rec.step()
    said = ran("advise", folder, *FEW, "--gpus", 8, "--link", "1Gbit", "--json")
    result = json.loads(said.out)
    assert (result["parameters"], result["steps"]) == (725, [0, 1, 2])
    assert "as the run recorded it" in result["passes"]
    about = json.loads((folder / "record.json").read_text())
    assert result["backward"] == about["seconds_backward"]
    (folder / "record.json").write_text(json.dumps({**about, "seconds_backward": None}))
    missing = cli("advise", folder, *FEW)
    assert (missing.code, missing.complaints) == (2, 1)
    assert "--backward 0.12" in missing.err
    assert cli("advise", folder, *FEW, "--gpus", 8, "--backward", 0.1).code == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("mlq",), "did you mean mlp?"),
        (("no/such/folder",), "raybench.torch.record"),
        (("no_such_module:function",), "cannot import"),
        (("mlp", "--gpus", "1"), "nothing to exchange"),
        (("mlp", "--link", "10Gbitt"), "10Gbit"),
        (("mlp", "--compressor", "top_j:k=1%"), "top_k"),
        (("mlp", "--compressor", "int8:collective=all_to_all"), "unknown key"),
        (("mlp", "--backward", "0"), "--backward"),
        (("mlp", "--batch", "0"), "--batch"),
        (("mlp", "--dataset", "digit"), "digits"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_mistakes_are_told_and_nothing_is_written(tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    result = cli("advise", *args)
    assert (result.code, result.out) == (2, "")
    assert result.err.lower().count("error: ") == 1
    assert said in result.err
    assert "Traceback" not in result.err
    assert not tree(tmp_path)


def test_names_that_are_checked_before_torch_is_imported_are_those_that_exist():
    compressors = set(registry.names("compressor"))
    ours = {name for name in compressors if registry.lookup("compressor", name).ours}
    assert set(registry.declared("compressor")) == ours
    heads = {c.name.partition(":")[0] for c in CATALOGUE} - compressors
    assert heads == set(METHODS)
    assert set(MODELS) == {*NAMED, CAUSAL_LM}


def test_local_steps_exchange_once_in_so_many_and_say_no_error():
    torch.manual_seed(0)
    x = torch.randn(D)
    dense, short, sparse = (of(f"{n}:steps=30") for n in ("diloco", "diloco_int8", "sparseloco"))
    rows = replay([dense, short, sparse, of("int8")], LAYOUT, [x])
    assert [row.error is None for row in rows] == [True, True, True, False]
    assert rows[0].size == 4 * D
    assert rows[1].size == rows[3].size
    # each is one of them where it is sent in every step
    assert [row.every for row in rows] == [30, 30, 30, 1]


# Times of a GPU, as benchmarks/gpu.py writes them ---------------------------------------------------


@pytest.mark.thorough
def test_advise_takes_the_times_of_the_file(tmp_path):
    names = ("qsgd:s=7", "nf4", "int8", "top_k:k=1%")
    times = {"encode": 1.0, "decode": 2.0, "feedback": 4.0, "numbers": 10}
    rows = [{"compressor": name, **times} for name in names]
    made = {"format": GPU_FORMAT, "machine": {"device": "Made Up 1"}}
    made |= {"parts": {"codecs": {"rows": rows}}}
    (tmp_path / "gpu.json").write_text(json.dumps(made))
    few = ("advise", "mlp", "--gpus", "2", "--link", "1Gbit")
    said = ran(*few, "--json", "--gpu", tmp_path / "gpu.json")
    result = json.loads(said.out)
    operators = {row["name"]: row for row in result["operators"]}
    assert operators["qsgd:s=7"]["encode"] == pytest.approx(481)
    assert operators["nf4"]["encode"] == pytest.approx(5 * 481)
    assert "no times" in operators["mxfp4"]["left_out"]
    assert "Made Up 1" in result["codecs"]
    said = ran(*few, "--gpu", tmp_path / "gpu.json")
    assert "times of a CPU" not in said.out
    assert "times of a CPU" in cli(*few, "--compressor", "int8").out


def test_times_between_two_sizes_follow_a_power():
    codecs = Codecs("", {"a": [(1e6, 1.0, 2.0, 3.0), (1e8, 100.0, 2.0, 3.0)]})
    assert codecs.at("a", 10**7) == pytest.approx((10.0, 2.0, 3.0))
    assert codecs.at("a", 10**5) == pytest.approx((1.0, 2.0, 3.0))
    assert codecs.at("a", 10**9) == pytest.approx((1000.0, 20.0, 30.0))


def test_error_feedback_takes_time_on_a_gpu_too():
    codecs = Codecs("", {name: [(1e6, 1.0, 2.0, 4.0)] for name in ("top_k:k=1%", "qsgd:s=7")})
    rows = on_gpu([of("top_k:k=1%"), of("qsgd:s=7"), of("nf4")], codecs, 10**6)
    assert [row.encode for row in rows[:2]] == pytest.approx([5.0, 1.0])
    assert [row.decode for row in rows[:2]] == pytest.approx([2.0, 2.0])
    assert "no times of nf4" in rows[2].left_out


ROW = {"compressor": "int8", "numbers": 10, "encode": -1, "decode": 1, "feedback": 1}
START = {"format": GPU_FORMAT, "machine": {"device": "x"}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "is not read"),
        ("[" * 100_000, "is not read"),
        (json.dumps({"format": "another"}), "its format is not"),
        (json.dumps(START), "'parts' is missing"),
        (json.dumps({**START, "parts": {"codecs": {"rows": [ROW]}}}), "a time of int8"),
        (json.dumps({**START, "parts": {"codecs": {"rows": []}}}), "no times"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_another_file_is_refused_by_its_key(tmp_path, text, said):
    file = tmp_path / "gpu.json"
    if text is not None:
        file.write_text(text)
    result = cli("advise", "mlp", "--gpu", str(file))
    assert (result.code, result.out) == (2, "")
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err
