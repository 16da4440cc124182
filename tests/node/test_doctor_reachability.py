"""Doctor's judgement of how others reach this machine: what peers see of it, the kind of its NAT, IPv6."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.utils.multiaddr import Multiaddr

from dtfm_node.doctor import outside_view
from dtfm_node.doctor.checks import ipv6, reachability
from dtfm_node.doctor.checks.first_peers import AddressObservation
from dtfm_node.doctor.checks.reachability import Nat
from dtfm_node.doctor.findings import Finding, Verdict
from dtfm_node.doctor.host_lookup import Host
from dtfm_protocol.transport.connect_attempt import ConnectAttempt
from dtfm_protocol.transport.libp2p_messages import packed, with_length
from tests.node.doctor_hosts import HOST, OTHER, host


def said_by(address: bytes) -> Any:
    """Stands for a data plane whose peer, asked to identify this machine, says `address`."""
    message = packed({4: address})

    async def call(*_: object) -> tuple[None, asyncio.StreamReader, Any]:
        reader = asyncio.StreamReader()
        reader.feed_data(with_length(message))
        return None, reader, SimpleNamespace(close=lambda: None)

    return SimpleNamespace(p2p=SimpleNamespace(call_binary_stream_handler=call))


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/ip4/8.8.8.8/tcp/7701", ("8.8.8.8", 7701)),
        ("/ip6/2001:db8::1/tcp/7701", ("2001:db8::1", 7701)),
        ("/dns4/x/tcp/1", None),
        ("/dns/8.8.8.8/tcp/1", None),
        ("/ip4/8.8.8.8/udp/7701/quic", None),
    ],
)
async def test_a_peer_sees_this_machine_at_an_ip_address_or_nowhere(
    address: str, place: tuple[str, int] | None
) -> None:
    """A peer may say anything: what is no address must not come to where kinds of addresses are told."""
    assert await outside_view.observed(said_by(Multiaddr(address).to_bytes()), OTHER.peer_id) == place


@pytest.mark.parametrize("address", [b"\x06\x01", b"\xef", bytes.fromhex("389eaea4b9bac1a7a1c265a2")])
async def test_an_address_that_is_none_is_a_fault_of_the_peer_that_says_it(address: bytes) -> None:
    with pytest.raises(outside_view.FAULTS):
        await outside_view.observed(said_by(address), OTHER.peer_id)


def seen_at(*places: tuple[str, int]) -> list[AddressObservation]:
    """Different peers see this machine at these places."""
    return [AddressObservation(f"peer{i}", f"203.0.113.{i}", ip, port) for i, (ip, port) in enumerate(places)]


@pytest.mark.parametrize(
    ("own", "observations", "nat"),
    [
        (["8.8.8.8"], seen_at(("8.8.8.8", 7701)), "none"),
        (["192.168.1.2"], seen_at(("192.168.1.2", 7701)), "same network"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 7701), ("8.8.8.8", 7701)), "preserving"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 40000), ("8.8.8.8", 40000)), "stable"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 40000), ("8.8.8.8", 40001)), "symmetric"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 7701), ("8.8.4.4", 7701)), "symmetric"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 7701), ("192.168.1.2", 7701)), "one preserving"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 40000)), "one changing"),
        (["192.168.1.2"], seen_at((HOST, 7701)), "unknown"),
        (["192.168.1.2"], [], "unknown"),
    ],
)
def test_the_kind_of_nat_follows_from_what_peers_see(
    own: list[str], observations: list[AddressObservation], nat: Nat
) -> None:
    assert reachability.nat_of(own, 7701, observations) == nat


def judged(
    places: list[AddressObservation], own: str = "192.168.1.2", *, announced: bool = False
) -> dict[str, Finding]:
    found = reachability.judge((own,), 7701, places, (), [OTHER.peer_id], announced=announced)
    return {one.name: one for one in found}


def test_a_symmetric_nat_asks_for_a_forwarded_port_unless_one_is_announced() -> None:
    places = seen_at(("8.8.8.8", 40000), ("8.8.8.8", 40001))
    assert "forward a TCP port" in judged(places)["NAT"].todo
    assert judged(places, announced=True)["NAT"].verdict is Verdict.good


def test_of_a_machine_without_nat_it_is_said_that_a_firewall_was_not_tried() -> None:
    found = judged(seen_at(("8.8.8.8", 7701)), own="8.8.8.8")
    assert found["NAT"].verdict is Verdict.good
    assert "firewall" in found["NAT"].seen
    assert "relay" not in found


def test_who_is_behind_nat_needs_a_relay() -> None:
    places = seen_at(("8.8.8.8", 7701))
    assert OTHER.peer_id[-6:] in judged(places)["relay"].seen
    alone = reachability.judge(("192.168.1.2",), 7701, places, (), [], announced=False)
    assert (alone[-1].name, alone[-1].verdict) == ("relay", Verdict.warn)


def test_a_swarm_on_one_machine_needs_no_address() -> None:
    (said,) = reachability.judge(("192.168.1.2",), 7701, [], (), [], announced=False, local=True)
    assert said.verdict is Verdict.good


def test_a_router_behind_the_providers_nat_is_told() -> None:
    (said, *_) = reachability.judge(("192.168.1.2",), 7701, [], ("100.70.1.1",), [], announced=False)
    assert "provider" in said.todo


@pytest.mark.parametrize(
    ("at", "verdict", "word"),
    [
        (host("open", "8.8.8.8"), Verdict.good, "no proof"),
        (host("silent", "8.8.8.8"), Verdict.warn, "no proof"),
        (host("open", "192.168.1.2"), Verdict.warn, "no public address"),
        (Host("x.example", 7701, fault="Name or service not known"), Verdict.bad, "no address"),
        (None, Verdict.warn, "not tried"),
    ],
)
def test_announced_addresses_are_tried_from_here_which_proves_nothing_of_outside(
    at: Host | None, verdict: Verdict, word: str
) -> None:
    said = reachability.judge_announce("x.example:7701", at, "")
    assert said.verdict is verdict
    assert word in said.seen


def test_an_announced_address_of_another_form_is_refused() -> None:
    said = reachability.judge_announce("x.example", None, "--announce x.example: say the port too")
    assert (said.verdict, said.todo) == (Verdict.bad, "write it as HOST:PORT")


def test_ipv6_that_is_offered_and_does_not_answer_is_broken() -> None:
    new, old = "2a00:1450::1", "8.8.8.8"
    both = Host("x.example", 1, (ConnectAttempt(old, 1, "open"), ConnectAttempt(new, 1, "silent")))
    assert ipv6.judge(("2a00:1450::2",), [both])[0].verdict is Verdict.warn
    assert ipv6.judge(("192.168.1.2",), [both])[0].verdict is Verdict.good  # without an address nobody tries it
    fine = Host("x.example", 1, (ConnectAttempt(old, 1, "open"), ConnectAttempt(new, 1, "open")))
    assert "1 of the swarm's hosts" in ipv6.judge(("2a00:1450::2",), [fine])[0].seen
