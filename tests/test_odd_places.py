"""Odd places: file systems without locks or without fsync of folders, folders that move, readers and kills at work."""

import errno
import fcntl
import os
import shutil
import signal
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import matplotlib.figure
import pandas as pd
import pytest
import ray
import torch
from cli_kit import cli, ran
from process_kit import python, wait_until

import raybench
from raybench.core.errors import InputError
from raybench.execution.run import Run
from raybench.store import Store, log, merge, status
from raybench.store.files import Disk, open_folder
from raybench.store.remote import Remote

SWEEP = """
name: odd
problem: {name: quadratic, dim: 8, clients: 2}
algorithm: [gd, ef21]
compressor: {name: top_k, k: 1}
step_size: {theory: 1}
rounds: 3
"""


def refuse_locks(patch, number=errno.ENOLCK):
    """Let flock fail as on a file system that has none."""

    def refuse(file, how):
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", refuse)


NUMBERS = [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS]


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_without_locks_a_lease_takes_their_place(number, tmp_path, monkeypatch):
    refuse_locks(monkeypatch, number)
    (tmp_path / "s.yaml").write_text(SWEEP)
    said = ran("sweep", tmp_path / "s.yaml", "--out", tmp_path / "r", "--inline")
    assert said.err.count("knows no locks") == 1
    assert cli("status", tmp_path / "r").code == 0
    assert len(raybench.load(tmp_path / "r"))
    files = open_folder(tmp_path / "r")
    assert not [name for name in files.names("plan") if name.startswith("lock.")]
    taken = pytest.raises(InputError, match="another sweep is running")
    with Store(tmp_path / "r").held():
        assert f"pid {os.getpid()} on" in status.status_of(tmp_path / "r").holder.who
        with taken, Store(tmp_path / "r").held():
            pass
    assert status.status_of(tmp_path / "r").holder is None


def test_a_driver_with_locks_sees_one_without(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_locks(patch)
        holder = Store(tmp_path / "r").held()
        holder.__enter__()
    assert status.lock.holder(open_folder(tmp_path / "r")) is not None
    with pytest.raises(InputError, match="another sweep is running"), Store(tmp_path / "r").held():
        pass
    holder.__exit__(None, None, None)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_none_the_less_one(number, tmp_path, monkeypatch):
    plain = os.fsync

    def refuse(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        plain(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    if number == errno.EIO:  # which is no refusal: the disk fails
        with pytest.raises(OSError, match="Input/output"):
            raybench.sweep(SWEEP, tmp_path / "r", inline=True)
        return
    assert raybench.sweep(SWEEP, tmp_path / "r", inline=True).exit_code == 0


@pytest.fixture(scope="module")
def swept_odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "r"
    raybench.sweep(SWEEP, folder, inline=True)
    return folder


def test_an_interrupted_merge_to_an_object_store_goes_on(swept_odd, tmp_path, monkeypatch):
    place, writes = f"memory://interrupted/{tmp_path.name}", []
    plain = Remote.write

    def write(files, rel, data):
        writes.append(rel)
        if len(writes) == stop:
            raise KeyboardInterrupt
        plain(files, rel, data)

    monkeypatch.setattr(Remote, "write", write)
    for stop in (2, 3, 4, 5, 0):
        writes.clear()
        if stop:
            with pytest.raises(KeyboardInterrupt):
                merge(swept_odd, swept_odd, place)
    files = open_folder(place)
    files.write("cells/left.parquet", b"of another merge that was interrupted")
    merge(swept_odd, swept_odd, place)
    assert Store(place).done() == Store(swept_odd).done()
    assert not log.verified(files).findings
    with pytest.raises(InputError, match="is not empty"):
        merge(swept_odd, swept_odd, place)


def test_of_two_merges_into_one_place_one_is_refused(swept_odd, tmp_path, monkeypatch):
    place, plain, refusals = f"memory://two/{tmp_path.name}", Remote.write, []

    def write(files, rel, data):
        if rel == "sweep.yaml" and not refusals:
            refusals.append(None)
            with pytest.raises(InputError, match="another sweep is running") as refusal:
                merge(swept_odd, swept_odd, place)
            refusals.append(refusal)
        plain(files, rel, data)

    monkeypatch.setattr(Remote, "write", write)
    merge(swept_odd, swept_odd, place)
    assert len(refusals) == 2
    assert Store(place).done() == Store(swept_odd).done()
    assert not log.verified(open_folder(place)).findings


def test_a_merge_removes_what_a_killed_one_has_left(swept_odd, tmp_path):
    dead, alive, other = (tmp_path / name for name in (".m.0123abcd", ".m.4567cdef", ".n.0123abcd"))
    for folder in (dead, alive, other):
        (folder / "plan").mkdir(parents=True)
        (folder / "plan" / "lock").write_text("")
    with Store(alive).held():
        merge(swept_odd, swept_odd, tmp_path / "m")
    assert sorted(tmp_path.iterdir()) == [alive, other, tmp_path / "m"]


@pytest.mark.parametrize("moment", ["save_attempts", "put", "done", "plan", "commit"])
@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_folder_that_is_renamed_or_removed_in_mid_run_is_told(moment, how, tmp_path, monkeypatch):
    (tmp_path / "s.yaml").write_text(SWEEP)
    plain, calls = getattr(Store, moment), []

    def gone(store, *given):
        calls.append(given)
        if len(calls) == 1 + (moment == "done"):  # the first is before the folder is held
            (tmp_path / "r").rename(tmp_path / "moved")
            if how == "removed":
                shutil.rmtree(tmp_path / "moved")
        return plain(store, *given)

    monkeypatch.setattr(Store, moment, gone)
    said = cli("sweep", tmp_path / "s.yaml", "--out", tmp_path / "r", "--inline")
    assert said.code == 1, said.err
    assert "was removed or renamed while the sweep was running" in said.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--out", "r.html"],
        ["table", "--out", "t.csv"],
        ["plot", "--out", "p"],
        ["audit", "--out", "a"],
    ],
    ids=lambda words: words[0],
)
def test_what_cannot_be_written_leaves_what_was_there(words, swept_odd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb, *options = words
    assert cli(verb, swept_odd, *options).code == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert before

    def write(path, *content, **how):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write)
        patch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, *a, **how: write(*a))
        assert cli(verb, swept_odd, *options).code == 1
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_what_is_no_file_is_written_to(swept_odd):
    assert cli("report", swept_odd, "--out", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


def test_a_limit_that_leaves_no_thread_is_told(tmp_path, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    (tmp_path / "s.yaml").write_text(SWEEP)
    monkeypatch.setattr(threading.Thread, "start", start)
    said = cli("sweep", tmp_path / "s.yaml", "--out", tmp_path / "r", "--inline")
    assert said.code == 1
    assert "out of memory: can't start new thread" in said.err


class Harmful:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("content", [Harmful(), b"no pickle"], ids=["an object", "no pickle"])
def test_weights_that_are_refused_come_without_unsafe_advice(content, tmp_path):
    file = tmp_path / "w.pt"
    torch.save(content, file)
    if isinstance(content, bytes):
        file.write_bytes(content)
    problem = f"{{name: network, model: mlp, dataset: digits, clients: 2, init_from: {file}}}"
    (tmp_path / "s.yaml").write_text(
        f"problem: {problem}\nalgorithm: gd\nstep_size: {{value: 0.1}}\nrounds: 1\n"
    )
    said = cli("sweep", tmp_path / "s.yaml", "--out", tmp_path / "r", "--inline")
    assert f"{file} is no file of torch.save, or holds objects" in said.out + said.err
    assert "weights_only" not in said.out + said.err
    assert "run\n" not in said.out


class Died(BaseException):
    """As if the process had been killed: whatever it writes afterwards fails, too."""


GRID = {"name": "killed", "problem": {"name": "quadratic", "dim": 8, "clients": 2}}
GRID |= {"algorithm": "ef21", "compressor": {"name": "top_k", "k": 1}, "seed": [0, 1], "rounds": 8}
GRID |= {"step_size": {"theory": "2^-3..2^4"}}
COMMANDS = {
    "search": ({"search": {"step_size": "refine"}}, {}),
    "halving": ({"prune": "halving"}, {}),
    "fresh": ({}, {"fresh": True}),
    "retry failed": ({}, {"retry_failed": True}),
}
PLAIN = ["cell", "round", "loss", "bits_up", "status"]


@pytest.mark.parametrize("what", COMMANDS)
def test_a_kill_at_any_write_is_made_good_by_the_same_command(what, tmp_path, monkeypatch):
    more, how = COMMANDS[what]
    sweep = {**GRID, **more}

    def begun(folder):
        """A folder as the command that is killed finds it."""
        if what == "fresh":
            raybench.sweep(sweep, folder, inline=True)
        if what == "retry failed":
            with monkeypatch.context() as patch:
                patch.setattr(Run, "__init__", lambda *_, **__: 1 / 0)
                raybench.sweep(sweep, folder, inline=True)
        return folder

    def frame(folder):
        return raybench.load(folder)[PLAIN]

    raybench.sweep(sweep, begun(tmp_path / "whole"), inline=True, **how)
    want, plain, left = frame(tmp_path / "whole"), Disk.write, [0]

    def write(disk, path, data):
        left[0] -= 1
        if left[0] < 0:
            raise Died
        plain(disk, path, data)

    for stop in (1, 2, 4, 7, 9, 11):
        folder = begun(tmp_path / f"killed{stop}")
        with monkeypatch.context() as patch, suppress(Died):
            patch.setattr(Disk, "write", write)
            left[0] = stop
            raybench.sweep(sweep, folder, inline=True, **how)
        raybench.sweep(sweep, folder, inline=True, **how)
        pd.testing.assert_frame_equal(frame(folder), want)
        assert not log.verified(open_folder(folder)).harm
        assert not (folder / "tmp").exists() or not any((folder / "tmp").iterdir())


def test_a_clock_that_is_set_back_changes_nothing(swept_odd, tmp_path, monkeypatch):
    now = [2e9]

    def back():
        now[0] -= 3600.0
        return now[0]

    (tmp_path / "s.yaml").write_text(SWEEP)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", back)
        ran("sweep", tmp_path / "s.yaml", "--out", tmp_path / "r", "--inline")
        for verb in ("status", "table", "verify"):
            assert cli(verb, tmp_path / "r").code == 0
    assert (raybench.load(tmp_path / "r")[PLAIN] == raybench.load(swept_odd)[PLAIN]).all(axis=None)


@pytest.mark.parametrize("lacks", ["curves", "cells", "half a file", "a file in transit", "plan"])
def test_a_folder_half_copied_is_refused_or_read_without_what_lacks(lacks, swept_odd, tmp_path):
    folder = Path(shutil.copytree(swept_odd, tmp_path / "r"))
    curves = next((folder / "curves").iterdir())
    name = curves.name
    if lacks == "half a file":
        (folder / "cells" / name).write_bytes(curves.read_bytes()[:1000])
    elif lacks == "a file in transit":  # as rsync names them
        shutil.copy(curves, folder / "curves" / f".{name}.Xa3b5c")
    elif lacks == "plan":
        shutil.rmtree(folder / "plan")
    else:
        (folder / lacks / name).unlink()
    table, verify = cli("table", folder), cli("verify", folder)
    if lacks in ("curves", "half a file"):
        assert (table.code, verify.code) == (2, 1)
        assert name in table.err.replace("\n", "")
    else:
        assert table.code == 0
        assert verify.code == (lacks == "a file in transit")
    assert raybench.sweep(SWEEP, folder, inline=True).exit_code == 0
    assert (raybench.load(folder)[PLAIN] == raybench.load(swept_odd)[PLAIN]).all(axis=None)


def test_no_variable_of_the_environment_is_written_or_printed(tmp_path, monkeypatch):
    secrets = ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "WANDB_API_KEY", "ANY_OTHER")
    for name in secrets:
        monkeypatch.setenv(name, f"secret-of-{name.lower()}")
    (tmp_path / "s.yaml").write_text(SWEEP)
    said = [cli("sweep", tmp_path / "s.yaml", "--out", tmp_path / "r", "--inline")]
    said += [cli(verb, tmp_path / "r") for verb in ("status", "table", "report", "verify")]
    said.append(cli("doctor"))
    assert all("secret-of-" not in one.out + one.err for one in said)
    for file in (tmp_path / "r").rglob("*"):
        assert not file.is_file() or b"secret-of-" not in file.read_bytes()


STOPPED = """
import errno, fcntl, sys, time
from raybench.store import Store, lock

def refuse(file, how):
    raise OSError(errno.ENOLCK, "none")

fcntl.flock, lock.LEASE, lock.RENEWED = refuse, 1.0, 0.2
store = Store(sys.argv[1])
with store.held():
    store.own()
    print("held", flush=True)
    sys.stdin.readline()
    try:
        store.check_owner()
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_a_driver_that_was_stopped_finds_that_another_has_taken_over(tmp_path, monkeypatch):
    folder = tmp_path / "r"
    driver = python("-c", STOPPED, folder)
    try:
        assert driver.stdout.readline() == "held\n"
        driver.send_signal(signal.SIGSTOP)
        refuse_locks(monkeypatch)
        files = open_folder(folder)
        wait_until(lambda: status.lock.holder(files) is None, "its lease does not run out")
        with Store(folder).held():
            Store(folder).own()
            driver.send_signal(signal.SIGCONT)
            assert driver.communicate("\n")[0] == "FolderLost\n"
            assert f"pid {os.getpid()} on" in status.lock.holder(files).who
    finally:
        driver.kill()
        driver.communicate()


@pytest.mark.ray
def test_no_key_stands_in_what_ray_logs(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-aws")
    logs = []

    def shutdown(plain=ray.shutdown):
        logs.extend(Path(ray._private.worker._global_node.get_session_dir_path()).rglob("*"))
        plain()

    monkeypatch.setattr(ray, "shutdown", shutdown)
    raybench.sweep(SWEEP, tmp_path / "r")
    texts = [file.read_bytes() for file in (*logs, *tmp_path.rglob("*")) if file.is_file()]
    assert any(b"Creating runtime env" in text for text in texts)
    assert not any(b"secret-of-aws" in text for text in texts)
