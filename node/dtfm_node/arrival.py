"""Arrival of a node at its swarm: its broker lets it in, a coordinator says what is trained, nobody else has its
identity, and clocks are compared."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from dtfm_node.control.display import Display
from dtfm_node.control.inbox import Inbox
from dtfm_node.doctor.closed_ports import unless_closed
from dtfm_protocol.control.messages import CHALLENGE, PRESENCE, Challenge, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.discovery.dht import go_by
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.freshness_files import FreshnessFile
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import Timeouts

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""Seconds to wait for a coordinator that may be starting."""
CLOCK_OFFSET_SECONDS = 2.0
"""By so much clocks may differ before it matters: hivemind refuses 3 s."""


class Arrival:
    """Arrival of one daemon, which may be the first of its node or one that comes back."""

    def __init__(
        self,
        invite: Invite,
        identity: Identity,
        session: str,
        inbox: Inbox,
        display: Display,
        presence: Callable[[], Presence],
        timeouts: Timeouts,
        patience: float | None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            session: names this daemon among those that its node has had.
            inbox: takes what coordinators say.
            presence: returns what this node says of itself to whoever asks.
            patience: seconds to wait for a coordinator; None: as long as is usual, and a newcomer does not wait where
                no port is open.
        """
        self._invite, self._identity, self._session, self._inbox = invite, identity, session, inbox
        self._display, self._presence, self._timeouts = display, presence, timeouts
        self._may_give_up = patience is None
        self._twin: str | None = None
        """The session of another daemon with this identity."""
        self.patience = PATIENCE_SECONDS if patience is None else patience
        """Seconds to wait for a coordinator that may be starting."""
        self.is_newcomer = True
        """Whether this node has never been in the swarm."""
        self.has_new_key = False
        """Whether its identity was made for this very join."""

    def control(self, folder: Path, admission: Admission, post: Post) -> ControlPlane:
        """Return the connection to the broker, with what this node reads there; `folder` keeps what was heard last."""
        control = ControlPlane(
            BrokerAddress.of(self._invite),
            self._invite.swarm,
            admission.coordinators,
            post,
            self._session,
            BrokerAddress.others(self._invite),
            identity=self._identity,
            admission=admission,
            heard=FreshnessFile(folder),
        )
        self._inbox.read(control)
        control.when_unreadable = self._inbox.cannot_read

        async def see(_: str, presence: Presence) -> None:
            if presence.online and presence.session != self._session:
                self._twin = presence.session

        async def answer(_: str, challenge: Challenge) -> None:
            if challenge.session != self._session:
                await control.publish(PRESENCE, self._presence())

        control.on(PRESENCE, see, self._identity.peer_id)
        control.on(CHALLENGE, answer, self._identity.peer_id)
        return control

    async def enter(self, control: ControlPlane) -> None:
        """Reach the broker, and a coordinator that says what is trained.

        Raises:
            UserError: the broker does not let this node in in time, or nobody leads.
        """
        try:
            async with asyncio.timeout(self.patience):
                brokers = (BrokerAddress.of(self._invite), *BrokerAddress.others(self._invite))
                await self.unless_closed(control.connected.wait(), brokers)
        except TimeoutError:
            where = BrokerAddress.of(self._invite)
            raise UserError(
                f"no coordinator: its broker at {where} did not let this node in for {self.patience:g} s "
                f"({control.last_error or 'no answer'}); check that it runs; `dtfm-node doctor INVITE` finds out more"
            ) from None
        try:
            async with asyncio.timeout(self.patience):
                # A coordinator opens its broker first and serves seconds later; then it says what is trained.
                await self._inbox.job()
        except TimeoutError:
            raise UserError(
                f"no coordinator: its broker answers, but nobody has said there for {self.patience:g} s what "
                "is to be trained; check that it runs"
            ) from None

    async def look_around(self, control: ControlPlane) -> None:
        """Make sure that no other daemon has this identity, and compare clocks.

        Raises:
            UserError: there is another one.
        """
        await control.publish(CHALLENGE, Challenge(session=self._session))
        if not self.has_new_key:
            await asyncio.sleep(self._timeouts.identity_challenge)
        await self._until_clock_told(control)
        if (control.clock_ahead or 0.0) < -CLOCK_OFFSET_SECONDS:
            control.clock_told.clear()  # so it looks, too, where a busy machine reads a message late
            await self._until_clock_told(control)
        if first := _offset(control):
            # What looks ahead may be a busy machine's that has read all so far late, and a later message tells better.
            go_by(lambda: min(0.0, _offset(control)) if first < 0 else first)
            way = "behind" if first > 0 else "ahead of"
            self._display.note(
                f"this machine's clock is {abs(first):,.0f} s {way} the coordinator's: going by that one in the DHT; "
                "`sudo timedatectl set-ntp true` sets this one"
            )
        if self._twin is not None:
            raise UserError(
                f"another node with the identity {short(self._identity.peer_id)} is in the swarm: "
                "stop it, or join with another --state-dir"
            )

    async def _until_clock_told(self, control: ControlPlane) -> None:
        with suppress(TimeoutError):  # its broker may be there without it
            async with asyncio.timeout(self._timeouts.clock_answer):
                await control.clock_told.wait()

    async def unless_closed(self, waiting: Awaitable[T], brokers: Iterable[BrokerAddress]) -> T:
        """Await what a coordinator has to answer. A newcomer that was not told to wait gives up once no port is open;
        who has been here before says so, and waits: the coordinator may be coming back."""
        gives_up = self.is_newcomer and self._may_give_up
        tell = None if gives_up else partial(log.warning, "no coordinator answers yet: %s")
        return await unless_closed(waiting, [(one.host, one.port) for one in brokers], tell)


def _offset(control: ControlPlane) -> float:
    """Return the seconds by which the coordinator's clock is ahead of this machine's, as messages tell so far; 0: by no
    more than does not matter, or nobody has told."""
    ahead = control.clock_ahead or 0.0
    return ahead if abs(ahead) > CLOCK_OFFSET_SECONDS else 0.0
