"""Check whether IPv6 works where it is offered: an IPv6 address of a name that does not answer costs time."""

from collections.abc import Iterable

from dtfm_node.doctor.findings import Finding, good, warn
from dtfm_node.doctor.tcp_look import Host
from dtfm_protocol.transport.ip_addresses import kind_of
from dtfm_protocol.transport.tcp_knock import Knock

GROUP = "reachability"


def judge(own: tuple[str, ...], hosts: Iterable[Host]) -> list[Finding]:
    """Judge IPv6 by this machine's addresses (`own`) and by what came of TCP connections to `hosts`."""
    has = any(":" in ip and kind_of(ip) == "global" for ip in own)
    about = "this machine has a global IPv6 address" if has else "this machine has no global IPv6 address"
    broken, used = [], 0
    for host in hosts:
        new = [knock for knock in host.knocks if ":" in knock.host and kind_of(knock.host) == "global"]
        used += any(knock.answer == "open" for knock in new)
        if new and all(_is_lost(knock) for knock in new) and any(":" not in knock.host for knock in host.open):
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


def _is_lost(knock: Knock) -> bool:
    return knock.answer in {"silent", "unreachable"}
