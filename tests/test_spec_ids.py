"""Content ids: what changes them and what does not."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.spec import load
from raybench.spec.sections import default

CONFIG = {
    "problem": {"name": "logistic", "dataset": "a9a", "clients": 20, "lambda": 1},
    "algorithm": {"name": "marina", "p": 0.5},
    "compressor": {"name": "rand_k", "k": 5},
    "step_size": {"theory": 4},
    "local": {"steps": 2},
    "seed": 3,
    "rounds": 500,
    "stop": {"grad_norm_sq": 1e-14, "bits_up": 1000},
}


def only(config):
    (cell,) = load(config).cells
    return cell


def written_out(config):
    """Add defaults that the config leaves to raybench."""
    out = {key: dict(v) if isinstance(v, dict) else v for key, v in config.items()}
    for kind in ("problem", "algorithm", "compressor"):
        for name, param in registry.lookup(kind, CONFIG[kind]["name"]).params.items():
            if name not in out[kind] and param.default is not registry.REQUIRED:
                value = default(param)
                out[kind][name] = [value] if param.kind == "list" and value is not None else value
    out["step_size"] |= {"rule": "nonconvex", "of": None, "schedule": "constant"}
    out["local"] |= {"optimizer": "sgd"}
    return out | {
        "x0": "zeros", "downlink": None, "graph": "ring", "prox": "none", "participation": 1,
        "f_star": None, "exclude": [], "cases": [], "plugins": [], "attempts": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "spell",
    [int, float, lambda v: [v], "{0}..{0}".format],
    ids=["as it is", "float", "list", "range"],
)
def test_spelling_does_not_change_an_id(spell):
    def other(value):
        """Return the same in another order, its integers spelt otherwise."""
        if isinstance(value, dict):
            return {key: other(inner) for key, inner in reversed(value.items())}
        return spell(value) if isinstance(value, int) else value

    base = only(CONFIG)
    for config in (other(CONFIG), written_out(other(CONFIG))):
        cell = only(config)
        assert (cell.id, cell.group) == (base.id, base.group)
        assert cell == base
        assert cell.config() == base.config()


@pytest.mark.parametrize(
    "change",
    [
        "problem.clients=21", "problem.lambda=2", "problem.split={dirichlet: 1}", "problem.seed=1",
        "algorithm.p=auto", "compressor.k=6", "compressor.k=5%",
        "compressor.mask=common", "compressor=natural", "step_size.theory=8", "step_size.value=4",
        "step_size.rule=pl", "step_size.of=gd", "seed=4", "rounds=501", "stop.bits_up=1001",
        "stop.seconds=5", "x0={normal: 1}", "x0=problem", "participation=0.5",
        "local.steps=3", "local.optimizer=adamw", "delay.rounds=2",
        "f_star=0", "algorithm=diana",
    ],
)  # fmt: skip
def test_content_changes_an_id(change):
    base, cell = only(CONFIG), load(CONFIG, sets=[change]).cells[0]
    assert cell.id != base.id
    assert (cell.group == base.group) == change.startswith(("seed", "step_size"))


@pytest.mark.parametrize(
    "change",
    [
        "name=other", "record.every=5", "accounting=paper:ef21", "resources.workers=4",
        "timeout=5", "attempts=9", "checkpoint.every=5", "allow_unproven=true", "evaluate.metrics=[iterate_norm]", "graph=star", "exclude=[{seed: 99}]",
    ],
)  # fmt: skip
def test_how_it_runs_does_not_change_an_id(change):
    assert load(CONFIG, sets=[change]).cells[0].id == only(CONFIG).id


def with_data(path):
    return {**CONFIG, "problem": {**CONFIG["problem"], "dataset": str(path)}}


def test_a_data_file_counts_by_its_content(tmp_path, monkeypatch):
    text = b"1 1:0.5\n-1 2:1\n" * 1000
    files = {"a.txt": text, "b.gz": gzip.compress(text), "c.bz2": bz2.compress(text)}
    files["d.xz"] = lzma.compress(text)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ids = {only(with_data(tmp_path / name)).id for name in files}
    assert len(ids) == 1
    monkeypatch.chdir(tmp_path)
    assert only(with_data("a.txt")).id in ids
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").rename(tmp_path / "sub" / "z.txt")
    assert only(with_data("sub/z.txt")).id in ids
    (tmp_path / "sub" / "z.txt").write_bytes(text + b"1 1:1\n")
    assert only(with_data("sub/z.txt")).id not in ids
    (tmp_path / "b.gz").write_bytes(files["b.gz"][:30])
    with pytest.raises(InputError, match=r"problem\.dataset: cannot read"):
        load(with_data("b.gz"))


def test_a_folder_and_a_start_count_by_content(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "k").mkdir(parents=True)
        (tmp_path / name / "k" / "0.png").write_bytes(b"x")
        (tmp_path / f"{name}.npy").write_bytes(b"y")
    assert only(with_data(tmp_path / "one")).id == only(with_data(tmp_path / "two")).id
    before = only({**CONFIG, "x0": str(tmp_path / "one.npy")}).id
    assert before == only({**CONFIG, "x0": str(tmp_path / "two.npy")}).id
    (tmp_path / "two" / "k" / "0.png").rename(tmp_path / "two" / "k" / "1.png")
    (tmp_path / "two.npy").write_bytes(b"other")
    assert only(with_data(tmp_path / "one")).id != only(with_data(tmp_path / "two")).id
    assert before != only({**CONFIG, "x0": str(tmp_path / "two.npy")}).id


def test_the_version_of_a_plug_in_counts(monkeypatch):
    base = only(CONFIG)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    entry = registry.lookup("algorithm", "marina")
    registry.algorithm("marina", version="2", **vars(entry.facts))(entry.target)
    assert only(CONFIG).id != base.id


def test_a_new_parameter_with_a_default_keeps_old_ids(monkeypatch):
    base = only(CONFIG)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    target = registry.lookup("compressor", "rand_k").target
    registry.compressor("rand_k", wrap=registry.Flag())(target)
    cell = only(CONFIG)
    assert cell.compressor.params["wrap"] is False
    assert cell.id == base.id
