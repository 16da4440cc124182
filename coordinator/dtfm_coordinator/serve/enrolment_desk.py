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
    Ruled,
    Trusted,
)
from dtfm_coordinator.serve.ban_signing import BanSigning
from dtfm_protocol.control.messages import KICKS_LIMIT, Kick, MembershipNews, TokenUse
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
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
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.process.version_agreement import Distance, distance, told_to_coordinator, told_to_node

LEDGER_LOOK_SECONDS = 0.5
"""How often the ledger is looked at for what the owner's commands have written."""


class EnrolmentDesk:
    """A coordinator's desk, at which requests come in by its entrance (`enrol`)."""

    def __init__(
        self,
        identity: Identity,
        admission: Admission,
        file: LedgerFile,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Let the admission know all bans and coordinators that the ledger has.

        Args:
            identity: the coordinator's key, which signs credentials.
            admission: the coordinator's own; bans take effect in it, and it knows whose tokens count.
            file: the ledger.
            clock: gives Unix seconds.
        """
        self.admission = admission
        """Whom the coordinator lets in."""
        self._identity, self._file, self._clock = identity, file, clock
        self._kicked: Callable[[str], None] = lambda _: None
        self._may_issue: Callable[[], bool] = lambda: True
        self._signing = BanSigning(identity, admission)
        self._refused = Tally()
        with contextlib.suppress(Refused):  # of one that coordinates no more
            admission.trust_all(bytes.fromhex(certificate) for certificate in file.ledger.trusted)
        admission.recall(file.ledger.bans.values(), file.ledger.rulings.values())
        admission.ban(self._signing.bans(file.ledger), self._signing.rulings(file.ledger))

    def issue_when(self, may_issue: Callable[[], bool]) -> None:
        """Give credentials only while `may_issue` says that this coordinator leads; others are told to ask later."""
        self._may_issue = may_issue

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
        if distance(product_version(), request.version) is Distance.FAR:
            return self._too_far(request.version, address)
        try:
            self.take_up()  # an invite that the owner has just taken back lets nobody in
            request.verify(self.admission.swarm, challenge)
            if not self._may_issue():
                return EnrolmentAnswer(refused="no plan of this coordinator is in force yet", later=True)
            entry = self._file.ledger.admit(request, self.admission.coordinators, address, self._clock())
            if entry != self._file.ledger.members.get(entry.peer):
                self._file.append(entry)
        except (Refused, UserError) as error:
            if self._refused.note(str(error)):  # each reason once: anybody can cause many
                log.info("A node at %s was not let in: %s", address, error)
            why = str(error) if isinstance(error, Refused) else "the coordinator cannot write to its disk"
            return EnrolmentAnswer(refused=why)
        is_new = entry.peer not in self._file.ledger.members
        self.take_up()
        if is_new:
            invite = self._file.ledger.invited.get(entry.token)
            log.info(
                "%s was let in%s.", short(entry.peer), f" (invite: {invite.name})" if invite and invite.name else ""
            )
        until = entry.at + CREDENTIAL_DAYS * DAY_SECONDS
        certificate = issue_credential(self._identity, self.admission.swarm, entry.peer, entry.token, until)
        return EnrolmentAnswer(
            certificate=certificate.hex(),
            authorities=tuple(one.hex() for one in self.admission.authorities),
            bans=self.admission.ban_list.standing,
            rulings=tuple(self.admission.ban_list.rulings.values()),
        )

    def _too_far(self, version: str, address: str) -> EnrolmentAnswer:
        """Answer a newcomer whose version does not work together with this one; its invite is not used up."""
        said = told_to_coordinator(product_version(), version)
        if self._refused.note(said):
            log.warning("a newcomer at %s %s", address, said)
        return EnrolmentAnswer(refused=told_to_node(version, product_version()))

    def take_up(self) -> list[LedgerEntry]:
        """Let what was written to the ledger take effect, and return it."""
        entries = self._file.take_up()
        self.admission.ban(
            (self._signing.ban(entry.ban) for entry in entries if isinstance(entry, Banned)),
            (self._signing.ruling(entry.ruling) for entry in entries if isinstance(entry, Ruled)),
        )
        for entry in entries:
            if isinstance(entry, Kicked):
                self._kicked(entry.peer)
                self.admission.kick(entry.peer, entry.at)
        return entries

    def turn_out(self) -> None:
        """Ban those who have entered with an invite that was used up, as far as they have entered with that.

        Raises:
            UserError: it cannot be written down.
        """
        for token, peer in self._file.ledger.surplus():
            log.warning(
                "%s is turned out: invite %s, redeemed at two coordinators, was for %d node(s), who entered before it",
                short(peer), token, self._file.ledger.uses[token],
            )  # fmt: skip
            ban = Ban.of(self._identity, self.admission.swarm, f"entry:{token}{peer}")
            self._file.append(Banned(ban=ban, at=self._clock()))
            self.take_up()

    def merge(self, news: MembershipNews) -> None:
        """Take over what another coordinator of the swarm says of its ledger.

        Raises:
            Refused: an authority is no coordinator's of this swarm, or a ban or a ruling is not signed.
            UserError: it cannot be written down.
        """
        ledger, new = self._file.ledger, list[LedgerEntry]()
        # They have signed the credentials with which members come here later.
        self.admission.trust_all(bytes.fromhex(authority) for authority in news.authorities)
        new += [Trusted(certificate=one) for one in news.authorities if one not in ledger.trusted]
        new += [
            Redeemed(token=one.token, peer=one.peer, at=one.at, uses=one.uses)
            for one in news.redeemed
            if self._is_new(one)
        ]
        now = self._clock()  # when the other one has written it is not told
        new += [Revoked(token=token, at=now) for token in news.revoked if token not in ledger.revoked]
        for ban in news.bans:
            ban.verify(self.admission.swarm)
            if ban.subject not in ledger.bans and ban.by in self.admission.coordinators:
                new.append(Banned(ban=ban, at=now))
        for ruling in news.rulings:
            ruling.verify(self.admission.swarm)
            # One from far ahead could never be followed by another: no clock of a coordinator's says that.
            if ledger.is_later(ruling) and ruling.at < now + DAY_SECONDS and ruling.by in self.admission.coordinators:
                new.append(Ruled(ruling=ruling))
        for kick in news.kicked:
            self.admission.kick(kick.peer, kick.at)
        if new:
            self._file.append(*new)
            self.take_up()

    def _is_new(self, use: TokenUse) -> bool:
        """Whether somebody has entered of whom the ledger does not know, or earlier than it says."""
        known = self._file.ledger.members.get(use.peer)
        return known is None or (known.token == use.token and use.at < self._file.ledger.entered[use.token, use.peer])

    def news(self) -> MembershipNews:
        """Return what members and standbys are told."""
        ledger = self._file.ledger
        kicked = sorted(ledger.kicked.items(), key=lambda one: one[1])
        return MembershipNews(
            authorities=tuple(one.hex() for one in self.admission.authorities),
            bans=self._signing.bans(ledger),
            rulings=self._signing.rulings(ledger),
            revoked=tuple(sorted(ledger.revoked)),
            redeemed=tuple(
                TokenUse(
                    token=one.token,
                    peer=one.peer,
                    at=ledger.entered[one.token, one.peer],
                    uses=ledger.uses.get(one.token, 0),
                )
                for one in ledger.members.values()
            ),
            kicked=tuple(Kick(peer=peer, at=at) for peer, at in kicked[-KICKS_LIMIT:]),
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
                if self._may_issue():
                    self.turn_out()
            except UserError as error:
                log.warning("%s", error)
            if (news := self.news()) != said:
                await publish(news)
                said = news
            await asyncio.sleep(LEDGER_LOOK_SECONDS)
