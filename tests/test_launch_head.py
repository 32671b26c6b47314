"""What a launch leaves to the head of its cluster: the switch that ends it, and results that come home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_kit import call, cli
from test_launch import SWEEP

from raybench import store
from raybench.cluster import fetch, switch
from raybench.cluster.hosts import Host
from raybench.cluster.states import Launch

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
    assert cli("sweep", tmp_path / "s.yaml", "--inline", "--out", tmp_path / "far").code == 0
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
