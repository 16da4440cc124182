"""Seals on reduced parts: their owner's signature over which part it is, the hash of its bytes, and its squares.

64 bytes come after the payload. The plan says by which hash: BLAKE3, as a rule, which a processor works out four times
as fast as SHA-256, for hashing takes most of what seals cost. A seal proves who sent which bytes, so that who sends
different reduced parts to different peers has signed the proof of it. What goes to one peer alone is not sealed: nobody
else could be told another thing.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.plan import SealHash
from dtfm_protocol.plan.signed_commit import SIGNATURE_BYTES
from dtfm_protocol.wire.frames import Key
from dtfm_protocol.wire.stream import Bytes

SEAL_BYTES = SIGNATURE_BYTES
"""Bytes of a seal."""
_LARGE_BYTES = 1 << 16
"""Bytes from which hashing would hold up the event loop for longer than a thread takes to be asked."""


@dataclass(frozen=True)
class Seal:
    """A seal with the hash that it is for."""

    digest: bytes
    """The 32 bytes of the hash of the frame's payload."""
    signature: bytes


class FrameSeals:
    """Making and checking of the seals of one plan.

    A reduced part is for all holders alike. Its seal names the sum of squares of what it decodes to, too, which thereby
    is its owner's word.
    """

    def __init__(self, signer: Signer, plan: int, hash_name: SealHash = "sha256") -> None:
        self._signer, self._plan, self._hash = signer, plan, _HASHES[hash_name]

    async def hash(self, payload: Bytes) -> bytes:
        """Return the hash of a payload; a large one is hashed on a thread, while the event loop goes on."""
        if len(payload) < _LARGE_BYTES:
            return self._hash(payload)
        return await asyncio.to_thread(self._hash, payload)

    def seal(self, key: Key, digest: bytes, squares: float) -> Seal:
        """Return this peer's seal of the frame `key` with a payload of hash `digest`."""
        return Seal(digest, self._signer.sign(self._statement(key, digest, squares)))

    def check(self, sender: str, key: Key, seal: Seal, squares: float) -> None:
        """Check that `sender` has sealed the frame `key`.

        Raises:
            Refused: it has not, or with other bytes, or with other squares.
        """
        self._signer.check(sender, self._statement(key, seal.digest, squares), seal.signature)

    def _statement(self, key: Key, digest: bytes, squares: float) -> bytes:
        where = f"{self._signer.swarm}:{self._plan}:{int(key.kind)}:{key.step}:{key.index}:{key.group}"
        return f"dtfm/1/frame:{where}:{squares.hex()}:".encode() + digest


def unsealed(frame: Bytes) -> tuple[memoryview, bytes]:
    """Return the payload and the seal's signature of a frame of at least `SEAL_BYTES`."""
    view = memoryview(frame)
    return view[:-SEAL_BYTES], bytes(view[-SEAL_BYTES:])


def _sha256(payload: Bytes) -> bytes:
    return hashlib.sha256(payload).digest()


def _blake3(payload: Bytes) -> bytes:
    return blake3(payload).digest()


_HASHES: dict[SealHash, Callable[[Bytes], bytes]] = {"sha256": _sha256, "blake3": _blake3}
