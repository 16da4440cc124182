"""News from member to member: who is banned, and who coordinates the swarm, also where no coordinator is heard.

Everything in it is signed by coordinators, so it matters little who tells it. A peer asks others, with a digest of what
it knows; it is told nothing but what others know beside that, and asks whoever has shown to know something else.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Protocol

from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from pydantic import Field, ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import MOST_AUTHORITIES, Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_list import MOST_BANS, MOST_RULINGS
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.enrolment import Certificate
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import Unreachable

NEWS = "news"
"""The call that asks for news."""
DIGEST_BYTES = 32
REQUEST_LIMIT = DIGEST_BYTES + 128
"""Bytes of the largest request: a digest, and the subject of the ban after which to go on."""
PAGE = 1000
"""Bans in one answer, which has some 300 bytes for each; a call carries a megabyte."""
MOST_ASKED = 3
"""Members that are asked in each round, drawn at random."""
MOST_TOLD = 16
"""Members that are told at once where something is new, or asked because there is reason to."""


class MemberNews(Message):
    """An answer to NEWS."""

    authorities: Annotated[tuple[Certificate, ...], Field(max_length=MOST_AUTHORITIES)] = ()
    """Certificates of coordinators, which say whose places those have taken."""
    bans: Annotated[tuple[Ban, ...], Field(max_length=PAGE)] = ()
    """Those that hold, in the order of their subjects."""
    rulings: Annotated[tuple[BanRuling, ...], Field(max_length=MOST_RULINGS)] = ()
    """On bans that hold no more, or again; all of them stand in the first answer."""


class Calls(Protocol):
    """Calls to other members, and theirs to this one (`MemberCalls`)."""

    async def serve(self, name: str, answer: Callable[[str, bytes], Awaitable[bytes]], limit: int) -> None:
        """Answer calls of `name`."""

    async def call(self, peer: str, name: str, request: bytes = b"") -> bytes:
        """Return what `peer` answers."""


class NewsExchange:
    """The exchange of news of one peer with members to whom it is connected."""

    def __init__(
        self, calls: Calls, admission: Admission, others: Callable[[], Awaitable[Collection[str]]], seconds: float
    ) -> None:
        """Say nothing before `serve` and `run`.

        Args:
            calls: calls of this peer.
            admission: knows what is to be told, and judges what is heard.
            others: returns the members to whom this peer is connected.
            seconds: interval of the rounds.
        """
        self._calls, self._admission, self._others, self._seconds = calls, admission, others, seconds
        self._met: set[str] = set()
        """Members to whom this peer is connected, and that it has asked since."""
        self._differ: set[str] = set()
        """Members that have shown to know something else."""
        self._parted: dict[str, tuple[bytes, bytes]] = {}
        """Digests of the other and of this peer when a member to whom it is connected last showed to know something
        else."""
        self._told = b""
        self._due = asyncio.Event()
        admission.when_changed(self._look)

    @property
    def digest(self) -> bytes:
        """Digest of what this peer knows."""
        banned = self._admission.ban_list
        rulings = sorted(f"{one.subject} {one.order}" for one in banned.rulings.values())
        known = (*(ban.subject for ban in banned.standing), *rulings, *sorted(self._admission.coordinators))
        return hashlib.sha256("\n".join(known).encode()).digest()

    async def serve(self) -> None:
        """Answer members that ask for news."""
        self._told = self.digest
        await self._calls.serve(NEWS, self._answer, REQUEST_LIMIT)

    async def run(self) -> None:
        """Ask members for news at intervals, and at once where there is reason to; until cancelled."""
        while True:
            self._due.clear()
            await self.round()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._due.wait()
                await asyncio.sleep(self._seconds / 10)  # however often others say that they know something else
            except TimeoutError:
                pass

    async def round(self) -> None:
        """Ask whoever is connected anew, or has shown to know something else, and some others."""
        try:
            others = list(await self._others())
        except (P2PDaemonError, OSError, EOFError):  # the daemon ends
            return
        digest = self.digest
        is_news, self._told = digest != self._told, digest
        due = [peer for peer in others if peer in self._differ or peer not in self._met]
        asked = set(due[:MOST_TOLD])
        asked |= set(random.sample(others, min(len(others), MOST_TOLD if is_news else MOST_ASKED)))
        self._met = (self._met & set(others)) | asked
        self._differ = (self._differ & set(others)) - asked
        self._parted = {peer: parted for peer, parted in self._parted.items() if peer in others}
        for peer in sorted(asked):
            try:
                await self._ask(peer)
            except (Unreachable, Refused, ValidationError, TimeoutError) as error:
                log.debug("no news from %s: %s", short(peer), error)

    async def _ask(self, peer: str) -> None:
        """Ask one member, page by page. Raises Unreachable, Refused, ValidationError or TimeoutError."""
        after = ""
        for _ in range(MOST_BANS // PAGE + 1):
            async with asyncio.timeout(self._seconds):
                data = await self._calls.call(peer, NEWS, self.digest + after.encode())
            if not data:
                return
            news = MemberNews.model_validate_json(data)
            self._admission.trust_all(bytes.fromhex(one) for one in news.authorities)
            self._admission.ban(news.bans, news.rulings)
            if len(news.bans) < PAGE or news.bans[-1].subject <= after:
                return
            after = news.bans[-1].subject

    async def _answer(self, peer: str, request: bytes) -> bytes:
        digest, after = request[:DIGEST_BYTES], request[DIGEST_BYTES:].decode("ascii", "replace")
        if digest == self.digest:
            return b""
        if not after and self._parted.get(peer) != (digest, self.digest):
            # Once: one of an older version never comes to know what a ruling says.
            self._parted[peer] = digest, self.digest
            self._differ.add(peer)
            self._due.set()
        banned = self._admission.ban_list
        return (
            MemberNews(
                authorities=tuple(one.hex() for one in self._admission.authorities),
                bans=tuple(ban for ban in banned.standing if ban.subject > after)[:PAGE],
                rulings=() if after else tuple(banned.rulings.values()),
            )
            .model_dump_json()
            .encode()
        )

    def _look(self) -> None:
        """Tell others where something is new."""
        if self.digest != self._told:
            self._due.set()
