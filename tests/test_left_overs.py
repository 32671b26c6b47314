"""Commands end well whatever goes wrong outside; what killed drivers leave goes away, what is of others stays."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pytest
from cli_kit import SWEEP, cli
from process_kit import gone, python, wait_until

from raybench import spec
from raybench.core import process as own_process
from raybench.core.errors import InputError
from raybench.runtime import session
from raybench.runtime.driver import drive
from raybench.runtime.leftovers import LOCK, remove_orphans
from raybench.runtime.session import deferring_sigterm
from raybench.store import Store
from raybench.store.files import LocalFolder

TRAIN = """
name: left
problem: {name: logistic, dataset: breast_cancer, clients: 4, regularizer: nonconvex, lambda: 0.1}
algorithm: ef21
compressor: {name: top_k, k: [1, 2]}
rounds: 1000000
record: {points: 10}
resources: {workers: 2}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# Folders -------------------------------------------------------------------------------------------


def test_what_is_not_a_sweeps_own_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "raybench-tune-notes").mkdir()  # no lock: somebody else's
    (place / "raybench-results").mkdir()
    (place / "raybench-results" / LOCK).touch()
    (place / "precious").mkdir()
    (place / "precious" / LOCK).touch()
    (place / "raybench-tune-link").symlink_to(place / "precious")
    (place / "raybench-train-file").touch()
    held = place / "raybench-train-held"
    held.mkdir()
    before = sorted(place.rglob("*"))
    with open(held / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_orphans() == []
    me = os.getuid()
    with monkeypatch.context() as patch:  # as if it were another user's
        patch.setattr(os, "getuid", lambda: me + 1)
        assert remove_orphans() == []
    assert sorted([*before, held / LOCK]) == sorted(place.rglob("*"))
    assert remove_orphans() == ["raybench-train-held"]


# Processes -----------------------------------------------------------------------------------------

DRIVER = """
import os, subprocess, sys
from pathlib import Path
from raybench.runtime.leftovers import watchdog

sleep = "import sys, time; f = open(sys.argv[1], sys.argv[2]); print('open', flush=True); time.sleep(60)"
with watchdog():
    for last, mode in (("", "w"), ("", "r"), ("7", "w")):
        folder = Path(sys.argv[1]) / f"session_2026-01-02_03-04-05_678901_{os.getpid()}{last}"
        folder.mkdir(exist_ok=True)
        helper = subprocess.Popen(
            [sys.executable, "-c", sleep, folder / "log", mode], stdout=subprocess.PIPE
        )
        helper.stdout.readline()
        print(helper.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("killed", [True, False])
def test_helpers_of_a_killed_driver_are_ended_and_no_others(place: Path, killed: bool) -> None:
    """Of three processes one writes into the driver's session, one reads there, one is of another's."""
    driver = python("-c", DRIVER, place, stderr=None)  # else its helpers would hold that pipe
    helper, reader, other = (psutil.Process(int(driver.stdout.readline())) for _ in range(3))
    mine = (helper, reader, other)
    (dog,) = (p for p in psutil.Process(driver.pid).children() if p not in mine)
    try:
        if killed:
            driver.kill()
            driver.communicate()
            wait_until(lambda: gone(helper), "a helper of a killed driver runs on")
        else:
            driver.communicate("")
            assert gone(dog)
            assert not gone(helper)
        assert not gone(reader)
        assert not gone(other)
    finally:
        for process in mine:
            if process.is_running():
                process.kill()
        psutil.wait_procs([dog], timeout=20)
        assert gone(dog)


# The token -----------------------------------------------------------------------------------------


def test_the_token_is_this_users_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    file = place / ".ray" / "auth_token"
    session.guard_token()
    written = file.read_text()
    assert len(written) == 64
    assert modes(file) == (0o600, 0o700)
    file.chmod(0o644)  # as Ray writes it
    file.parent.chmod(0o755)
    session.guard_token()
    assert modes(file) == (0o600, 0o700)
    assert file.read_text() == written
    own = place / "own"
    own.write_text("x" * 64)
    own.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(own))
    session.guard_token()
    assert modes(own)[0] == 0o600


def modes(file: Path) -> tuple[int, int]:
    return stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)


# With Ray ------------------------------------------------------------------------------------------


def family(driver: int) -> dict[psutil.Process, str]:
    """Return the processes that a driver has started, and those these have, with their commands."""
    result = {}
    for process in psutil.Process(driver).children(recursive=True):
        try:
            result[process] = " ".join(process.cmdline())[:200]
        except psutil.Error:
            continue
    return result


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_driver_killed_at_work(place: Path) -> None:
    """It listens on loopback only; nothing of it runs on; the next sweep removes its folders."""
    (place / "s.yaml").write_text(TRAIN)
    command = [sys.executable, "-m", "raybench", "sweep", "s.yaml"]
    # Ray puts sockets into its own, whose paths must be short.
    settings = {"RAY_TMPDIR": "/tmp", **os.environ, "TMPDIR": str(place)}
    driver = subprocess.Popen(
        command, cwd=place, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    known: dict[psutil.Process, str] = {}
    try:
        tries = place / "results" / "left" / "plan" / "attempts.json"
        # a batch was taken, and so the ranks have met
        wait_until(lambda: tries.exists() and tries.read_text() != "{}", "no batch was taken")
        known |= family(driver.pid)
        assert any("RayTrainWorker" in words for words in known.values())
        heard = []
        for process in [psutil.Process(driver.pid), *known]:
            try:
                sockets = process.net_connections()
            except psutil.Error:
                continue
            listening = [socket.laddr for socket in sockets if socket.status == "LISTEN"]
            heard += [(known.get(process, "driver"), address) for address in listening]
        assert len(heard) > 5, "nothing listens: this test sees nothing"
        outward = [one for one in heard if not loopback(one[1].ip)]
        # The ranks of a group meet at a port of torch, which listens everywhere: docs/faults.md.
        assert len(outward) <= 1, outward
        assert all("RayTrainWorker" in words for words, _ in outward), outward
        folders = sorted(p.name.split("-")[1] for p in place.glob("raybench-*"))
        assert folders == ["train", "tune"]
        dogs = [p for p, words in known.items() if "leftovers.py" in words]
        assert len(dogs) == 1
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        wait_until(lambda: all(gone(p) for p in known if p not in dogs), "it left processes behind")
        assert len(list(place.glob("raybench-*"))) == 2

        def removed() -> bool:
            remove_orphans()  # as the next sweep does
            return not list(place.glob("raybench-*"))

        # the last threads of a killed process hold its locks for a moment
        wait_until(removed, "folders stay")
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
        dogs = [p for p, words in known.items() if "leftovers.py" in words]
        psutil.wait_procs(dogs, timeout=20)


def loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    inner = getattr(ip, "ipv4_mapped", None)
    return (inner or ip).is_loopback


# How commands end when something outside goes wrong -----------------------------------------------


SCRIPT = Path(sys.executable).parent / "raybench"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


FULL = """
import errno, os
from pathlib import Path
from raybench.core.registry import metric
from raybench.store.files import LocalFolder

def write(self, rel, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

@metric("full")
def full(problem, x):
    if Path(MARKER).exists():
        LocalFolder.write = write  # in this worker, as on a node of its own whose disk is full
    return (x * x).sum(-1)
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_sigterm_through_ray_is_143_and_a_full_disk_is_no_failed_cell(place: Path) -> None:
    """Two endings of a sweep through Ray, in one folder; then it is completed."""
    (place / "full.py").write_text(FULL.replace("MARKER", repr(str(place / "full"))))
    text = TRAIN.replace("workers: 2", "workers: 1").replace("k: [1, 2]", "k: 1..8")
    text = text.replace("rounds: 1000000", "rounds: 2000")
    (place / "s.yaml").write_text(text + "plugins: full.py\nevaluate: {metrics: [full]}\n")
    command = [sys.executable, "-m", "raybench", "sweep", "s.yaml"]
    cells = place / "results" / "left" / "cells"
    driver = python(*command[1:], cwd=place)
    wait_until(lambda: cells.is_dir() and any(cells.iterdir()), "nothing is committed")
    driver.terminate()
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 143, out + err
    assert "stopped by SIGTERM" in err
    assert "Traceback" not in err
    done = len(list(cells.iterdir()))
    assert 1 <= done < 8

    (place / "full").touch()
    full = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert full.returncode == 1, full.stdout + full.stderr
    assert "No space left on device" in full.stderr
    assert "the same command goes on" in full.stderr
    assert "Traceback" not in full.stderr
    assert len(list(cells.iterdir())) == done, "a full disk made failed cells"

    (place / "full").unlink()
    last = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert last.returncode == 0, last.stdout + last.stderr
    assert len(list(cells.iterdir())) == 8


def test_a_handler_of_the_users_own_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with own_process.stopping_on_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(own_process.Terminated), own_process.stopping_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_sigterm_while_ray_starts_is_heard_when_it_has_started() -> None:
    def rude(number: int, _: object) -> None:
        sys.exit(number)

    done = []
    with own_process.stopping_on_sigterm():
        ours = signal.getsignal(signal.SIGTERM)
        with deferring_sigterm():
            signal.signal(signal.SIGTERM, rude)
        assert signal.getsignal(signal.SIGTERM) is ours
        with pytest.raises(own_process.Terminated):
            told_meanwhile(done)
    assert done == ["in order"]


def told_meanwhile(done: list[str]) -> None:
    with deferring_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("in order")


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_what_hears_none(here: Path, number: int, code: int) -> None:
    """The main thread is held below Python, as by a Ray that does not answer; the same wish twice is one."""
    clock = here / "clock"
    clock.write_text("1")
    program = (
        "import ctypes, pathlib, signal, types\nfrom raybench.core import process\n"
        "def now():\n"
        "    print('heard', flush=True)\n"
        "    return float(pathlib.Path('clock').read_text())\n"
        "process.time = types.SimpleNamespace(monotonic=now)\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda *_: None)\n"
        "with process.ending_on_the_second_signal():\n"
        "    print('held', flush=True)\n"
        "    for _ in range(5):\n"
        "        ctypes.CDLL(None).sleep(60)\n"
    )
    held = python("-c", program)
    assert held.stdout.readline() == "held\n"
    for _ in range(3):  # it hears the third: so the second has not ended it
        held.send_signal(number)
        assert held.stdout.readline() == "heard\n"
    clock.write_text(str(1.1 + own_process.SAME_WISH))
    held.send_signal(number)
    held.communicate(timeout=100)
    assert held.returncode == code


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("ls | true; exit ${PIPESTATUS[0]}", 141),  # the custom of shells: 128 and SIGPIPE
        ("ls >&- 2>&- <&-", 0),
        ("plan absent.yaml 2>&-", 2),
        ("ls >/dev/full", 1),
    ],
)
def test_output_that_nobody_reads(here: Path, command: str, code: int) -> None:
    done = subprocess.run(["bash", "-c", f"{SCRIPT} {command}"], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.thorough
def test_output_in_any_encoding(swept: Path) -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([SCRIPT, "table", swept], capture_output=True, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"EF21" in done.stdout


@pytest.mark.thorough
def test_names_do_not_command_the_terminal_nor_a_spreadsheet(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a received folder calls its methods, sweep and data set is text, wherever it is printed."""
    evil = "\x1b[2J\x9b1A\u202e"
    (here / "s.yaml").write_text(SWEEP)
    commit = Store.commit

    def named(table: pa.Table) -> pa.Table:
        for column in ("label", "dataset", "algorithm"):
            at = table.schema.get_field_index(column)
            field = table.schema.field(at)
            texts = pa.array([f"=1+{evil}{v}" for v in table[column].to_pylist()])
            table = table.set_column(at, field, texts.cast(field.type))
        return table

    def committed(self: Store, shard: str, curves: pa.Table, cells: pa.Table, *rest: Any) -> None:
        commit(self, shard, named(curves), named(cells), *rest)

    monkeypatch.setattr(Store, "commit", committed)
    assert cli("sweep", "s.yaml", "--inline").code == 0
    folder = here / "results" / "small"
    for verb in ("table", "status", "rank", "verify", "plan"):
        said = cli(verb, "s.yaml" if verb == "plan" else folder)
        assert not set(evil) & set(said.out + said.err) - set("[2J1A"), said.out + said.err
        if verb == "table":
            assert r"=1+\x1b[2J\x9b1A" in said.out
    csv = cli("table", folder, "--format", "csv").out
    assert "'=1+" in csv
    assert not re.search(r"(^|,)=", csv, re.MULTILINE)
    (here / "n.yaml").write_text(SWEEP + 'bogus: {"\\e[2J": 1}\n')
    said = cli("plan", "n.yaml")
    assert said.code == 2
    assert "\x1b" not in said.err


@pytest.mark.thorough
@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_is_a_short_message_and_exit_1(
    here: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    (here / "s.yaml").write_text(SWEEP)
    write, room = LocalFolder.write, [5]

    def full(self: LocalFolder, rel: str, data: bytes) -> None:
        if rel.startswith(("curves/", "cells/")):
            room[0] -= 1
        if room[0] < 0:
            name = [self.path(rel)] if named else []
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *name)
        write(self, rel, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "write", full)
        said = cli("sweep", "s.yaml", "--inline")
    assert said.code == 1
    assert "Traceback" not in said.err
    assert "No space left on device" in said.err
    assert "free some of it: what is committed stays, and the same command goes on" in said.err
    assert ("curves/" in said.err or "cells/" in said.err) == named
    folder = here / "results" / "small"
    assert 0 < len(pd.read_parquet(folder / "cells")) < 28
    assert cli("sweep", "s.yaml", "--inline").code == 0
    cells = pd.read_parquet(folder / "cells")
    assert len(cells[cells.status.isin(("ok", "diverged"))]) == 28
    assert cells.cell.is_unique


def test_other_errors_of_the_system_keep_their_codes(here: Path) -> None:
    assert own_process.disk_trouble(PermissionError(errno.EACCES, "no", "file")) is None
    told = own_process.disk_trouble_told
    assert told(["x", "OSError: [Errno 28] No space left on device"]) == 28
    assert told(["OSError: [Errno 13] denied", "[Errno 28] in a text"]) is None


def test_memory_of_this_process_is_no_place_for_workers(here: Path) -> None:
    sweep = spec.load(SWEEP)
    with pytest.raises(InputError, match="memory of this process, and Ray's workers are others"):
        drive(sweep, "memory://here/x")
    assert drive(sweep, "memory://here/x", inline=True).exit_code == 0
