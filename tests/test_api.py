"""The Python side: compressors, one cell, a sweep."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import raybench
from raybench.core.errors import InputError

CELL = {
    "problem": {"name": "quadratic", "dim": 12, "clients": 4},
    "algorithm": "ef21",
    "compressor": {"name": "top_k", "k": 3},
    "rounds": 30,
}


def test_names_are_there():
    assert set(raybench.__all__) <= set(dir(raybench))
    for name in raybench.__all__:
        assert getattr(raybench, name) is not None
    assert raybench.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        raybench.nothing  # noqa: B018


# Compressors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("top_k", {"k": 10}, "top_k:k=10"),
        ("top_k", {"k": 0.01}, "top_k: k = 0.01"),
        ("top_k", {"k": np.int64(7)}, "top_k:k=7"),
        ("rand_k", {"k": 5, "mask": "common"}, "rand_k:k=5,mask=common"),
        ("dithering:s=4", {"p": "inf"}, "dithering:s=4,p=inf"),
        ("natural", {}, "natural:"),
    ],
)
def test_forms_of_one_operator(name, params, text):
    assert raybench.compressor(name, **params) == raybench.compressor(text)


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("topk", {}, "did you mean top_k"),
        ("top_k", {}, "compressor.k: required"),
        ("top_k", {"k": [1, 2]}, "stands for 2"),
        ("top_k:k=1", {"k": 2}, "given twice"),
        ("top_k:k={", {}, "YAML"),
    ],
)
def test_bad_operators(name, params, said):
    with pytest.raises(InputError) as caught:
        raybench.compressor(name, **params)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)


# Cells and sweeps ----------------------------------------------------------------------------------


def test_run_gives_the_curve_of_the_same_sweep(tmp_path):
    alone = raybench.run(CELL)
    assert isinstance(alone, pd.DataFrame)
    assert alone["round"].tolist() == list(range(31))
    outcome = raybench.sweep(CELL, tmp_path / "out", inline=True)
    assert (outcome.exit_code, outcome.counts["ok"]) == (0, 1)
    saved = raybench.load(outcome.folder)
    assert list(saved.columns) == list(alone.columns)
    for name in ("cell", "round", "grad_norm_sq", "loss", "bits_up", "bytes_up"):
        assert saved[name].tolist() == alone[name].tolist()
    assert alone["grad_norm_sq"].iloc[-1] < alone["grad_norm_sq"].iloc[0]


def test_run_lets_the_methods_own_error_through(tmp_path):
    plugin = tmp_path / "broken.py"
    plugin.write_text(
        "from raybench.plugins import *\n"
        "@algorithm('broken')\n"
        "class Broken(Algorithm):\n"
        "    def round(a, net, s, c):\n"
        "        raise ZeroDivisionError('as the test wants')\n"
    )
    config = {**CELL, "algorithm": "broken", "step_size": 0.1}
    with pytest.raises(ZeroDivisionError, match="as the test wants"):
        raybench.run(config, plugins=[str(plugin)])


def test_what_a_sweep_returns_is_shown_in_five_lines(tmp_path):
    sweep = {"name": "one", "problem": "quadratic", "algorithm": "gd", "rounds": 3}
    outcome = raybench.sweep(sweep, tmp_path / "out", inline=True)
    lines = repr(outcome).splitlines()
    assert lines[0] == "one: 1 ok"
    assert len(lines) == 5
    assert str(tmp_path / "out") in lines[1]
