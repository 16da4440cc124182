"""Doctor's tries of names, TCP connections and the swarm's first peers: what came of them, and what to do about it."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from dtfm_node.doctor.checks import first_peers
from dtfm_node.doctor.checks.first_peers import DhtMember, FirstPeer
from dtfm_node.doctor.findings import Verdict, worst
from dtfm_node.doctor.host_lookup import Host, closed_because, host_and_port, resolve, visit
from dtfm_protocol.transport.connect_attempt import attempt_connect
from dtfm_protocol.transport.ip_addresses import Kind, kind_of
from tests.harness.entrances import free_port
from tests.node.doctor_hosts import HOST, OTHER, OWNER, host


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port at which connections are neither taken nor refused: its queue is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield int(full.getsockname()[1])


# names, connections, addresses


@pytest.mark.parametrize(
    ("address", "door"),
    [
        ("/ip4/192.0.2.1/tcp/7701/p2p/12D3KooW", ("192.0.2.1", 7701, "12D3KooW")),
        ("/ip6/2001:db8::1/tcp/7701", ("2001:db8::1", 7701, "")),
        ("/dns4/swarm.example.org/tcp/7701/p2p/a", ("swarm.example.org", 7701, "a")),
        ("/ip4/192.0.2.1/tcp/77010/p2p/a", None),
        ("/ip4/192.0.2.1/tcp/7701/p2p/a/p2p-circuit/p2p/b", None),
        ("/ip4/192.0.2.1/udp/7701/quic", None),
    ],
)
def test_a_door_is_a_straight_way(address: str, door: tuple[str, int, str] | None) -> None:
    """Not one over a relay."""
    assert host_and_port(address) == door


@pytest.mark.parametrize(
    ("ip", "kind"),
    [
        ("127.0.0.1", "loopback"), ("::1", "loopback"), ("fe80::1%eth0", "link-local"), ("169.254.1.1", "link-local"),
        ("192.168.1.2", "private"), ("fd00::2", "private"), ("100.64.0.1", "carrier"), ("100.127.255.254", "carrier"),
        ("100.128.0.1", "global"), ("8.8.8.8", "global"), ("2a00:1450::1", "global"),
    ],
)  # fmt: skip
def test_addresses_have_a_reach(ip: str, kind: Kind) -> None:
    assert kind_of(ip) == kind


async def test_open_refused_and_silent_are_three_things() -> None:
    with socket.create_server((HOST, 0)) as door:
        assert (await attempt_connect(HOST, door.getsockname()[1], 5.0)).answer == "open"
    assert (await attempt_connect(HOST, free_port(), 5.0)).answer == "refused"
    with deaf_port() as port:
        assert (await attempt_connect(HOST, port, 0.1)).answer == "silent"


async def test_a_name_is_resolved_and_one_that_is_none_says_so() -> None:
    assert HOST in await resolve("localhost")
    assert (await visit("no-such-host.invalid", 1)).fault
    assert (await visit("a" * 100 + ".example", 1)).fault  # a label that is too long for a name


@pytest.mark.parametrize(
    ("closed", "seen", "todo"),
    [
        (Host("x.example", 1, fault="Name or service not known"), "no address", "internet connection"),
        (host("refused", HOST), "this machine itself", "--announce"),
        (host("refused"), "refuses", "coordinator is running"),
        (host("silent", "192.168.1.5"), "private network", "--announce"),
        (host("silent", "8.8.8.8"), "firewall drops", "port 7700"),
        (host("unreachable", "8.8.8.8"), "no way", "internet connection"),
    ],
)
def test_why_a_host_is_closed_decides_what_to_do(closed: Host, seen: str, todo: str) -> None:
    said = closed_because(closed)
    assert seen in said[0]
    assert todo in said[1]


# the swarm's first peers


def swarm(*answers: str) -> first_peers.FirstPeersObservation:
    """Doors of the owner's peer, and behind them another one's."""
    peers = (OWNER.peer_id, OTHER.peer_id)
    return first_peers.FirstPeersObservation(
        [FirstPeer(f"/{peer}", peer, host(answer)) for peer, answer in zip(peers, answers, strict=False)]
    )


def test_doors_are_judged_by_whether_any_lets_in() -> None:
    seen = swarm("refused", "open")
    assert worst(first_peers.judge(seen, (OWNER.peer_id,))) is Verdict.bad
    seen.connected, seen.members = [OTHER.peer_id], []
    assert worst(first_peers.judge(seen, (OWNER.peer_id,))) is Verdict.warn


def test_another_peer_than_the_invites_is_named() -> None:
    seen = swarm("open")
    seen.others[OWNER.peer_id] = OTHER.peer_id
    (said,) = first_peers.judge(seen, (OWNER.peer_id,))
    assert said.verdict is Verdict.bad
    assert OTHER.peer_id[-6:] in said.seen
    assert "newest invite" in said.todo


def test_the_dht_says_who_is_there_and_how_old_their_records_are() -> None:
    seen = swarm("open")
    seen.connected = [OWNER.peer_id]
    seen.members = [DhtMember("a", 3.0, "1", ()), DhtMember("b", 19.0, "1", ())]
    assert "2 nodes, with records written 3 to 19 s ago" in first_peers.judge(seen, ())[-1].seen
    seen.members, seen.dht_fault = None, "no answer for 8 s"
    assert first_peers.judge(seen, ())[-1].verdict is Verdict.bad
