"""Quick signatures: keyed hashes that stand in for the Ed25519 signatures of this process, which take a hundred times
as long. What is not signed so goes to the real check, as ever: only what is genuine is found out faster."""

import contextlib
import functools
import hashlib
import hmac
import os
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dtfm_protocol.identity import keys
from dtfm_protocol.identity.keys import Identity

_SECRET = os.urandom(32)


def _signature(peer_id: str, message: bytes) -> bytes:
    """Return 64 bytes that nobody outside this process can make."""
    return hashlib.blake2b(message, key=_SECRET, person=hashlib.md5(peer_id.encode()).digest()).digest()


class _QuickKey:
    """The public key of a peer, which knows the quick signatures, too."""

    def __init__(self, peer_id: str, real: Ed25519PublicKey) -> None:
        self._peer_id, self._real = peer_id, real

    def verify(self, signature: bytes, message: bytes) -> None:
        """See `Ed25519PublicKey`."""
        if not hmac.compare_digest(signature, _signature(self._peer_id, message)):
            self._real.verify(signature, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextlib.contextmanager
def quick_signatures() -> Iterator[None]:
    """Have all identities of this process sign quickly, within the `with`. Certificates are signed as ever."""
    signed, key_of = Identity.sign, keys.public_key_of

    @functools.lru_cache(keys.KEYS_KEPT)
    def quick_key_of(peer_id: str) -> Any:
        return _QuickKey(peer_id, key_of(peer_id))

    def sign(self: Identity, message: bytes) -> bytes:
        return _signature(self.peer_id, message)

    Identity.sign = sign  # type: ignore[method-assign]
    keys.public_key_of = quick_key_of
    try:
        yield
    finally:
        Identity.sign = signed  # type: ignore[method-assign]
        keys.public_key_of = key_of
