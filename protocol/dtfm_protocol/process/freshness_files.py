"""Files in a state dir by which counters outlive a process: this program's own, and those that it has heard of others.

Neither costs a flush a message: of its own numbers a program reserves a million at a time, and of others' it may forget
what it heard in the last seconds before a crash.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel, ValidationError

from dtfm_protocol.bounds import Count
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.freshness import MOST_SENDERS, Freshness
from dtfm_protocol.identity.message_counter import MessageCounter
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

COUNTER, HEARD = "counter", "heard.json"
SAVE_SECONDS = 5.0
"""How often what was heard is written down, where something was."""


class _Known(RootModel[Annotated[dict[str, dict[str, Count]], Field(max_length=MOST_SENDERS)]]):
    """The greatest counters that were heard, by sender and kind."""


def message_counter(folder: Path) -> MessageCounter:
    """Return the counter of the identity whose state dir is `folder`.

    A file that cannot be read is taken for none: the clock keeps numbers from repeating (`MessageCounter`).

    Raises:
        UserError: there is no room on the disk.
    """
    path = folder / COUNTER
    try:
        reserved = int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        reserved = 0
    except (OSError, ValueError):
        log.warning("%s is damaged: message numbers go by the clock", path)
        reserved = 0
    return MessageCounter(reserved, lambda end: write_atomically(path, f"{end}\n", lasting=True))


class FreshnessFile:
    """What was heard of others in one state dir, read when a connection is set up, and saved now and then."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = folder / HEARD, clock
        self._due = clock() + SAVE_SECONDS

    def load(self) -> Freshness:
        """Return what an earlier run has heard; nothing where its file cannot be read."""
        try:
            return Freshness(_Known.model_validate_json(self._path.read_bytes()).root)
        except FileNotFoundError:
            return Freshness()
        except (OSError, ValidationError):
            log.warning("%s is damaged: old messages may be taken for new ones", self._path)
            return Freshness()

    def save(self, heard: Freshness, *, now: bool = False) -> None:
        """Write down what was heard, if that is due or is to be done `now`; a full disk stops nobody."""
        if not now and self._clock() < self._due:
            return
        self._due = self._clock() + SAVE_SECONDS
        try:
            write_atomically(self._path, json.dumps(heard.known))
        except UserError as error:
            log.warning("%s", error)
