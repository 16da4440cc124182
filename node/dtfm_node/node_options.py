"""Options of a node: what the person at the machine decides."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from dtfm_node.limits.availability import Rules


@dataclass(frozen=True)
class NodeOptions:
    """What the person at the machine decides."""

    device: str = "auto"
    announce: str | None = None
    listen: str | None = None
    port: int = 0
    """To listen on; 0 is the port of `announce`, which a router is told to forward, or else any."""
    threads: int | None = None
    memory_gb: float | None = None
    """Most memory to offer, of the device that computes."""
    disk_gb: float | None = None
    """Most disk to keep tokens, snapshots and copies on; None: half of what is free."""
    upload: float = math.inf
    """Most bytes a second to send."""
    download: float = math.inf
    """Most bytes a second to receive."""
    rules: Rules = field(default_factory=Rules)
    """When the node may work."""
    timeout: float | None = None
    """Seconds to wait for the coordinator before giving up; None: `PATIENCE_SECONDS`, or as soon as a newcomer can tell
    that nobody will answer."""
    trace: Path | None = None
    """Folder for a timeline of what this node does."""
    compiled: bool = False
    """Whether decoder layers are compiled."""
    pace: float | None = None
    """FLOP/s of a slower device to behave as."""
    share: float = 1.0
    """Part of the time for which the device that computes may be busy."""
    name: str = ""
    """What this machine's person calls it, as others are shown it; "": nothing."""
    lan: bool = False
    """Whether addresses inside this machine's own network are dialled when others announce them."""
    is_newcomer: bool = False
    """Whether this node has never been in the swarm before this start."""
    has_new_key: bool = False
    """Whether its key is made for this very join, so that no other daemon can have it."""
