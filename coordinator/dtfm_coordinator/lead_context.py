"""What a coordinator leads with."""

from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator.archive import Archive
from dtfm_coordinator.planning import Planner
from dtfm_protocol.identity import Identity
from dtfm_protocol.planes.control import ControlPlane
from dtfm_protocol.planes.discovery import Discovery, Registry
from dtfm_protocol.resolved import ResolvedJob


@dataclass(frozen=True)
class Tools:
    """A coordinator's job, folder and planes."""

    job: ResolvedJob
    folder: Path
    identity: Identity
    swarm: str
    coordinators: tuple[str, ...]
    """All that may lead, this one among them."""
    planner: Planner
    archive: Archive
    control: ControlPlane
    discovery: Discovery
    registry: Registry
