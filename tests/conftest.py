"""What holds for every test: how threads are used, and which marks it has.

A test is `unit` unless it says that it is `process` (starts processes) or `root` (makes network namespaces). One that
says nothing and starts a process all the same fails, so that the marks stay true.
"""

import gc
import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # at this size threads only wait for each other; before torch is imported
os.environ.setdefault("SWARM_WARM", "1")  # see `tests.harness.warm_start`; unset it to start each process cold

import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from dtfm_protocol.process.compat.wait_for import mend_wait_for
from dtfm_protocol.process.logs import log
from tests.harness.run_folder import run_folder

run_folder()  # before workers are started, which share it
mend_wait_for()  # the event loop's tools are those that the programs run with

# On a busy machine an example may take any time; what is wrong shows in what it finds.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

_STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")
_started: list[str] = []
"""What this process has started so far."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS:
        _started.append(f"{event} {arguments[1:2]}")


sys.addaudithook(_note)


def pytest_configure() -> None:
    """Have programs that tests start hear Ctrl+C, and a terminal's end: what a shell runs in the background, or `nohup`
    starts, ignores them, and hands that on."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what is imported: it would look through all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("process", "root")):
            item.add_marker(pytest.mark.unit)
    # Each worker begins with its share of those that wait for processes: the longest ones must not be left for the end.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    units = [item for item in items if item.get_closest_marker("unit")]
    waiting = [item for item in items if not item.get_closest_marker("unit")]
    size = -(-len(units) // workers)
    items[:] = [
        item
        for one in range(workers)
        for part in (waiting[one::workers], units[one * size : (one + 1) * size])
        for item in part
    ]


@pytest.fixture(autouse=True)
def _marked_as_it_is(request: pytest.FixtureRequest) -> Iterator[None]:
    before = len(_started)
    yield
    if request.node.get_closest_marker("unit"):
        assert _started[before:] == [], "this test starts processes: mark it `process`"


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """Commands that a test runs in this process send the log elsewhere; the next test may be any other one."""
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:] = handlers
    log.setLevel(level)
    log.propagate = propagate
