"""Watch over the machine and its person's word: has the node pause, and go on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dtfm_node.limits.availability import Availability, Look, MayWork, Rules
from dtfm_node.limits.draining import Draining
from dtfm_node.limits.machine_readings import MachineReading, Readings
from dtfm_node.limits.pause_order import read_order, write_order
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts


class Pausable(Protocol):
    """What pauses and goes on, as `PlanLoop` does."""

    is_paused: bool

    @property
    def works(self) -> bool:
        """Whether it serves a plan."""

    def pause(self, why: str, *, at_once: bool = False, saved: bool = True) -> None:
        """Pause as soon as others can do without it."""

    def go_on(self) -> None:
        """Take part again."""


class AvailabilityWatch:
    """Watch of one node's availability."""

    def __init__(
        self,
        folder: Path,
        rules: Rules,
        readings: Readings,
        *,
        timeouts: Timeouts = TIMEOUTS,
        clock: MonotonicClock | None = None,
    ) -> None:
        """Nothing is looked at yet; `folder` is the node's state folder."""
        self._folder, self._readings, self._timeouts = folder, readings, timeouts
        self._clock = clock or MonotonicClock()
        self._availability = Availability(rules)

    async def check(self) -> None:
        """Check that the machine tells what the rules ask for: a limit that cannot hold is no limit.

        Raises:
            UserError: it does not.
        """
        rules = self._availability.rules
        if not rules.asks_machine:
            return
        reading = await self._readings.read()
        if rules.not_on_battery and reading.on_battery is None:
            raise UserError("--not-on-battery: this system does not tell whether it runs on battery; leave it away")
        if rules.not_metered and reading.is_metered is None:
            raise UserError(
                "--not-metered: this system does not tell whether its network is metered (NetworkManager and busctl "
                "would); leave it away"
            )

    async def look(self) -> MayWork:
        """Look once, and return whether the node may work; an order that is over is deleted."""
        order, at = read_order(self._folder), time.time()
        if order is not None and order.is_over(at):
            order = None
            try:
                write_order(self._folder, None)
            except UserError as error:
                log.warning("%s", error)
        local = time.localtime(at)
        reading = await self._readings.read() if self._availability.rules.asks_machine else MachineReading()
        look = Look(self._clock.now(), at, 60 * local.tm_hour + local.tm_min, reading, order)
        self._availability, found = self._availability.on(look)
        return found

    async def until_available(self, say: Callable[[str], object]) -> None:
        """Wait until the node may work; `say` tells people why it does not."""
        said = ""
        while not (found := await self.look()).works:
            if found.why != said:
                said = found.why
                say(said)
            await self._clock.sleep(self._timeouts.availability_look)

    async def run(self, node: Pausable, is_connected: Callable[[], bool], sent: Callable[[], int]) -> None:
        """Have `node` pause and go on as is due, until cancelled.

        Args:
            node: what pauses.
            is_connected: whether the node has its broker.
            sent: returns the bytes that the node has sent so far.
        """
        before, draining = MayWork(), self._begun(sent())
        while True:
            found = await self.look()
            if found.works != before.works:
                draining = self._begun(sent())
            if found.works and not before.works:
                node.go_on()
            elif not found.works and found != before:
                node.pause(found.why, at_once=found.at_once, saved=not found.at_once)
            elif not found.works and not node.is_paused:
                now = self._clock.now()
                draining = draining.looked(now, sent(), works=node.works, connected=is_connected())
                if draining.is_vain(now):
                    node.pause(found.why, at_once=True)
            before = found
            await self._clock.sleep(self._timeouts.availability_look)

    def _begun(self, sent: int) -> Draining:
        return Draining(self._timeouts.leave, self._timeouts.leave_alone, self._clock.now(), sent)
