"""The log of both programs: short lines for people, or one JSON object a line."""

import json
import logging
import sys
import time
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError

LOG_BYTES, LOG_PARTS = 2_000_000, 4
"""Bytes after which a log file is begun anew, and the number of older parts that are kept."""
log = logging.getLogger("dtfm")
"""The logger of all programs of this product."""


class LogFormat(StrEnum):
    """The form in which progress is written."""

    plain = "plain"
    json = "json"


class _Plain(logging.Formatter):
    """A formatter of lines `12:34:56 what happened`, with the level named from warning up, and what to do about it
    where a filter has found that (`record.advice`)."""

    def __init__(self, clock: str = "%H:%M:%S") -> None:
        super().__init__()
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime(self._clock, time.localtime(record.created))
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        # Whoever logs a stranger's words may have forgotten what they can do to a terminal.
        said = "\n".join(map(printable, record.getMessage().splitlines()))
        advice = getattr(record, "advice", "")
        text = f"{clock} {level}{said}" + (f"{'' if said.endswith('.') else '.'} {advice}" if advice else "")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    """A formatter of one JSON object a line: at, level, message, and the fields given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": round(record.created, 3), "level": record.levelname.lower(), "message": record.getMessage()}
        if advice := getattr(record, "advice", ""):
            line["advice"] = advice
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(form: Literal["plain", "json"], verbose: bool = False, file: Path | None = None) -> None:
    """Send this program's log to standard error, or to a file that never takes more than `LOG_PARTS + 1` times
    `LOG_BYTES` with its older parts.

    Raises:
        UserError: the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if file is None else _rotating(file)
    handler.setFormatter(_Json() if form == "json" else _Plain("%H:%M:%S" if file is None else "%Y-%m-%d %H:%M:%S"))
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    log.propagate = False


def _rotating(path: Path) -> RotatingFileHandler:
    try:
        return RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_PARTS, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}; check what --log-file says") from None
