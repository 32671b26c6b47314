"""What a launch is made of, without a cluster: what travels, the lease, results coming home."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cli_kit
import pytest
import yaml
from cli_kit import call
from cluster_kit import CLOUD, SWEEP, cli, cluster, refused

from raybench import spec, store
from raybench.cluster import file, machines
from raybench.cluster.machines import Host
from raybench.core.errors import InputError
from raybench.execution import bundle

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent


# -- what travels ------------------------------------------------------------------------------


def test_the_wheel_is_what_runs_here(tmp_path: Path) -> None:
    """Installed elsewhere it is the same package: same version, same files, same command; made twice it is equal."""
    made = bundle.wheel(tmp_path)
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
    assert bundle.wheel(tmp_path / "again").read_bytes() == made.read_bytes()


def test_a_sweep_travels_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of this machine become paths beside the sweep file; cells keep their ids; the token is for the user alone.

    Constraints are one name and one version a line, no addresses and no local parts, and name what raybench needs.
    """
    (tmp_path / "data").mkdir()
    (tmp_path / "data/own.libsvm").write_text("1 1:1 2:3\n-1 1:2\n1 2:1\n-1 1:3 2:1\n")
    text = (
        f"name: far\nproblem: {{name: logistic, dataset: {tmp_path}/data/own.libsvm, clients: 2}}\n"
        f"plugins: [{ROOT}/examples/rand_block.py]\nalgorithm: gd\nstep_size: {{theory: 1}}\nrounds: 5\n"
    )
    sweep = spec.load(text)
    folder = tmp_path / "stage"
    machines.gather(folder, sweep, ["/kept/job-1", "push", "python", "a b"])
    assert list(folder.glob("files/*/own.libsvm"))
    moved = (folder / "sweep.yaml").read_text()
    assert str(tmp_path) not in moved
    assert str(ROOT) not in moved
    monkeypatch.chdir(folder)
    assert [c.id for c in spec.load(Path("sweep.yaml")).cells] == [c.id for c in sweep.cells]
    assert (folder / "token").stat().st_mode & 0o077 == 0
    token = (folder / "token").read_text()
    assert len(token) >= 32
    lines = (folder / "constraints.txt").read_text().splitlines()
    assert {"ray", "torch", "numpy", "pandas", "pyarrow"} <= {line.split("==")[0] for line in lines}
    assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in lines)
    assert (folder / "job.sh").read_text().startswith("set -- /kept/job-1 push python 'a b'\n")
    machines.gather(folder, sweep, [])
    assert (folder / "token").read_text() == token  # the cluster that is up knows this one


def test_rendered_for_ray(tmp_path: Path) -> None:
    """Every node first takes its lease; every start of Ray pushes it and asks for the token; what else the file says stays."""
    starts = {"head_start_ray_commands": ["~/v/bin/ray stop", "~/v/bin/ray start --head"]}
    mounts = {"/home/ubuntu/raybench-launch/": "dist/", "/x": "/y"}
    more = {"initialization_commands": ["true"], "file_mounts": mounts}
    rented = cluster(tmp_path, **starts, **more)
    assert rented.python == "/home/ubuntu/v/bin/python"
    machines.render(rented, tmp_path, "c-1", "take it", time.time() + 7200)
    made = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    assert made["cluster_name"] == "c-1"
    there = {"/home/ubuntu/raybench-launch": str(tmp_path / "stage")}
    assert made["file_mounts"] == {"/x": "/y", **there}
    assert made["initialization_commands"] == ["take it", "true"]
    assert made["provider"]["cache_stopped_nodes"] is False, "Ray's own default stops them"
    hour, *commands = made["head_start_ray_commands"]
    assert hour.startswith("sed -i s/9999999999/"), "workers end at the head's hour"
    for command in [*commands, *made["worker_start_ray_commands"][:-1]]:
        assert 'lease.sh" push || exit 1;' in command
        assert "RAY_AUTH_MODE=token" in command
        assert "raybench-launch/token" in command
    assert commands[1].endswith("~/v/bin/ray start --head")
    assert 'lease.sh" serve' in made["worker_start_ray_commands"][-1]
    boots = set()
    for node in made["available_node_types"].values():
        assert node["node_config"]["InstanceInitiatedShutdownBehavior"] == "terminate"
        boots.add(node["node_config"]["UserData"])
    (boot,) = boots
    host = Leased(tmp_path / "h")  # it ends by itself before ssh answers
    host.run(boot)
    host.run(re.sub(r"\(\d{10}", f"({int(time.time()) + 330}", boot))
    assert host.minutes == [15, 5]


def test_what_a_plug_in_imports_from_beside_itself_is_missed_before_anything_is_rented(
    tmp_path: Path,
) -> None:
    """The staged folder is planned by a process that sees nothing else."""
    (tmp_path / "beside.py").write_text("K = 1\n")
    text = (ROOT / "examples/rand_block.py").read_text()
    for more in ("", "\nimport sys\nsys.path.insert(0, HERE)\nimport beside\n"):
        (tmp_path / "own.py").write_text(text + more.replace("HERE", "__file__.rsplit('/', 1)[0]"))
        sweep = spec.load(f"plugins: [{tmp_path}/own.py]\n{SWEEP}")
        folder = tmp_path / f"stage{len(more)}"
        machines.gather(folder, sweep, [])
        with pytest.raises(InputError, match="beside") if more else contextlib.nullcontext():
            bundle.check_bundle(folder)


def test_google_deletes_at_the_deadline_and_a_second_ray_up_keeps_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour, not a duration: a worker that starts later ends with the others, and Ray finds the same machines.

    It is Google's hour: where the clock here is another nothing is started.
    """
    rented, made = file.read_cluster_file(str(ROOT / "cluster/gcp.yaml")), []
    dates = ["Fri, 15 Jan 2027 08:00:00 GMT"] * 6 + ["Fri, 15 Jan 2027 11:00:00 GMT"]
    answer = SimpleNamespace(getresponse=lambda: SimpleNamespace(headers={"Date": dates.pop(0)}))
    answer.request = answer.close = lambda *a: None
    monkeypatch.setattr(machines, "HTTPSConnection", lambda *a, **k: answer)
    for later in (0, 60):
        now = SimpleNamespace(**{**vars(time), "time": lambda later=later: 1.8e9 + later})
        monkeypatch.setattr(machines, "time", now)
        machines.render(rented, tmp_path, "c", "true", 1.8e9 + 7200)
        made.append(yaml.safe_load((tmp_path / "cluster.yaml").read_text()))
    types = [one["available_node_types"] for one in made]
    assert types[0] == types[1]
    for node in types[0].values():
        scheduling = node["node_config"]["scheduling"]
        assert scheduling["terminationTime"] == "2027-01-15T10:00:00Z"
        assert scheduling["instanceTerminationAction"] == "DELETE"
        assert "maxRunDuration" not in scheduling
    with pytest.raises(
        InputError, match=r"clock is -10740 s off Google's, which deletes machines at an hour"
    ):
        machines.render(rented, tmp_path, "c", "true", 1.8e9 + 7200)


# -- what is said before anything is started ------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
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


@pytest.mark.parametrize(("as_of", "old"), [(datetime.date.today(), 0), ("2025-06-01", 1)])
def test_a_dry_run_says_what_it_takes(tmp_path: Path, as_of: object, old: int) -> None:
    """Cells, nodes, time, cost with the day of the prices, of old ones that they are, and the end; nothing is written."""
    prices = {**CLOUD["metadata"]["prices"], "as_of": as_of}
    cluster(tmp_path, metadata={**CLOUD["metadata"], "prices": prices})
    (tmp_path / "s.yaml").write_text(SWEEP)
    done = cli("launch", "s.yaml", "--cluster", "c.yaml", "--dry-run", cwd=tmp_path)
    assert done.code == 0, done.err
    size = "up to 4 worker (large, spot) of 16 CPUs"
    for text in ("1 cell to run", size, f"prices of {as_of}", "USD", "12 hours"):
        assert text in done.out, text
    assert done.out.count("days old") == old
    assert not (tmp_path / "results").exists()


# -- the lease ---------------------------------------------------------------------------------


class Leased:
    """A host of a few words: a home, a ``shutdown`` that notes what it is told, and the script as it comes by ssh."""

    def __init__(self, home: Path, kind: str = "rented", minutes: float = 30) -> None:
        home.mkdir()
        self.home, self.armed = home, home / "armed"
        (home / "bin").mkdir()
        for name, text in {
            "shutdown": f'echo "$@" >>{self.armed}',
            "systemctl": "true",
            "sudo": 'shift; exec "$@"',
        }.items():
            (home / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (home / "bin" / name).chmod(0o755)
        own = ("10.0.0.1",) if kind == "own" else ()
        self.cluster = file.ClusterFile(Path("c"), {}, hosts=own, idle_minutes=minutes)

    def run(self, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on it, as over ssh."""
        env = {"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        return call("sh", "-c", command, env=env, check=check)

    def take(
        self, launch: str, hours: float = 2.0, owner: str = "me@here"
    ) -> subprocess.CompletedProcess[str]:
        """Let a launch take it."""
        deadline = time.time() + hours * 3600
        take = machines.taking(self.cluster, launch, deadline, owner)
        assert take[0] != "(", "Ray puts one around it, and two begin arithmetic"
        done = self.run(take, check=False)
        script = self.home / ".raybench-lease/lease.sh"
        if script.exists():
            text = script.read_text().replace("/run/systemd/shutdown", str(self.home))
            script.write_text(text)  # what this machine has scheduled is not its own
        return done

    def lease(self, words: str) -> int:
        """Call its lease, and return the exit code."""
        return self.run(f"{machines.LEASE} {words}", check=False).returncode

    @property
    def minutes(self) -> list[int]:
        """In how many minutes the host was told to shut itself down, each time."""
        if not self.armed.exists():
            return []
        return [int(n) for n in re.findall(r"-h \+(\d+)", self.armed.read_text())]


def test_a_rented_host_shuts_itself_down_unless_it_is_pushed(tmp_path: Path) -> None:
    """The first command arms the operating system; results that wait move it to the deadline, and nothing beyond."""
    host = Leased(tmp_path / "h")
    assert host.take("aaaaaaaa").returncode == 0
    assert host.minutes == [30]
    assert host.lease("push") == 0
    assert host.minutes == [30, 30], "no schedule stands"
    (host.home / "scheduled").write_text(f"USEC={int(time.time()) + 1800}000000\nMODE=poweroff\n")
    host.lease("push")
    assert host.minutes == [30, 30], "armed a moment ago"
    host.lease("hold")
    assert host.minutes[-1] in (119, 120), "whole minutes, and none beyond"
    host.lease("release")
    (host.home / "scheduled").unlink()  # as a reboot does
    host.lease("tick")
    assert host.minutes[-1] in (29, 30)
    host.lease("limit 90")
    assert host.minutes[-1] == 1
    (host.home / ".raybench-lease/deadline").write_text(str(int(time.time()) - 1))
    assert host.lease("push") == 5
    assert host.take("aaaaaaaa", hours=0.1).returncode == 5, "Ray would end in the same minute"


def test_a_job_holds_the_head_that_its_results_lie_on(tmp_path: Path) -> None:
    """What ``gather`` writes, run beside what the lease reads: from its start on the host lives to the deadline.

    The job leaves its exit code behind, its words, its progress, and the id of its process before.
    """
    host, told = Leased(tmp_path / "h"), tmp_path / "kept/job-1"
    host.take("aaaaaaaa")
    assert host.minutes == [30]
    (host.home / "scheduled").write_text(f"USEC={int(time.time()) + 1800}000000\n")
    command = f"{sys.executable} -m raybench sweep sweep.yaml --inline --out {tmp_path}/results"
    words = [str(told), "hold", "env", f"PYTHONPATH={ROOT}", *command.split()]
    machines.gather(host.home / "raybench-launch", spec.load(SWEEP), words)
    host.run("bash ~/raybench-launch/job.sh; sleep 2")
    assert machines.ended(told) == 0
    assert int((told / "driver.pid").read_text()) > 1
    assert "1 cell run" in (told / "job.log").read_text()
    assert json.loads((told / "progress.json").read_text())["cells"] == 1
    assert set(store.cells(tmp_path / "results")["status"]) == {"ok"}
    assert host.minutes[-1] in (119, 120)
    assert host.lease("push") == 0
    assert host.minutes[-1] in (119, 120), "its results were not fetched"


def test_a_host_has_one_launch_at_a_time(tmp_path: Path) -> None:
    """Of many that come at once one gets the host, and the others are told by whom; a lease that ran out is free."""
    host = Leased(tmp_path / "h")
    env = {"HOME": str(host.home), "PATH": f"{host.home}/bin:{os.environ['PATH']}"}
    deadline = time.time() + 7200
    many = [
        subprocess.Popen(
            ["sh", "-c", machines.taking(host.cluster, f"{k:08x}", deadline, f"user{k}@x, for s")],
            env=env, stderr=subprocess.PIPE, text=True,
        )
        for k in range(8)
    ]  # fmt: skip
    said = [(one.communicate()[1], one.returncode) for one in many]
    assert sorted(code for _, code in said) == [0] + 7 * [3]
    (winner,) = (k for k, (_, code) in enumerate(said) if code == 0)
    assert all(f"is taken by user{winner}@x, for s" in text for text, code in said if code)
    assert host.take(f"{winner:08x}").returncode == 0, "the same launch may come again"
    (host.home / ".raybench-lease/until").write_text("0")
    assert host.take("aaaaaaaa").returncode == 0


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="needs root for processes of its own"
)
def test_a_machine_of_ones_own_is_freed_and_stays(tmp_path: Path) -> None:
    """When the lease runs out what names the launch's folder ends, and nothing else; token and key go, results stay."""
    host = Leased(tmp_path / "h", kind="own")
    take = machines.taking(host.cluster, "aaaaaaaa", time.time() + 7200, "me@here")
    script = f"""
    mkdir -p $HOME/raybench-launch $HOME/raybench-launch-results/aaaaaaaa
    touch $HOME/raybench-launch/token $HOME/ray_bootstrap_key.pem
    {take}
    setsid sh -c 'sleep 300; true raybench-launch' & ours=$!
    RAY_AUTH_TOKEN_PATH=$HOME/raybench-launch/token setsid sleep 301 & ray=$!
    setsid sleep 302 & other=$!
    sleep 1; echo 0 >$HOME/.raybench-lease/until; sleep 8
    kill -0 $ours 2>/dev/null || echo ours ended; kill -0 $ray 2>/dev/null || echo ray ended
    kill -0 $other && echo other runs; ls -A $HOME
    """
    # processes of its own: what this kills can be none of this machine's
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script)
    env = {"HOME": str(host.home), "PATH": f"{host.home}/bin:{os.environ['PATH']}"}
    said = call(*apart, env=env, timeout=100, check=True).stdout
    assert {"ours ended", "ray ended", "other runs"} <= set(said.splitlines())
    assert "raybench-launch-results" in said.split()
    assert not {"raybench-launch", "ray_bootstrap_key.pem", ".raybench-lease"} & set(said.split())
    assert host.minutes == [], "the machine itself stays"


# -- results -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here(Host):
    """This machine in place of a host: a shell runs what ssh would, called by us or by rsync."""

    def ssh(self) -> list[str]:
        """A shell in place of ssh, to which a login and a command are given."""
        return ["sh", "-c", 'test "$1" != -l || shift 2; shift; eval "$*"', "sh"]


HERE = Here("here", {"ssh_user": "me"})
needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")


@needs_rsync
def test_results_come_home_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any step of a fetch, and fetched again: readers never see cells without curves, and all arrive."""
    text = SWEEP.replace("theory: 1", "theory: [0.5, 1]")
    text = text.replace("clients: 2", "clients: [2, 3, 4]")
    (tmp_path / "s.yaml").write_text(text)
    far = tmp_path / "kept/far"
    assert cli_kit.cli("sweep", tmp_path / "s.yaml", "--inline", "--out", far).code == 0
    (tmp_path / "kept/launch").touch()
    want = store.load(str(far)).sort_values(["cell", "round"], ignore_index=True)
    real, steps = Path.replace, [0]
    for stop_after in range(12):
        home = tmp_path / f"home{stop_after}"
        store.Store(home).claim((far / "sweep.yaml").read_text())
        steps[0] = 0

        def replace(source: Path, target: Path, most: int = stop_after) -> Path:
            steps[0] += 1
            if steps[0] > most:
                raise KeyboardInterrupt  # as a kill at this step
            return real(source, target)

        with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
            patched.setattr(Path, "replace", replace)
            machines.fetch(HERE, home, str(tmp_path), str(far))
        if list(home.glob("cells/*")):
            half, cells = store.load(home), store.cells(home)
            assert set(cells["cell"]) == set(half["cell"])
        machines.fetch(HERE, home, str(tmp_path), str(far))
        got = store.load(str(home)).sort_values(["cell", "round"], ignore_index=True)
        assert got.equals(want)
        plans = [{path.name for path in (place / "plan").iterdir()} for place in (far, home)]
        assert plans[1] == {name for name in plans[0] if not name.startswith("lock")}
        assert not store.Store(home).repair()


@needs_rsync
def test_what_is_home_does_not_travel_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new comes; what was removed here comes again, and what no sweep writes never does: names, links, devices."""
    far, home = tmp_path / "kept/far", tmp_path / "home"
    shards = ["cells/a.parquet", "curves/a.parquet", "plan/cells.json"]
    never = ["plan/lock", "cells/.b.tmp", "cells/..c", "cells/deep/d"]
    for name in shards + never:
        (far / name).parent.mkdir(parents=True, exist_ok=True)
        (far / name).write_text(name)
    (far / "cells/link.parquet").symlink_to("/etc/passwd")
    os.mkfifo(far / "cells/pipe.parquet")
    travelled: list[str] = []
    real = Path.replace

    def replace(source: Path, target: Path) -> Path:
        travelled.append(f"{target.parent.name}/{target.name}")
        return real(source, target)

    monkeypatch.setattr(Path, "replace", replace)
    machines.fetch(HERE, home, str(tmp_path), str(far))
    assert travelled == shards[::-1]
    assert {p.name for p in home.rglob("*") if p.is_file()} == {"cells.json", "a.parquet"}
    travelled.clear()
    machines.fetch(HERE, home, str(tmp_path), str(far))
    assert travelled == []
    (far / "plan/cells.json").write_text("PLAN/cells.json")  # as many bytes, in the same second
    (home / "cells/a.parquet").unlink()
    machines.fetch(HERE, home, str(tmp_path), str(far))
    assert travelled == ["plan/cells.json", "cells/a.parquet"]
    assert (home / "plan/cells.json").read_text() == "PLAN/cells.json"


@needs_rsync
def test_what_is_here_goes_along(tmp_path: Path) -> None:
    """The driver on the head goes on from it; the sweep with its paths, the lock and the launch's id stay here."""
    here, far = tmp_path / "here", tmp_path / "kept/far"
    names = ["cells/a", "plan/cells.json", "sweep.yaml", "plan/lock", "launch", "tmp/cells/b"]
    for name in names:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    machines.send(HERE, here, str(far))
    assert {p.relative_to(far).as_posix() for p in far.rglob("*") if p.is_file()} == {*names[:2]}


@needs_rsync
def test_results_of_somebody_else_are_refused(tmp_path: Path) -> None:
    """A folder on the head with a sweep that this launch did not bring is neither gone on from nor fetched."""
    far, home = tmp_path / "kept/far", tmp_path / "home"
    (far / "cells").mkdir(parents=True)
    home.mkdir()
    (far / "sweep.yaml").write_text("name: another\n")
    (far / "cells/a.parquet").write_text("foreign")
    for use in (
        lambda: machines.send(HERE, home, str(far)),
        lambda: machines.fetch(HERE, home, str(tmp_path), str(far)),
    ):
        with pytest.raises(RuntimeError, match="of another launch"):
            use()
    assert not [path for path in home.rglob("*") if path.is_file()]


@needs_rsync
def test_what_a_job_tells(tmp_path: Path) -> None:
    """Its progress and its exit code come with the results, and nothing of them stays; one that was killed has 137."""
    job, home = tmp_path / "kept/job", tmp_path / "home"
    job.mkdir(parents=True)

    def told() -> Any:
        said = machines.fetch(HERE, home, str(job), "")
        assert list(home.iterdir()) == []
        return said

    assert told() == ({}, None)
    (job / "progress.json").write_text('{"now": {}}')
    (job / "driver.pid").write_text(f"{os.getpid()}\n")
    (job / "ended").write_text("null\n")
    assert told() == ({"now": {}}, None)
    (job / "ended").write_text("3   \n")
    assert told()[1] == 3
    for begun in (
        "null\n",
        "",
    ):  # written in place, for the disk may be full; empty where it was full before
        (job / "ended").write_text(begun)
        (job / "driver.pid").write_text(f"{2**22 + 1}\n")
        assert told()[1] == 137
    (job / "progress.json").write_text('{"now": ')
    assert told() == ({}, 137)
    (job / "ended").write_text("")
    assert machines.ended(job) == 137


# -- Kubernetes --------------------------------------------------------------------------------


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")
def test_pods_install_what_the_file_says_to_archive(tmp_path: Path) -> None:
    """The command at the top of the file, run by bash: what it writes fits a ConfigMap, and pip makes raybench of it."""
    text = (ROOT / "cluster/kuberay.yaml").read_text()
    (command,) = re.findall(r"#   (git archive .*)", text)
    assert "/raybench-launch/raybench.tar.xz[cluster]" in text
    file = tmp_path / "raybench.tar.xz"
    call("bash", "-c", command.replace("dist/raybench.tar.xz", str(file)), cwd=ROOT, check=True)
    assert file.stat().st_size < 900_000, "a ConfigMap holds 1 MiB"
    pip = f"{sys.executable} -m pip wheel -q --no-deps --no-index --no-build-isolation".split()
    call(*pip, "-w", tmp_path, f"{file}[cluster]", check=True)
    (built,) = tmp_path.glob("raybench-*.whl")
    tree = ("git", "ls-tree", "-r", "--name-only", "HEAD", "raybench")
    listed = call(*tree, cwd=ROOT, check=True)
    names = {name for name in listed.stdout.split() if name.endswith(".py")}
    assert names <= set(zipfile.ZipFile(built).namelist())
