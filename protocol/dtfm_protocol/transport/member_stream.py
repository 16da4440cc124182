"""A libp2p stream between members: the first thing that each end says is its credential."""

import asyncio
import struct
from collections.abc import Callable

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.credential import CERTIFICATE_LIMIT
from dtfm_protocol.transport.libp2p_stream import LibP2PStream
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.wire.stream import Bytes, StreamClosed, Way

_SIZE = struct.Struct("!H")


def with_proof(certificate: bytes, data: bytes = b"") -> bytes:
    """Put a credential before `data`: its length in 2 bytes, then the certificate, DER."""
    return _SIZE.pack(len(certificate)) + certificate + data


def split_proof(data: bytes) -> tuple[bytes, bytes]:
    """Return the credential before the data, and the data.

    Raises:
        Refused: there is none, or too large a one.
    """
    if len(data) < _SIZE.size:
        raise Refused("no credential was shown")
    end = _SIZE.size + _proof_size(data[: _SIZE.size])
    if len(data) < end:
        raise Refused("a credential that is cut short")
    return data[_SIZE.size : end], data[end:]


def _proof_size(data: Bytes) -> int:
    (size,) = _SIZE.unpack(data)
    if size > CERTIFICATE_LIMIT:
        raise Refused(f"a credential of {size} bytes, more than {CERTIFICATE_LIMIT}")
    return int(size)


class MemberStream(LibP2PStream):
    """A stream whose other end's credential is checked before anything else is read; that costs no round trip."""

    def __init__(
        self,
        peer: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Way,
        check: Callable[[bytes, str], object],
        caps: TrafficCaps | None = None,
    ) -> None:
        """Take a stream over, on which nothing was said.

        Args:
            peer: peer id that the daemon has proven.
            reader: what comes from the daemon.
            writer: what goes to it.
            way: kind of way that the stream takes.
            check: raises Refused where a certificate is none with which that peer is let in.
            caps: on what all streams of this peer together send and receive; None: there are none.
        """
        super().__init__(peer, reader, writer, way, caps)
        self._check = check
        self._proof_size: int | None = None
        self.is_proven = False
        """Whether the other end has shown that it is a member."""

    async def show(self, certificate: bytes) -> None:
        """Say who this end is. Raises StreamClosed."""
        await self.write(with_proof(certificate))

    async def prove(self) -> None:
        """Read the other end's credential, and check it.

        Raises:
            Refused: it is none with which it is let in.
            StreamClosed: the stream ends before that.
        """
        if self._proof_size is None:
            self._proof_size = _proof_size(await super().read(_SIZE.size))
        certificate = await super().read(self._proof_size)
        self._check(bytes(certificate), self.peer)
        self.is_proven = True

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes, as `Stream.read`."""
        if not self.is_proven:
            try:
                await self.prove()
            except Refused as error:
                self.abort()
                raise StreamClosed(f"no stream with a member: {error}") from None
        return await super().read(size)
