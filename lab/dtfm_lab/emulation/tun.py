"""The TUN devices of hosts: what a host sends is read here as packets, and what is written here it receives.

Packets keep the header of `linux/virtio_net.h` before them, so that the kernel hands over as one what it would cut into
many segments: a tenth of the work, and the same bytes on the wire.
"""

import fcntl
import os
import struct

from dtfm_protocol.errors import UserError

DEVICE = "/dev/net/tun"
"""Path of the kernel's interface for TUN devices."""
HEADER_BYTES = 10
"""Bytes of the header before each packet."""
LARGEST_PACKET = HEADER_BYTES + (1 << 16)
"""Bytes of the largest packet, its header included."""
_SETIFF, _SETOFFLOAD = 0x400454CA, 0x400454D0
_TUN, _NO_INFORMATION, _HEADER = 0x0001, 0x1000, 0x4000
_CHECKSUM, _TCP4 = 0x01, 0x02
_VIRTIO = struct.Struct("=BBHHHH")
"""The header before a packet: flags, kind of segmentation, bytes of headers, bytes of a segment, and two of the
checksum's."""


def open_tun(name: str) -> int:
    """Open a new device `name` in this network namespace; return its file descriptor, non-blocking.

    Raises:
        UserError: the kernel does not give one.
    """
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        flags = _TUN | _NO_INFORMATION | _HEADER
        fcntl.ioctl(descriptor, _SETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(descriptor, _SETOFFLOAD, _CHECKSUM | _TCP4)
    except OSError as error:
        raise UserError(f"cannot make a TUN device: {error}; it needs root and {DEVICE}") from None
    return descriptor


def wire_bytes(packet: bytes) -> int:
    """Return the bytes of IP packets that `packet`, with its header, is on the wire."""
    _, kind, headers, segment, _, _ = _VIRTIO.unpack_from(packet)
    size = len(packet) - HEADER_BYTES
    if not kind or not segment:
        return size
    segments = -(-(size - headers) // segment)
    return size + int(max(0, segments - 1)) * int(headers)


def destination(packet: bytes) -> int | None:
    """Return the number of the host that an IPv4 packet is for: its address's lower half; None for other packets."""
    if len(packet) < HEADER_BYTES + 20 or packet[HEADER_BYTES] >> 4 != 4:
        return None
    return int.from_bytes(packet[HEADER_BYTES + 18 : HEADER_BYTES + 20], "big")
