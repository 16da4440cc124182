"""Agreement of versions: whether a node and a coordinator of unlike versions work together, and what is said of it.
Pure.

They do where their major versions are the same and their minor ones at most one apart. What a minor version may change,
so that this holds, is in `dtfm_protocol.schema`. A version that is not said, or that nobody can read, keeps nobody out:
what comes is checked in any case.
"""

from enum import Enum

from packaging.version import InvalidVersion, Version

FURTHEST = 1
"""Minor versions by which a node and its coordinator may be apart."""


class Distance(Enum):
    """How far two versions are apart."""

    NONE = "none"
    """Nothing but the patch differs, or one of them is not known."""
    NEAR = "near"
    """They work together."""
    FAR = "far"
    """They do not."""


def _minor(version: str) -> tuple[int, int] | None:
    """Return the major and minor number of a version; None: it is not known."""
    try:
        release = Version(version).release
    except InvalidVersion:
        return None
    return release[0], release[1] if len(release) > 1 else 0


def distance(one: str, other: str) -> Distance:
    """Return how far two versions such as "0.1.0" are apart."""
    first, second = _minor(one), _minor(other)
    if first is None or second is None or first == second:
        return Distance.NONE
    is_near = first[0] == second[0] and abs(first[1] - second[1]) <= FURTHEST
    return Distance.NEAR if is_near else Distance.FAR


def _is_older(one: str, other: str) -> bool:
    return (_minor(one) or (0, 0)) < (_minor(other) or (0, 0))


def _series(version: str) -> str:
    """Return a version without its patch, e.g. "0.1"."""
    return "{}.{}".format(*(_minor(version) or (0, 0)))


def _apart(own: str, other: str) -> str:
    majors = (_minor(own) or (0, 0))[0], (_minor(other) or (0, 0))[0]
    return "a major version apart" if majors[0] != majors[1] else "more than one minor version apart"


def told_to_node(own: str, coordinator: str) -> str:
    """Return what a node says of its own version and its coordinator's; "": nothing."""
    both = f"this machine has dtfm {own} and the swarm's coordinator {coordinator}"
    match distance(own, coordinator):
        case Distance.NONE:
            return ""
        case Distance.NEAR:
            return f"{both}: they work together"
    way = (
        f"install dtfm {_series(coordinator)} here and start the node again"
        if _is_older(own, coordinator)
        else f"ask the swarm's owner to upgrade the coordinator, or install dtfm {_series(coordinator)} here"
    )
    return f"{both}, which are {_apart(own, coordinator)} and do not work together: {way}"


def told_to_coordinator(own: str, node: str) -> str:
    """Return what a coordinator says of a node's version, to go on after the node's name; "": nothing."""
    match distance(own, node):
        case Distance.NONE:
            return ""
        case Distance.NEAR:
            return f"has dtfm {node} and this coordinator {own}: they work together"
    way = (
        f"its person is to install dtfm {_series(own)}"
        if _is_older(node, own)
        else f"upgrade this coordinator, or have its person install dtfm {_series(own)}"
    )
    return f"is left out: it has dtfm {node} and this coordinator {own}, {_apart(own, node)}; {way}"
