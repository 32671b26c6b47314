"""What a launch is made of, without a cluster: files, prices, states, what travels, the switch, results coming home."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import cli_kit
import pytest
import yaml
from cli_kit import call
from hypothesis import given
from hypothesis import strategies as st

from raybench import spec, store
from raybench.cluster import fetch, file, kuberay, render, stage, states, switch, wheel
from raybench.cluster.hosts import Host
from raybench.cluster.price import price
from raybench.cluster.states import STATES, Launch
from raybench.core.errors import InputError

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
CLOUD = yaml.safe_load("""
cluster_name: c
provider: {type: aws, region: us-west-2}
auth: {ssh_user: ubuntu}
max_workers: 4
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {}}
  worker: {resources: {}, node_config: {}, max_workers: 4}
  gpu: {resources: {}, node_config: {}, max_workers: 2}
metadata:
  prices:
    currency: USD
    as_of: "2026-11-01"
    per_hour: {head: {list: 0.1}, worker: {list: 1.0, spot: 0.4}, gpu: {list: 2}}
  cpus: {worker: 16, gpu: 4}
  gpus: {gpu: 1}
""")
SWEEP = "name: far\nproblem: {name: quadratic, clients: 2, dim: 4}\nalgorithm: gd\nstep_size: {theory: 1}\nrounds: 5\n"


def cli(*args: object, cwd: Path) -> cli_kit.Said:
    """Call the command line in a folder."""
    with contextlib.chdir(cwd):
        return cli_kit.cli(*args)


def cluster(folder: Path, **changes: object) -> file.ClusterFile:
    """Return a cloud's cluster file with some keys changed."""
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({**CLOUD, **changes}))
    return file.read(str(path))


# -- cluster files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metadata": {"prices": {"as_off": "2026-11-01"}}}, "did you mean as_of"),
        ({"metadata": {"prices": {"as_of": "2026-13-01"}}}, "2026-13-01"),
        ({"metadata": {"idle_minute": 3}}, "idle_minutes"),
        ({"metadata": {"idle_minutes": -1}}, "is no amount"),
        ({"metadata": {"cpus": {"workers": 3}}}, "worker"),
        ({"head_node_type": "had"}, "head_node_type"),
        ({"provider": {}}, "provider.type"),
        ({"unknown_key": 1}, "unknown_key"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cluster(tmp_path, **changes)


NO_CLUSTER_FILES = {
    **{"empty": "", "list": "[1, 2]", "cut": "a: [", "zero": "\x00"},
    "deep": "a: " + "[" * 20_000 + "]" * 20_000,
    "two": "kind: RayJob\n---\nkind: RayJob\n",
}


@pytest.mark.parametrize("text", NO_CLUSTER_FILES.values(), ids=NO_CLUSTER_FILES)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """What is no cluster file is refused in a few lines, and nothing is written."""
    refused(tmp_path, text, "--cluster", "c.yaml", "--yes")


def refused(folder: Path, cluster_file: str, *args: str) -> str:
    """Assert that a launch is refused in a few lines and nothing is written; return what was said."""
    (folder / "c.yaml").write_text(cluster_file)
    (folder / "s.yaml").write_text(SWEEP)
    done = cli("launch", "s.yaml", *args, cwd=folder)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert not (folder / "results/far/cells").exists()
    return done.err


# -- price -------------------------------------------------------------------------------------


def test_price_of_a_cloud(tmp_path: Path) -> None:
    """Nodes with GPUs are not counted where none is asked for; the most is at list prices."""
    rented = cluster(tmp_path)
    made = price(rented, 3600 * 640, 1000, 1, 0, 20, None)
    assert made.slots == 4 * 16
    hours = 640 / 64 + 0.15
    assert made.hours == pytest.approx(hours)
    assert made.cost == pytest.approx((0.1 + 4 * 0.4) * hours)
    assert made.most == pytest.approx((0.1 + 4 * 1.0) * 20)
    with_gpus = price(rented, 3600, 1000, 1, 1, 20, None)
    assert with_gpus.slots == 2
    assert with_gpus.most == pytest.approx((0.1 + 2 * 2) * 20)


def test_limits_of_a_launch(tmp_path: Path) -> None:
    """What is expected to be dearer or longer than allowed is refused; a limit on cost shortens the hours."""
    rented = cluster(tmp_path)
    with pytest.raises(InputError, match="max-cost"):
        price(rented, 3600 * 640, 1000, 1, 0, 20, 1.0)
    with pytest.raises(InputError, match="max-hours"):
        price(rented, 3600 * 640, 1000, 1, 0, 2, None)
    with pytest.raises(InputError, match="no node"):
        price(rented, 60, 10, 32, 0, 2, None)
    assert price(rented, 36, 1000, 1, 0, 20, 8.2).most_hours == pytest.approx(2.0)
    unpriced = cluster(tmp_path, metadata={"cpus": {"worker": 16}})
    assert price(unpriced, 36, 10, 1, 0, 20, None).cost is None
    with pytest.raises(InputError, match="has no price"):
        price(unpriced, 36, 10, 1, 0, 20, 5.0)


@given(st.floats(0, 1e7), st.integers(1, 10**6), st.floats(0.1, 8), st.floats(0.3, 1e4))
def test_price_never_exceeds_what_is_allowed(
    seconds: float, batches: int, cpus: float, most: float
) -> None:
    """A launch that is accepted can never cost more than its limit, even if every node runs to the end."""
    workers = (file.NodeType("worker", 4, 16, 0, 0.4, 1.0),)
    head = file.NodeType("head", 1, 0, 0, 0.1, 0.1)
    rented = file.ClusterFile(Path("c"), "ray", {}, head, workers, priced="x")
    try:
        made = price(rented, seconds, batches, cpus, 0, 1e6, most)
    except InputError:
        return
    assert made.most is not None
    assert made.cost is not None
    assert made.cost <= most
    assert made.most <= most * (1 + 1e-9)
    assert made.hours <= made.most_hours


# -- states ------------------------------------------------------------------------------------


def test_states_follow_each_other(tmp_path: Path) -> None:
    """The last state that is reached is found by any process, and a new launch begins anew."""
    one = Launch(tmp_path / "r")
    assert one.reached("up") is None
    assert one.state == "ordered"
    with pytest.raises(InputError, match="holds no launch"):
        Launch.of(tmp_path / "r")
    one.begin({"name": "far"})
    first = one.ordered()["id"]
    assert one.state == "ordered"
    for state in STATES:
        one.reach(state, fact=1)
        assert Launch.of(tmp_path / "r").state == state
    one.leave("down", "fetched")
    assert one.state == "running"
    one.begin({"name": "far"})
    assert one.state == "ordered"
    assert one.ordered()["id"] != first
    assert not (states.launches() / first).exists()
    assert [path.name for path in one.results.iterdir()] == ["launch"]
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((one.folder / "order.json").stat().st_mode) == 0o600
    (one.folder / "order.json").write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        Launch.of(tmp_path / "r")


def test_a_folder_from_elsewhere_runs_nothing(tmp_path: Path) -> None:
    """A received folder may say what it likes of its launch: whatever is not kept for this user is not read."""
    ran, folder = tmp_path / "ran", tmp_path / "received"
    head = {"address": "h", "user": "u", "key": "", "known_hosts": ""}
    head["proxy"] = f"touch {ran}; false"
    kept = {
        "order.json": {"id": "0123abcd", "name": "x", "python": "p", "job": "j", "address": ""},
        "up.json": {"at": 1.0, "head": head},
        "submitted.json": {"at": 1.0},
    }
    (folder / "launch").mkdir(parents=True)
    for place in (folder / "launch", tmp_path / "hostile"):
        place.mkdir(exist_ok=True)
        for name, facts in kept.items():
            (place / name).write_text(json.dumps(facts))

    def refused() -> None:
        for verb in ("attach", "down", "status"):
            done = cli(verb, str(folder), cwd=tmp_path)
            assert done.code == 2, done.err
            assert "launched from another machine or by another user" in done.err
            assert f"remove {folder / 'launch'} first" in " ".join(done.err.split())
            assert "Traceback" not in done.err
        assert not ran.exists()

    refused()
    shutil.rmtree(folder / "launch")
    up = os.path.relpath(tmp_path / "hostile", states.launches())
    for text in ("0123abcd", up, str(tmp_path / "hostile"), "0123abcd/../../hostile", ""):
        (folder / "launch").write_text(text)
        with pytest.raises(InputError, match="another machine"):
            Launch.of(folder)
    (folder / "launch").unlink()
    os.mkfifo(folder / "launch")
    refused()


def test_launches_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this user, for as long as their results folders name them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "no launch was begun here" in cli("launch", "ls", cwd=tmp_path).err
    first, second = Launch(tmp_path / "a"), Launch(tmp_path / "b")
    first.begin({"name": "one"})
    second.begin({"name": "two"})
    first.reach("up")
    said = cli("launch", "ls", cwd=tmp_path).out
    assert re.search(r"one +up +\S+/a\n", said)
    assert re.search(r"two +ordered +\S+/b\n", said)
    shutil.rmtree(second.results)
    assert "two" not in cli("launch", "ls", cwd=tmp_path).out


# -- what travels ------------------------------------------------------------------------------


def test_the_wheel_is_what_runs_here(tmp_path: Path) -> None:
    """Installed elsewhere it is the same package: same version, same files, same command; made twice it is equal."""
    made = wheel.build(tmp_path)
    with zipfile.ZipFile(made) as archive:
        names = set(archive.namelist())
        assert archive.testzip() is None
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT / "raybench").rglob("*.py")}
    assert here <= names
    assert not [name for name in names if "__pycache__" in name]
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index")
    call(*pip, "--target", tmp_path / "t", made, check=True)
    told = "import raybench; print(raybench.__file__, raybench.__version__)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "t")}
    said = call(sys.executable, "-c", told, env=env, cwd=tmp_path, check=True).stdout
    assert said.startswith(str(tmp_path))
    (tmp_path / "again").mkdir()
    assert wheel.build(tmp_path / "again").read_bytes() == made.read_bytes()


def test_constraints_are_versions_alone() -> None:
    """One name and one version a line: no addresses, no local parts; what raybench needs is among them."""
    lines = wheel.constraints().splitlines()
    names = {line.split("==")[0] for line in lines}
    assert {"ray", "torch", "numpy", "pandas", "pyarrow"} <= names
    assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in lines)


def test_a_sweep_travels_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of this machine become paths beside the sweep file; cells keep their ids; the token is for the user alone."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/own.libsvm").write_text("1 1:1 2:3\n-1 1:2\n1 2:1\n-1 1:3 2:1\n")
    text = (
        f"name: far\nproblem: {{name: logistic, dataset: {tmp_path}/data/own.libsvm, clients: 2}}\n"
        f"plugins: [{ROOT}/examples/rand_block.py]\nalgorithm: gd\nstep_size: {{theory: 1}}\nrounds: 5\n"
    )
    sweep = spec.load(text)
    given = (sweep, "job-1", ["--fail-fast"], "/there/far", "~/v/bin/python", {"idle": 1})
    made = stage.gather(tmp_path / "stage", *given)
    moved = (made.folder / "sweep.yaml").read_text()
    assert str(tmp_path) not in moved
    assert str(ROOT) not in moved
    assert made.data_bytes > 0
    monkeypatch.chdir(made.folder)
    assert [c.id for c in spec.load(Path("sweep.yaml")).cells] == [c.id for c in sweep.cells]
    assert (made.folder / "token").stat().st_mode & 0o077 == 0
    token = (made.folder / "token").read_text()
    assert len(token) >= 32
    job = (made.folder / "job.sh").read_text()
    assert "--fail-fast" in job
    assert "~/v/bin/python -m raybench" in job
    again = stage.gather(tmp_path / "stage", sweep, "job-2", [], "/there/far", "python", {})
    assert (again.folder / "token").read_text() == token  # the cluster that is up knows this one


def test_a_job_tells_how_it_ended(tmp_path: Path) -> None:
    """The job's script leaves the exit code behind, and the id of its process before."""
    sweep = spec.load(SWEEP)
    out = str(tmp_path / "results")
    made = stage.gather(tmp_path / "stage", sweep, "job-1", ["--inline"], out, sys.executable, {})
    script = made.folder / "job.sh"
    script.write_text(script.read_text().replace(" --address auto", ""))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    call("bash", script, env=env, check=True)
    assert (made.folder / "job-1/ended").read_text() == "0\n"
    assert int((made.folder / "job-1/driver.pid").read_text()) > 1
    told = json.loads((made.folder / "job-1/progress.json").read_text())
    assert told["cells"] == 1
    assert set(store.cells(out)["status"]) == {"ok"}


def test_rendered_for_ray(tmp_path: Path) -> None:
    """Every start of Ray asks for the token; the switch starts last; the file's own mounts and commands stay."""
    starts = {"head_start_ray_commands": ["~/v/bin/ray stop", "~/v/bin/ray start --head"]}
    mounts = {"/home/ubuntu/raybench-launch/": "dist/", "/x": "/y"}
    rented = cluster(tmp_path, **starts, file_mounts=mounts)
    made = render.rendered(rented, "c-1", tmp_path / "stage", render.python_of(rented))
    assert made["cluster_name"] == "c-1"
    there = {"/home/ubuntu/raybench-launch": str(tmp_path / "stage")}
    assert made["file_mounts"] == {"/x": "/y", **there}
    commands = made["head_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in c and "raybench-launch/token" in c for c in commands)
    assert commands[1].endswith("~/v/bin/ray start --head")
    assert "switch.py" in commands[-1]
    assert "~/v/bin/python" in commands[-1]
    assert all("RAY_AUTH_MODE=token" in c for c in made["worker_start_ray_commands"])


# -- Clusters that are there -----------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--address", "head:6379", "--out", "file:///tmp/x"], "Jobs API"),
        (["--address", "http://127.0.0.1:8265"], "--out"),
        (["--address", "http://127.0.0.1:8265", "--cluster", "c.yaml"], "no --cluster file"),
        (["--cluster", "none.yaml"], "no file none.yaml"),
        (["--cluster", "c.yaml", "--yes", "--out", "memory://x"], "memory of this process"),
        (["--cluster", "c.yaml"], "--yes"),
        (["--cluster", "c.yaml", "--max-cost", "0.001", "--yes"], "max-cost"),
    ],
)
def test_mistakes_start_nothing(tmp_path: Path, given: list[str], said: str) -> None:
    """Each mistake is told in a few lines that name the option, and no launch is begun."""
    assert said in refused(tmp_path, yaml.safe_dump(CLOUD), *given)
    assert not (tmp_path / "results/far/launch").exists()


def test_a_dry_run_says_what_it_takes(tmp_path: Path) -> None:
    """Cells, nodes, time, cost with the day of the prices, and when it ends; nothing is written."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(CLOUD))
    (tmp_path / "s.yaml").write_text(SWEEP)
    done = cli("launch", "s.yaml", "--cluster", "c.yaml", "--dry-run", cwd=tmp_path)
    assert done.code == 0, done.err
    size = "up to 4 worker of 16 CPUs"
    for text in ("1 cell to run", size, "prices of 2026-11-01", "USD", "12 hours"):
        assert text in done.out, text
    assert not (tmp_path / "results").exists()


# -- the switch --------------------------------------------------------------------------------


def settings(**changes: object) -> dict[str, object]:
    """Return a switch's settings, a deadline far away."""
    given = {"deadline": 1e12, "idle": 60, "job": "job-1", "holds_results": False}
    return {**given, **changes}


def test_the_switch_waits_for_a_reason(tmp_path: Path) -> None:
    """It ends the cluster after its hours, or when nothing runs and nobody looked in; not before, not while work is done."""
    now, job = time.time(), tmp_path / "job-1"
    assert switch.why(tmp_path, settings(), now, now) == ""
    assert "nothing ran" in switch.why(tmp_path, settings(), now, now - 61)
    assert "hours" in switch.why(tmp_path, settings(deadline=now - 1), now, now)
    (tmp_path / "lease").touch()
    assert switch.why(tmp_path, settings(), now, now - 61) == ""
    os.utime(tmp_path / "lease", (now - 100, now - 100))
    job.mkdir()
    (job / "driver.pid").write_text(str(os.getpid()))
    assert switch.why(tmp_path, settings(), now, now - 500) == ""  # it runs
    (job / "ended").write_text("0")
    assert switch.why(tmp_path, settings(), now, now - 500) == ""  # just ended
    assert "nothing ran" in switch.why(tmp_path, settings(), now + 61, now - 500)
    assert switch.why(tmp_path, settings(holds_results=True), now + 61, now - 500) == ""
    (job / "ended").unlink()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (job / "driver.pid").write_text(str(gone.pid))
    assert "nothing ran" in switch.why(tmp_path, settings(), now + 61, now - 500)  # killed


def test_the_switch_ends_what_is_there(tmp_path: Path) -> None:
    """Run as on a head: it calls the command that stops Ray, takes token and key away, and ends itself."""
    folder = tmp_path / "raybench-launch"
    folder.mkdir()
    (folder / "switch.py").write_text(Path(switch.__file__).read_text())
    stop = f"echo stopped > {tmp_path}/said"
    given = settings(deadline=0, stop=stop, own_machines=True, workers=[], user="x", every=0.1)
    (folder / "switch.json").write_text(json.dumps(given))
    (folder / "token").write_text("secret")
    (tmp_path / "ray_bootstrap_key.pem").write_text("secret")
    env = {**os.environ, "HOME": str(tmp_path)}
    call(sys.executable, "-I", folder / "switch.py", env=env, timeout=60, check=True)
    assert (tmp_path / "said").read_text() == "stopped\n"
    assert not (folder / "token").exists()
    assert not (tmp_path / "ray_bootstrap_key.pem").exists()
    assert "its hours are over" in (folder / "switch.log").read_text()


# -- results -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here(Host):
    """This machine in place of a host: rsync copies from folder to folder."""

    @property
    def login(self) -> str:
        """No host before the path: ``:there`` is made local below."""
        return ""

    def pull(self, there: str, here: Path, *options: str) -> None:
        """Copy as ``Host.pull`` does, without ssh."""
        here.mkdir(parents=True, exist_ok=True)
        if Path(there).is_dir():
            subprocess.run(["rsync", "-a", *options, f"{there}/", f"{here}/"], check=True)


@pytest.mark.skipif(
    not any(os.access(f"{p}/rsync", os.X_OK) for p in os.get_exec_path()), reason="needs rsync"
)
def test_results_come_home_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any step of a fetch, and fetched again: readers never see cells without curves, and all arrive."""
    text = SWEEP.replace("theory: 1", "theory: [0.5, 1]")
    text = text.replace("clients: 2", "clients: [2, 3, 4]")
    (tmp_path / "s.yaml").write_text(text)
    assert (
        cli_kit.cli("sweep", tmp_path / "s.yaml", "--inline", "--out", tmp_path / "far").code == 0
    )
    want = store.load(str(tmp_path / "far")).sort_values(["cell", "round"], ignore_index=True)
    host, there = Here("", ""), str(tmp_path / "far")
    real, steps = os.link, [0]
    for stop_after in range(12):
        launch = Launch(tmp_path / f"home{stop_after}")
        launch.begin({})
        store.Store(launch.results).claim((tmp_path / "far/sweep.yaml").read_text())
        steps[0] = 0

        def link(source: Path, target: Path, most: int = stop_after) -> None:
            steps[0] += 1
            if steps[0] > most:
                raise KeyboardInterrupt  # as a kill at this step
            real(source, target)

        monkeypatch.setattr(os, "link", link)
        try:
            fetch.fetch(launch, host, there)
        except KeyboardInterrupt:
            if list(launch.results.glob("cells/*")):
                half, cells = store.load(launch.results), store.cells(launch.results)
                assert set(cells["cell"]) == set(half["cell"])
        monkeypatch.setattr(os, "link", real)
        fetch.fetch(launch, host, there)
        got = store.load(str(launch.results)).sort_values(["cell", "round"], ignore_index=True)
        assert got.equals(want)
        assert not store.Store(launch.results).repair()


# -- Kubernetes: documents, and a wheel that a ConfigMap can hold ---------------------------------


def files_in(data: bytes) -> dict[str, bytes]:
    """Return what a wheel holds."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_pod_installs_the_wheel_that_was_packed(tmp_path: Path) -> None:
    """The line of the shipped file, run by bash in folders of its own; only pip is a stand-in."""
    documents = yaml.safe_load_all((ROOT / "cluster/kuberay.yaml").read_text())
    (job,) = (d for d in documents if d and d["kind"] == "RayJob")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    (line,) = head["command"]
    launch, there, tools = (tmp_path / name for name in ("launch", "tmp", "tools"))
    for folder in (launch, there, tools):
        folder.mkdir()
    whole = wheel.build(launch)
    before = whole.read_bytes()
    call(sys.executable, "-m", "raybench.cluster.wheel", whole, check=True)
    assert not whole.exists()
    (tools / "pip").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$CALLED"\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    line = line.replace("/raybench-launch", str(launch))
    line = line.replace("/tmp/raybench", f"{there}/raybench")
    line = line.replace("'/tmp'", f"'{there}'")
    called = tmp_path / "called"
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLED": str(called)}
    call("bash", "-c", line, env=path, check=True)
    assert called.read_text().split()[-1] == f"{there}/{whole.name}[cluster]"
    assert files_in((there / whole.name).read_bytes()) == files_in(before)


def test_a_rayjob_with_all_it_needs(tmp_path: Path) -> None:
    """The documents hold the wheel, the sweep and the token; the RayJob bears the launch's names."""
    made = stage.gather(
        tmp_path / "stage", spec.load(SWEEP), "job-1", [], "/results/far", "python", {}
    )
    text = kuberay.rendered(ROOT / "cluster/kuberay.yaml", made.folder, "raybench-abc", "job-1")
    parts = [p for p in yaml.safe_load_all(text) if p]
    by_kind = {p["kind"]: p for p in parts}
    job = by_kind["RayJob"]
    assert job["metadata"]["name"] == "raybench-abc"
    assert job["spec"]["jobId"] == "job-1"
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    held = {k: base64.b64decode(v) for k, v in by_kind["ConfigMap"]["binaryData"].items()}
    assert b"raybench sweep sweep.yaml" in held["job.sh"]
    (name,) = (key for key in held if key.endswith(".whl.xz"))
    (whole,) = made.folder.glob("*.whl")
    assert name == f"{whole.name}.xz"
    assert files_in(lzma.decompress(held[name])) == files_in(whole.read_bytes())
    assert not any("token" in key for key in held)
    secret = base64.b64decode(by_kind["Secret"]["data"]["auth_token"])
    assert secret == (made.folder / "token").read_bytes()
    mounted = yaml.safe_dump(job)
    assert by_kind["ConfigMap"]["metadata"]["name"] in mounted
    assert by_kind["Secret"]["metadata"]["name"] in mounted


def test_what_travels_and_the_switch_agree_on_the_job(tmp_path: Path) -> None:
    """The switch finds the folder of the job that ``gather`` names: what runs there is seen to run."""
    given = (spec.load(SWEEP), "job-1", [], "/far", "python", settings())
    made = stage.gather(tmp_path / "stage", *given)
    said = json.loads((made.folder / "switch.json").read_text())
    assert said["job"] == "job-1"
    (made.folder / "job-1").mkdir()
    (made.folder / "job-1/driver.pid").write_text(str(os.getpid()))
    assert switch.why(made.folder, said, time.time(), time.time() - 500) == ""
