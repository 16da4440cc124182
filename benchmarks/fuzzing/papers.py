"""Targets among what says who somebody is: invites, cards, tokens, certificates, enrolment, proofs on streams."""

import base64
import functools
import hashlib
import zlib
from collections.abc import Iterator

from benchmarks.fuzzing.swarm_sides import SWARM, Sides, Writer, at_once, reader_of, sized
from benchmarks.fuzzing.trial import Target
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.serve.enrolment_desk import EnrolmentDesk
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.credential import read_credential
from dtfm_protocol.identity.enrolment import (
    ANSWER_LIMIT,
    MESSAGE_LIMIT,
    EnrolmentAnswer,
    EnrolmentRequest,
    receive_enrolment,
)
from dtfm_protocol.identity.invite import PROTOCOL_VERSION, Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from dtfm_protocol.transport.member_stream import split_proof, with_proof

ENDS_EARLY = (Refused, EOFError)


def paper_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    yield from _texts(sides)
    yield from _certificates(sides)
    yield from _enrolment(sides)


def _texts(sides: Sides) -> Iterator[Target]:
    """Yield invites and cards: as text, and what is inside under a checksum that fits."""
    second = Identity.generate()
    card = StandbyCard(
        peer=second.peer_id,
        certificate=sides.authority.hex(),
        entrance="[2001:db8::1]:7700",
        broker="mqtts://somebody:secret@192.0.2.2:8883",
        dht=(f"/ip4/192.0.2.2/tcp/7701/p2p/{second.peer_id}",),
    )
    invite = sides.invite().model_copy(
        update={
            "standbys": (AppointedStandby.appoint(card, SWARM, sides.owner),),
            "broker": "mqtts://somebody@192.0.2.1",
        }
    )
    texts, inside = (invite.encode(), card.encode()), (invite.model_dump_json(), card.model_dump_json())
    yield Target("invite", functools.partial(_invited, sides), (texts[0].encode(),), (UserError,))
    yield Target("invite, with its checksum", _inside_an_invite, (inside[0].encode(),), (UserError,))
    yield Target("standby's card", lambda data: StandbyCard.decode(_text(data)), (texts[1].encode(),), (UserError,))
    yield Target("standby's card, with its checksum", _inside_a_card, (inside[1].encode(),), (UserError,))


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")  # as Python reads arguments of commands


def _invited(sides: Sides, data: bytes) -> None:
    _used(Invite.decode(_text(data).removeprefix("@")))


def _inside_an_invite(data: bytes) -> None:
    body = base64.urlsafe_b64encode(zlib.compress(data, 1)).decode().rstrip("=")
    _used(Invite.decode(f"dtfm{PROTOCOL_VERSION}.{body}.{hashlib.sha256(body.encode()).hexdigest()[:8]}"))


def _used(invite: Invite) -> None:
    """Do with an invite what a node does before it connects."""
    for address in (BrokerAddress.of(invite), *BrokerAddress.others(invite)):
        str(address)
    repr((invite.doors, invite.coordinators))


def _inside_a_card(data: bytes) -> object:
    body = base64.urlsafe_b64encode(data).decode().rstrip("=")
    return StandbyCard.decode(f"dtfmcard2.{body}.{hashlib.sha256(body.encode()).hexdigest()[:8]}")


def _certificates(sides: Sides) -> Iterator[Target]:
    """Yield credentials: as they are shown, signed anew whatever they say, and before what is said on a stream."""
    shown = (sides.certificate, sides.authority)
    yield Target("credential", read_credential, shown)
    yield Target("credential, signed", functools.partial(_signed_anew, sides), tuple(map(_to_be_signed, shown)))
    admission = sides.admission()
    proof = with_proof(sides.certificate, b"and what follows")

    def opened(data: bytes) -> object:
        certificate, rest = split_proof(data)
        return admission.check(certificate, sides.liar.peer_id), rest

    yield Target("proof before a call", opened, (proof,))


def _to_be_signed(certificate: bytes) -> bytes:
    """Return the part of a certificate that is signed, DER."""
    outer = _header(certificate)
    start = outer[0]
    inner = _header(certificate[start:])
    return certificate[start : start + inner[0] + inner[1]]


def _header(data: bytes) -> tuple[int, int]:
    """Return the bytes of a DER header, and those of the value after it."""
    if data[1] < 0x80:
        return 2, data[1]
    size = data[1] & 0x7F
    return 2 + size, int.from_bytes(data[2 : 2 + size], "big")


def _der(kind: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes([kind, size]) + value
    length = size.to_bytes(-(-size.bit_length() // 8), "big")
    return bytes([kind, 0x80 | len(length)]) + length + value


def _signed_anew(sides: Sides, data: bytes) -> object:
    """Read a certificate that says `data`, with the coordinator's signature under it, which no quick one can be."""
    ed25519, signature = bytes.fromhex("300506032b6570"), sides.owner._private.sign(data)
    return read_credential(_der(0x30, data + ed25519 + _der(0x03, b"\0" + signature)))


def _enrolment(sides: Sides) -> Iterator[Target]:
    """Yield both sides of an enrolment."""
    folder = sides.folder / "desk"
    folder.mkdir()
    desk = EnrolmentDesk(sides.owner, sides.admission(), LedgerFile(folder))
    challenge = bytes(32)
    request = EnrolmentRequest.make(sides.liar, SWARM, sides.token, challenge)
    answer = EnrolmentAnswer(
        certificate=sides.certificate.hex(),
        authorities=(sides.authority.hex(),),
        bans=(Ban.of(sides.owner, SWARM, f"peer:{sides.owner.peer_id}"),),
        rulings=(BanRuling.of(sides.owner, SWARM, f"peer:{sides.owner.peer_id}", 5, holds=False),),
    )

    def at_the_desk(data: bytes) -> object:
        return sides.wait(desk.enrol(reader_of(data, sides.loop), Writer(), "192.0.2.3"))  # type: ignore[arg-type]

    def asked(data: bytes) -> object:
        parsed = at_once(receive_enrolment(reader_of(sized(data), sides.loop), EnrolmentRequest, MESSAGE_LIMIT))
        parsed.verify(SWARM, challenge)
        return desk.answer(parsed, challenge, "192.0.2.3")

    def answered(data: bytes) -> object:
        admission = sides.admission()
        parsed = at_once(receive_enrolment(reader_of(sized(data), sides.loop), EnrolmentAnswer, ANSWER_LIMIT))
        for authority in parsed.authorities:
            admission.trust(bytes.fromhex(authority))
        admission.ban(parsed.bans, parsed.rulings)
        return read_credential(bytes.fromhex(parsed.certificate or ""))

    text = request.model_dump_json().encode()
    yield Target("entrance's enrolment", at_the_desk, (sized(text),), ENDS_EARLY)
    yield Target("enrolment's request", asked, (text,), ENDS_EARLY)
    yield Target("enrolment's answer", answered, (answer.model_dump_json().encode(),), ENDS_EARLY)
