"""The first message of a TLS client, told from rubbish before anything is computed for it."""

from dtfm_protocol.errors import Refused

HELLO_LIMIT = 4096
"""Bytes of the largest first message: OpenSSL's has some 300, and less than 2,000 with keys that withstand quantum
computers."""
_BEGINNING = b"\x16\x03"
"""A record of a handshake, of any version since SSL 3 (RFC 8446, 5.1)."""
_RECORD_HEADER, _HEADERS = 5, 9
"""Bytes of a record's header, and of that and the message's own."""
_CLIENT_HELLO = 1


def hello_bytes(seen: bytes) -> int:
    """Return how many bytes the first message has; of one of which too little is seen, how many are to be seen.

    Args:
        seen: the first bytes of a connection; not all of them, if there are more than `HELLO_LIMIT`.

    Raises:
        Refused: it is no ClientHello with a record of its own, or more than that: no client goes on before it has heard
            an answer.
    """
    if not seen.startswith(_BEGINNING[: len(seen)]):
        raise Refused("no TLS")
    if len(seen) < _HEADERS:
        return _HEADERS
    size = _RECORD_HEADER + int.from_bytes(seen[3:5])
    message = _HEADERS + int.from_bytes(seen[6:9])
    if seen[5] != _CLIENT_HELLO or size != message or size > HELLO_LIMIT:
        raise Refused("no TLS: it does not begin with a ClientHello")
    if len(seen) > size:
        raise Refused("no TLS: it does not wait for an answer")
    return size
