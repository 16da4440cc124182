"""Keeper of the signed record of what this node has contributed: asks for it now and then, and at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dtfm_node.control.contribution_words import contributed
from dtfm_protocol.control.contribution_record import ContributionRecord, ContributionStatement
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

NAME = "contribution.json"
"""Name of the record's file in a node's state folder."""


class ContributionKeeper:
    """Keeper of one node's record, which what a coordinator says last replaces."""

    def __init__(
        self,
        folder: Path,
        peer: str,
        swarm: str,
        coordinators: Coordinators,
        ask: Callable[[], Awaitable[ContributionRecord | None]],
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take up the record of an earlier run of the node, if there is one.

        Args:
            folder: the state folder.
            peer: this node's peer id.
            swarm: the swarm's id.
            coordinators: who coordinates it, as this node knows.
            ask: asks a coordinator for the record, for a bounded time.
            told: called with what the record says, in a sentence, whenever that is news.
        """
        self._path, self._peer, self._swarm = folder / NAME, peer, swarm
        self._coordinators, self._ask, self._told = coordinators, ask, told
        self._due, self._kept_step = asyncio.Event(), 0
        self.said: ContributionStatement | None = None
        """What the record says; None: there is none."""
        try:
            self.said, _ = ContributionRecord.parsed(self._path.read_bytes()).opened()
            self._told(contributed(self.said))
        except (OSError, UserError, Refused):
            pass  # none yet, or none that can be used: a new one replaces it

    def kept(self, step: int) -> None:
        """Note that the coordinator keeps the state after `step`: what led to it counts from now on."""
        if step > self._kept_step:
            self._kept_step = step
            self._due.set()

    async def run(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Ask whenever there is news, until cancelled; after each time `pause` is awaited."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self.refresh()
            await pause()

    async def refresh(self) -> bool:
        """Ask for the record, and keep it if it is genuine; whether that was done. Nothing is raised: a run does not
        depend on it."""
        try:
            record = await self._ask()
            if record is None:
                return False
            said = record.said_of(self._peer, self._swarm, self._coordinators)
            write_atomically(self._path, record.model_dump_json(indent=1))
        except (OSError, EOFError, UserError, Refused) as error:
            log.debug("no record of the contribution: %s", error or type(error).__name__)
            return False
        self.said = said
        self._told(contributed(said))
        return True
