"""Order to pause, in a file of the state folder: `dtfm-node pause` writes it, the node follows it.

It outlives the node's process: who has paused a node finds it paused after a restart.
"""

import contextlib
import math
import re
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

ORDER = "pause.json"
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST = 366 * 86400.0
"""Seconds of the longest pause that has an end."""


class PauseOrder(Schema):
    """The word of the node's person that it is to pause."""

    until: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """Unix seconds when the pause is over; None: when its person says so."""
    at_once: bool = False
    """Whether the node waits for nobody."""

    def is_over(self, at: float) -> bool:
        """Whether the pause has ended by the time `at`, in Unix seconds."""
        return self.until is not None and at >= self.until

    def words(self, at: float) -> str:
        """Return the order in words, as they are said at the time `at` (Unix seconds)."""
        if self.until is None:
            return "until `dtfm-node resume`"
        form = "%H:%M" if self.until - at < 20 * 3600 else "%Y-%m-%d %H:%M"
        return f"until {time.strftime(form, time.localtime(self.until))}"


def read_order(folder: Path) -> PauseOrder | None:
    """Return the order that is in force in a state folder; None: there is none, or none that can be read."""
    try:
        return PauseOrder.model_validate_json((folder / ORDER).read_bytes())
    except (OSError, ValidationError):
        return None


def write_order(folder: Path, order: PauseOrder | None) -> None:
    """Put `order` in force in a state folder; None: put the one that is there out of force.

    Raises:
        UserError: the folder is not writable.
    """
    if order is not None:
        write_atomically(folder / ORDER, order.model_dump_json(), private=True)
        return
    try:
        with contextlib.suppress(FileNotFoundError):
            (folder / ORDER).unlink()
    except OSError as error:
        raise UserError(f"cannot delete {folder / ORDER}: {error.strerror}") from None


def seconds_of(text: str) -> float:
    """Return the seconds that a span of time lasts, as a person writes it: "2h", "90min", "1h30m".

    Raises:
        UserError: it is none, or shorter than a second, or longer than a year.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", "", text).strip():
        raise UserError(f"--for {text}: say how long with a unit, as in 2h, 90min or 1h30m")
    seconds = math.fsum(float(number) * UNITS[unit] for number, unit in parts)
    if not 1.0 <= seconds <= LONGEST:
        raise UserError(f"--for {text}: a pause lasts a second at least, and a year at most")
    return seconds
