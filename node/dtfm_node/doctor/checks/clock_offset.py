"""Check of this machine's clock, by which records in the DHT expire."""

from dtfm_node.doctor.findings import Finding, bad, good, warn

GROUP = "clock"
BAD_SECONDS = 3.0
"""hivemind refuses a DHT in which clocks differ by more (MAX_DHT_TIME_DISCREPANCY_SECONDS)."""
WARN_SECONDS = 1.0


def judge(ahead: float | None, error: float = 0.0) -> list[Finding]:
    """Judge the seconds by which the coordinator's clock is `ahead` of this one's, give or take `error`; None: not
    known."""
    if ahead is None:
        return [
            warn(
                GROUP,
                "clock",
                "not compared: no coordinator and no peer told the time",
                "do what is said about the coordinator and the network above, then run this again",
            )
        ]
    way = "behind" if ahead > 0 else "ahead of"
    seen = f"{abs(ahead):,.1f} s {way} the coordinator's (give or take {error:.1f} s)"
    if abs(ahead) - error < WARN_SECONDS:
        return [good(GROUP, "clock", f"agrees with the coordinator's to {abs(ahead) + error:.1f} s")]
    todo = "type `sudo timedatectl set-ntp true`: it sets this machine's clock by network time from then on"
    if abs(ahead) - error < BAD_SECONDS:
        return [warn(GROUP, "clock", seen, todo)]
    return [bad(GROUP, "clock", seen, todo)]
