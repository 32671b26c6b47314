"""benchmarks/gpu.py on the CPU with small sizes, and what advise makes of its file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import cli

from raybench.core import registry
from raybench.measure import gpu_file

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parent.parent
PARTS = ("kernels", "methods", "codecs", "collectives", "training", "tests")
FEW = ("--gpus", "2", "--link", "1Gbit")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--small", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"written: {folder / 'gpu.json'}" in done.stdout
    return folder


def test_every_part_has_figures_and_no_error(out):
    found = json.loads((out / "gpu.json").read_text())
    assert {"device", "torch", "python", "cuda", "driver"} <= found["machine"].keys()
    assert tuple(found["parts"]) == PARTS
    for part in found["parts"].values():
        assert part["error"] == ""
        assert part["rows"]
        assert part["seconds"] >= 0
    rows = {name: part["rows"] for name, part in found["parts"].items()}
    assert {row["method"] for row in rows["methods"]} == set(registry.names("algorithm"))
    assert all(row.get("equal", True) for name in ("kernels", "methods") for row in rows[name])
    assert all(row["encode"] > 0 for row in rows["codecs"] if "said" not in row)
    assert {row["network"] for row in rows["training"]} == {"resnet18", "transformer"}
    page = (out / "gpu.md").read_text()
    assert all(f"## {name}" in page for name in PARTS)


def test_advise_takes_the_times_of_the_file(out):
    file = out / "gpu.json"
    wide, twice = json.loads(file.read_text()), file.with_name("twice.json")
    for row in wide["parts"]["codecs"]["rows"]:
        row |= {"encode": 1.0, "decode": 2.0, "feedback": 4.0, "numbers": 10}
    wide["parts"]["codecs"]["rows"] = [
        row for row in wide["parts"]["codecs"]["rows"] if row["compressor"] != "mxfp4"
    ]
    wide["machine"]["device"] = "Made Up 1"
    twice.write_text(json.dumps(wide))
    said = cli("advise", "mlp", *FEW, "--json", "--gpu", str(twice))
    assert said.code == 0, said.err
    found = json.loads(said.out)
    rows = {row["name"]: row for row in found["operators"]}
    assert rows["qsgd:s=7"]["encode"] == pytest.approx(481)
    assert rows["nf4"]["encode"] == pytest.approx(5 * 481)
    assert "no times" in rows["mxfp4"]["left_out"]
    assert "Made Up 1" in found["codecs"]
    said = cli("advise", "mlp", *FEW, "--gpu", str(file))
    assert said.code == 0, said.err
    assert "times of a CPU" not in said.out
    assert "times of a CPU" in cli("advise", "mlp", *FEW, "--compressor", "int8").out


def test_times_between_two_sizes_follow_a_power():
    codecs = gpu_file.Codecs("", {"a": [(1e6, 1.0, 2.0, 3.0), (1e8, 100.0, 2.0, 3.0)]})
    assert codecs.at("a", 10**7) == pytest.approx((10.0, 2.0, 3.0))
    assert codecs.at("a", 10**5) == (1.0, 2.0, 3.0)
    assert codecs.at("a", 10**9) == pytest.approx((1000.0, 20.0, 30.0))


ROW = {"compressor": "int8", "numbers": 10, "encode": -1, "decode": 1, "feedback": 1}
START = {"format": gpu_file.FORMAT, "machine": {"device": "x"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not read"),
        ("{", "is not read"),
        ("[" * 100_000, "is not read"),
        ("[]", "format"),
        ("{}", "format"),
        (json.dumps({"format": gpu_file.FORMAT}), "machine is missing"),
        (json.dumps({**START, "parts": {}}), "parts.codecs is missing"),
        (json.dumps({**START, "parts": {"codecs": {"rows": [3]}}}), "rows[0].compressor"),
        (json.dumps({**START, "parts": {"codecs": {"rows": [ROW]}}}), "rows[0].encode"),
        (json.dumps({**START, "parts": {"codecs": {"rows": []}}}), "has no times"),
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
