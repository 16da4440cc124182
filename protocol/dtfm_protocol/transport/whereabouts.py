"""Whereabouts: members tell members where others are reached, each by its own word.

libp2p's own DHT would do that too, but for everybody who asks; and it keeps what anybody stores.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from pydantic import ValidationError

from dtfm_protocol.bounds import Addresses
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Message
from dtfm_protocol.transport.member_calls import MemberCalls
from dtfm_protocol.wire.stream import Unreachable

WHERE = "where"
"""The call that tells where the peer that is called is reached, or another one, which the request names."""
MOST_ASKED = 8
"""Members that are asked where one is."""
MOST_ID_BYTES = 64
"""Bytes of the largest peer id, in binary; an Ed25519 key's has 38."""


class ReachedAt(Message):
    """An answer to WHERE."""

    addresses: Addresses
    """libp2p multiaddresses."""


class Whereabouts:
    """The questions of one peer where others are, and theirs."""

    def __init__(
        self,
        calls: MemberCalls,
        own: Callable[[], Awaitable[tuple[str, ...]]],
        introduce: Callable[[str, tuple[str, ...]], Awaitable[None]],
        others: Callable[[], Awaitable[Iterable[str]]],
        patience: float = TIMEOUTS.dht_answer,
    ) -> None:
        """Keep what is needed.

        Args:
            calls: calls of this peer.
            own: returns where this peer is reached.
            introduce: connects to a peer at addresses; raises Unreachable.
            others: returns members that may know, the best first.
            patience: seconds for which they are asked, all together.
        """
        self._calls, self._own, self._introduce, self._others = calls, own, introduce, others
        self._patience = patience

    async def serve(self) -> None:
        """Answer members' questions."""
        await self._calls.serve(WHERE, self._answer, MOST_ID_BYTES)

    async def find(self, peer: str, first: str | None = None) -> None:
        """Connect to `peer`, having asked others where it is.

        Args:
            peer: whom to find.
            first: who has named it; None: nobody.

        Raises:
            Unreachable: nobody knows, or it is not there.
        """
        with contextlib.suppress(TimeoutError, ValueError, P2PDaemonError, EOFError):  # no peer id; the daemon ends
            async with asyncio.timeout(self._patience):
                asked = [first] if first is not None else []
                asked += [other for other in await self._others() if other not in (peer, first)][:MOST_ASKED]
                for other in asked:
                    if await self._found(peer, PeerID.from_base58(peer).to_bytes(), other):
                        return
        raise Unreachable(f"nobody knows where {short(peer)} is")

    async def _found(self, peer: str, name: bytes, other: str) -> bool:
        """Ask one other member, and connect to `peer` where that says it is; whether it is there."""
        try:
            answer = await self._calls.call(other, WHERE, name)
            await self._introduce(peer, ReachedAt.model_validate_json(answer).addresses)
        except (Unreachable, Refused, ValidationError):
            return False
        return True

    async def _answer(self, _: str, request: bytes) -> bytes:
        if request:  # it is asked itself, so that nobody speaks for others; this peer need only be connected to it
            return await self._calls.call(str(PeerID(request)), WHERE)
        return ReachedAt(addresses=await self._own()).model_dump_json().encode()
