"""The steps of a launch, killed at every step there is, and taken up again by another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import raybench
from raybench import spec, store
from raybench.cluster import begin, end, file, steps
from raybench.cluster.follow import Told
from raybench.cluster.hosts import Host, Unreachable
from raybench.cluster.provider import LaunchFailed
from raybench.cluster.states import Launch
from raybench.cluster.steps import HeadLost, Steps

pytestmark = pytest.mark.thorough

SWEEP = """\
name: far
problem: {name: quadratic, dim: 4, clients: 2}
algorithm: gd
step_size: {theory: [0.5, 1]}
rounds: 5
"""
FILE = {
    "cluster_name": "c",
    "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]},
    "auth": {"ssh_user": "me"},
    "metadata": {"cpus": {"head": 1, "worker": 1}},
}


class Killed(BaseException):
    """What ends the process at a step, as ``kill -9`` would: nobody catches it."""


@dataclass
class World:
    """A cluster as the steps see it; each thing they do to it is a step at which they may be killed.

    before: whether the kill comes before the thing is done, or after.
    """

    home: Path
    kill_at: int = -1
    before: bool = True
    did: list[str] = field(default_factory=list)
    alive: bool = False
    jobs: set[str] = field(default_factory=set)
    gone: tuple[str, ...] = ()

    def step(self, what: str, do: Any = None) -> Any:
        """Do a thing, and be killed before or after it if it is its turn."""
        number = len(self.did)
        self.did.append(what)
        if number == self.kill_at and self.before:
            raise Killed
        result = do() if do is not None else None
        if number == self.kill_at:
            raise Killed
        return result


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in place of Ray's launcher, the Jobs API and the hosts."""
    made, far = World(tmp_path), tmp_path / "far"
    raybench.sweep(SWEEP, far, inline=True)
    host = Host("10.0.0.1", "me")

    def run(self: Host, command: str, **_: Any) -> str:
        if self.address in made.gone:
            raise Unreachable(f"{self.address}: gone")
        made.step(f"ssh {command[:20]}")
        return "me 1 2" if "pgrep" in command else ""

    def pull(self: Host, there: str, here: Path, *options: str) -> None:
        def copy() -> None:
            here.mkdir(parents=True, exist_ok=True)
            source = far / Path(there).name
            for one in source.iterdir() if source.is_dir() else ():
                if one.name != "lock":
                    (here / one.name).write_bytes(one.read_bytes())

        made.step(f"pull {Path(there).name}", copy)

    monkeypatch.setattr(Host, "run", run)
    monkeypatch.setattr(Host, "pull", pull)
    monkeypatch.setattr(Host, "push", lambda *a: made.step("push"))
    up, down = (partial(setattr, made, "alive", on) for on in (True, False))
    monkeypatch.setattr(steps.provider, "up", lambda *a: made.step("ray up", up))
    monkeypatch.setattr(steps.provider, "head", lambda *a: made.step("head", lambda: host))
    monkeypatch.setattr(steps.provider, "down", lambda *a: made.step("ray down", down))

    def ask(env: Any, action: str, url: str, job: str, **more: Any) -> dict[str, Any]:
        made.step(action, lambda: made.jobs.add(job))
        return {"job": job}

    monkeypatch.setattr(steps.jobs, "ask", ask)

    class Listening:
        def __init__(self, *what: Any) -> None:
            self.told = Told(progress={"now": {}}, code=None)

        def __enter__(self) -> Listening:
            made.step("listen")
            self.told.code = 0
            return self

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(steps, "Listener", Listening)

    @contextmanager
    def tunnel(self: Steps, head: Host) -> Iterator[str]:
        yield "http://127.0.0.1:1"

    monkeypatch.setattr(Steps, "_jobs", tunnel)
    return made


def ordered(home: Path) -> Launch:
    """Return a launch that is ordered, and nothing more."""
    (home / "c.yaml").write_text(yaml.safe_dump(FILE))
    cluster = file.read(str(home / "c.yaml"))
    launch = Launch(home / "results")
    sweep = spec.load(SWEEP)
    made = begin.offer(sweep, cluster, launch.results, "", 12.0, None)
    begin.order(launch, sweep, cluster, made, [], "", False, "python3")
    return launch


def through(launch: Launch) -> int:
    """Take all steps, as a process that was just started does."""
    one = Steps(launch, say=lambda text: None)
    one.up()
    one.submit()
    code = one.follow()
    one.down()
    return code


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_every_step(world: World, before: bool) -> None:
    """Wherever the launching process is killed, the next one ends with the same: one job, all cells once, nothing up."""
    launch = ordered(world.home)
    through(launch)
    count = len(world.did)
    assert count >= 15
    want = store.load(str(launch.results))
    for number in range(count):
        home = world.home / f"{before}-{number}"
        home.mkdir()
        launch = ordered(home)
        world.did, world.jobs, world.alive = [], set(), False
        world.kill_at, world.before = number, before
        with pytest.raises(Killed):
            through(launch)
        world.kill_at = -1
        if launch.state != "down":
            assert through(Launch(launch.results)) == 0
        assert launch.state == "down"
        assert not world.alive, number
        assert len(world.jobs) <= 1, number
        assert store.load(str(launch.results)).equals(want), number


def test_down_from_every_state(world: World) -> None:
    """``down`` ends what is up, whatever was reached before, and says it again when asked again."""
    for most in range(4):
        home = world.home / str(most)
        home.mkdir()
        launch = ordered(home)
        one = Steps(launch, say=lambda text: None)
        for step in (one.up, one.submit, one.follow)[:most]:
            step()
        sure = Steps(launch, say=lambda text: None).down()
        assert not world.alive
        assert launch.state == "down"
        assert Steps(launch, say=lambda text: None).down() == sure
        assert not (launch.place("stage") / "token").exists()


def test_a_host_that_is_gone_is_not_called_down(world: World) -> None:
    """A machine that does not answer may still run: it is named, and the launch is not down."""
    launch = ordered(world.home)
    one = Steps(launch, say=lambda text: None)
    one.up()
    world.gone = ("10.0.0.2",)
    with pytest.raises(end.NotDown, match=r"10\.0\.0\.2"):
        one.down()
    assert launch.state != "down"
    world.gone = ()
    assert any("10.0.0.2" in line for line in one.down())


def test_a_cluster_that_does_not_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed start the cluster can be ended, although its head was never known."""

    def fail(*a: Any) -> None:
        raise LaunchFailed("no such image")

    monkeypatch.setattr(steps.provider, "up", fail)
    launch = ordered(world.home)
    one = Steps(launch, say=lambda text: None)
    with pytest.raises(LaunchFailed):
        one.up()
    with pytest.raises(HeadLost):
        one.head()
    one.down()
    assert "ray down" in world.did
    assert launch.state == "down"


def test_a_provider_that_still_has_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ray down`` that says all is well proves nothing: the provider is asked, and its nodes are named."""
    monkeypatch.setattr(end, "GONE_SECONDS", 0.0)
    left = ["i-123"]
    monkeypatch.setattr(end.provider, "alive", lambda *a: left)
    rented = file.ClusterFile(Path("c"), "ray", {}, file.NodeType("head", 1, 1, 0, 1.0, 1.0))
    given = (rented, Path("c"), Path("log"), {}, None, "/there", "python3")
    with pytest.raises(end.NotDown, match="i-123"):
        end.take_down(*given)
    left.clear()
    assert end.take_down(*given) == ["the provider knows no node of this cluster"]
