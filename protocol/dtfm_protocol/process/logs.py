"""The log of both programs: short lines for people, or one JSON object a line."""

import json
import logging
import sys
import time
from enum import StrEnum
from typing import Literal

from dtfm_protocol.bounds import printable

log = logging.getLogger("dtfm")
"""The logger of all programs of this product."""


class LogFormat(StrEnum):
    """The form in which progress is written."""

    plain = "plain"
    json = "json"


class _Plain(logging.Formatter):
    """A formatter of lines `12:34:56 what happened`, with the level named from warning up."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        # Whoever logs a stranger's words may have forgotten what they can do to a terminal.
        said = "\n".join(map(printable, record.getMessage().splitlines()))
        text = f"{clock} {level}{said}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    """A formatter of one JSON object a line: at, level, message, and the fields given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": round(record.created, 3), "level": record.levelname.lower(), "message": record.getMessage()}
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(form: Literal["plain", "json"], verbose: bool = False) -> None:
    """Send this program's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Plain())
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    log.propagate = False
