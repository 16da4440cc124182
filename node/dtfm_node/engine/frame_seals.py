"""Seals on the frames of the all-reduce: the sender's signature over what a frame is, and the hash of its payload.

64 bytes come after the payload. A seal proves who sent which bytes, so that who sends different reduced parts to
different peers has signed the proof of it.
"""

import asyncio
import hashlib
from dataclasses import dataclass

from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.signed_commit import SIGNATURE_BYTES
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes

SEAL_BYTES = SIGNATURE_BYTES
"""Bytes of a seal."""
_LARGE_BYTES = 1 << 16
"""Bytes from which hashing would hold up the event loop for longer than a thread takes to be asked."""


@dataclass(frozen=True)
class Seal:
    """A seal with the hash that it is for."""

    sha256: bytes
    signature: bytes


class FrameSeals:
    """Making and checking of the seals of one plan.

    A sum of a part goes to one peer, and its seal names it (`receiver`). A reduced part is for all holders alike; its
    seal names the sum of squares of what it decodes to (`squares`), which thereby is its owner's word, too.
    """

    def __init__(self, signer: Signer, plan: int) -> None:
        self._signer, self._plan = signer, plan

    async def hash(self, payload: Bytes) -> bytes:
        """Return the SHA-256 of a payload; a large one is hashed on a thread, while the event loop goes on."""
        if len(payload) < _LARGE_BYTES:
            return _sha256(payload)
        return await asyncio.to_thread(_sha256, payload)

    def seal(self, key: Key, sha256: bytes, *, receiver: str = "", squares: float | None = None) -> Seal:
        """Return this peer's seal of the frame `key` with a payload of hash `sha256`."""
        return Seal(sha256, self._signer.sign(self._statement(key, sha256, receiver, squares)))

    def check(self, sender: str, key: Key, seal: Seal, *, receiver: str = "", squares: float | None = None) -> None:
        """Check that `sender` has sealed the frame `key`.

        Raises:
            Refused: it has not, or with other bytes, for another receiver, or with other squares.
        """
        self._signer.check(sender, self._statement(key, seal.sha256, receiver, squares), seal.signature)

    def _statement(self, key: Key, sha256: bytes, receiver: str, squares: float | None) -> bytes:
        assert bool(receiver) == (key.kind is Kind.PART), "a part's seal names its receiver"
        assert (squares is not None) == (key.kind is Kind.REDUCED), "a reduced part's seal names its squares"
        where = f"{self._signer.swarm}:{self._plan}:{int(key.kind)}:{key.step}:{key.index}:{key.group}"
        what = receiver if squares is None else squares.hex()
        return f"dtfm/1/frame:{where}:{what}:".encode() + sha256


def unsealed(frame: Bytes) -> tuple[memoryview, bytes]:
    """Return the payload and the seal's signature of a frame of at least `SEAL_BYTES`."""
    view = memoryview(frame)
    return view[:-SEAL_BYTES], bytes(view[-SEAL_BYTES:])


def _sha256(payload: Bytes) -> bytes:
    return hashlib.sha256(payload).digest()
