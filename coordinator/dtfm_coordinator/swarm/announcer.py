"""Announcer of what a coordinator does, and of what it has on disk."""

import asyncio
from collections.abc import Callable

from dtfm_coordinator.swarm.overview.owner_words import is_aside, phase_in_brief, with_names
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.control.messages import ANSWERS, LEDGER, PHASE, Answers, Ledger, Phase
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version

BREATH_SECONDS = 0.1
"""Pause between two ledgers: whoever asks for them again and again has everybody told no more often."""


class Announcer:
    """Announcer of the coordinator's phase and of its ledger (what is on disk), for nodes and for people."""

    def __init__(
        self,
        control: ControlPlane,
        state: SwarmState,
        rows: MetricsFile,
        session: str = "",
        called: Callable[[], int] = lambda: 0,
    ) -> None:
        """Say nothing yet.

        Args:
            session: random text of this run of the coordinator, to which its phases belong.
            called: returns the version of the plan that is called for, the epoch to which they belong.
        """
        self._control, self._state, self._rows = control, state, rows
        self._session, self._called = session, called
        self.phase = Phase(name="waiting", text="starting", session=session)
        self._told = ""
        """What was last told of that in the log."""
        self._due = asyncio.Event()
        self._asked: dict[str, str] = {}
        """Session of each peer that has called for a sign of life, and was not answered yet."""

    async def run(self) -> None:
        """Publish the ledger whenever it is due, and answer who has asked, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            if self._asked:
                answers = Answers(to=tuple(self._asked.values()), session=self._session, version=product_version())
                self._asked.clear()
                await self._control.publish(ANSWERS, answers)
            ledger = Ledger(recorded=self._rows.last, kept=self._state.kept.step, safe=self._state.safe)
            await self._control.publish(LEDGER, ledger)
            await self._state.clock.sleep(BREATH_SECONDS)

    async def say(self, name: str, text: str, *, paused: bool = False) -> None:
        """Change the phase to `name`, with `text` for people, for nodes, log and status; `paused`: as the owner
        wishes."""
        values = {
            "name": name, "text": text[:480], "paused": paused, "session": self._session, "called": self._called()
        }  # fmt: skip
        phase, before = Phase.model_validate(values), self.phase
        if (phase.name, phase.text, phase.paused) != (before.name, before.text, before.paused):
            self.phase = phase
            self._tell(phase)
            await self._control.publish(PHASE, phase)

    def _tell(self, phase: Phase) -> None:
        """Log what is done, in the owner's words; with debug lines on, in the planner's, too."""
        log.debug("%s: %s", phase.name, phase.text)
        if self._state.plan is not None and is_aside(phase):
            return
        told = with_names(phase_in_brief(phase, self._state.plan), self._state.members.names())
        if told != self._told:
            self._told = told
            log.info("%s", told)

    def answer(self, peer: str, session: str) -> None:
        """Have `peer`, which calls in its `session`, answered, and told the ledger; who is in time for none of
        `SEEN_LIMIT` places calls again."""
        if peer in self._asked or len(self._asked) < SEEN_LIMIT:
            self._asked[peer] = session
        self._due.set()

    def tell_ledger(self) -> None:
        """Have the ledger published, with what is on disk by then."""
        self._due.set()
