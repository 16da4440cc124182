"""Context in which a coordinator leads: its job, folder and planes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.owner.owner_acts import OwnerActs
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_coordinator.swarm.overview.news import NewsBoard
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.discovery.registry import Discovery, Registry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule


@dataclass(frozen=True)
class LeadContext:
    """Job, folder, identity and planes of a coordinator that leads."""

    job: ResolvedJob
    folder: Path
    identity: Identity
    swarm: str
    coordinators: Collection[str]
    """Peer ids of all coordinators that may lead, this one among them."""
    planner: Planner
    archive: CheckpointCollector
    control: ControlPlane
    discovery: Discovery
    registry: Registry
    session: str = ""
    """Random text of this run of the coordinator, as it says it of itself."""
    dials: DialRule = ANYWHERE
    """Rule by which addresses that peers announce are dialled."""
    names: Callable[[], Mapping[str, str]] = dict
    """Returns whom the invites were for with which members have entered, by peer id."""
    banned: Callable[[], Collection[str]] = tuple
    """Returns the peer ids of the members that are banned."""
    feed: OverviewFeed | None = None
    """Feed that has told of the service so far, and goes on with the run; None: there is none yet."""
    board: NewsBoard | None = None
    """Board of what has happened so far; None: there is none yet."""
    acts: OwnerActs | None = None
    """What the owner has done, as far as the board does not have it; None: it has nothing."""

    def as_own(self, plan: Plan) -> Plan:
        """Return a plan by this coordinator's former key as one by its present key, which elects in its place."""
        known, me = self.coordinators, self.identity.peer_id
        if plan.author != me and isinstance(known, Coordinators) and known.present(plan.author) == me:
            return plan.signed(self.identity, self.swarm)
        return plan

    def is_genuine(self, plan: Plan) -> bool:
        """Return whether a plan that a peer shows is signed by a coordinator of this swarm."""
        try:
            plan.verify(self.coordinators, self.swarm)
        except Refused as error:
            log.warning("%s", error)
            return False
        return True
