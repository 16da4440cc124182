"""Check whether IPv6 works where it is offered: an IPv6 address of a name that does not answer costs time."""

from collections.abc import Iterable

from dtfm_node.doctor.findings import Finding, good, warn
from dtfm_node.doctor.host_lookup import Host
from dtfm_protocol.transport.connect_attempt import ConnectAttempt
from dtfm_protocol.transport.ip_addresses import kind_of

GROUP = "reachability"


def judge(own: tuple[str, ...], hosts: Iterable[Host]) -> list[Finding]:
    """Judge IPv6 by this machine's addresses (`own`) and by what came of TCP connections to `hosts`."""
    has = any(":" in ip and kind_of(ip) == "global" for ip in own)
    about = "this machine has a global IPv6 address" if has else "this machine has no global IPv6 address"
    broken, used = [], 0
    for host in hosts:
        new = [attempt for attempt in host.attempts if ":" in attempt.host and kind_of(attempt.host) == "global"]
        used += any(attempt.answer == "open" for attempt in new)
        if new and all(_is_lost(attempt) for attempt in new) and any(":" not in attempt.host for attempt in host.open):
            broken.append(str(host))
    if broken and has:
        return [
            warn(
                GROUP,
                "IPv6",
                f"{about}, and {', '.join(broken)} does not answer over IPv6 while it does over IPv4",
                "repair or switch off IPv6 in this machine's network settings: programs try it first, and wait",
            )
        ]
    if used:
        return [good(GROUP, "IPv6", f"{about}, and {used} of the swarm's hosts answer over IPv6")]
    return [good(GROUP, "IPv6", f"{about}, and the swarm needs none")]


def _is_lost(attempt: ConnectAttempt) -> bool:
    return attempt.answer in {"silent", "unreachable"}
