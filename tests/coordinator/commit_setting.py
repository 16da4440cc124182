"""What the search of the commit rule is given: how far to look, and which variants of the product decide."""

from collections.abc import Callable
from dataclasses import dataclass

from dtfm_coordinator.plan_change.plan_change import PlanChange
from dtfm_node.engine.step_arbiter import Arbiter
from dtfm_node.runner.follower import Follower
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.coordinator.commit_state import Layout, MadePlan, Memory, Part, Shown, has_the_hash, is_signed, voted


@dataclass(frozen=True, eq=False)
class Rule:
    """What decides in peers and coordinators, and what a peer remembers; the defaults are the whole rule."""

    follower: type[Follower] = Follower
    coordinator: type[PlanChange] = PlanChange
    arbiter: type[Arbiter] = Arbiter
    memory: type[Memory] = Memory
    chain: type[Chain] = Chain
    plan: type[MadePlan] = MadePlan
    is_signed: Callable[[SignedCommit, str], bool] = is_signed
    voted: Callable[[Shown, Chain], int] = voted
    serves: Callable[[Part, Part], bool] = has_the_hash
    """Whether what a peer was given ahead serves in place of what a source has."""


THE_RULE = Rule()


@dataclass(frozen=True, eq=False)
class Setting:
    """What is searched, and how far."""

    peers: tuple[str, ...]
    first: Layout
    layouts: tuple[Layout, ...]
    """What later plans may look like."""
    versions: int = 2
    """The newest version that may be called for."""
    steps: int = 2
    crashes: int = 0
    """Of peers; all may restart."""
    outages: int = 0
    """Of coordinators; they return at once, for one that is away just does nothing."""
    coordinators: tuple[str, ...] = ("C",)
    all_answer: bool = False
    """Whether coordinators wait until everybody who is there has promised; else any of them may be late."""
    checkpoints: bool = False
    stalls: bool = False
    """Whether a peer may notice that another one is gone before it is called."""
    liars: tuple[str, ...] = ()
    """Peers that say of what they hold whatever may serve them, all together; what they do not say is as others do."""
    spares: tuple[str, ...] = ()
    """Peers that the first plan leaves idle, and that never say anything."""
    pauses: bool = False
    """Whether peers may pause at once, and go on, too; each pause counts as a crash."""
    later: int = 0
    """Versions beyond `versions` that a coordinator may call for whose disk was put back to what it had when the first
    plan began; 0: no disk of a coordinator is."""
    ahead: bool = False
    """Whether peers may be given ahead, at any time, what another one trains, and be lied to with that."""
    restores: bool = False
    """Whether a peer that crashes may come back with the disk that it had when the first plan began."""
