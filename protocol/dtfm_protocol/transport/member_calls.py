"""Calls from member to member, a request and an answer each, over libp2p: both begin with their sender's credential.

The daemon proves the other end's peer id, so the credential only has to be that peer's: nothing is signed, no clock
takes part, and what is said to one peer is of no use to another.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.transport.incoming_streams import counted
from dtfm_protocol.transport.libp2p_limits import StreamLimits
from dtfm_protocol.transport.member_stream import split_proof, with_proof
from dtfm_protocol.wire.stream import Unreachable

PROOF = "proof"
"""The call that asks for the other end's credential, and nothing else."""


class CallFailed(Unreachable):
    """The failure of a call at a peer that was reached."""


Answer = Callable[[str, bytes], Awaitable[bytes]]
"""A function that answers the request of a member, whose peer id comes first."""


class MemberCalls:
    """The calls of one peer to others, and theirs to it. Who shows no credential that counts is refused unread."""

    def __init__(
        self, client: Any, admission: Admission, name_service: Callable[[str], str], limits: StreamLimits
    ) -> None:
        """Make both sides of the calls.

        Args:
            client: the client of the libp2p daemon.
            admission: this peer's credential, and whom it lets in.
            name_service: gives the libp2p protocol of a call.
            limits: how much is taken on at a time.
        """
        self._client, self._admission, self._name_service, self._limits = client, admission, name_service, limits
        self._running: Counter[str] = Counter()
        self.refused = Tally()
        """Number of calls that were refused, by reason."""

    async def serve(self, name: str, answer: Answer, limit: int) -> None:
        """Answer calls of `name` whose requests have at most `limit` bytes."""

        async def take(data: bytes, remote: PeerID) -> bytes:
            peer = str(remote)
            try:
                certificate, request = split_proof(data)
                self._admission.check(certificate, peer)
                if len(request) > limit:
                    raise Refused(f"a request of {len(request)} bytes, more than {limit}")
                if self._running[peer] >= self._limits.peer_calls:
                    raise Refused("too many calls of one peer at once")
            except Refused as error:
                if self.refused.note(str(error)):
                    log.debug("refused a call: %s", error)
                raise
            with counted(self._running, peer):
                return with_proof(self._admission.certificate, await answer(peer, request))

        await self._client.add_unary_handler(self._name_service(name), take)

    async def end(self, name: str) -> None:
        """Answer no more calls of `name`."""
        await self._client.remove_unary_handler(self._name_service(name))

    async def call(self, peer: str, name: str, request: bytes = b"") -> bytes:
        """Return what `peer` answers to `request`.

        Raises:
            Refused: the other end is no member.
            CallFailed: it refuses the call, or fails in it.
            Unreachable: there is no way to it.
        """
        try:
            where, data = PeerID.from_base58(peer), with_proof(self._admission.certificate, request)
            answer = await self._client.call_unary_handler(where, self._name_service(name), data)
        except P2PHandlerError as error:
            raise CallFailed(f"{short(peer)} does not answer: {error}") from None
        except (P2PDaemonError, ValueError, OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"{short(peer)} cannot be called: {error}") from None
        certificate, data = split_proof(answer)
        self._admission.check(certificate, peer)
        return data
