"""Multiaddresses taken apart by value."""

import pytest

from dtfm_protocol.transport.multiaddress import tcp_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("/ip4/192.0.2.1/tcp/7701", ("192.0.2.1", 7701, "", "")),
        ("/ip6/2001:db8::1/tcp/7701/p2p/a", ("2001:db8::1", 7701, "a", "")),
        ("/dns/swarm.example.org/tcp/1/p2p/a", ("swarm.example.org", 1, "a", "")),
        ("/dns4/swarm.example.org/tcp/65535", ("swarm.example.org", 65535, "", "")),
        ("/dns6/swarm.example.org/tcp/7701/ws/p2p/a", ("swarm.example.org", 7701, "", "/ws/p2p/a")),
        ("/ip4/192.0.2.1/tcp/7701/p2p/a/p2p-circuit/p2p/b", ("192.0.2.1", 7701, "a", "/p2p-circuit/p2p/b")),
        ("/ip4/192.0.2.1/tcp/7701/p2p/", ("192.0.2.1", 7701, "", "/p2p/")),
        ("/ip4/192.0.2.1/tcp/65536", None),
        ("/ip4/192.0.2.1/tcp/123456", None),
        ("/ip4/192.0.2.1/tcp/", None),
        ("/ip4/192.0.2.1/tcp/7701x", None),
        ("/ip4/192.0.2.1/udp/7701/quic", None),
        ("/memory/a", None),
        ("/p2p/a", None),
        ("192.0.2.1:7701", None),
        ("", None),
    ],
)
def test_a_multiaddress_leads_to_a_tcp_port_or_to_none(address: str, parts: tuple[str, int, str, str] | None) -> None:
    assert tcp_address(address) == parts
