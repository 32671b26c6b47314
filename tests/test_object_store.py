"""Results on an object store: every verb on a real S3 server on loopback, its lease, and what its failures do.

The server is moto's, in a process of its own; requests go to it through a proxy that fails as it is told.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from cli_kit import cli, ran, tree

import raybench
from raybench import spec
from raybench.core import patience
from raybench.core.errors import InputError
from raybench.runtime.driver import drive
from raybench.store import Store, lock
from raybench.store.files import open_folder
from raybench.store.log import verified

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'raybench[s3]'")
pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")


from s3_kit import CREDENTIALS, Fault, FaultyProxy, make_bucket, moto
from s3fs import S3FileSystem

pytestmark = pytest.mark.thorough

SWEEP = """
name: small
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [ef21, {name: marina, step_size: {theory: [1, 8]}}]
compressor: [{name: top_k, k: 1..5}, {name: rand_k, k: 3}]
step_size: {theory: [1, 2]}
seed: 0..1
rounds: 20
"""  # marina with top_k is skipped; six shards and one of skipped rows
TIMES = ["seconds", "seconds_gradient", "seconds_compress", "seconds_communicate"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto() as address:
        make_bucket(address, "bucket")
        yield address


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyProxy]:
    """The way to the server, as the environment of this process and its children names it."""
    proxy = FaultyProxy(server)
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": proxy.address}.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # one that was opened before knows another address
    monkeypatch.setattr(patience, "FIRST", 0.01)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SWEEP)
    yield proxy
    proxy.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """What an undisturbed sweep gives."""
    folder = tmp_path_factory.mktemp("undisturbed") / "local"
    drive(spec.load(SWEEP), folder, inline=True)
    return raybench.load(str(folder)).drop(columns=TIMES)


def check_sound(url: str, expected: pd.DataFrame) -> None:
    """The store holds just what an undisturbed sweep writes to a disk, and verify finds nothing."""
    pd.testing.assert_frame_equal(raybench.load(url).drop(columns=TIMES), expected)
    assert verified(open_folder(url)).findings == ()


# Verbs -----------------------------------------------------------------------------------------


def test_every_verb_on_an_object_store(
    store: FaultyProxy, url: str, tmp_path: Path, expected: pd.DataFrame
) -> None:
    ran("sweep", "s.yaml", "--inline", "--out", url)
    check_sound(url, expected)
    assert "nothing was missing" in cli("sweep", "s.yaml", "--inline", "--out", url).out
    for verb in ("table", "verify", "report", "status"):
        ran(verb, url)
    name = url.rsplit("/", 1)[1]
    assert (tmp_path / f"{name}-report" / "report.html").is_file()
    assert "0 to run, 28 ok" in cli("plan", "s.yaml", "--out", url).out
    assert cli("merge", url, url, "--out", f"{url}-merged").code == 0
    check_sound(f"{url}-merged", expected)
    raybench.store.compact(url, f"{url}-compact")
    check_sound(f"{url}-compact", expected)
    assert len(open_folder(f"{url}-compact").names("curves")) == 1
    files = open_folder(url)
    plain = pq.read_table(files.path("curves"), filesystem=files.filesystem)
    assert len(plain) == len(expected)
    again = cli("merge", url, url, "--out", url)
    assert (again.code, "is not empty" in again.err) == (2, True)


@pytest.mark.ray
def test_workers_of_ray_write_to_the_store_themselves(
    store: FaultyProxy, url: str, expected: pd.DataFrame
) -> None:
    """And its failures cost them nothing but time."""
    chance = random.Random(5)

    def now_and_then(method: str, path: str) -> Fault:
        return chance.choice([500, 503, "reset"]) if chance.random() < 0.1 else None

    store.rule = now_and_then
    ran("sweep", "s.yaml", "--out", url)
    store.rule = lambda method, path: None
    check_sound(url, expected)
    assert store.faults > 5
    assert raybench.store.cells(url)["attempts"].max() == 1


# The lease -------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows", [True, False], ids=["If-None-Match", "no condition"])
def test_of_many_drivers_at_once_one_gets_in(
    store: FaultyProxy, url: str, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """Also where the store does not know the condition: then a look after a while tells."""
    monkeypatch.setattr(lock, "SETTLED", 1.5)
    store.forgotten = () if knows else ("If-None-Match",)
    together, over = threading.Barrier(4), threading.Event()
    entered, refused = [], []

    def contend() -> None:
        own = Store(url)
        together.wait()
        try:
            with own.held():
                entered.append(own)
                over.wait(60)
        except InputError:
            refused.append(own)
        if len(refused) == 3:
            over.set()

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert (len(entered), len(refused)) == (1, 3)
    assert open_folder(url).names("plan") == []


def test_a_lease_whose_answer_was_lost_is_ours(store: FaultyProxy, url: str) -> None:
    lost: list[str] = []

    def lose(method: str, path: str) -> Fault:
        if method == "PUT" and "lock." in path and not lost:
            lost.append(path)
            return "lost"
        return None

    store.rule = lose
    with Store(url).held():
        assert lost
        holder = lock.holder(open_folder(url))
        assert holder.who == f"pid {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(InputError, match="another sweep is running"), Store(url).held():
            pass
    assert open_folder(url).names("plan") == []
    assert lock.holder(open_folder(url)) is None


# A failing store -------------------------------------------------------------------------------


def test_a_store_that_fails_now_and_then(
    store: FaultyProxy, url: str, expected: pd.DataFrame
) -> None:
    """A fifth of the requests fails in one of six ways; the results are those of an undisturbed sweep."""
    chance = random.Random(0)

    def now_and_then(method: str, path: str) -> Fault:
        if chance.random() > 0.2:
            return None
        return chance.choice([500, 503, "reset", "lost", "cut" if method == "GET" else 500, 0.05])

    store.rule = now_and_then
    said = ran("sweep", "s.yaml", "--inline", "--out", url)
    assert store.faults > 10
    assert "trying again" in said.err
    store.rule = lambda method, path: None
    check_sound(url, expected)


@pytest.mark.parametrize("what", ["cells/", "attempts.json"])
def test_a_store_that_fails_for_good(
    store: FaultyProxy, url: str, expected: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The sweep stops with a message; nothing is torn, no cell is blamed, and the same command goes on."""
    monkeypatch.setenv(patience.VARIABLE, "0.3")
    puts: list[str] = []

    def full(method: str, path: str) -> Fault:
        if method == "PUT" and what in path:
            puts.append(path)
        return 503 if len(puts) > 1 else None

    store.rule = full
    said = cli("sweep", "s.yaml", "--inline", "--out", url)
    store.rule = lambda method, path: None
    assert said.code == 1, said.err
    assert "Traceback" not in said.err
    assert "the store failed" in said.err
    assert "what is committed stays, and the same command goes on" in said.err
    if open_folder(url).names("cells"):
        rows = raybench.load(url).drop(columns=TIMES)
        known = expected[expected.cell.isin(rows.cell)].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, known[rows.columns])  # columns of methods yet to come
        assert set(raybench.store.cells(url).status) <= {"ok", "skipped"}
    monkeypatch.setattr(lock, "LEASE", 0.0)
    free(url)
    assert cli("sweep", "s.yaml", "--inline", "--out", url).code == 0
    check_sound(url, expected)


def free(url: str) -> None:
    """Remove a lease that its holder could not: it would run out within a minute."""
    files = open_folder(url)
    for name in files.names("plan"):
        if name.startswith("lock."):
            files.remove(f"plan/{name}")


# Out of reach ----------------------------------------------------------------------------------

VERBS = [
    ("sweep", "s.yaml", "--inline", "--out", "URL"),
    ("plan", "s.yaml", "--out", "URL"),
    ("table", "URL"),
    ("verify", "URL"),
    ("report", "URL"),
    ("status", "URL"),
    ("merge", "URL", "URL", "--out", "s3://bucket/new"),
    ("merge", "local", "local", "--out", "URL"),
]


@pytest.mark.parametrize("why", ["bucket", "credentials", "network", "forbidden", "failing"])
def test_out_of_reach_is_a_short_message_and_exit_2(
    store: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """For every verb: a few lines within seconds, nothing written here or there."""
    drive(spec.load(SWEEP), tmp_path / "local", inline=True)
    url, says = "s3://bucket/none", "does not answer"
    if why == "bucket":
        url, says = "s3://nobody-has-it/x", "there is no bucket nobody-has-it"
    elif why == "credentials":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        says = "credentials"
    elif why == "network":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    elif why == "forbidden":
        store.rule = lambda method, path: 403
    else:
        store.rule = lambda method, path: 503
    monkeypatch.setenv(patience.VARIABLE, "0.1")
    before = tree(tmp_path)
    for verb in VERBS:
        said = cli(*(url if part == "URL" else part for part in verb))
        lines = [line for line in said.err.splitlines() if not line.startswith("note:")]
        assert said.code == 2, (verb, said.err)
        assert len(lines) == 2, (verb, said.err)
        assert says in said.err, (verb, said.err)
        assert not said.out
    with pytest.raises(InputError, match=says):
        raybench.load(url)
    assert tree(tmp_path) == before
    store.rule = lambda method, path: None
    assert not [path for method, path in store.asked if method == "PUT"]
