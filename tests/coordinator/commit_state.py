"""What the search of the commit rule looks at: peers with their memories, coordinators with their disks, as values.

Where the product has a value for something, that one is held: its machines, plans, marks, and where peers stand.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, TypeVar

from dtfm_coordinator.plan_change.plan_change import PlanChange
from dtfm_coordinator.plan_change.plan_change_events import Action, ChangeEvent
from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_node.control.latest_plan import HeardCall, HeardPlan
from dtfm_node.runner.follower import Follower, FollowerAction, FollowerEvent
from dtfm_node.state.held_states import HeldStates
from dtfm_protocol.plan.lineage import Ancestor, Chain
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark, PeerState
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.harness.memo import by_identity, only, remembered

LAYERS = 2
Layout = tuple[tuple[str, ...], ...]
"""For each stage the peers that serve it."""

# -- plans --------------------------------------------------------------------------------------------------------


@by_identity
class MadePlan(Plan):
    """A plan as the search makes it, by `plan_of` alone."""

    def __str__(self) -> str:
        return f"plan {self.version} by {self.author}, routes {self.routes}, from {self.resume.mark}"


@remembered
def plan_of(
    version: int,
    author: str,
    layout: Layout,
    idle: tuple[str, ...],
    resume: Resume,
    lineage: tuple[Ancestor, ...] = (),
    kind: type[MadePlan] = MadePlan,
) -> MadePlan:
    """The one plan of these values: a route for each replica of the largest stage, to those of the others in turn."""
    width = max(map(len, layout))
    routes = tuple(tuple(stage[turn % len(stage)] for stage in layout) for turn in range(width))
    stages = ((0, LAYERS),) if len(layout) == 1 else ((0, 1), (1, LAYERS))
    return kind(version=version, author=author, stages=stages, routes=routes, idle=idle, resume=resume, lineage=lineage)


@remembered
def chain_of(plan: MadePlan, kind: type[Chain]) -> Chain:
    """A plan and those that it descends from."""
    return kind(*plan.chain)


@remembered
def commit_of(mark: Mark, signer: str) -> SignedCommit:
    """The commit that made `mark` final, as `signer` has signed it: the name stands for the signature."""
    return SignedCommit.model_construct(plan=mark.plan, step=mark.step, text="", signature=signer)


def is_signed(commit: SignedCommit, arbiter: str) -> bool:
    """Whether the arbiter has signed a commit."""
    return commit.signature == arbiter


Shown = tuple[tuple[str, "tuple[Part, ...]"], ...]
"""What each peer says that it holds."""


def voted(shown: Shown, chain: Chain) -> int:
    """The newest step of the newest plan on which all have voted, as its arbiter can prove."""
    newest = chain.plans[-1]
    parts = (part for who, parts in shown if who == newest.arbiter for part in parts)
    return max((part.mark.step for part in parts if part.proven and part.mark.plan == newest.version), default=0)


@remembered
def electorate(plan: MadePlan) -> Electorate:
    """What of a plan the coordinators' machine knows."""
    return Electorate.of(plan)


@remembered
def heard_plan(plan: MadePlan, peer: str) -> HeardPlan:
    """What of a plan the machine of a peer knows."""
    return HeardPlan(plan.version, plan.author, trains=layers_of(plan, peer) is not None)


@remembered
def layers_of(plan: MadePlan, peer: str) -> LayerRange | None:
    """The layers that a peer trains under a plan."""
    stage = plan.stage_of(peer)
    return plan.stages[stage] if stage is not None else None


# -- machines -----------------------------------------------------------------------------------------------------

M = TypeVar("M", "Peer", "Coordinator")


def drive(one: M, event: Any, do: Callable[[M, Any], tuple[M, list[Any]]]) -> M:
    """What `one` is after an event, when all is done that follows from it: `do` tells what each action leads to."""
    events = [event]
    for due in events:
        one, actions = one.on(due)
        for action in actions:
            one, more = do(one, action)
            events += more
    return only(one)


# -- peers --------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A state of some layers in memory, or a coordinator's checkpoint; for `prepared` see `Holding`."""

    layers: LayerRange
    mark: Mark
    history: tuple[tuple[int, MadePlan], ...] = ()
    """Its content: the steps that were applied, and under which plans."""
    signer: str | None = None
    """Who has signed the commit that made it final; None: none is known."""
    prepared: Mark | None = None
    proven: bool = False
    """Whether its holder, the arbiter, can prove that all have voted on the step that led to it: see `VotedStep`."""

    def covers(self, layer: int) -> bool:
        """Whether the layer is in it."""
        return self.layers[0] <= layer < self.layers[1]


def has_the_hash(ahead: Part, source: Part) -> bool:
    """Whether what a peer was given ahead is what a source has."""
    return ahead.history == source.history


class Memory(NamedTuple):
    """What a peer has in memory, and what becomes of it: see `Inventory` and `TrainingStage`."""

    held: HeldStates[Part] = HeldStates()
    ahead: Part | None = None
    """What it was given ahead: see `AheadCopy`."""
    entered: MadePlan | None = None
    """The last plan that was trained under, if memory reaches back to that."""
    pace: Mark | None = None
    """Whose commit has brought the durations by which the next step is computed; None: the plan has. In the model every
    commit on a step brings new ones."""

    @property
    def live(self) -> Part | None:
        """What is trained, or was."""
        return self.held.live

    @property
    def shown(self) -> tuple[Part, ...]:
        """What the peer reports and gives: also what it has loaded, but not begun yet, and what it held before."""
        return self.held.whole

    def redo(self, resume: Resume) -> Self:
        """Apply what is prepared, if it leads to what a plan resumes from: its step was final. What its commit brings
        besides was for the plan that is over."""
        if self.live is None or self.live.prepared != resume.mark or resume.commit is None:
            return self._replace(pace=None)
        return self._applied(self.live)._replace(pace=None)

    def begin(self, layers: LayerRange, mark: Mark) -> Self:
        """A state is going to be loaded; what was loaded for a plan that failed before it began stays."""
        before = self.held.coming
        again = before is not None and (before.layers, before.mark) == (layers, mark)
        return self._replace(held=self.held.begin(before if again else None, mark))

    def enter(self, plan: MadePlan) -> Self:
        """All peers hold what the new plan begins with; gradients of the old one are applied no more."""
        coming, live = self.held.coming, self.live
        assert coming is not None
        held = self.held._replace(live=live._replace(prepared=None)) if live is not None else self.held
        return self._replace(held=held.enter(coming, plan.resume.mark), ahead=None, entered=plan, pace=None)

    def prepare(self, mark: Mark) -> Self:
        """The gradients are reduced."""
        assert self.live is not None
        return self._replace(held=self.held._replace(live=self.live._replace(prepared=mark)))

    def apply(self, *, arbitrates: bool = False) -> Self:
        """A step of the plan is final: what was before may go."""
        assert self.live is not None
        after = self._applied(self.live)
        assert after.live is not None
        held = after.held._replace(live=after.live._replace(proven=arbitrates))
        return after._replace(held=held.begun(), pace=after.live.mark)

    def _applied(self, part: Part) -> Self:
        assert part.prepared is not None
        assert self.entered is not None
        arbiter = electorate(self.entered).peers[0]
        after = Part(part.layers, part.prepared, (*part.history, (part.prepared.step, self.entered)), arbiter)
        return self._replace(held=self.held._replace(live=after))


@remembered
def standing(shown: tuple[Part, ...]) -> PeerState:
    """What a peer says that it holds."""
    parts = [
        Holding(
            mark=p.mark,
            layers=p.layers,
            live=True,
            commit=commit_of(p.mark, p.signer) if p.signer is not None else None,
            prepared=p.prepared,
        )
        for p in shown
    ]
    return PeerState(holdings=tuple(parts))


Step = tuple[MadePlan, int]
"""What is voted on: that all hold the state after this step. The first one of a plan is what it resumes from."""


@by_identity
class Peer(NamedTuple):
    """One peer; only `life`, and what is promised, outlive its process."""

    name: str
    machine: Follower
    memory: Memory
    up: bool = True
    life: int = 0
    heard: MadePlan | None = None
    """The newest plan that it has heard of."""
    served: MadePlan | None = None
    """The last one that it began."""
    phase: Literal["sealed", "loading", "ready", "training"] = "sealed"
    """Whether it works under that plan: ready has loaded, and waits for the others."""

    def on(self, event: FollowerEvent) -> tuple[Self, tuple[FollowerAction, ...]]:
        """See `Follower`."""
        machine, actions = self.machine.on(event)
        return self._replace(machine=machine), actions

    @property
    def vote(self) -> Step | None:
        """What it has voted for."""
        live, plan = self.memory.live, self.served
        if self.phase == "ready" and plan is not None:
            return plan, plan.resume.mark.step
        if self.phase == "training" and plan is not None and live is not None and live.prepared is not None:
            return plan, live.prepared.step
        return None

    def awaits(self, step: Step) -> bool:
        """Whether it can still take the word that a step is final."""
        if not self.up or self.served is not step[0]:
            return False
        live = self.memory.live
        return self.phase in ("loading", "ready") or (
            self.phase == "training" and live is not None and live.mark.step < step[1]
        )


# -- coordinators, and all ----------------------------------------------------------------------------------------


@by_identity
class Coordinator(NamedTuple):
    """One coordinator: what decides in it, its disk, and what it has published."""

    machine: PlanChange
    said: HeardCall
    """Its epoch, as it last said it."""
    file: MadePlan
    """The plan that it comes back to, and, when nothing is left to do, knows to be in force."""
    made: MadePlan
    """The plan that it last made, or came back to."""
    offers: MadePlan
    """The one that it last published."""
    kept: Part | None = None
    """A checkpoint."""
    doing: tuple[Action, ...] = ()
    """What is decided, and not done yet."""

    @property
    def name(self) -> str:
        """As peers know it."""
        return self.machine.role.me

    def on(self, event: ChangeEvent) -> tuple[Self, tuple[Action, ...]]:
        """See `PlanChange`."""
        machine, actions = self.machine.on(event)
        return self._replace(machine=machine), actions


Kept = tuple[tuple[str, Part], ...]
"""Checkpoints, with who keeps each."""


class State(NamedTuple):
    """Everything at one moment. The last three only serve the invariants."""

    peers: tuple[Peer, ...]
    coordinators: tuple[Coordinator, ...]
    votes: frozenset[tuple[Step, str]] = frozenset()
    """With the voter."""
    commits: frozenset[Step] = frozenset()
    crashes: int = 0
    outages: int = 0
    forced: frozenset[MadePlan] = frozenset()
    """Plans that came into force."""
    begun: frozenset[MadePlan] = frozenset()
    late: frozenset[MadePlan] = frozenset()
    """Plans of which a step became final after a newer plan came into force."""

    @property
    def kept(self) -> Kept:
        """The checkpoints that coordinators keep."""
        return tuple((one.name, one.kept) for one in self.coordinators if one.kept is not None)

    def put(self, one: Peer | Coordinator) -> "State":
        """The same with this peer, or coordinator, as it is now."""
        if isinstance(one, Peer):
            return State(_exchanged(self.peers, one), *self[1:])
        return State(self.peers, _exchanged(self.coordinators, one), *self[2:])


@remembered
def _exchanged(among: tuple[M, ...], one: M) -> tuple[M, ...]:
    return tuple(one if old.name == one.name else old for old in among)


@remembered
def trainers(peers: tuple[Peer, ...], plan: MadePlan) -> tuple[Peer, ...]:
    """The peers that a plan has train, the arbiter first."""
    named = {peer.name: peer for peer in peers}
    return tuple(named[name] for name in electorate(plan).peers)


@remembered
def accepted(peer: Peer, forced: frozenset[MadePlan]) -> MadePlan | None:
    """The plan that a peer took last; a promise names its version, and the peer keeps the plan beside it.

    Args:
        forced: all plans that came into force.
    """
    version = peer.machine.pledge.accepted
    known = [peer.heard] if peer.heard is not None else []
    return next((plan for plan in (*known, *forced) if plan.version == version), None)
