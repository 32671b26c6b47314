"""What all tests share: the data folder, threads, and a look for stray processes."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from gloo_kit import close
from tiers import is_thorough

THREADS = int(os.environ.get("RAYBENCH_TEST_THREADS", "1"))  # results must not depend on it
MARK = "RAYBENCH_TEST_SESSION"  # inherited by every process that a test starts, orphans included
PATIENCE = 15.0  # seconds that processes get to end after the last test

GPU = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

_strays: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Set threads before torch and numba are imported, and mark this session's processes."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(THREADS))
    # Read when Ray is imported, whoever does so first: the Ray that tests share asks for tokens.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    # A deadline is a timed assertion: it fails on a busy machine.
    # the same examples for everybody and each time, so that a change is blamed for what it breaks alone; others on demand
    fixed = "RAYBENCH_RANDOM" not in os.environ
    hypothesis.settings.register_profile("raybench", deadline=None, derandomize=fixed)
    hypothesis.settings.load_profile("raybench")
    if not hasattr(config, "workerinput"):
        os.environ[MARK] = uuid.uuid4().hex


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare make test the imports of files that are thorough as a whole, unless they are asked for by name."""
    if config.option.markexpr != "not thorough" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.thorough\n" in collection_path.read_text() or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what make test leaves to make test-all."""
    if is_thorough(item):
        item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what starts Ray first, as it takes longest; without a GPU leave out what needs one."""
    items[:] = [item for item in items if GPU or item.get_closest_marker("gpu") is None]
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the LIBSVM sets, $RAYBENCH_DATA; skips the test where it is unset."""
    given = os.environ.get("RAYBENCH_DATA", "")
    if not given:
        pytest.skip("RAYBENCH_DATA is unset: the test needs real LIBSVM data")
    folder = Path(given)
    assert (folder / "libsvm").is_dir(), f"RAYBENCH_DATA={given} has no folder libsvm"
    return folder


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of ``cli_kit.SWEEP``, for tests that only read them."""
    from cli_kit import SWEEP

    import raybench

    out = tmp_path_factory.mktemp("swept") / "results"
    raybench.sweep(SWEEP, out, inline=True)
    return out


@pytest.fixture(scope="session")
def _ray_of_the_session() -> Iterator[str]:
    """The address of a Ray that is started for the first test that asks for it, and ends with the session."""
    from ray_kit import running

    with running() as address:
        yield address


@pytest.fixture
def one_ray(_ray_of_the_session: str) -> str:
    """The address of the Ray that tests share which need none of their own: 2 CPUs, and it asks for a token."""
    return _ray_of_the_session


@pytest.fixture(autouse=True, scope="session")
def _threads() -> Iterator[None]:
    """One setting for torch, whatever was imported first."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What raybench keeps for its user between commands stays within the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="module")
def _own_plugins() -> Iterator[None]:
    """Plug-ins that the tests of a file register are gone when the next file's tests run."""
    from cli_kit import own_plugins

    with own_plugins():
        yield


def descendants() -> dict[int, str]:
    """Return {pid: command line} of the processes that bear this session's mark, without this one."""
    mark, result = f"{MARK}={os.environ[MARK]}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) == os.getpid():
                continue
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # ended meanwhile, or another user's
            continue
        helper = "multiprocessing.resource_tracker" in command or "forkserver" in command
        if command and not helper:  # those end with the process that they serve
            result[int(folder.name)] = command[:100]
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a process that a test started is still there."""
    if "raybench.testing.subprocess" in sys.modules:
        sys.modules["raybench.testing.subprocess"].close()
    if hasattr(session.config, "workerinput"):
        return
    close()
    if not Path("/proc").is_dir():
        return
    until = time.monotonic() + PATIENCE
    while (left := descendants()) and time.monotonic() < until:
        time.sleep(0.2)
    _strays.extend(f"{pid}: {command}" for pid, command in sorted(left.items()))
    if _strays:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which processes were left behind."""
    if _strays:
        terminalreporter.section("processes left behind by the tests", red=True)
        for line in _strays:
            terminalreporter.write_line(line)


class Reads(Counter[str]):
    """How often each file of results folders was read, and written, by its place."""

    def of(self, folder: str) -> Counter[str]:
        """Return the reads of the files of one folder."""
        return Counter({rel: n for rel, n in self.items() if rel.startswith(f"{folder}/")})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Return a count of what is read and written from now on."""
    from raybench.store.files import LocalFolder

    result = Reads()
    for name in ("read", "write"):
        plain = getattr(LocalFolder, name)

        def counting(self, rel, *rest, plain=plain, name=name):
            result[rel if name == "read" else f"{name} {rel}"] += 1
            return plain(self, rel, *rest)

        monkeypatch.setattr(LocalFolder, name, counting)
    return result


@pytest.fixture
def few_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports say how firm an order is by one code of the indices, which takes a sixth of the time: test_readings has all."""
    from raybench.analysis import readings

    monkeypatch.setattr(readings, "INDEX_BITS", ("auto",))


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads share any work, however little."""
    import torch

    from raybench.core import parallel

    before = torch.get_num_threads()
    monkeypatch.setattr(parallel, "WORTH_THREADS", 0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
