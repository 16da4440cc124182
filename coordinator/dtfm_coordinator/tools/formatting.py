"""Formatting of peers, seconds and counts for people."""

from dtfm_protocol.identity.keys import short

PEER_ID_PREFIX, PEER_ID_LENGTH = "12D3KooW", 52
"""Beginning and length of every Ed25519 peer id: the beginning does not tell peers apart."""


def named(peer: str) -> str:
    """Return a peer's name: the end of a peer id, any other name as it is."""
    return short(peer) if peer.startswith(PEER_ID_PREFIX) and len(peer) == PEER_ID_LENGTH else peer


def link_named(sender: str, receiver: str) -> str:
    """Return an ordered link in words."""
    return f"{named(sender)} -> {named(receiver)}"


def seconds(value: float) -> str:
    """Return seconds with three figures, without an exponent; "0 s" for what rounds to nothing."""
    if value < 5e-7:
        return "0 s"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def percent(part: float, whole: float) -> str:
    """Return a share of the whole in percent; 0 of nothing."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def amount(value: float) -> str:
    """Return a count with three figures, as models and texts are talked of: k, M and B are 1e3, 1e6 and 1e9."""
    for unit in ("", " k", " M", " B"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.4g} T"


def duration(value: float) -> str:
    """Return seconds in the unit in which people would plan with them: s, min, h or days."""
    for unit, each, most in (("s", 1.0, 120.0), ("min", 60.0, 120.0), ("h", 3600.0, 72.0)):
        if value / each < most:
            return f"{value / each:.3g} {unit}"
    return f"{value / 86400:.3g} days" if value < 1e8 else f"{value / 86400:,.0f} days"
