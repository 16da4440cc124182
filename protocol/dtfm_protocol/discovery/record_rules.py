"""The rules by which a peer keeps and believes records of others: whose, where, how large, and for how long.

Each record carries its writer's credential, so that it can be judged by who has never met the writer. A member has one
place for each kind of record: whatever it sends, it fills no more memory than those.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import msgpack
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import timed_storage

from dtfm_protocol.bounds import PEER_NAME_LIMIT
from dtfm_protocol.discovery.records import PROFILE_LIMIT, RECORD_LIMIT
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.member_stream import split_proof, with_proof

SUBKEY_LIMIT = PEER_NAME_LIMIT + 2
"""Bytes of the largest subkey: a peer id, as MessagePack."""
SIGNATURE_BYTES = 64
CLOCK_SECONDS = 60.0
"""Seconds by which the clocks may differ that say when a record expires."""


@dataclass(frozen=True)
class Place:
    """A place at which a member may store a record."""

    key: bytes
    """Digest of the key, as in requests."""
    limit: int
    """Bytes of the largest record, with the proof of whose it is."""
    seconds: float
    """Seconds for which it may be kept."""


def places_of(registry: Registry, peer: str) -> tuple[Place, ...]:
    """Return the places at which `peer` may store records, one for each kind."""
    return (
        Place(_digest(registry.key("profile", peer)), PROFILE_LIMIT, TIMEOUTS.profile_lifetime),
        Place(_digest(registry.key("links", peer)), RECORD_LIMIT, TIMEOUTS.links_lifetime),
    )


class MembersRecords(RecordValidatorBase):  # type: ignore[misc]
    """A validator for hivemind that refuses to store or to return what no member has put in its own place."""

    def __init__(self, registry: Registry, identity: Identity, admission: Admission) -> None:
        """Make the validator.

        Args:
            registry: reads what is in a record, and counts what is dropped.
            identity: this peer's key.
            admission: this peer's credential, which its records carry, and whom it lets in.
        """
        self._registry, self._identity, self._admission = registry, identity, admission

    def sign_value(self, record: DHTRecord) -> bytes:
        """Put this peer's credential before a record that it stores, and its word on when that expires."""
        signature = self._identity.sign(_signable(record, record.value))
        return with_proof(self._admission.certificate, signature + record.value)

    def strip_value(self, record: DHTRecord) -> bytes:
        """Take that off a record that was found valid."""
        return split_proof(record.value)[1][SIGNATURE_BYTES:]

    def validate(self, record: DHTRecord) -> bool:
        """Whether a record is a member's own, where it belongs, neither too large nor kept for too long."""
        peer = ""
        try:
            peer = self._owner(record)
            certificate, rest = split_proof(record.value)
            self._admission.check(certificate, peer)
            signature, value = rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:]
            verify(peer, _signable(record, value), signature)
            data = _unpacked(value)
            if not isinstance(data, bytes):
                raise Refused("no bytes", Cause.FORM)
        except Refused as error:
            self._registry.drop(peer, error)
            return False
        return self._registry.check(peer, data, record.expiration_time) is not None

    def _owner(self, record: DHTRecord) -> str:
        """Return whose record it says it is.

        Raises:
            Refused: it cannot be that peer's: it is not in one of its places, too large, or kept for too long.
        """
        peer = _unpacked(record.subkey) if len(record.subkey) <= SUBKEY_LIMIT else None
        if not isinstance(peer, str):
            raise Refused("a record of nobody", Cause.FORM)
        place = next((place for place in places_of(self._registry, peer) if place.key == record.key), None)
        if place is None:
            raise Refused("a record where none of that peer belongs", Cause.AUTHOR)
        if len(record.value) > place.limit:
            raise Refused(f"a record of more than {place.limit} bytes", Cause.SIZE)
        if not record.expiration_time <= timed_storage.get_dht_time() + place.seconds + CLOCK_SECONDS:
            raise Refused("a record that wants to be kept for too long")
        return peer


def _signable(record: DHTRecord, value: bytes) -> bytes:
    """Return what a writer signs, so that nobody keeps its record longer than it says, or puts it elsewhere."""
    digest = hashlib.sha256(value).digest()
    return b"".join((b"dtfm/1/dht-record:", record.key, struct.pack("!d", record.expiration_time), digest))


def _digest(key: str) -> bytes:
    return bytes(DHTID.generate(source=key).to_bytes())


def _unpacked(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        raise Refused("no record", Cause.FORM) from None
