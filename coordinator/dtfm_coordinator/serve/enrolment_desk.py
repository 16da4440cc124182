"""Enrolment desk of a coordinator: newcomers get their credentials there, and the owner's decisions take effect."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import (
    CREDENTIAL_DAYS,
    DAY_SECONDS,
    Banned,
    Kicked,
    LedgerEntry,
    Redeemed,
    Revoked,
    Trusted,
)
from dtfm_protocol.control.messages import MembershipNews, TokenUse
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import issue_credential
from dtfm_protocol.identity.enrolment import (
    MESSAGE_LIMIT,
    EnrolmentAnswer,
    EnrolmentRequest,
    new_challenge,
    receive_enrolment,
    send_enrolment,
)
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally

LEDGER_LOOK_SECONDS = 0.5
"""How often the ledger is looked at for what the owner's commands have written."""


class EnrolmentDesk:
    """A coordinator's desk, at which requests come in by its entrance (`enrol`)."""

    def __init__(
        self,
        identity: Identity,
        admission: Admission,
        file: LedgerFile,
        coordinators: tuple[str, ...],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Let the admission know all bans and coordinators that the ledger has.

        Args:
            identity: the coordinator's key, which signs credentials.
            admission: the coordinator's own; bans take effect in it.
            file: the ledger.
            coordinators: peer ids whose tokens count.
            clock: gives Unix seconds.
        """
        self.admission = admission
        """Whom the coordinator lets in."""
        self._identity, self._file = identity, file
        self._coordinators, self._clock = coordinators, clock
        self._kicked: Callable[[str], None] = lambda _: None
        self._refused = Tally()
        for certificate in file.ledger.trusted:
            with contextlib.suppress(Refused):  # of one that coordinates no more
                admission.trust(bytes.fromhex(certificate))
        admission.ban(file.ledger.bans.values())

    def when_kicked(self, told: Callable[[str], None]) -> None:
        """Call `told` with each peer that the owner kicks from now on."""
        self._kicked = told

    async def enrol(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        """Answer one newcomer at the entrance (`Enrol`).

        Raises:
            Refused: what comes is no request.
            EOFError: it ends early.
        """
        challenge = new_challenge()
        writer.write(challenge)
        request = await receive_enrolment(reader, EnrolmentRequest, MESSAGE_LIMIT)
        send_enrolment(writer, self.answer(request, challenge, address))

    def answer(self, request: EnrolmentRequest, challenge: bytes, address: str) -> EnrolmentAnswer:
        """Return a credential, or why there is none; one is on the disk before it is given."""
        known = self._file.ledger.members.keys()
        try:
            request.verify(self.admission.swarm, challenge)
            entry = self._file.ledger.admit(request, self._coordinators, address, self._clock())
            if entry != self._file.ledger.members.get(entry.peer):
                self._file.append(entry)
        except (Refused, UserError) as error:
            if self._refused.note(str(error)):  # each reason once: anybody can cause many
                log.info("no credential for a node at %s: %s", address, error)
            why = str(error) if isinstance(error, Refused) else "the coordinator cannot write to its disk"
            return EnrolmentAnswer(refused=why)
        is_new = entry.peer not in known
        self.take_up()
        if is_new:
            invite = self._file.ledger.invited.get(entry.token)
            log.info("%s has entered%s", short(entry.peer), f" ({invite.name})" if invite and invite.name else "")
        until = entry.at + CREDENTIAL_DAYS * DAY_SECONDS
        certificate = issue_credential(self._identity, self.admission.swarm, entry.peer, entry.token, until)
        return EnrolmentAnswer(
            certificate=certificate.hex(),
            authorities=tuple(one.hex() for one in self.admission.authorities),
            bans=tuple(self.admission.bans.values()),
        )

    def take_up(self) -> list[LedgerEntry]:
        """Let what was written to the ledger take effect, and return it."""
        entries = self._file.take_up()
        self.admission.ban(entry.ban for entry in entries if isinstance(entry, Banned))
        for entry in entries:
            if isinstance(entry, Kicked):
                self._kicked(entry.peer)
        return entries

    def merge(self, news: MembershipNews) -> None:
        """Take over what another coordinator of the swarm says of its ledger.

        Raises:
            Refused: an authority is no coordinator's of this swarm, or a ban is not signed.
            UserError: it cannot be written down.
        """
        ledger, new = self._file.ledger, list[LedgerEntry]()
        for authority in news.authorities:  # it has signed the credentials with which members come here later
            self.admission.trust(bytes.fromhex(authority))
            if authority not in ledger.trusted:
                new.append(Trusted(certificate=authority))
        new += [
            Redeemed(token=one.token, peer=one.peer, at=one.at)
            for one in news.redeemed
            if one.peer not in ledger.members
        ]
        new += [Revoked(token=token) for token in news.revoked if token not in ledger.revoked]
        for ban in news.bans:
            ban.verify(self.admission.swarm)
            if ban.subject not in ledger.bans and ban.by in self._coordinators:
                new.append(Banned(ban=ban))
        if new:
            self._file.append(*new)
            self.take_up()

    def news(self) -> MembershipNews:
        """Return what members and standbys are told."""
        ledger = self._file.ledger
        return MembershipNews(
            authorities=tuple(one.hex() for one in self.admission.authorities),
            bans=tuple(ledger.bans.values()),
            revoked=tuple(sorted(ledger.revoked)),
            redeemed=tuple(TokenUse(token=one.token, peer=one.peer, at=one.at) for one in ledger.members.values()),
        )

    async def attend(
        self, publish: Callable[[MembershipNews], Awaitable[None]], in_force: Callable[[], Collection[str]]
    ) -> None:
        """Tell the swarm of all changes, until cancelled.

        Args:
            publish: tells all members.
            in_force: returns the peers of the plan in force, which are let in whenever their credentials expire.
        """
        said: MembershipNews | None = None
        while True:
            self.admission.follow(in_force())
            try:
                self.take_up()
            except UserError as error:
                log.warning("%s", error)
            if (news := self.news()) != said:
                await publish(news)
                said = news
            await asyncio.sleep(LEDGER_LOOK_SECONDS)
