"""Whether something takes connections at an address: yes, no, and no answer are three things."""

import socket

import pytest

from dtfm_coordinator.membership.reachable_addresses import host_and_port, is_open, still_reachable
from dtfm_protocol.transport.dial_rule import dial_rule

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "door"),
    [
        ("/ip4/192.0.2.1/tcp/7701/p2p/12D3KooW", ("192.0.2.1", 7701)),
        ("/ip6/2001:db8::1/tcp/7701", ("2001:db8::1", 7701)),
        ("/dns4/swarm.example.org/tcp/7701/p2p/12D3KooW", ("swarm.example.org", 7701)),
        ("/dns/swarm.example.org/tcp/7701", ("swarm.example.org", 7701)),
        ("/ip4/192.0.2.1/udp/7701/quic", None),
        ("/p2p/12D3KooW", None),
        ("192.0.2.1:7701", None),
        ("", None),
    ],
)
def test_a_multiaddress_names_host_and_port_or_none(address: str, door: tuple[str, int] | None) -> None:
    assert host_and_port(address) == door


async def test_an_open_port_answers_and_a_closed_one_says_no() -> None:
    with socket.create_server((HOST, 0)) as door:
        port = int(door.getsockname()[1])
        assert await is_open(HOST, port) is True
    assert await is_open(HOST, port) is False


@pytest.mark.parametrize("door", [("a" * 300, 9), ("x..y", 9), ("\0", 9), (HOST, 99999), ("no such host", 9)])
async def test_what_is_no_address_does_not_answer(door: tuple[str, int]) -> None:
    assert not await is_open(*door)


async def test_where_nobody_answers_nothing_is_known() -> None:
    """A machine that is cut off may still train."""
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        port = int(full.getsockname()[1])
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:  # the system takes no more of them than nobody has accepted
                one.setblocking(False)
                one.connect_ex((HOST, port))
            assert await is_open(HOST, port, 0.1) is None
        finally:
            for one in waiting:
                one.close()


async def test_of_several_addresses_the_open_ones_are_told_in_their_order() -> None:
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        closed = socket.create_server((HOST, 0))
        addresses = [f"/ip4/{HOST}/tcp/{one.getsockname()[1]}/p2p/a" for one in (second, closed, first)]
        closed.close()
        assert await still_reachable((*addresses, "/p2p/a")) == (addresses[0], addresses[2])
    assert await still_reachable(()) == ()


async def test_a_coordinator_connects_to_no_address_inside_its_network() -> None:
    with socket.create_server((HOST, 0)) as inside:
        port = inside.getsockname()[1]
        public = dial_rule([], ["203.0.113.7"])
        assert await is_open(HOST, port, dials=public) is None
        assert await is_open("localhost", port, dials=public) is None
        addresses = (f"/ip4/{HOST}/tcp/{port}", f"/dns4/localhost/tcp/{port}")
        assert await still_reachable(addresses, public) == ()
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came
            inside.accept()
        assert await is_open(HOST, port, dials=dial_rule([], [HOST])) is True
