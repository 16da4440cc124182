"""Patch for hivemind 1.1: late answers end its P2P client, its sockets stay in /tmp, its clock is the machine's.

No report of any of these was found upstream. What is worked around, as of hivemind 1.1.12:

- `ControlClient._read_from_persistent_conn` (hivemind/p2p/p2p_daemon_bindings/control.py) sets the result of whatever
  call is in `_pending_calls`. Between a call's cancellation and the `finally` that takes it out of that table,
  `set_result` raises InvalidStateError, which ends the only task that reads answers.
- `P2P.replicate` (hivemind/p2p/p2p_daemon.py) puts the client's socket at a path of its own choice, `/tmp/hivemind-*`,
  where it stays when the process is killed.
- `get_dht_time` (hivemind/utils/timed_storage.py) is `time.time`; other modules import it by name.
- `TimedStorage.store` (hivemind/utils/timed_storage.py) adds to a heap also what it does not store, because it has what
  is newer: whoever sends one record over and over fills memory.
- `ControlClient._handle_persistent_request` (hivemind/p2p/p2p_daemon_bindings/control.py) forgets its task in
  `_handler_tasks` only where it is not cancelled, which any caller can have it be; and fails where two have one id.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.p2p import P2P

from dtfm_protocol.process.compat.known_versions import is_known

LEAST_SECONDS = 0.05
"""Seconds by which a record has to live longer than the one that it replaces."""
VERSIONS = ">=1.1.11,<1.2"
"""Versions of hivemind that are known to have these faults."""


class AwaitedCalls(dict[Any, asyncio.Future[Any]]):
    """A table of calls to other peers that has only those that somebody still waits for."""

    def __contains__(self, call: object) -> bool:
        waiter = self.get(call)
        return waiter is not None and not waiter.done()


class RunningCalls(dict[Any, asyncio.Task[Any]]):
    """A table of the tasks that answer calls, without those that have ended."""

    def __setitem__(self, call: Any, task: asyncio.Task[Any]) -> None:
        super().__setitem__(call, task)
        task.add_done_callback(lambda ended: self.pop(call) if self.get(call) is ended else None)

    def pop(self, call: Any, default: Any = None) -> Any:
        return super().pop(call, default)


def ignore_late_answers(p2p: Any) -> None:
    """Make a P2P client, which has not called anybody yet, drop answers that nobody waits for any more.

    And calls that nobody waits for an answer to.
    """
    if _is_known():
        p2p._client.control._pending_calls = AwaitedCalls()
        p2p._client.control._handler_tasks = RunningCalls()


def client_in(folder: Path) -> Any:
    """Return the class of P2P clients whose sockets lie in `folder`, to be taken away with it."""
    return type("P2PInFolder", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{folder}/"}) if _is_known() else P2P


def refuse_stale_records() -> None:
    """Make this process's DHT refuse at once a record that lives hardly longer than the one that it has."""
    if not _is_known() or getattr(DHTLocalStorage.store_subkey, "refuses_stale", False):
        return
    store = DHTLocalStorage.store_subkey

    def store_newer(storage: Any, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        held = storage.get(key)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            entry = held.value.get(subkey)
            if entry is not None and expiration_time < entry.expiration_time + LEAST_SECONDS:
                return False
        return bool(store(storage, key, subkey, value, expiration_time))

    store_newer.refuses_stale = True  # type: ignore[attr-defined]
    DHTLocalStorage.store_subkey = store_newer


def replace_clock(now: Callable[[], float]) -> None:
    """Set this process's DHT to another clock, which returns seconds since 1970, from now on."""
    if _is_known():
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "hivemind" and hasattr(module, "get_dht_time"):
                setattr(module, "get_dht_time", now)  # noqa: B010 - the name is known at run time only


def _is_known() -> bool:
    return is_known("hivemind", VERSIONS)
