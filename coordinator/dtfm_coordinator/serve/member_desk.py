"""Desk of a coordinator at its entrance: gives a member what it asks for on a connection of its own."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from dtfm_coordinator.records.contribution_book import ContributionBook
from dtfm_coordinator.serve.model_shelf import ModelShelf, NotYet, ShelvedModel
from dtfm_coordinator.serve.own_key import OwnKey
from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.control.member_requests import CONTRIBUTION, MODEL, DeskAnswer, receive_request, receive_want, send
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.job_file import Sharing
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process.logs import log

NOT_SHARED = 'the owner does not share the model: that takes model = "members" under [sharing] in the job file'


@dataclass(frozen=True)
class DeskLimits:
    """The bounds of a desk; times are seconds."""

    request: float = 10.0
    """Seconds for a member to say what it wants, and to read an answer."""
    of_one: int = 4
    """Connections of one member."""
    in_all: int = 256
    """Connections in all; members that come in vain ask again."""
    part: float = 60.0
    """Seconds for a member that fetches a model to ask for the next part, and to read one."""
    fetching: int = 4
    """Members that fetch the model at the same time: training needs the line, too."""


DESK_LIMITS = DeskLimits()
"""Limits that hold where nobody passes others."""


class MemberDesk:
    """Desk for members, each of which has proven who it is."""

    def __init__(
        self,
        record: Callable[[str], ContributionRecord | None],
        shelf: ModelShelf | None = None,
        limits: DeskLimits = DESK_LIMITS,
    ) -> None:
        """Take what is given away.

        Args:
            record: returns the signed record of what a member has contributed, None where that is nothing; called in
                another thread, one call at a time.
            shelf: has the model; None: the owner does not share it.
            limits: how long it waits, and how much it takes on.
        """
        self._record, self._shelf, self._limits = record, shelf, limits
        self._turn = asyncio.Lock()
        self._here: Counter[str] = Counter()
        self._fetching: set[str] = set()
        """Members that fetch the model."""

    async def serve(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of `peer` on its connection.

        Raises:
            Refused: it asks for too much at a time, or for what is no request.
            TimeoutError: it does not say what it wants, or does not read the answer.
            EOFError: it is gone.
            OSError: the same.
        """
        if self._here[peer] >= self._limits.of_one or self._here.total() >= self._limits.in_all:
            raise Refused("too many at the desk")
        self._here[peer] += 1
        try:
            await self._serve(peer, reader, writer)
        finally:
            self._here[peer] -= 1
            if not self._here[peer]:
                del self._here[peer]

    async def _serve(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._limits.request):
            request = await receive_request(reader)
        if request.kind == CONTRIBUTION:
            await self._say(writer, await self._contribution(peer))
        elif request.kind == MODEL and peer in self._fetching:
            await self._say(writer, DeskAnswer(refused="this machine is fetching the model already", later=True))
        elif request.kind == MODEL and len(self._fetching) >= self._limits.fetching:
            await self._say(writer, DeskAnswer(refused="others are fetching the model", later=True))
        elif request.kind == MODEL:
            self._fetching.add(peer)
            try:
                await self._give_model(reader, writer)
            finally:
                self._fetching.discard(peer)
        else:
            await self._say(writer, DeskAnswer(refused="this coordinator does not know what that is: it is older"))

    async def _contribution(self, peer: str) -> DeskAnswer:
        async with self._turn:
            try:
                record = await asyncio.to_thread(self._record, peer)
            except OSError as error:
                log.warning("%s asks what it has contributed, and the records cannot be read: %s.", short(peer), error)
                return DeskAnswer(refused="the coordinator cannot read its records now", later=True)
        return DeskAnswer(refused="" if record else "no step with a part of this machine counts yet", record=record)

    async def _give_model(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Offer the model, and give what is asked for of it."""
        if self._shelf is None:
            await self._say(writer, DeskAnswer(refused=NOT_SHARED))
            return
        with contextlib.ExitStack() as stack:
            try:
                model = stack.enter_context(self._shelf.fetching())
            except (Refused, UserError) as error:
                later = isinstance(error, NotYet)
                answer = DeskAnswer(refused=str(error)[:400], later=later, newest=self._shelf.newest if later else None)
                await self._say(writer, answer)
                return
            await self._say(writer, DeskAnswer(model=model.offered, newest=self._shelf.newest))
            await self._give_parts(model, reader, writer)

    async def _give_parts(
        self, model: ShelvedModel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            async with asyncio.timeout(self._limits.part):
                want = await receive_want(reader)
            if want is None:
                return
            writer.write(await asyncio.to_thread(model.read, want))
            async with asyncio.timeout(self._limits.part):
                await writer.drain()

    async def _say(self, writer: asyncio.StreamWriter, answer: DeskAnswer) -> None:
        send(writer, answer)
        async with asyncio.timeout(self._limits.request):
            await writer.drain()


@contextlib.asynccontextmanager
async def member_desk(key: OwnKey, swarm: str, job: ResolvedJob, sharing: Sharing) -> AsyncIterator[MemberDesk]:
    """Keep a desk for as long as the block lasts.

    Args:
        key: signs what members have contributed; it lies in the state folder that tells of it.
        swarm: the swarm's id.
        job: as it began.
        sharing: says whether the model is given away.
    """
    book = ContributionBook(key.folder, swarm, job, key.identity, key.certificate)
    async with contextlib.AsyncExitStack() as stack:
        shelf = None
        if sharing.model == "members":
            shelf = await stack.enter_async_context(ModelShelf(key.folder, job.name).open())
        yield MemberDesk(book.record, shelf)
