"""Whether others can reach this machine: the addresses it has, those that others see, what a NAT does with them."""

from collections.abc import Iterable
from typing import Literal

from dtfm_node.doctor.checks.first_peers import AddressObservation
from dtfm_node.doctor.findings import Finding, bad, good, warn
from dtfm_node.doctor.host_lookup import Host, closed_because
from dtfm_protocol.identity.keys import short
from dtfm_protocol.transport.ip_addresses import kind_of

GROUP = "reachability"

Nat = Literal["none", "same network", "preserving", "stable", "symmetric", "one preserving", "one changing", "unknown"]
"""preserving: the port outside is the one here, whoever looks; stable: another one, the same for all who look;
symmetric: another one for each. one ...: only one peer has looked."""


def nat_of(own: Iterable[str], port: int, observations: list[AddressObservation]) -> Nat:
    """What stands between this machine, which connects from its listening `port`, and those that observe it."""
    mine = set(own)
    seen = [one for one in observations if kind_of(one.ip) not in {"loopback", "link-local"}]
    translated = [one for one in seen if one.ip not in mine]
    if not seen:
        return "unknown"
    if not translated:
        return "none" if any(kind_of(one.ip) == "global" for one in seen) else "same network"
    if len({(one.ip, one.port) for one in translated}) > 1:
        return "symmetric"
    preserved = translated[0].port == port
    if len({one.at for one in translated}) > 1:
        return "preserving" if preserved else "stable"
    return "one preserving" if preserved else "one changing"


def judge(
    own: tuple[str, ...],
    port: int,
    observations: list[AddressObservation],
    mapped: tuple[str, ...],
    relays: list[str],
    *,
    announced: bool,
    local: bool = False,
) -> list[Finding]:
    """All that is known of how others reach this machine.

    Args:
        own: this machine's addresses.
        port: at which it listened meanwhile.
        mapped: addresses that are not this machine's, at which its router says it can be reached.
        relays: peers that would relay to this machine.
        announced: whether the volunteer has said where this machine can be reached.
        local: whether the whole swarm is on this machine.
    """
    if local:
        return [good(GROUP, "NAT", "the swarm is on this machine: no address matters")]
    nat = nat_of(own, port, observations)
    found = [_judge_addresses(own, mapped), _judge_nat(nat, port, observations, relieved=announced)]
    if nat not in {"none", "same network", "unknown"}:
        found.append(_judge_relays(relays, port))
    return found


def _judge_relays(relays: list[str], port: int) -> Finding:
    """Only for a machine that others may not be able to connect to."""
    if relays:
        who = ", ".join(map(short, relays[:3]))
        return good(GROUP, "relay", f"{who} relays between this machine and those that cannot connect to it")
    return warn(
        GROUP,
        "relay",
        "no peer relays: this machine and others behind NAT may not reach each other",
        _forward(port),
    )


def _judge_addresses(own: tuple[str, ...], mapped: tuple[str, ...]) -> Finding:
    if not own:
        return bad(GROUP, "addresses", "this machine has no network address", "connect it to a network")
    names = {"global": "public", "carrier": "100.64/10: the provider's own NAT, or a VPN", "private": "private"}
    shown = ", ".join(f"{ip} ({names[kind_of(ip)]})" for ip in own[:6])
    more = f"; the router offers {', '.join(mapped[:3])}" if mapped else ""
    if any(kind_of(ip) == "carrier" for ip in mapped):
        return warn(
            GROUP,
            "addresses",
            f"{shown}{more}, itself behind the provider's NAT (100.64/10)",
            "ask the internet provider for a public IPv4 address, or for IPv6: until then traffic may be relayed",
        )
    return good(GROUP, "addresses", shown + more)


def _forward(port: int) -> str:
    return (
        f"in the router, forward a TCP port to this machine (say {port}), and join with --port {port} "
        f"--announce YOUR-PUBLIC-ADDRESS:{port}"
    )


def _judge_nat(nat: Nat, port: int, observations: list[AddressObservation], *, relieved: bool) -> Finding:
    places = list(dict.fromkeys(f"{one.ip}:{one.port}" for one in observations))
    at = f"peers see port {port} of this machine at {', '.join(places[:4])}"
    if nat == "unknown":
        return warn(
            GROUP,
            "NAT",
            "not known: no peer has told at which address it sees this machine",
            "mend the way to the coordinator, and look again",
        )
    if nat == "symmetric":
        seen = f"behind NAT that changes the port for each destination (symmetric): {at}; traffic will be relayed"
        if relieved:
            return good(GROUP, "NAT", f"{seen} except where others connect to this machine's announced port")
        return warn(GROUP, "NAT", seen, _forward(port))
    if nat == "one changing":
        seen = f"behind NAT that changes the port ({at}); whether for each destination, one peer alone cannot tell"
        return good(GROUP, "NAT", seen) if relieved else warn(GROUP, "NAT", seen, _forward(port))
    texts = {
        "none": f"no NAT: {at}, which is its own address; only a firewall could keep others out",
        "same network": f"no NAT on the way to the peers asked: {at}; what machines outside see, they cannot tell",
        "preserving": f"behind NAT, address- and port-preserving (hole punching likely works): {at}",
        "stable": f"behind NAT that gives one other port for all destinations (hole punching likely works): {at}",
        "one preserving": f"behind NAT that keeps the port: {at}; whether for each destination, one peer cannot tell",
    }
    return good(GROUP, "NAT", texts[nat])


def judge_announce(announce: str, host: Host | None, fault: str) -> Finding:
    """Whether `--announce` can be believed. `host`: what came of connecting there from here."""
    name = "--announce"
    if fault:
        return bad(GROUP, name, fault, "write it as HOST:PORT")
    if host is None:
        return warn(GROUP, name, f"{announce} was not tried", "mend what is bad above, and look again")
    if host.fault:
        return bad(GROUP, name, *closed_because(host))
    inside = all(kind_of(attempt.host) != "global" for attempt in host.attempts)
    if inside and any(kind_of(attempt.host) != "loopback" for attempt in host.attempts):
        return warn(
            GROUP,
            name,
            f"{announce} is no public address: only peers in that network can use it",
            "announce the public address (the router's), unless the whole swarm is in this network",
        )
    if host.open:
        return good(GROUP, name, f"{announce} answers from here, which is no proof that it does from outside")
    return warn(
        GROUP,
        name,
        f"{announce} does not answer from here; many routers do not turn traffic round, so that is no proof either",
        f"have somebody outside try it while the node runs: nc -vz {host.name} {host.port}",
    )
