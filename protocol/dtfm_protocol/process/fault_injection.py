"""The points at which a test may have a process die, stop or wait; nothing happens at them otherwise.

`DTFM_FAULT=NAME@STEP:ACTION` in a process's environment, where ACTION is `kill` (SIGKILL), `stop` (SIGSTOP) or
`sleep=SECONDS`; several are separated by commas, and each acts once. `DTFM_FAULT_FILE` names a file with the same, that
may be written while the process runs.
"""

import os
import signal
import time
from dataclasses import dataclass

from dtfm_protocol.errors import UserError

POINTS = (
    "before-send",
    "mid-frame",
    "after-send",
    "mid-all-reduce",
    "before-vote",
    "after-vote",
    "before-commit",
    "mid-commit",
    "before-apply",
    "after-apply",
    "mid-checkpoint",
    "mid-hand-in",
    "mid-state-transfer",
    "after-promise",
    "after-accept",
    "before-start",
    "after-call",
    "after-plan",
    "before-in-force",
)
"""Names of the points, in the order of a step, then of a checkpoint, then of a new plan."""


@dataclass
class InjectedFault:
    """A fault that a process is to have at the point `name`, from training step `step` on."""

    name: str
    step: int
    action: str
    """The fault: "kill", "stop" or "sleep=SECONDS"."""


def parse(text: str) -> list[InjectedFault]:
    """Parse the text of DTFM_FAULT.

    Raises:
        UserError: the text is not of that form, or names no such point.
    """
    faults = []
    for part in filter(None, text.split(",")):
        where, _, action = part.partition(":")
        name, _, step = where.partition("@")
        seconds = action.removeprefix("sleep=")
        known = action in {"kill", "stop"} or (seconds != action and seconds.replace(".", "", 1).isdigit())
        if name not in POINTS or not known or not (step or "0").isdigit():
            raise UserError(f"DTFM_FAULT: {part!r} is not NAME@STEP:ACTION with a NAME of {', '.join(POINTS)}")
        faults.append(InjectedFault(name, int(step or 0), action))
    return faults


class InjectedFaults:
    """The faults that are still to happen; read from a file, too, that may change while the process runs."""

    def __init__(self, text: str, path: str | None) -> None:
        self._faults = parse(text)
        self._path = path
        self._seen = -1

    def take(self, name: str, step: int, *, look: bool = False) -> InjectedFault | None:
        """Return the fault that is due at a point, and forget it, unless `look`; None: none is due."""
        if self._path is not None:
            self._read(self._path)
        for fault in self._faults:
            if fault.name == name and step >= fault.step:
                if not look:
                    self._faults.remove(fault)
                return fault
        return None

    def _read(self, path: str) -> None:
        try:
            changed = os.stat(path).st_mtime_ns
            if changed != self._seen:
                self._seen = changed
                with open(path, encoding="ascii") as file:
                    self._faults = parse(file.read().strip())
        except OSError:
            self._seen = -1


_FAULTS = InjectedFaults(os.environ.get("DTFM_FAULT", ""), os.environ.get("DTFM_FAULT_FILE"))


def point(name: str, step: int = 0) -> None:
    """Mark a point that the process has come to, where a fault may happen; `step` is the training step it is about."""
    fault = _FAULTS.take(name, step)
    if fault is not None:
        _act(fault.action)


def armed(name: str, step: int = 0) -> bool:
    """Whether a fault will happen at a point; only then need a caller come to it in pieces."""
    return _FAULTS.take(name, step, look=True) is not None


def _act(action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(float(action.removeprefix("sleep=")))
