"""Addresses that others announce are dialled where the whole internet reaches them, or where the swarm itself lies."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule, dial_rule
from dtfm_protocol.transport.dialling import addresses_to_dial, doors_to_dial, multiaddresses_to_dial, rule_around
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.hole_punching import HolePuncher
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.transport.simultaneous_open import OutsideAddress
from dtfm_protocol.transport.sockets import listener_at
from dtfm_protocol.transport.tls_connections import Endpoint, NoWay, TlsConnections
from dtfm_protocol.wire.stream import Stream, read_message, write_message
from tests.harness.membership import OWNER, member_of

PUBLIC = "93.184.216.34"
OWN = ("192.168.1.9", "81.2.69.142")
INSIDE = (
    "127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "192.168.77.1",
    "fd00::7", "169.254.169.254", "fe80::1", "fe80::1%eth0", "100.64.0.1", "100.127.255.254", "198.18.0.1",
    # the same in other words
    "::ffff:192.168.1.1", "::ffff:127.0.0.1", "64:ff9b::c0a8:101", "2002:c0a8:101::1", "0.0.0.0", "::",
    # no machine's, or nobody's
    "224.0.0.1", "239.1.2.3", "ff02::1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "2001:db8::1", "fec0::1",
    # names, as they are
    "localhost", "router.example", "127.1", "2130706433", "0x7f000001", "", "192.168.1.1.", "1.2.3.4:80",
)  # fmt: skip
OUTSIDE = (PUBLIC, "8.8.8.8", "100.128.0.1", "172.32.0.1", "11.0.0.1", "2a00:1450::1", "::ffff:8.8.8.8")


@pytest.mark.parametrize("host", INSIDE)
def test_nothing_inside_a_private_network_is_dialled_for_a_swarm_on_the_internet(host: str) -> None:
    assert not dial_rule(OWN, [PUBLIC]).allows(host)
    assert not dial_rule(OWN, []).allows(host)
    assert ANYWHERE.allows(host)


@pytest.mark.parametrize("host", OUTSIDE)
@pytest.mark.parametrize("coordinator", [PUBLIC, "127.0.0.1", "192.168.1.5"])
def test_what_the_whole_internet_reaches_is_dialled(host: str, coordinator: str) -> None:
    assert dial_rule(OWN, [coordinator]).allows(host)


@pytest.mark.parametrize(
    ("coordinator", "dialled", "left"),
    [
        ("127.0.0.1", ["127.0.0.1", "127.0.0.2", "::1", *OWN], ["192.168.1.1", "10.0.0.1"]),
        ("::1", ["127.0.0.1", "::1"], ["fd00::7", "192.168.1.1"]),
        ("192.168.1.5", ["192.168.1.1", "192.168.77.1", OWN[0]], ["127.0.0.1", "10.0.0.1", "fd00::7", OWN[1]]),
        ("::ffff:192.168.1.5", ["192.168.1.1"], ["127.0.0.1", "10.0.0.1"]),
        ("10.77.0.1", ["10.77.0.2", "10.200.0.1"], ["127.0.0.1", "192.168.1.1", "169.254.169.254"]),
        ("172.18.0.2", ["172.18.0.3"], ["172.32.0.1.", "192.168.1.1"]),
        ("100.64.3.4", ["100.100.1.1"], ["10.0.0.1", "127.0.0.1"]),
        ("fd00::5", ["fd12::1"], ["fe80::1", "192.168.1.1", "::1"]),
        (OWN[1], list(OWN), ["127.0.0.1", "192.168.1.1"]),  # this very machine, on the internet
    ],
)
def test_a_swarm_inside_a_network_is_dialled_there_and_nowhere_else_inside(
    coordinator: str, dialled: list[str], left: list[str]
) -> None:
    rule = dial_rule(OWN, [coordinator])
    assert [host for host in dialled if not rule.allows(host)] == []
    assert [host for host in left if rule.allows(host)] == []


def test_a_name_with_a_public_address_too_does_not_open_the_network() -> None:
    """The owner's name server says what it likes."""
    assert not dial_rule(OWN, ["192.168.1.5", PUBLIC]).allows("192.168.1.1")
    assert not dial_rule(OWN, ["127.0.0.1", PUBLIC]).allows("127.0.0.1")


def test_a_machines_own_public_address_is_its_own_network() -> None:
    assert not dial_rule(OWN, [PUBLIC]).allows(OWN[1])


def test_whoever_allows_it_has_the_network_dialled_but_not_loopback() -> None:
    rule = dial_rule(OWN, [PUBLIC], lan=True)
    assert all(rule.allows(host) for host in ("192.168.1.1", "10.1.2.3", "fd00::7", "100.64.0.1", *OWN))
    assert not any(rule.allows(host) for host in ("127.0.0.1", "::1", "0.0.0.0", "239.1.2.3"))


async def test_names_are_looked_up_before_the_rule_is_asked() -> None:
    """And so are addresses in spellings that only the system's own resolver takes."""
    public = dial_rule(OWN, [PUBLIC])
    for name in ("localhost", "127.1", "2130706433", "0x7f.1"):
        assert await addresses_to_dial(name, public) == ()
        assert await addresses_to_dial(name, dial_rule([], ["127.0.0.1"])) == ("127.0.0.1",)
    given = ("/dns4/localhost/tcp/1/p2p/a", "/ip4/10.0.0.1/tcp/2/p2p/a", f"/ip4/{PUBLIC}/tcp/3/p2p/r/p2p-circuit/p2p/a",
             "/unix/tmp/x", "/ip4/8.8.8.8/udp/4/quic", "/dnsaddr/x.example/p2p/a")  # fmt: skip
    assert await multiaddresses_to_dial(given, public) == given[2:3]
    here = dial_rule([], ["127.0.0.1"])
    assert await multiaddresses_to_dial(given[:3], here) == ("/ip4/127.0.0.1/tcp/1/p2p/a", given[2])
    assert await multiaddresses_to_dial(given, ANYWHERE) == given
    assert await doors_to_dial(given[:3], here) == (given[0], given[2])  # a name stays one


async def test_the_rule_of_a_coordinator_follows_its_own_name() -> None:
    assert (await rule_around("localhost", lan=False)).allows("127.0.0.1")
    assert not (await rule_around(PUBLIC, lan=False)).allows("127.0.0.1")
    assert not (await rule_around("no name", lan=False)).allows("127.0.0.1")


# -- wherever something is dialled ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listener() -> AsyncIterator[socket.socket]:
    """A service inside this machine's network, which nobody may come to."""
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        yield inside
        with pytest.raises(BlockingIOError):
            inside.accept()


def connections(dials: DialRule) -> TlsConnections:
    me, admission = member_of(OWNER)
    return TlsConnections(me, admission, listener_at("127.0.0.1", 0), {}, DirectLimits(punch=0.2), dials)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::ffff:127.0.0.1"])
async def test_an_endpoint_inside_is_not_dialled(host: str) -> None:
    peer = Identity.generate().peer_id
    async with listener() as inside:
        plane = connections(dial_rule([], [PUBLIC]))
        async with plane.running():
            endpoint = Endpoint(hosts=(host,), port=inside.getsockname()[1])
            with pytest.raises(NoWay):
                await plane.dial(peer, endpoint, "echo")


@pytest.mark.parametrize("side", ["asking", "asked"])
async def test_no_hole_is_punched_to_an_address_inside(side: str) -> None:
    """Whichever side the other one is on."""
    network = MemoryNetwork()
    async with listener() as inside:
        there = OutsideAddress(host="127.0.0.1", port=inside.getsockname()[1])
        plane = connections(dial_rule([], [PUBLIC]))
        async with plane.running():

            async def other(stream: Stream) -> None:
                await read_message(stream, OutsideAddress)
                await write_message(stream, there)
                await stream.read(1)

            puncher = _Seen(plane, lambda peer: MemoryDataPlane(network, "a").open(peer, "punch"))
            if side == "asking":
                await MemoryDataPlane(network, "b").serve("punch", other)
                with pytest.raises(NoWay, match="inside this machine's own network"):
                    await puncher.open("b", "echo")
            else:
                answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

                async def answer(stream: Stream) -> None:
                    answered.set_result(await puncher.answer(stream))

                await MemoryDataPlane(network, "b").serve("punch", answer)
                stream = await MemoryDataPlane(network, "a").open("b", "punch")
                await write_message(stream, there)
                assert await answered is False


class _Seen(HolePuncher):
    """Knows how it is seen from outside, without a mirror."""

    def __init__(self, plane: TlsConnections, meet: object) -> None:
        super().__init__(plane, (), meet, None)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def _seen(self, _: object) -> AsyncIterator[OutsideAddress]:
        yield OutsideAddress(host=PUBLIC, port=9)
