"""Availability of this machine: whether the node may work now, and in plain words why not. Pure: looks go in, a verdict
comes out.

A cause that comes and goes makes no node pause and go on all the time: some causes must last before they count, and all
but the hours must have been away for a while before the node goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Self

from dtfm_node.limits.hours import Hours
from dtfm_node.limits.machine_readings import MachineReading
from dtfm_node.limits.pause_order import PauseOrder

BUSY_CORES = 0.5
"""Cores that other programs of ordinary priority use together where the machine counts as in use; a desktop at rest
uses a tenth of one."""
INPUT_SECONDS = 60.0
"""Seconds since the last key or mouse move within which somebody sits at the machine."""
BY_ORDER = "paused by its person"
"""What the reason for a pause begins with where the machine's person has ordered it."""


class PauseCause(Enum):
    """Reason for which a node does not work, besides its person's order: words, and how steady it must be."""

    HOURS = "outside the hours", 0.0, 0.0
    BATTERY = "on battery", 0.0, 10.0
    METERED = "on a metered network", 0.0, 10.0
    INPUT = "somebody uses this machine", 0.0, 120.0
    GPU = "somebody uses this machine: another program computes on the GPU", 3.0, 120.0
    LOAD = "somebody uses this machine: other programs compute", 3.0, 120.0

    def __init__(self, words: str, lasts: float, calm: float) -> None:
        self.words = words
        self.lasts = lasts
        """Seconds for which it must be seen without a break before it counts."""
        self.calm = calm
        """Seconds for which it must not be seen before it counts no more."""


@dataclass(frozen=True)
class Rules:
    """What the person of the machine allows."""

    hours: tuple[Hours, ...] = ()
    """Spans of the day in which the node may work; none: all day."""
    not_on_battery: bool = False
    when_idle: bool = False
    """Whether the node works only while nobody uses the machine."""
    not_metered: bool = False

    @property
    def asks_machine(self) -> bool:
        """Whether the machine must be read to follow them."""
        return self.not_on_battery or self.when_idle or self.not_metered


class Look(NamedTuple):
    """A look at the clock, the machine, and its person's order."""

    now: float
    """Seconds of a clock that never goes back."""
    at: float
    """Unix seconds."""
    minute: int
    """Minutes after midnight, by the machine's own clock."""
    reading: MachineReading = MachineReading()
    order: PauseOrder | None = None


class MayWork(NamedTuple):
    """Whether the node may work."""

    works: bool = True
    why: str = ""
    """Why it may not, in plain words."""
    at_once: bool = False
    """Whether it is to stop without waiting for anybody."""


class Availability(NamedTuple):
    """State of what speaks against working, as it was seen over time."""

    rules: Rules = Rules()
    since: Mapping[PauseCause, float] = MappingProxyType({})
    """When each cause that was seen last time began to be seen, on the clock of `Look.now`."""
    last: Mapping[PauseCause, float] = MappingProxyType({})
    """When each cause was last seen."""
    held: frozenset[PauseCause] = frozenset()
    """Causes that count."""

    def on(self, look: Look) -> tuple[Self, MayWork]:
        """Return the state after a look, and whether the node may work."""
        seen = frozenset(_seen(self.rules, look))
        since = {cause: self.since.get(cause, look.now) for cause in seen}
        last = dict(self.last) | dict.fromkeys(seen, look.now)
        held = frozenset(
            cause
            for cause in PauseCause
            if (cause in seen and look.now - since[cause] >= cause.lasts)
            or (cause in self.held and look.now - last[cause] < cause.calm)
        )
        after = self._replace(since=MappingProxyType(since), last=MappingProxyType(last), held=held)
        return after, after._verdict(look)

    def _verdict(self, look: Look) -> MayWork:
        if look.order is not None and not look.order.is_over(look.at):
            return MayWork(False, f"{BY_ORDER} {look.order.words(look.at)}", look.order.at_once)
        cause = next((cause for cause in PauseCause if cause in self.held), None)
        if cause is None:
            return MayWork()
        hours = f" {', '.join(map(str, self.rules.hours))}" if cause is PauseCause.HOURS else ""
        return MayWork(False, f"{cause.words}{hours}")


def _seen(rules: Rules, look: Look) -> list[PauseCause]:
    """Return the causes that a look shows; what the machine does not tell is none."""
    reading, found = look.reading, list[PauseCause]()
    if rules.hours and not any(hours.has(look.minute) for hours in rules.hours):
        found.append(PauseCause.HOURS)
    if rules.not_on_battery and reading.on_battery:
        found.append(PauseCause.BATTERY)
    if rules.not_metered and reading.is_metered:
        found.append(PauseCause.METERED)
    if rules.when_idle:
        if reading.idle_seconds is not None and reading.idle_seconds < INPUT_SECONDS:
            found.append(PauseCause.INPUT)
        if reading.other_gpu_use:
            found.append(PauseCause.GPU)
        if reading.load_of_others is not None and reading.load_of_others >= BUSY_CORES:
            found.append(PauseCause.LOAD)
    return found
