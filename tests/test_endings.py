"""How commands end when something outside goes wrong: signals, full disks, stores out of reach."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cli_kit
import pandas as pd
import pyarrow as pa
import pytest
from cli_kit import SWEEP, call, cli, refused
from process_kit import python

from raybench import spec
from raybench.core import process
from raybench.core.errors import InputError
from raybench.runtime.driver import drive
from raybench.store import Store
from raybench.store.files import Local

here = cli_kit.here
pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("here")]

SCRIPT = Path(sys.executable).parent / "raybench"
LONG = (
    "problem: quadratic\nalgorithm: ef21\ncompressor: {name: top_k, k: 1..40}\nrounds: 2000\n"
    "record: {every: 100}\n"
)


def committed(here: Path) -> bool:
    cells = here / "results" / "s" / "cells"
    return cells.is_dir() and any(cells.iterdir())


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_leaves_a_valid_store_and_the_same_command_goes_on(
    here: Path, number: int, code: int, word: str
) -> None:
    (here / "s.yaml").write_text(LONG)
    work = python(SCRIPT, "sweep", "s.yaml", "--inline")
    until = time.monotonic() + 120
    while not committed(here) and time.monotonic() < until:
        time.sleep(0.02)
    work.send_signal(number)
    out, err = work.communicate(timeout=60)
    assert work.returncode == code, out + err
    assert "Traceback" not in err
    left = re.search(rf"{word}, (\d+) cells left: the same command goes on", err)
    assert left is not None
    assert "raybench table results/s" in err
    cells = pd.read_parquet(here / "results" / "s" / "cells")
    assert int(left[1]) == 40 - len(cells) > 0
    assert set(cells.status) == {"ok"}


def test_a_handler_of_the_users_own_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with process.stopping_on_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(process.Terminated), process.stopping_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_sigterm_while_ray_starts_is_heard_when_it_has_started() -> None:
    def rude(number: int, _: object) -> None:
        sys.exit(number)

    done = []
    with process.stopping_on_sigterm():
        ours = signal.getsignal(signal.SIGTERM)
        with process.deferring_sigterm():
            signal.signal(signal.SIGTERM, rude)
        assert signal.getsignal(signal.SIGTERM) is ours
        with pytest.raises(process.Terminated):
            told_meanwhile(done)
    assert done == ["in order"]


def told_meanwhile(done: list[str]) -> None:
    with process.deferring_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("in order")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_what_hears_none(number: int, code: int) -> None:
    """The main thread is held below Python, as by a Ray that does not answer; the same wish twice is one."""
    program = (
        "import ctypes, signal\nfrom raybench.core import process\n"
        "process.SAME_WISH = 0.3\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda *_: None)\n"
        "with process.ending_on_the_second_signal():\n"
        "    print('held', flush=True)\n"
        "    for _ in range(5):\n"
        "        ctypes.CDLL(None).sleep(60)\n"
    )
    held = python("-c", program)
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    held.send_signal(number)
    held.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        held.wait(0.6)
    held.send_signal(number)
    held.communicate(timeout=20)
    assert held.returncode == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("ls | true; exit ${PIPESTATUS[0]}", 141),  # the custom of shells: 128 and SIGPIPE
        ("schema | head -1 >out; exit ${PIPESTATUS[0]}", 141),
        ("--help | true; exit ${PIPESTATUS[0]}", 141),
        ("ls >&-", 0),
        ("ls >&- 2>&- <&-", 0),
        ("plan absent.yaml 2>&-", 2),
        ("ls >/dev/full", 1),
    ],
)
def test_output_that_nobody_reads(here: Path, command: str, code: int) -> None:
    done = call("bash", "-c", f"{SCRIPT} {command}")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_output_in_any_encoding(here: Path) -> None:
    (here / "s.yaml").write_text(SWEEP)
    assert cli("sweep", "s.yaml", "--inline").code == 0
    for form in ("terminal", "plain", "csv"):
        env = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = call(
            SCRIPT, "table", "results/small", "--format", form, env=env, text=False, check=True
        )
        assert done.stdout.isascii()
        assert b"EF21" in done.stdout


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
    assert "\x1b" not in refused("plan", "n.yaml")


@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_is_a_short_message_and_exit_1(
    here: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    (here / "s.yaml").write_text(SWEEP)
    write, room = Local.write, [5]

    def full(self: Local, rel: str, data: bytes) -> None:
        if rel.startswith(("curves/", "cells/")):
            room[0] -= 1
        if room[0] < 0:
            name = [self.path(rel)] if named else []
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *name)
        write(self, rel, data)

    with monkeypatch.context() as patch:
        patch.setattr(Local, "write", full)
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
    assert process.disk_trouble(PermissionError(errno.EACCES, "no", "file")) is None
    assert process.disk_trouble_told(["x", "OSError: [Errno 28] No space left on device"]) == 28
    assert process.disk_trouble_told(["OSError: [Errno 13] denied", "[Errno 28] in a text"]) is None


def test_memory_of_this_process_is_no_place_for_workers(here: Path) -> None:
    sweep = spec.load(SWEEP)
    with pytest.raises(InputError, match="memory of this process, and Ray's workers are others"):
        drive(sweep, "memory://here/x")
    assert drive(sweep, "memory://here/x", inline=True).exit_code == 0
