"""A stranger's libp2p, as little of it as connects to a daemon: many of them cost one process little.

TLS with the certificate that libp2p's specification asks for, yamux, and streams on which anything may be said.
"""

import asyncio
import contextlib
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dtfm_protocol.identity.keys import Identity

_KEY_OF_THE_PEER = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_DATA, _SYN = 0, 1


class Libp2pStranger:
    """A connection of a peer that nobody knows, as yamux sees it."""

    def __init__(self, identity: Identity, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer_id = identity.peer_id
        self._reader, self._writer = reader, writer
        self._next = 1

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, host: str, port: int) -> AsyncIterator["Libp2pStranger"]:
        """Connect under a new identity to the daemon at `host`:`port`."""
        identity = Identity.generate()
        reader, writer = await asyncio.open_connection(host, port)
        try:
            await _agree(reader, writer, "/tls/1.0.0")
            await writer.start_tls(_context(identity))
            await _agree(reader, writer, "/yamux/1.0.0")
            yield cls(identity, reader, writer)
        finally:
            writer.transport.abort()

    async def say(self, protocol: str, data: bytes) -> None:
        """Open a stream for a protocol, and say something on it; nothing is waited for."""
        said = _line("/multistream/1.0.0") + _line(protocol) + data
        self._writer.write(struct.pack("!BBHII", 0, _DATA, _SYN, self._next, len(said)) + said)
        self._next += 2
        await self._writer.drain()

    async def ended(self) -> None:
        """Wait until the other end has closed the connection."""
        with contextlib.suppress(OSError):
            while await self._reader.read(1 << 16):
                pass


async def _agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: str) -> None:
    writer.write(_line("/multistream/1.0.0") + _line(protocol))
    await writer.drain()
    for expected in ("/multistream/1.0.0", protocol):
        got = await reader.readexactly(len(_line(expected)))
        if got != _line(expected):
            raise ConnectionError(f"{got!r} where {expected} belongs")


def _line(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode() + b"\n"


def _context(identity: Identity) -> ssl.SSLContext:
    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    of_peer = b"\x08\x01\x12\x20" + identity.to_libp2p()[-32:]
    signature = identity.sign(b"libp2p-tls-handshake:" + spki)
    parts = b"".join(b"\x04" + bytes([len(part)]) + part for part in (of_peer, signature))
    proof = x509.UnrecognizedExtension(_KEY_OF_THE_PEER, b"\x30" + bytes([len(parts)]) + parts)
    name = x509.Name([])
    draft = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1))
        .not_valid_after(datetime(2100, 1, 1))
        .add_extension(proof, critical=True)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["libp2p"])
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.write(draft.sign(key, None).public_bytes(Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context
