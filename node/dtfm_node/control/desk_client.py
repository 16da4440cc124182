"""Client of the desk at a coordinator's entrance: asks for what a member may have there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.control.member_requests import CONTRIBUTION, DESK, DeskAnswer, DeskRequest, receive_answer, send
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity

PART_SECONDS = 60.0
"""Limit of each part of a file."""
READ_AHEAD = 1 << 20
"""Bytes that are read before anybody asks for them."""


class NoCoordinator(ConnectionError):
    """The failure to reach any coordinator of the swarm."""


class Visit(NamedTuple):
    """A connection to the desk, on which one thing may be asked for."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, kind: str) -> DeskAnswer:
        """Ask for what is called `kind`. Raises Refused, EOFError and OSError where no answer comes."""
        send(self.writer, DeskRequest(kind=kind))
        return await receive_answer(self.reader)

    async def read(self, size: int) -> bytes:
        """Read `size` bytes of a file.

        Raises:
            ConnectionError: the connection ends, or nothing comes for long.
        """
        try:
            async with asyncio.timeout(PART_SECONDS):
                return await self.reader.readexactly(size)
        except (OSError, EOFError) as error:
            raise ConnectionResetError(str(error) or "nothing comes") from None


class DeskClient:
    """Client of the desks of one swarm's coordinators."""

    def __init__(self, invite: Invite, identity: Identity, admission: Admission) -> None:
        """Take who is asked, and who asks."""
        self._invite, self._identity, self._admission = invite, identity, admission

    @contextlib.asynccontextmanager
    async def visit(self, seconds: float) -> AsyncIterator[Visit]:
        """Connect to the first coordinator that answers within `seconds`.

        Raises:
            NoCoordinator: none does; it says why.
            Refused: one does, and has no desk.
        """
        fault = "no answer"
        for address in BrokerAddress.entrances(self._invite):
            try:
                async with asyncio.timeout(seconds):
                    visit = await self._connect(address)
            except OSError as error:  # a TimeoutError is one
                fault = f"{address}: {error or 'no answer'}"
                continue
            try:
                yield visit
            finally:
                visit.writer.transport.abort()
            return
        raise NoCoordinator(fault)

    async def _connect(self, address: BrokerAddress) -> Visit:
        context = address.context(self._identity, self._admission.certificate, self._admission.coordinators)
        assert context is not None, "an entrance speaks TLS"
        context.set_alpn_protocols([DESK])
        reader, writer = await asyncio.open_connection(
            address.host, address.port, limit=READ_AHEAD, ssl=context, server_hostname=""
        )
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != DESK:
            writer.transport.abort()
            raise Refused(f"the coordinator at {address} is of an earlier version")
        return Visit(reader, writer)

    async def contribution(self, seconds: float) -> ContributionRecord | None:
        """Return the record of what this member has contributed; None: nothing that counts yet.

        Args:
            seconds: limit of all of it.

        Raises:
            OSError: no coordinator answers in time.
            EOFError: the connection ended.
            Refused: what came is no answer.
        """
        async with asyncio.timeout(seconds), self.visit(seconds) as visit:
            return (await visit.ask(CONTRIBUTION)).record
