"""What a launch is made of, without a cluster: cluster files, what it costs, and the states that it reaches."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_kit import CLOUD, SWEEP, cli, cluster
from hypothesis import given
from hypothesis import strategies as st

from raybench import spec
from raybench.cli.launch import _costs
from raybench.cluster import file, machines, states
from raybench.cluster.file import price
from raybench.cluster.states import STATES, Launch
from raybench.core.errors import InputError, Notice
from raybench.spec.model import Resources

ROOT = Path(__file__).parent.parent


# -- cluster files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metadata": {"prices": {"as_off": "2026-11-01"}}}, "did you mean as_of"),
        ({"metadata": {"prices": {"as_of": "2026-13-01"}}}, "2026-13-01"),
        ({"metadata": {"idle_minute": 3}}, "idle_minutes"),
        ({"metadata": {"idle_minutes": -1}}, "-1 is less than the minimum"),
        ({"metadata": {"cpus": {"larg": 3}}}, "large"),
        (
            {"metadata": {"prices": {"as_of": "2026-11-01", "per_hour": {"head": {"list": 1}}}}},
            "by region",
        ),
        ({"head_node_type": "had"}, "head_node_type"),
        ({"provider": {}}, "provider: 'type' is a required"),
        ({"unknown_key": 1}, "unknown_key"),
        ({"min_workers": 1}, "under available_node_types"),
        ({"docker": {"image": "x", "container_name": "y"}}, "its lease, is out of reach"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cluster(tmp_path, **changes)


# -- price -------------------------------------------------------------------------------------


ONE, AWS = Resources(), {"provider": {"type": "aws"}}


def test_price_of_a_cloud(tmp_path: Path) -> None:
    """Nodes with GPUs are expected only where one is asked for; the most is at list prices, of the dearest that may run.

    ``tests/test_nodes.py`` shows Ray start a node with GPUs for work without, when the others are at their most.
    """
    rented = cluster(tmp_path)
    made = price(rented, (3600 * 320, 3600 * 640), 1000, ONE, 20, None)
    assert made.slots == 4 * 16
    hours = (320 / 64 + 0.15, 640 / 64 + 0.15)
    assert made.hours == pytest.approx(hours)
    assert made.cost == pytest.approx([(0.1 + 4 * 0.4) * h for h in hours])
    assert made.most == pytest.approx((0.1 + 2 * 2 + 2 * 1.0) * 20)
    few = price(rented, (3600 * 320, 3600 * 640), 5, ONE, 200, None)
    assert few.hours == pytest.approx((320 / 5 + 0.15, 640 / 5 + 0.15)), "a slot for each batch"
    more = price(cluster(tmp_path, max_workers=9), (36, 36), 10, ONE, 20, None)
    assert more.most == pytest.approx((0.1 + 2 * 2 + 4 * 1.0) * 20)
    with_gpus = price(rented, (3600, 3600), 1000, Resources(gpus_per_worker=1), 20, None)
    assert with_gpus.slots == 2
    assert with_gpus.most == pytest.approx((0.1 + 2 * 2) * 20)


def test_a_node_without_a_price_that_may_not_run_beside_the_others_is_no_number(
    tmp_path: Path,
) -> None:
    """What is started at once leaves no room for it, so the most is known, but not what is expected."""
    types = CLOUD["available_node_types"]
    types = {**types, "worker": types["worker"] | {"min_workers": 4}}
    types["other"] = {"resources": {"CPU": 8}, "node_config": {"InstanceType": "new"}}
    rented = cluster(tmp_path, available_node_types=types)
    offered = price(rented, (36, 36), 10, ONE, 20, None)
    assert offered.most == pytest.approx((0.1 + 4 * 1.0) * 20)
    assert offered.cost == (math.inf, math.inf)
    (line,) = _costs(offered, rented)
    assert "unknown: no price of new in us-west-2" in str(line)


def test_prices_are_those_of_the_machine_the_region_and_the_market(tmp_path: Path) -> None:
    """Whatever a node type is called: another machine has another price, or none, and then --max-cost is refused."""

    def changed(worker: dict[str, object], region: str = "us-west-2") -> file.ClusterFile:
        types = {
            **CLOUD["available_node_types"],
            "worker": {"resources": {}, "node_config": worker},
        }
        provider = {"type": "aws", "region": region}
        return cluster(tmp_path, available_node_types=types, provider=provider)

    def prices(given: file.ClusterFile) -> dict[str, float | None]:
        return {node.name: node.price for node in given.nodes}

    spot = {"InstanceType": "large", "InstanceMarketOptions": {"MarketType": "spot"}}
    assert prices(changed(spot)) == {"head": 0.1, "worker": 0.4, "gpu": 2.0}
    assert prices(changed({"InstanceType": "large"}))["worker"] == 1.0
    for rented in (changed({"InstanceType": "p5.48xlarge"}), changed(spot, "eu-north-1")):
        assert price(rented, (36, 36), 10, ONE, 20, None).cost == (math.inf, math.inf)
        with pytest.raises(InputError, match=r"per_hour: \{(us-west-2|eu-north-1): \{.*list: 1.23"):
            price(rented, (36, 36), 10, ONE, 20, 5.0)
    own = yaml.safe_load(yaml.safe_dump(CLOUD["metadata"]))
    del own["prices"]["per_hour"]["us-west-2"]["large"]["list"]
    with pytest.raises(InputError, match="no price is known of large in us-west-2"):
        price(cluster(tmp_path, metadata=own), (36, 36), 10, ONE, 20, 5.0)


def test_what_is_started_unasked_costs_as_well(tmp_path: Path) -> None:
    """A worker that a file starts at once is paid for by a sweep on GPUs, too."""
    types = {**CLOUD["available_node_types"]}
    types["worker"] = {**types["worker"], "min_workers": 1}
    rented = cluster(tmp_path, available_node_types=types)
    made = price(rented, (36, 36), 10, Resources(gpus_per_worker=1), 20, None)
    assert made.most == pytest.approx((0.1 + 1.0 + 2 * 2) * 20)


TRAIN = {"mode": "train", "workers": 65}
REFUSED = {
    r"all nodes of c\.yaml hold 64": ("", 60, TRAIN, 20, None),
    r"all nodes of c\.yaml hold 0 of 1 workers of 32": ("", 60, {"cpus_per_worker": 32}, 2, None),
    "max-cost: up to": ("", 3600 * 640, {}, 20, 1.0),
    "max-hours: up to": ("", 3600 * 640, {}, 2, None),
    # Azure bills a machine that is off until it is deleted
    "no limit: it ends by `raybench down`": ("cluster/azure.yaml", 36, {}, 20, 5.0),
    "max-cost: nan limits nothing": ("", 36, {}, 20, math.nan),
    "max-hours: inf limits nothing": ("", 36, {}, math.inf, None),
    # Ray there ends before its host, and results travel before
    "max-hours: up to 0.3": ("", 36, {}, 0.2, None),
}


@pytest.mark.parametrize(("said", "given"), REFUSED.items(), ids=REFUSED)
def test_limits_of_a_launch(tmp_path: Path, said: str, given: Any) -> None:
    """What the cluster cannot hold, or is expected to be dearer or longer than allowed, is refused."""
    name, seconds, asked, *limits = given
    rented = file.read_cluster_file(str(ROOT / name)) if name else cluster(tmp_path)
    with pytest.raises(InputError, match=said):
        price(rented, (seconds / 2, seconds), 1000, Resources(**asked), *limits)


def test_files_that_ray_takes_are_taken(tmp_path: Path) -> None:
    """Amazon says what its machines have; nodes with GPUs serve a sweep without where there are no others."""
    types = {
        name: {k: v for k, v in node.items() if k != "resources" or name == "head"}
        for name, node in CLOUD["available_node_types"].items()
        if name != "worker"
    }
    rented = cluster(tmp_path, available_node_types=types)
    assert price(rented, (36, 36), 10, ONE, 20, None).slots == 2 * 4


@pytest.mark.parametrize(("key", "refused"), [("", True), ("IamInstanceProfile", False)])
def test_results_in_a_bucket_need_workers_that_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, refused: bool
) -> None:
    """Ray gives the role to the head alone; what the scheme needs is installed on every node."""
    types = yaml.safe_load(yaml.safe_dump(CLOUD["available_node_types"]))
    for node in types.values():
        node["node_config"] |= {key: {"Name": "mine"}} if key else {}
    rented = cluster(tmp_path, available_node_types=types)

    def beyond(*a: object, **b: object) -> None:
        raise InputError.of("--out", "it is asked", "")

    monkeypatch.setattr(file, "check_reachable", beyond)
    with pytest.raises(InputError, match="worker" if refused else "it is asked"):
        file.offer(spec.load(SWEEP), rented, "s3://b/x", 12, None)
    machines.render(rented, tmp_path, "c", "true", time.time() + 3600, "s3://b/x")
    made = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    for commands in ("head_setup_commands", "worker_setup_commands"):
        assert made[commands][-1].endswith("s3fs")


def test_a_group_may_be_larger_than_a_node(tmp_path: Path) -> None:
    """Its workers may lie on several nodes; a limit on cost shortens the hours."""
    rented = cluster(tmp_path)
    for workers, gpus in ((48, 0), (2, 1)):
        group = Resources(mode="train", workers=workers, gpus_per_worker=gpus)
        assert price(rented, (36, 36), 10, group, 20, None).slots == 1
    assert price(rented, (36, 36), 1000, ONE, 20, 12.2).most_hours == pytest.approx(2.0)


@given(st.floats(0, 1e7), st.integers(1, 10**6), st.floats(0.1, 8), st.floats(0.3, 1e4))
def test_price_never_exceeds_what_is_allowed(
    seconds: float, batches: int, cpus: float, most: float
) -> None:
    """A launch that is accepted can never cost more than its limit, even if every node runs to the end."""
    head = file.NodeType("head", 1, 0, 0, 0.1, 0.1, fewest=1)
    config = {**AWS, "max_workers": 4}
    rented = file.ClusterFile(
        Path("c"), config, (head, file.NodeType("worker", 4, 16, 0, 0.4, 1.0))
    )
    asked = Resources(cpus_per_worker=cpus)
    try:
        made = price(rented, (seconds / 2, seconds), batches, asked, 1e6, most)
    except InputError:
        return
    assert made.cost[1] <= most
    assert made.most <= most * (1 + 1e-9)
    assert made.hours[1] <= made.most_hours


def test_what_a_launch_has_cost() -> None:
    """At list prices from its beginning to now, to its end, or to its deadline, whichever came first."""
    now = time.time()
    facts = {"began": now - 3600, "deadline": now + 3600, "per_hour": 2.0, "currency": "EUR"}
    facts["provider"] = "aws"
    for more, cost in (
        ({"reached": {}}, "at most 2.00 EUR"),
        ({"reached": {"down": {"at": now - 1800}}}, "at most 1.00 EUR"),
        ({"reached": {}, "deadline": now - 2700}, "at most 0.50 EUR"),
        ({"reached": {}, "deadline": now - 2700, "provider": "azure"}, "at most 2.00 EUR"),
        ({"reached": {}, "per_hour": 0.001}, "at most 0.01 EUR"),
        ({"reached": {}, "per_hour": 0.0}, "nothing"),
        ({"reached": {}, "per_hour": math.inf}, "unknown"),
    ):
        assert states.spent({**facts, **more}) == cost


# -- states ------------------------------------------------------------------------------------


def test_states_follow_each_other(tmp_path: Path) -> None:
    """The last state that is reached is found by any process, and a new launch begins anew."""
    one = Launch(tmp_path / "r")
    assert one.reached("up") is None
    assert one.state == "down"
    with pytest.raises(InputError, match="holds no launch"):
        Launch.of(tmp_path / "r")
    one.amend(**one.begin())
    first = one.order()["id"]
    assert one.state == "ordered"
    for state in STATES:
        one.reach(state, fact=1)
        assert Launch.of(tmp_path / "r").state == state
    one.amend(**one.begin())
    assert one.state == "ordered"
    assert one.order()["id"] != first
    assert not (states.launches() / first).exists()
    assert {path.name for path in one.results.rglob("*") if path.is_file()} == {"launch"}
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700, "nobody else can look into it"
    (one.folder / "order.json").write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        Launch.of(tmp_path / "r")


@pytest.mark.thorough
def test_a_folder_from_elsewhere_runs_nothing(tmp_path: Path) -> None:
    """A received folder may say what it likes of its launch: whatever is not kept for this user is not read."""
    ran, folder = tmp_path / "ran", tmp_path / "received"
    auth = {"ssh_user": "u", "ssh_proxy_command": f"touch {ran}; false"}
    head = {"address": "h", "auth": auth, "known_hosts": ""}
    reached = {"up": {"at": 1.0, "head": head}, "submitted": {"at": 1.0}}
    order = {"id": "0123abcd", "name": "x", "job": "j", "kept": "k", "reached": reached}
    for place in (folder / "launch", tmp_path / "hostile"):
        place.mkdir(parents=True)
        (place / "order.json").write_text(json.dumps(order))

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


@pytest.mark.thorough
def test_launches_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this user, with their cost and their end; one that is damaged, or whose folder is gone, hides no other."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "no launch was begun here" in cli("launch", "ls", cwd=tmp_path).err
    facts = {"deadline": time.time() + 3600, "per_hour": 2.0, "currency": "EUR", "provider": "aws"}
    first, second, third = (Launch(tmp_path / name) for name in "abc")
    for name, record in {"one": first, "two": second, "three": third}.items():
        record.amend(**record.begin(), name=name, **facts)
    first.amend(began=time.time() - 1800)
    second.amend(provider="azure")
    assert "raybench down" in cli("launch", "ls", cwd=tmp_path).out, "nothing else ends it"
    first.reach("up")
    damaged, third_key = second.folder / "order.json", third.folder.name
    damaged.write_text('{"name": ')
    shutil.rmtree(third.results)
    Launch(tmp_path / "d").begin()  # killed before anything was ordered
    listed = cli("launch", "ls", cwd=tmp_path)
    said = listed.out
    assert said.count("ordered") == 1
    assert f"cannot read {damaged}" in " ".join(listed.err.split())
    assert re.search(r"one +up +at most 1\.00 EUR +20\d\d-\d\d-\d\d \d\d:\d\d", said)
    assert re.search(rf"{third_key} +three +ordered", said)
    for name, record in (("one", first), (third_key, third)):  # its cluster may be up all the same
        with pytest.warns(Notice, match="cannot read"):
            assert Launch.of(name).results == record.results
