"""The steps of a launch, killed at every step there is, and taken up again by another process."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_kit import cli

import raybench
from raybench import spec, store
from raybench.cluster import file, steps
from raybench.cluster.file import offer
from raybench.cluster.machines import Host, Unreachable
from raybench.cluster.states import Launch
from raybench.cluster.steps import LaunchSteps

SWEEP = """\
name: far
problem: {name: quadratic, dim: 4, clients: 2}
algorithm: gd
step_size: {theory: [0.5, 1]}
rounds: 5
"""
OWN = {
    "cluster_name": "c",
    "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]},
    "auth": {"ssh_user": "me"},
    "metadata": {"cpus": {"head": 1, "worker": 1}},
}
RENTED = {
    "cluster_name": "c",
    "provider": {"type": "aws", "region": "us-west-2"},
    "auth": {"ssh_user": "ubuntu"},
    "head_node_type": "head",
    "available_node_types": {"head": {"resources": {"CPU": 2}, "node_config": {}}},
}


class Killed(BaseException):
    """What ends the process at a step, as ``kill -9`` would: nobody catches it."""


@dataclass
class World:
    """A cluster as the steps see it; each thing they do to it is a step at which they may be killed.

    before: whether the kill comes before the thing is done, or after. ends: what the head says of the sweep's end.
    gone: hosts that do not answer, each after two minutes of the clock. empty: whether the sweep leaves no results.
    instead: what is done in place of a verb of the launcher.
    """

    home: Path
    kill_at: int = -1
    before: bool = True
    did: list[str] = field(default_factory=list)
    alive: bool = False
    jobs: set[str] = field(default_factory=set)
    gone: tuple[str, ...] = ()
    ends: int | None = 0
    empty: bool = False
    leased: dict[str, str] = field(default_factory=dict)
    clock: float = 0.0
    said: list[str] = field(default_factory=list)
    instead: dict[str, Any] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        """Let time pass, of which no test waits."""
        self.clock += seconds

    def ray(self, verb: str, _: Path) -> Any:
        """Do as Ray's launcher, or what stands in its place."""
        if verb in self.instead:
            return self.instead[verb]()
        if verb.startswith("list"):
            return ["i-1"] if self.alive else []
        self.step(f"ray {verb}", partial(setattr, self, "alive", verb == "up"))
        return {"address": "10.0.0.1", "auth": {"ssh_user": "me"}}

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

    def run(self: Host, command: str, **_: Any) -> str:
        if self.address in made.gone:
            raise Unreachable(f"{self.address}: gone")
        made.said.append(command)
        made.step(f"ssh {command[:20]}", partial(lease, self.address, command))
        if command.startswith("cat "):
            return str(made.ends)
        return "rc=0"[: 4 * (" job submit " in command)]

    def lease(address: str, command: str) -> None:
        if " job submit " in command:
            made.jobs.update(re.findall(r"--submission-id (\S+)", command))
        if " take " in command:
            made.leased[address] = "taken"
        if command.endswith(" end"):
            made.leased.pop(address, None)
            made.alive = False

    def fetched(host: Host, results: Path, job: str, out: str) -> Any:
        def copy() -> None:
            for name in ("plan", "curves", "cells"):
                (results / name).mkdir(parents=True, exist_ok=True)
                for one in () if made.empty else (far / name).iterdir():
                    if one.name != "lock":
                        (results / name / one.name).write_bytes(one.read_bytes())

        if host.address in made.gone:
            made.step("look")
            made.clock += 120
            raise Unreachable(f"{host.address}: gone")
        made.step("fetch", copy)
        said = {"name": "far", "cells": 2, "rounds": 10.0, "stage": "running", "silent": []}
        return {**said, "seconds": 1.0, "now": {}}, made.ends

    monkeypatch.setattr(Host, "run", run)
    monkeypatch.setattr(steps, "fetch", fetched)
    monkeypatch.setattr(steps.bundle, "check_bundle", lambda folder: None)  # takes seconds
    monkeypatch.setattr(Host, "rsync", lambda *a: made.step("push"))
    monkeypatch.setattr(steps.machines, "ray", made.ray)
    monkeypatch.setattr(steps.time, "sleep", made.sleep)
    monkeypatch.setattr(steps.time, "monotonic", lambda: made.clock)
    return made


def ordered(home: Path, given: Any = OWN, began: float = 0.0) -> Launch:
    """Return a launch that is ordered, and nothing more; ``began`` so many hours ago."""
    (home / "c.yaml").write_text(yaml.safe_dump(given))
    cluster = file.read_cluster_file(str(home / "c.yaml"))
    launch = Launch(home / "results")
    sweep = spec.load(SWEEP)
    _, cost = offer(sweep, cluster, str(launch.results), 12.0, None)
    steps.order(launch, sweep, cluster, cost, [], "", False)
    said = launch.order()
    launch.amend(**{key: said[key] - 3600 * began for key in ("began", "deadline")})
    return launch


def through(launch: Launch) -> int:
    """Take all steps, as a process that was just started does."""
    one = LaunchSteps(launch)
    one.up()
    one.submit()
    code = one.follow()
    one.down()
    return code


@pytest.mark.parametrize(
    ("given", "home", "lease"), [(OWN, "me", "push"), (RENTED, "ubuntu", "hold")]
)
def test_an_order_is_what_the_job_runs(world: World, given: Any, home: str, lease: str) -> None:
    """The sweep goes into a folder of this launch alone; a rented head is held until its results are fetched."""
    launch = ordered(world.home, given)
    order = launch.order()
    kept = f"/home/{home}/raybench-launch-results/{order['id']}"
    command = f"python3 -m raybench sweep sweep.yaml --address auto --out {kept}/results"
    script = (launch.folder / "stage/job.sh").read_text()
    assert script.startswith(f"set -- {kept}/{order['job']} {lease} {command}\n")


@pytest.mark.thorough
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("given", [OWN, RENTED], ids=["own", "rented"])
def test_killed_at_every_step(world: World, before: bool, given: Any) -> None:
    """Wherever the launching process is killed, the next one ends with the same: one job, all cells once, nothing up."""
    launch = ordered(world.home, given)
    through(launch)
    count = len(world.did)
    assert count >= 12
    want = store.load(str(launch.results))
    kept = {launch.order()["kept"]}
    for number in range(count):
        home = world.home / f"{before}-{number}"
        home.mkdir()
        launch = ordered(home, given)
        world.did, world.jobs, world.alive = [], set(), False
        world.kill_at, world.before = number, before
        with pytest.raises(Killed):
            through(launch)
        world.kill_at = -1
        if launch.state != "down":
            assert through(Launch(launch.results)) == 0
        assert launch.state == "down"
        assert not world.alive, number
        assert not world.leased, number
        assert len(world.jobs) <= 1, number
        kept.add(launch.order()["kept"])
        assert store.load(str(launch.results)).equals(want), number
    assert len(kept) == count + 1, "no two launches share a folder on the head"


def under_way(home: Path, given: Any = RENTED) -> Launch:
    """Return a launch whose sweep was submitted."""
    home.mkdir(exist_ok=True)
    launch = ordered(home, given)
    one = LaunchSteps(launch)
    one.up()
    one.submit()
    return launch


def attached(launch: Launch) -> Any:
    """Call ``raybench attach`` on a launch."""
    return cli("attach", str(launch.results))


def fail(*a: Any) -> None:
    """Fail as Ray's launcher does."""
    raise RuntimeError("no such image")


ENDS = {
    "no results": ({"empty": True}, {}, 0, "no cell has ended well"),
    "a failed sweep": ({"empty": True, "ends": 2}, {}, 2, "no cell has ended well"),
    "its hours": ({"ends": None}, {}, 1, "the hours of this launch are over"),
    "no table": ({}, {"raybench.report.table": "not callable"}, 1, "error"),
    "no start": ({"alive": True, "instead": {"up": fail}}, {}, 1, "no such image"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("set_up", "broken", "code", "told"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("given", [OWN, RENTED], ids=["own", "rented"])
def test_whatever_happens_the_cluster_ends(
    world: World, given: Any, set_up: Any, broken: Any, code: int, told: str, monkeypatch: Any
) -> None:
    """A sweep without results, one that runs for ever, a table that cannot be made, a head that was never known."""
    for name, value in set_up.items():
        setattr(world, name, value)
    for name, value in broken.items():
        monkeypatch.setattr(name, value)
    launch = ordered(world.home, given, began=11.7 if world.ends is None else 0.0)
    with contextlib.suppress(TypeError):  # of the table
        said = attached(launch)
        assert said.code == code
        assert told in said.err
    assert ("fetch" in world.did) == (told != "no such image"), "what there is comes home"
    assert launch.state == "down"
    assert not world.alive
    assert not world.leased


def test_a_head_that_is_silent_for_long_ends_with_its_cluster(world: World) -> None:
    """After a quarter of an hour, while the provider still has it; at once where the provider has no node any more."""
    launch = under_way(world.home)
    world.gone = ("10.0.0.1",)
    said = attached(launch)
    assert said.code == 1
    assert re.search(r"no answer for (9|10)\d\d s", said.err)
    assert launch.state == "down"
    assert not world.alive
    world.gone = ()
    launch = under_way(world.home / "next")
    world.gone, world.alive, world.did = ("10.0.0.1",), False, []
    assert "is gone: the provider knows no such head" in attached(launch).err
    assert world.did.count("look") == 1 + 4, "one, and four to bring home what there is"


@pytest.mark.thorough
def test_a_follower_without_a_network_waits(world: World) -> None:
    """Where neither the head nor the provider answers it is this machine that is cut off: nothing is given up."""
    asked = []

    def cut(*a: Any) -> list[str]:
        asked.append(1)
        if len(asked) == 20:  # forty minutes later
            world.gone = ()
        raise RuntimeError("no route to the provider")

    launch = under_way(world.home)
    world.gone = ("10.0.0.1",)
    world.instead["list head"] = cut
    assert LaunchSteps(launch).follow() == 0


@pytest.mark.thorough
def test_results_that_cannot_be_fetched_keep_a_rented_head(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk here does not cost the results there: the head stays until its deadline, unless it is told."""

    def full(*a: Any) -> int:
        raise OSError(28, "No space left on device")

    launch = under_way(world.home)
    with monkeypatch.context() as patched:
        patched.setattr(steps, "fetch", full)
        said = attached(launch)
    assert said.code == 1
    assert "NOT DOWN: the head holds results" in said.err
    assert world.alive
    assert cli("down", "--no-fetch", str(launch.results)).code == 0
    assert not world.alive


def test_a_kept_cluster_is_offered_as_it_is(world: World, monkeypatch: Any) -> None:
    """Its own prices and the hours that are left of it, whatever the second file says; a sooner end is told to the host."""
    types = {"head": {"resources": {"CPU": 2}, "node_config": {"InstanceType": "dear"}}}
    prices = {"as_of": "2026-11-01", "per_hour": {"us-west-2": {"dear": {"list": 10}}}}
    dear = {**RENTED, "available_node_types": types, "metadata": {"prices": prices}}
    launch = ordered(world.home, dear)
    for state in ("up", "submitted", "fetched"):
        head = {"address": "10.0.0.1", "auth": {"ssh_user": "me"}, "known_hosts": ""}
        launch.reach(state, head=head, code=0)
    launch.amend(deadline=launch.order()["deadline"] - 8 * 3600)
    (world.home / "s.yaml").write_text(SWEEP.replace("rounds: 5", "rounds: 6"))
    (world.home / "c.yaml").write_text(yaml.safe_dump(RENTED))
    words = (
        "launch",
        world.home / "s.yaml",
        "--cluster",
        world.home / "c.yaml",
        "--out",
        launch.results,
    )
    default = Launch(world.home / "results/far")
    default._mark(launch.folder.name)
    with contextlib.chdir(world.home):
        said = cli(*words[:4], "--out", "s3://bucket/far", "--dry-run")
    assert said.code == 2
    assert "the cluster that is up is not set up for s3://" in said.err
    said = cli(*words, "--dry-run")
    assert "for 4 hours" in said.err
    assert re.search(r"at most (39\.[89]\d|40\.00) USD", said.out), said.out
    before = launch.order()["deadline"]
    cluster = file.read_cluster_file(str(launch.folder / "given.yaml"))
    _, cost = offer(spec.load(world.home / "s.yaml"), cluster, str(launch.results), 1.0, None)
    steps.order(launch, spec.load(world.home / "s.yaml"), cluster, cost, [], "", False)
    assert launch.order()["deadline"] < before - 2 * 3600
    LaunchSteps(launch).up()
    assert any("limit" in done for done in world.said)


def test_what_may_be_left_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not answer may still run; a provider that still has nodes is asked, whatever ``ray down`` said."""
    monkeypatch.setattr(steps, "GONE_SECONDS", 0.0)
    launch = under_way(world.home, OWN)
    world.gone = ("10.0.0.2",)
    with pytest.raises(RuntimeError, match=r"10\.0\.0\.2"):
        LaunchSteps(launch).down()
    assert launch.state != "down"
    world.gone = ()
    assert any("10.0.0.2" in line for line in LaunchSteps(launch).down())
    launch, nodes = under_way(world.home / "rented"), ["i-123"]
    world.instead["list nodes"] = lambda: nodes
    with pytest.raises(RuntimeError, match="i-123"):
        LaunchSteps(launch).down()
    nodes.clear()
    assert LaunchSteps(launch).down() == ["the provider knows no node of this cluster"]


def test_a_machine_that_is_taken_frees_the_others(world: World) -> None:
    """All machines or none: where one is not to be had, those taken before are let go, and nothing is started."""
    world.gone = ("10.0.0.2",)
    launch = ordered(world.home)
    said = attached(launch)
    assert said.code == 2
    assert "10.0.0.2: gone" in said.err
    assert not world.leased
    assert launch.state == "down"
    assert "ray up" not in world.did
