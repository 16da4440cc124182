"""What looks like the first message of a TLS client, and what is rubbish, as far as one has seen it."""

import contextlib
import random
import ssl

import pytest
from benchmarks.flooder import client_hello

from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.client_hello import HELLO_LIMIT, hello_bytes


def hello_of(size: int) -> bytes:
    """A first message of so many bytes, headers included."""
    return b"\x16\x03\x01" + (size - 5).to_bytes(2) + b"\x01" + (size - 9).to_bytes(3) + bytes(size - 9)


def test_a_clients_first_message_is_waited_for_until_it_is_whole() -> None:
    hello = client_hello()
    assert [hello_bytes(hello[:seen]) for seen in range(9)] == [9] * 9
    assert {hello_bytes(hello[:seen]) for seen in range(9, len(hello) + 1)} == {len(hello)}


def test_the_largest_message_is_taken_and_one_byte_more_is_not() -> None:
    assert hello_bytes(hello_of(HELLO_LIMIT)) == HELLO_LIMIT
    with pytest.raises(Refused, match="ClientHello"):
        hello_bytes(hello_of(HELLO_LIMIT + 1)[:9])


def test_a_client_of_an_old_version_gets_as_far_as_tls_which_tells_it() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    hello = outgoing.read()
    assert hello_bytes(hello) == len(hello)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 1),
        (b"\x13/multistream/1.0.0\n", 1),
        (bytes(9), 1),
        (b"\x16\x02\x01\x01\x00\x01\x00\x00\xfc", 2),
        (b"\x16\x03\x01\x01\x00\x02\x00\x00\xfc", 9),
        (b"\x16\x03\x01\x01\x00\x01\x00\x00\xfd", 9),
    ],
    ids=["http", "libp2p", "zeros", "an old version", "a server's", "more than its record"],
)
def test_rubbish_is_refused_once_its_wrong_bytes_are_seen(said: bytes, wrong: int) -> None:
    for seen in range(wrong):
        assert hello_bytes(said[:seen]) == 9
    with pytest.raises(Refused, match="no TLS"):
        hello_bytes(said[:wrong])


@pytest.mark.parametrize("more", [b"x", b"\x16\x03\x03\x00\x01\x00", bytes(30_000)])
def test_who_does_not_wait_for_an_answer_is_refused(more: bytes) -> None:
    with pytest.raises(Refused, match="does not wait"):
        hello_bytes((client_hello() + more)[: HELLO_LIMIT + 1])


def test_whatever_a_stranger_says_it_is_refused_or_more_of_it_is_waited_for_up_to_a_limit() -> None:
    rng, hello = random.Random(0), client_hello()
    for _ in range(20_000):
        said = bytearray(hello[: rng.randrange(len(hello) + 1)] + rng.randbytes(rng.randrange(4)))
        for _ in range(rng.randrange(3)):
            if said:
                said[rng.randrange(min(len(said), 12))] = rng.randrange(256)
        with contextlib.suppress(Refused):
            assert max(9, len(said)) <= hello_bytes(bytes(said)) <= HELLO_LIMIT
