"""A peer's identity: an Ed25519 key in the format that libp2p reads, whose peer id carries the public key itself."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import base58
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dtfm_protocol.bounds import PEER_NAME_LIMIT
from dtfm_protocol.errors import Cause, Refused, UserError

# libp2p peer-ids spec: protobuf PrivateKey/PublicKey {1: type = Ed25519 (1), 2: data}; an Ed25519 peer id is the
# identity multihash (0x00, length) of the public key's protobuf.
_PRIVATE_PREFIX = b"\x08\x01\x12\x40"
_PUBLIC_PREFIX = b"\x08\x01\x12\x20"
_MULTIHASH_PREFIX = b"\x00\x24"
KEYS_KEPT = 4096
"""Public keys that are kept beside their peer ids: to read one takes longer than to check a signature."""


class Identity:
    """A peer's signing key and the peer id that follows from it."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.peer_id = peer_id_of(private.public_key())

    @classmethod
    def generate(cls) -> "Identity":
        """Make a new random identity."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """Read the key file at `path`; create it (mode 600) where there is none.

        Raises:
            UserError: the file cannot be read or written, is not such a key, or others may read it.
        """
        try:
            if path.exists():
                if path.stat().st_mode & 0o077:
                    raise UserError(f"the key {path} is open to other users: chmod 600 it")
                return cls._parse(path)
            identity = cls.generate()
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(identity.to_libp2p())
        except OSError as error:
            raise UserError(f"cannot use the key {path}: {error.strerror}") from None
        return identity

    @classmethod
    def _parse(cls, path: Path) -> "Identity":
        data = path.read_bytes()
        if len(data) != 68 or not data.startswith(_PRIVATE_PREFIX):
            raise UserError(f"{path} is not an Ed25519 key of a peer: move it away and a new one is made")
        return cls(Ed25519PrivateKey.from_private_bytes(data[4:36]))

    def to_libp2p(self) -> bytes:
        """Encode the key as libp2p's PrivateKey protobuf: 68 bytes."""
        private = self._private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _PRIVATE_PREFIX + private + public

    def to_pem(self, password: bytes) -> bytes:
        """Encode the key as PKCS #8 in PEM, encrypted: for libraries that read keys from files alone."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))

    def certify(self, draft: x509.CertificateBuilder) -> x509.Certificate:
        """Sign the certificate `draft` with this key."""
        return draft.sign(self._private, None)

    def sign(self, message: bytes) -> bytes:
        """Sign a message: an Ed25519 signature of 64 bytes."""
        return self._private.sign(message)


def peer_id_of(public: Ed25519PublicKey) -> str:
    """Return the peer id of a public key, in base58: "12D3KooW..."."""
    return peer_id_of_raw(public.public_bytes(Encoding.Raw, PublicFormat.Raw))


def peer_id_of_raw(raw: bytes) -> str:
    """Return the peer id of a public key of 32 bytes."""
    return str(base58.b58encode(_MULTIHASH_PREFIX + _PUBLIC_PREFIX + raw).decode())


def raw_key_of(peer_id: str) -> bytes:
    """Return the public key inside a peer id, 32 bytes. Raises as `public_key_of`."""
    return public_key_of(peer_id).public_bytes(Encoding.Raw, PublicFormat.Raw)


@lru_cache(KEYS_KEPT)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """Return the public key inside a peer id.

    Raises:
        Refused: `peer_id` is not that of an Ed25519 key.
    """
    try:
        # Decoding takes time that grows with the square of the length.
        data = base58.b58decode(peer_id) if len(peer_id) <= PEER_NAME_LIMIT else b""
    except ValueError:
        data = b""
    prefix = _MULTIHASH_PREFIX + _PUBLIC_PREFIX
    if len(data) != len(prefix) + 32 or not data.startswith(prefix):
        raise Refused(f"{peer_id[:80]!r} is not a peer id", Cause.SIGNATURE)
    return Ed25519PublicKey.from_public_bytes(data[len(prefix) :])


SignatureCheck = Callable[[str, bytes, bytes], None]
"""Function that raises `Refused` unless a peer has signed a statement, as `verify` does."""


def verify(peer_id: str, message: bytes, signature: bytes) -> None:
    """Check that `peer_id` signed `message`.

    Raises:
        Refused: the signature is not that of `peer_id`.
    """
    try:
        public_key_of(peer_id).verify(signature, message)
    except InvalidSignature:
        raise Refused(f"signature is not {short(peer_id)}'s", Cause.SIGNATURE) from None


def called(peer_id: str, name: str) -> str:
    """Return a peer for people: the name that its person gave it, if any, and always the end of its id, for anybody may
    take anybody's name."""
    return f"{name} ({short(peer_id)})" if name else short(peer_id)


def short(peer_id: str) -> str:
    """Shorten a peer id for people: its last six characters (the first ones are the same for every key)."""
    return peer_id[-6:]
