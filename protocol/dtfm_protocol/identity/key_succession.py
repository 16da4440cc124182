"""A succession: a coordinator's signed word that another key has taken the place of its own.

Successions are part of the new key's certificate, so whoever sees that knows why to follow it; those who were away do,
too.
"""

import struct
from dataclasses import dataclass
from typing import Self

from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.envelope import signable
from dtfm_protocol.identity.keys import Identity, peer_id_of_raw, raw_key_of, verify

MOST_SUCCESSIONS = 8
"""Successions in a certificate: whoever knows only an older key than those needs a new invite."""
_FORM = struct.Struct("!32sQI64s")


@dataclass(frozen=True)
class Succession:
    """The replacement of one coordinator's key by another; the old one signs it."""

    before: str
    """Peer id of the key that is replaced."""
    after: str
    """Peer id of the key that takes its place."""
    at: int
    """Unix seconds of the replacement: what the old key has signed counts for a while from then on."""
    called: int
    """The greatest version of a plan that the old key has called for: no later plan is its."""
    signature: bytes

    @classmethod
    def made(cls, before: Identity, swarm: str, after: str, at: int, called: int) -> Self:
        """Have `before` say that `after` takes its place in `swarm`."""
        draft = cls(before.peer_id, after, at, min(called, MOST_UINT32), b"")
        return cls(draft.before, draft.after, draft.at, draft.called, before.sign(draft._signable(swarm)))

    def verify(self, swarm: str) -> None:
        """Check that the old key has signed it for `swarm`.

        Raises:
            Refused: it has not.
        """
        verify(self.before, self._signable(swarm), self.signature)

    def _signable(self, swarm: str) -> bytes:
        said = {"swarm": swarm, "succession of": self.before, "by": self.after, "at": self.at, "called": self.called}
        return signable(said)


def encode_successions(successions: tuple[Succession, ...]) -> bytes:
    """Encode successions of which each follows the one before; to whom the last one leads is not in it."""
    return b"".join(_FORM.pack(raw_key_of(one.before), one.at, one.called, one.signature) for one in successions)


def decode_successions(data: bytes, last: str) -> tuple[Succession, ...]:
    """Decode what `encode_successions` gives; `last` is the peer to whom they lead. Signatures are not checked.

    Raises:
        Refused: they are none, or too many.
    """
    if len(data) % _FORM.size or len(data) > MOST_SUCCESSIONS * _FORM.size:
        raise Refused("successions of another length", Cause.FORM)
    rows = list(_FORM.iter_unpack(data))
    keys = [peer_id_of_raw(row[0]) for row in rows] + [last]
    if len(set(keys)) < len(keys):
        raise Refused("successions that lead back", Cause.FORM)
    return tuple(
        Succession(before, after, at, called, signature)
        for before, after, (_, at, called, signature) in zip(keys, keys[1:], rows, strict=False)
    )
