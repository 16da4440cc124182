"""Own key of a coordinator that serves, and the hand-over to a new one when the owner asks for it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dtfm_coordinator.serve import key_replacement
from dtfm_coordinator.serve.enrolment_desk import LEDGER_LOOK_SECONDS, EnrolmentDesk
from dtfm_protocol.control.messages import MembershipNews
from dtfm_protocol.identity.admission import MOST_AUTHORITIES
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.logs import log


class OwnKey:
    """Key of the coordinator with a state folder. A coordinator that stands by for another keeps its key."""

    def __init__(self, folder: Path, swarm: str, *, may_change: bool) -> None:
        """Load the key, or make it at the first start.

        Args:
            folder: the state folder.
            swarm: id of the swarm, which a succession names.
            may_change: whether it is ever replaced.

        Raises:
            UserError: the key cannot be read or written.
        """
        self.folder, self._swarm, self._may_change = folder, swarm, may_change
        self.identity = Identity.load_or_create(folder / key_replacement.KEY)
        """The key that counts."""

    @property
    def certificate(self) -> bytes:
        """The key's certificate, DER, which says whose place it has taken. Raises UserError if that cannot be read."""
        return key_replacement.own_certificate(self.folder, self.identity)

    def is_due(self) -> bool:
        """Whether the owner has asked for a new key, which has not taken this one's place yet."""
        return self._may_change and key_replacement.is_due(self.folder)

    async def until_due(self) -> None:
        """Wait until the owner has asked for a new key; for ever, where this one stays."""
        while not self.is_due():  # noqa: ASYNC110 - by a command
            await asyncio.sleep(LEDGER_LOOK_SECONDS)

    def replace(self) -> None:
        """Put the new key in the place of the old one, with which nothing is signed any more.

        Raises:
            UserError: something cannot be read or written; then the old key is there still.
        """
        before = self.identity.peer_id
        self.identity = key_replacement.replace_key(self.folder, self._swarm)
        log.info("The old key %s is deleted: %s has taken its place.", short(before), short(self.identity.peer_id))

    async def hand_over(self, desk: EnrolmentDesk, publish: Callable[[MembershipNews], Awaitable[None]]) -> None:
        """Put the new key in the place of the old one, and let the old one's last word be that.

        Who does not hear it learns the same from the new key's certificate.

        Args:
            desk: the desk under the old key.
            publish: tells all members, signed with the old key.

        Raises:
            UserError: as with `replace`.
        """
        news = desk.news()
        self.replace()
        authorities = (self.certificate.hex(), *news.authorities)[:MOST_AUTHORITIES]
        await publish(news.model_copy(update={"authorities": authorities}))
