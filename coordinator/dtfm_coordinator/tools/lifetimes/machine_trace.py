"""Trace of machines that come and go, as a CSV file says it. Pure.

Two forms, told apart by their first line; times are seconds since the run's beginning:

- `time,machine,event`: a line for each time that a machine comes ("up") or goes ("down");
- `machine,up,down`: a line for each lifetime; without `down` it lasts to the end.

A machine of which the first thing told is that it goes was there at the beginning, and so was one that is not told of.
"""

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dtfm_protocol.errors import UserError

EVENTS = ["time", "machine", "event"]
LIFETIMES = ["machine", "up", "down"]


class MachineEvent(NamedTuple):
    """Coming or going of a machine."""

    at: float
    """Seconds since the run's beginning."""
    machine: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class MachineTrace:
    """Trace of all machines of a view."""

    at_first: frozenset[str]
    """Machines that are there at the beginning."""
    events: tuple[MachineEvent, ...]
    """What happens then, in order of time; a machine comes and goes in turn."""

    @property
    def end(self) -> float:
        """Seconds when the last thing happens."""
        return self.events[-1].at if self.events else 0.0


def read_trace(text: str, machines: Collection[str], name: str) -> MachineTrace:
    """Return the trace that a CSV file holds, for the `machines` of a view.

    Args:
        name: name of the file, for errors.

    Raises:
        UserError: the file has neither form, a line cannot be read, or a machine comes twice without going; the line
            is named.
    """
    lines = csv.reader(io.StringIO(text))
    heading = [cell.strip() for cell in next(lines, [])]
    if heading not in (EVENTS, LIFETIMES):
        raise UserError(f"{name}: the first line must be {','.join(EVENTS)} or {','.join(LIFETIMES)}")
    rows = _rows(lines, name)
    events = list(_of_events(rows, name) if heading == EVENTS else _of_lifetimes(rows, name))
    known = set(machines)
    for line, event in events:
        if event.machine not in known:
            raise UserError(f"{name}, line {line}: the view has no machine {event.machine!r}")
    events.sort(key=lambda one: one[1].at)
    here, first = dict[str, bool](), dict[str, bool]()
    for line, event in events:
        if here.get(event.machine) is event.is_up:
            raise UserError(
                f"{name}, line {line}: {event.machine} {'comes' if event.is_up else 'goes'} twice in a row: "
                "give what happens in between"
            )
        here[event.machine] = event.is_up
        first.setdefault(event.machine, event.is_up)
    at_first = {machine for machine in machines if not first.get(machine, False)}
    later = []
    for _, event in events:
        if event.at > 0:
            later.append(event)
        elif event.is_up:
            at_first.add(event.machine)
        else:
            at_first.discard(event.machine)
    return MachineTrace(frozenset(at_first), tuple(later))


def _rows(lines: Iterable[list[str]], name: str) -> Iterator[tuple[int, list[str]]]:
    for number, cells in enumerate(lines, 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != 3:
            raise UserError(f"{name}, line {number}: {len(cells)} entries, not 3")
        yield number, [cell.strip() for cell in cells]


def _of_events(rows: Iterable[tuple[int, list[str]]], name: str) -> Iterator[tuple[int, MachineEvent]]:
    for number, (at, machine, event) in rows:
        if event not in ("up", "down"):
            raise UserError(f"{name}, line {number}: event is up or down, not {event!r}")
        yield number, MachineEvent(_seconds(at, name, number), machine, event == "up")


def _of_lifetimes(rows: Iterable[tuple[int, list[str]]], name: str) -> Iterator[tuple[int, MachineEvent]]:
    for number, (machine, up, down) in rows:
        begin, end = _seconds(up, name, number), _seconds(down, name, number) if down else math.inf
        if end <= begin:
            raise UserError(f"{name}, line {number}: {machine} goes at {end:g} s, and comes only at {begin:g} s")
        yield number, MachineEvent(begin, machine, True)
        if math.isfinite(end):
            yield number, MachineEvent(end, machine, False)


def _seconds(text: str, name: str, number: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(f"{name}, line {number}: {text!r} is no time: give seconds since the beginning, from 0")
    return value
