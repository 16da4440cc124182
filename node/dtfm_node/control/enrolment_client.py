"""Store of this node's credential: on the disk between runs, made anew at a coordinator's entrance when it is due."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import ValidationError

from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import read_credential
from dtfm_protocol.identity.enrolment import (
    ANSWER_LIMIT,
    CHALLENGE_BYTES,
    GREETING,
    EnrolmentAnswer,
    EnrolmentRequest,
    receive_enrolment,
    send_enrolment,
)
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.transport.pinned_tls import PinnedContext

RENEWAL_SECONDS = 15 * 86_400.0
"""A credential that counts for less than this is made anew."""
LOOK_SECONDS = 3600.0
ATTEMPT_SECONDS = 15.0
RETRY_SECONDS = 0.5
SOON_SECONDS = 30.0
"""Seconds after which attempts become rarer."""
LATER_RETRY_SECONDS = 10.0
STRANGE_ROUNDS = 3
"""Rounds in which only others than the coordinator answer, after which that is no accident of a restart."""


class NotLetIn(UserError):
    """A coordinator does not let this node in, and says why."""


class EnrolmentClient:
    """Client of one swarm's entrances: it has this node's credential made, and keeps it on the disk."""

    def __init__(
        self, invite: Invite, identity: Identity, folder: Path, clock: Callable[[], float] = time.time
    ) -> None:
        """Take what is needed.

        Args:
            invite: names the swarm, its coordinators and the token.
            identity: this node's key.
            folder: the node's state folder.
            clock: gives Unix seconds.
        """
        self._invite, self._identity, self._clock = invite, identity, clock
        self._path = folder / "credential.json"
        self._coordinators = Coordinators(invite.swarm, invite.coordinators)
        self._doors = [
            (invite.entrance, invite.coordinator),
            *((standby.card.entrance, standby.card.peer) for standby in invite.standbys),
        ]

    async def obtain(self, patience: float) -> Admission:
        """Return this node's admission: with the credential that is here, or a new one.

        Args:
            patience: seconds for which coordinators are tried.

        Raises:
            UserError: no coordinator gives one, or none answers.
        """
        known = self._load()
        if known is not None and self._seconds_left(known) > RENEWAL_SECONDS:
            return self._admission(known, is_own=True)
        try:
            answer = await self._enrol(patience)
        except UserError as error:
            if known is None:
                raise
            log.warning("%s; going on with the credential that is here", error)
            answer = known
        self._save(answer)
        return self._admission(answer, is_own=answer is known)

    def keep(self, admission: Admission) -> None:
        """Keep what `admission` learns of coordinators and bans on the disk, for when no coordinator is heard."""

        def save() -> None:
            known = self._load()
            if known is None:
                return
            authorities = tuple(one.hex() for one in admission.authorities)
            bans, rulings = tuple(admission.bans.values()), tuple(admission.ban_list.rulings.values())
            if (authorities, bans, rulings) != (known.authorities, known.bans, known.rulings):
                learned = {"authorities": authorities, "bans": bans, "rulings": rulings}
                try:
                    self._save(known.model_copy(update=learned))
                except UserError as error:
                    log.warning("%s", error)

        admission.when_changed(save)

    def _save(self, answer: EnrolmentAnswer) -> None:
        write_atomically(self._path, answer.model_dump_json(), private=True)

    async def keep_fresh(
        self,
        admission: Admission,
        refused: asyncio.Event,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Have the credential of `admission` made anew whenever that is due, until cancelled.

        Args:
            refused: set where a broker did not let this node in: then a coordinator is asked why.
            pause: waits for some seconds.

        Raises:
            NotLetIn: this node is a member no more.
        """
        while True:
            looking, told = asyncio.ensure_future(pause(LOOK_SECONDS)), asyncio.ensure_future(refused.wait())
            try:
                await asyncio.wait({looking, told}, return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    looking.result()
            finally:
                looking.cancel()
                told.cancel()
            known, was_refused = self._load(), refused.is_set()
            refused.clear()
            if not was_refused and known is not None and self._seconds_left(known) > RENEWAL_SECONDS:
                continue
            try:
                answer = await self._enrol(ATTEMPT_SECONDS)
            except NotLetIn as error:
                if was_refused:
                    raise
                log.warning("%s", error)
            except UserError as error:
                log.debug("no new credential: %s", error)
            else:
                self._save(answer)
                admission.certificate = self._admission(answer).certificate
                admission.trust_all(bytes.fromhex(authority) for authority in answer.authorities)
                admission.ban(answer.bans, answer.rulings)

    def known(self) -> Admission | None:
        """Return this node's admission with the credential that is here; None: there is none."""
        known = self._load()
        return None if known is None else self._admission(known, is_own=True)

    async def _enrol(self, patience: float) -> EnrolmentAnswer:
        """Ask all coordinators in turn until one answers."""
        loop = asyncio.get_running_loop()
        begun, fault, strange = loop.time(), "no answer", 0
        end = begun + patience
        while True:
            strangers = 0
            for entrance, coordinator in self._doors:
                try:
                    async with asyncio.timeout(min(ATTEMPT_SECONDS, max(1.0, end - loop.time()))):
                        answer = await self._ask(entrance, coordinator)
                except (OSError, EOFError, Refused) as error:  # a TimeoutError is an OSError
                    fault = f"{entrance}: {error or 'no answer'}"
                    strangers += isinstance(error, ssl.SSLError)
                    continue
                if answer.later:
                    fault = f"{entrance}: {answer.refused}"
                    continue
                if answer.refused:
                    raise NotLetIn(f"the coordinator does not let this node in: {answer.refused}")
                return answer
            strange = strange + 1 if strangers == len(self._doors) else 0
            if strange == STRANGE_ROUNDS:
                raise _somebody_else(fault)
            pause = RETRY_SECONDS if loop.time() < begun + SOON_SECONDS else LATER_RETRY_SECONDS
            if loop.time() + pause > end:
                raise _nobody(patience, fault)
            await asyncio.sleep(pause)

    async def _ask(self, entrance: str, coordinator: str) -> EnrolmentAnswer:
        """Enrol at one entrance.

        Raises:
            OSError: nobody is there, or somebody else than the coordinator.
            EOFError: the coordinator ends the connection.
            Refused: its answer is none, or is not for this node.
        """
        address = BrokerAddress.embedded(entrance, coordinator)
        pinned = PinnedContext(coordinator, self._coordinators)  # or whoever has taken its place
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=pinned, server_hostname="")
        try:
            writer.write(GREETING)
            challenge = await reader.readexactly(CHALLENGE_BYTES)
            swarm, token = self._invite.swarm, self._invite.token
            send_enrolment(writer, EnrolmentRequest.make(self._identity, swarm, token, challenge, product_version()))
            answer = await receive_enrolment(reader, EnrolmentAnswer, ANSWER_LIMIT)
            if not answer.refused:
                self._admission(answer)
            return answer
        finally:
            writer.transport.abort()

    def _admission(self, answer: EnrolmentAnswer, *, is_own: bool = False) -> Admission:
        """Return the admission with what a coordinator answered, or what is on this node's own disk.

        Raises:
            Refused: that is not for this node.
        """
        invite = self._invite
        certificate = bytes.fromhex(answer.certificate or "")
        authorities = [bytes.fromhex(standby.card.certificate) for standby in invite.standbys]
        authorities += [bytes.fromhex(authority) for authority in answer.authorities]
        admission = Admission(invite.swarm, self._coordinators, certificate, authorities, self._clock)
        if is_own:
            admission.recall(answer.bans, answer.rulings)
        else:
            admission.ban(answer.bans, answer.rulings)
        found = read_credential(certificate)
        if found.peer != self._identity.peer_id or found.swarm != invite.swarm:
            raise Refused("a credential of somebody else, or for another swarm")
        if found.issuer not in self._coordinators and self._coordinators.succession_of(found.issuer) is None:
            raise Refused("a credential that no coordinator of this swarm signed")
        return admission

    def _load(self) -> EnrolmentAnswer | None:
        """Return what is on the disk, if that is for this node and swarm."""
        try:
            known = EnrolmentAnswer.model_validate_json(self._path.read_bytes())
            self._admission(known, is_own=True)
        except (OSError, ValidationError, Refused):
            return None
        return known

    def _seconds_left(self, answer: EnrolmentAnswer) -> float:
        return read_credential(bytes.fromhex(answer.certificate or "")).expires - self._clock()


def _somebody_else(fault: str) -> UserError:
    return UserError(
        f"somebody else than this swarm's coordinator answers where the invite says ({fault}): ask the swarm's owner "
        "for the present invite"
    )


def _nobody(seconds: float, fault: str) -> UserError:
    return UserError(
        f"no coordinator answers where the invite says, for {seconds:g} s ({fault}); check that it runs; "
        "`dtfm-node doctor INVITE` finds out more"
    )
