"""Patches of third parties: made for the versions that are installed, needed by them, and left out for others."""

import asyncio
import inspect
import logging
import sys
import time
from collections.abc import Iterator

import pytest
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.utils import timed_storage

from dtfm_protocol.process.compat import hivemind, known_versions
from dtfm_protocol.process.compat.hivemind import AwaitedCalls, client_in, replace_clock
from dtfm_protocol.process.compat.known_versions import is_known
from dtfm_protocol.process.logs import log


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    propagates, log.propagate = log.propagate, True
    caplog.set_level(logging.WARNING)
    yield caplog
    log.propagate = propagates


def test_what_is_installed_is_known(warned: pytest.LogCaptureFixture) -> None:
    assert is_known("hivemind", hivemind.VERSIONS)
    assert warned.records == []


def test_a_version_that_nobody_has_looked_at_is_not_patched_and_named(
    monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(known_versions, "version", lambda _: "1.2.0")
    before = timed_storage.get_dht_time
    replace_clock(lambda: 0.0)
    assert timed_storage.get_dht_time is before
    assert client_in(__file__) is P2P  # type: ignore[arg-type]
    assert {record.getMessage().partition(":")[0] for record in warned.records} == {"hivemind 1.2.0 is not patched"}


def test_the_libraries_still_do_what_the_patches_are_for() -> None:
    """Where this fails after an upgrade, look whether the patch can go."""
    assert ".set_result(" in inspect.getsource(ControlClient._read_from_persistent_conn)
    assert ".done()" not in inspect.getsource(ControlClient._read_from_persistent_conn)
    assert "_UNIX_SOCKET_PREFIX" in inspect.getsource(P2P.replicate)


async def test_a_call_that_was_given_up_is_no_longer_awaited() -> None:
    calls = AwaitedCalls()
    calls["call"] = asyncio.get_running_loop().create_future()
    assert "call" in calls
    assert "another" not in calls
    calls["call"].cancel()
    assert "call" not in calls
    assert calls.pop("call").cancelled()  # as the one who gave it up does


def test_the_dht_goes_by_another_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from hivemind.dht import node

    for name, module in list(sys.modules.items()):  # so that the clock is set back afterwards
        if name.startswith("hivemind") and hasattr(module, "get_dht_time"):
            monkeypatch.setattr(module, "get_dht_time", time.time)
    replace_clock(lambda: 7.0)
    storage = timed_storage.TimedStorage()
    assert timed_storage.get_dht_time() == node.get_dht_time() == 7.0
    assert storage.store("key", b"value", 8.0)
    assert not storage.store("key", b"value", 6.0)
