"""Folders and sweep files of strangers: no reader imports what they name, and ``--no-code`` refuses what would."""

import pytest
from cli_kit import cli, ran

import raybench

SWEEP = """
name: mine
problem: {name: logistic, dataset: breast_cancer, clients: 3}
algorithm: sgd
step_size: {value: 0.1}
rounds: 4
clock: {compute: 1.0}
"""
EVIL = "open({!r}, 'w')\n\ndef net():\n    pass\n"
FIGURES = ("curves", "steps", "k", "heatmap", "profile", "trials", "timeline")
VERBS = [("table",), ("rank",), ("report",), ("audit",), ("status",), ("verify",), ("plot",)]
VERBS += [("plot", "--kind", kind) for kind in FIGURES]


def test_no_reader_imports_what_a_folder_names(tmp_path):
    folder, evil, trace = tmp_path / "r", tmp_path / "evil.py", tmp_path / "trace"
    raybench.sweep(SWEEP, folder, inline=True)
    evil.write_text(EVIL.format(str(trace)))
    file = folder / "sweep.yaml"
    names = f"plugins: [{evil}]\ncases: [{{problem: {{model: {evil}:net}}}}]\n"
    file.write_text(names + file.read_text())
    for verb, *options in VERBS:
        place = ["--out", tmp_path / "out"] if verb in ("plot", "report", "audit") else []
        said = cli(verb, folder, *options, *place)
        assert "Traceback" not in said.err
        assert not trace.exists(), (verb, options)
        if "timeline" in options:
            assert said.code == 2
            assert "is code, which may not run" in said.err
    assert len(raybench.load(folder)) > 0
    assert cli("merge", folder, folder, "--out", tmp_path / "m").code in (0, 2)
    assert not trace.exists()


NETWORK = "{name: network, model: mlp, dataset: digits, clients: 2}"
NAMING = {
    "a model": "problem: {name: network, model: 'evil.py:net', dataset: digits, clients: 2}",
    "a model of several": "problem: {name: network, model: [mlp, 'evil:net'], dataset: digits, clients: 2}",
    "data": "problem: {name: network, model: mlp, dataset: 'evil.py:net', clients: 2}",
    "a loss": "problem: {name: network, model: mlp, dataset: digits, loss: 'evil:net', clients: 2}",
    "a metric": "problem: {name: network, model: mlp, dataset: digits, metrics: [['evil:net']], clients: 2}",
    "a case": f"problem: {NETWORK}\ncases: [{{}}, {{problem: {{model: 'evil.py:net'}}}}]",
    "a plug-in": f"problem: {NETWORK}\nplugins: evil.py",
}


@pytest.mark.parametrize("what", NAMING)
def test_no_code_refuses_every_key_that_names_code(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL.format("trace"))
    text = f"{NAMING[what]}\nalgorithm: gd\nstep_size: {{value: 0.1}}\nrounds: 2\n"
    (tmp_path / "s.yaml").write_text(text)
    for verb in ("plan", "sweep", "launch"):
        said = cli(verb, "s.yaml", "--no-code")
        assert said.code == 2
        assert "is code, which may not run" in said.err, said.err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.py", "s.yaml"]


def test_plan_says_what_code_a_file_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = "import torch\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    (tmp_path / "mine.py").write_text(net)
    problem = "{name: network, model: mine.py:net, dataset: digits, clients: 2}"
    text = f"problem: {problem}\nalgorithm: gd\nstep_size: {{value: 0.1}}\nrounds: 2\n"
    (tmp_path / "s.yaml").write_text(text)
    words = "".join(cli("plan", "s.yaml", "--no-measure").out.split())
    assert f"thisfilerunscodefrom:model:{tmp_path}/mine.py:net" in words
    (tmp_path / "s.yaml").write_text(text.replace("mine.py:net", "mlp"))
    said = ran("plan", "s.yaml", "--no-measure", "--no-code")
    assert "runs code" not in said.out
