"""Announcer of what a coordinator does, and of what it has on disk."""

import asyncio

from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.control.messages import LEDGER, PHASE, Ledger, Phase
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.logs import log


class Announcer:
    """Announcer of the coordinator's phase and of its ledger (what is on disk), for nodes and for people."""

    def __init__(self, control: ControlPlane, state: SwarmState, rows: MetricsFile) -> None:
        self._control, self._state, self._rows = control, state, rows
        self.phase = Phase(name="waiting", text="starting")
        self._due = asyncio.Event()

    async def run(self) -> None:
        """Publish the ledger whenever it is due, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            ledger = Ledger(recorded=self._rows.last, kept=self._state.kept.step, safe=self._state.safe)
            await self._control.publish(LEDGER, ledger)

    async def say(self, name: str, text: str) -> None:
        """Change the phase to `name`, with `text` for people, for nodes, log and status."""
        phase = Phase.model_validate({"name": name, "text": text[:480]})
        if phase != self.phase:
            self.phase = phase
            log.info("%s: %s", name, text)
            await self._control.publish(PHASE, phase)

    def tell_ledger(self) -> None:
        """Have the ledger published, with what is on disk by then."""
        self._due.set()
