"""A small model of the commit rule and of plan succession, and a search through all its states.

What decides is the code itself: `Follower`, the peers' machine, `PlanChange`, the coordinators', `PeerState`,
`resume_from`, `Plan.electors`, and `Arbiter`. What surrounds it (daemons, disks, messages) is written down here as
actions that may happen in any order: that a message is late, lost or overtaken is that its action happens late, or
never, or after another one.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dtfm_coordinator.plan_change.plan_change import PlanChange
from dtfm_coordinator.plan_change.plan_change_events import (
    Action,
    Announced,
    Begun,
    Call,
    Doors,
    DoorsFound,
    Durable,
    FindEnded,
    Held,
    Hold,
    Offer,
    Present,
    ProcessesEnded,
    Propose,
    Publish,
    Returned,
    Role,
    Seek,
    Stand,
    Stood,
    Write,
    Written,
)
from dtfm_coordinator.plan_change.recovery import Electorate, resume_from
from dtfm_node.control.heard import Heard, HeardCall, HeardPlan
from dtfm_node.engine.commit import Arbiter, Vote
from dtfm_node.runner import follower
from dtfm_node.runner.follower import Follower, FollowerAction, FollowerEvent, Pledge, PromiseWritten, ServingEnded
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark, PeerState
from dtfm_protocol.plan.plan import Plan
from tests.harness.state_search import Found, Move, Violated, search_states

LAYERS = 2
Layout = tuple[tuple[str, ...], ...]
"""For each stage the peers that serve it."""
MarkKey = tuple[int, int]
"""Step and plan version."""
Applied = tuple[int, int, str]
"""A step, and version and author of the plan under which it was run: what a state's content is made of."""


@dataclass(frozen=True)
class Rule:
    """Which variant of the protocol is searched; the defaults are the whole rule."""

    # What the rule needs beyond the pure functions.
    begins_only_what_it_promised: bool = True
    """A peer begins no plan older than its promise, even if it took it and hears now that it is in force."""
    stands_by_all: bool = True
    """A peer reports, keeps and gives all that it has of a plan's first state until the plan's first step is final:
    also what it has loaded, but not begun yet, and what it held before."""
    coordinator: type[PlanChange] = PlanChange
    """What decides in a coordinator."""
    # Mutations that must break it.
    waits_for_votes: bool = True
    keeps_promise: bool = True
    keeps_prepared: bool = True


THE_RULE = Rule()


@dataclass(frozen=True)
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

    @property
    def alone(self) -> bool:
        """Whether there is one coordinator."""
        return len(self.coordinators) == 1


class Part(NamedTuple):
    """A state in a peer's memory."""

    layers: LayerRange
    mark: MarkKey
    history: tuple[Applied, ...]
    """Its content."""
    prepared: Applied | None = None
    norm: bool = False


class Said(NamedTuple):
    """An `Epoch`, and whose it is."""

    called: int = 0
    in_force: int = 0
    started: int = 0
    by: str = ""

    @property
    def heard(self) -> HeardCall:
        """As a peer hears it."""
        return HeardCall(called=self.called, in_force=self.in_force, started=self.started, by=self.by)


class HastyFollower(Follower):
    """Begins what it has taken, even if it has promised since not to act under it."""

    def _may_begin(self, plan: HeardPlan) -> bool:
        taken = self.pledge._replace(version=self.pledge.accepted)
        return Follower._may_begin(self._replace(pledge=taken), plan)


class Peer(NamedTuple):
    """One peer; `life`, and of `follower` the promise, outlive its process."""

    up: bool
    life: int
    follower: Follower
    plan: int | None = None
    """The newest plan that it has heard of; plans are numbers, see `Model.plans`."""
    served: int | None = None
    """The last one that it began."""
    phase: str = "sealed"
    """sealed, loading, ready (has voted START), or training."""
    entered: int | None = None
    """The last plan that it trained under, if its memory reaches back to that."""
    live: Part | None = None
    coming: Part | None = None
    held: frozenset[Part] = frozenset()
    """What it has besides, all of the same mark."""

    @property
    def promise(self) -> Pledge:
        """What is on its disk."""
        return self.follower.pledge

    @property
    def forgotten(self) -> int:
        """The newest plan that it took in an earlier life."""
        return self.follower.forgotten

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything in its memory, the live one first."""
        return tuple(part for part in (self.live, self.coming, *sorted(self.held)) if part is not None)


class Coordinator(NamedTuple):
    """One coordinator: what decides in it, its disk, and what it has published."""

    epoch: Said
    """What it last said."""
    machine: PlanChange
    file: int
    """`plan.json`."""
    made: int
    """The plan that it last made, or came back to."""
    leads: int
    """The plan in force, as far as it knows."""
    offers: int
    """What it last published."""
    kept: Part | None = None
    doing: tuple[Action, ...] = ()
    """What is decided, and not done yet."""


class State(NamedTuple):
    """Everything at one moment. The last three only serve the invariants."""

    peers: tuple[Peer, ...]
    coordinators: tuple[Coordinator, ...]
    votes: frozenset[tuple[int, str, int, str]]
    """Plan, ballot, step, voter."""
    commits: frozenset[tuple[int, str, int]]
    crashes: int
    outages: int
    forced: frozenset[int]
    """Plans that came into force."""
    begun: frozenset[int]
    late: frozenset[int]
    """Plans of which a step became final after a newer plan came into force."""


class PlanKey(NamedTuple):
    """A plan, without what the model does not need."""

    version: int
    author: str
    layout: Layout
    idle: tuple[str, ...] = ()
    mark: MarkKey = (0, 0)
    norm: bool = False
    sources: tuple[tuple[str, tuple[LayerRange, ...]], ...] = ()


# -- the code under test, remembered ------------------------------------------------------------------------------


@cache
def plan_of(key: PlanKey) -> Plan:
    """The real plan: each replica of a stage in turn."""
    width = max(map(len, key.layout))
    routes = tuple(tuple(stage[turn % len(stage)] for stage in key.layout) for turn in range(width))
    stages = ((0, LAYERS),) if len(key.layout) == 1 else ((0, 1), (1, LAYERS))
    return Plan(version=key.version, author=key.author, stages=stages, routes=routes, idle=key.idle)


@cache
def decides(peers: tuple[str, ...], voters: frozenset[str]) -> bool:
    """Whether these votes make a step final."""
    arbiter = Arbiter(peers, 0)
    answers = [arbiter.take(peer, Vote()) for peer in sorted(voters)]
    return bool(answers) and answers[-1] is not None


PartTold = tuple[LayerRange, MarkKey, MarkKey | None, bool]
Told = tuple[str, PartTold | None, tuple[PartTold, ...]]
"""A peer, its live part, and its other ones."""


@cache
def resume(
    told: tuple[Told, ...], kept: MarkKey | None, me: str
) -> tuple[MarkKey, bool, tuple[tuple[str, tuple[LayerRange, ...]], ...]]:
    """See `resume_from`."""
    found = resume_from(
        {peer: _standing(live, others) for peer, live, others in told},
        {me: [mark_of(kept)]} if kept is not None else {},
        LAYERS,
    )
    sources = tuple((source.peer, source.layers) for source in found.sources)
    return (found.mark.step, found.mark.plan), found.norm is not None, sources


def _standing(live: PartTold | None, others: tuple[PartTold, ...]) -> PeerState:
    """Only what was trained last has gradients; the norm goes with every state."""
    parts = [live, *others] if live is not None else others
    return PeerState(
        holdings=tuple(
            Holding(
                mark=mark_of(mark),
                layers=layers,
                live=True,
                norm=1.0 if norm else None,
                prepared=mark_of(prepared) if prepared else None,
            )
            for layers, mark, prepared, norm in parts
        )
    )


def mark_of(key: MarkKey) -> Mark:
    """The real mark."""
    return Mark(step=key[0], plan=key[1])


# -- the model ----------------------------------------------------------------------------------------------------


class Model:
    """All moves of a setting under a rule."""

    def __init__(self, setting: Setting, rule: Rule) -> None:
        self.setting, self.rule = setting, rule
        self.plans: list[PlanKey] = []
        self._trains: list[tuple[str, ...]] = []
        self._follower = Follower if rule.begins_only_what_it_promised else HastyFollower
        self._electorates: list[Electorate] = []
        self._numbers: dict[PlanKey, int] = {}
        self._layers = cache(self._layers_of)
        self._place = {name: place for place, name in enumerate(setting.peers)}

    def number(self, key: PlanKey) -> int:
        """The number that stands for a plan."""
        if key not in self._numbers:
            self._numbers[key] = len(self.plans)
            self.plans.append(key)
            self._trains.append(plan_of(key).peers)
            self._electorates.append(Electorate.of(plan_of(key)))
        return self._numbers[key]

    def start(self) -> State:
        """Plan 1 is in force, and all its peers have begun it."""
        setting = self.setting
        author = setting.coordinators[0]
        trains = tuple(itertools.chain.from_iterable(setting.first))
        idle = tuple(peer for peer in setting.peers if peer not in trains)
        first = self.number(PlanKey(1, author, setting.first, idle))
        epoch = Said(1, 1, 1, author)
        saved = Durable(Announced(1, in_force=1, started=1), doors=_doors((peer, 0) for peer in trains), doors_of=1)
        coordinators = tuple(self._back(name, saved, first, None) for name in setting.coordinators)
        fresh = (Peer(True, 0, self._follower()),) * len(setting.peers)
        nothing: frozenset[int] = frozenset()
        state = State(
            fresh, coordinators, frozenset(), frozenset(), 0, 0, frozenset({first}), frozenset({first}), nothing
        )
        for place, name in enumerate(setting.peers):
            heard = Heard(epoch.heard, self._heard_plan(first, name))
            state = self._react(state, place, name, heard, first)
            layers = self._layers(first, name)
            if layers is not None:
                live = Part(layers, (0, 0), ())
                peer = state.peers[place]._replace(phase="training", entered=first, live=live)
                state = _with(state, place, peer)
        return state

    def _layers_of(self, plan: int, peer: str) -> LayerRange | None:
        real = plan_of(self.plans[plan])
        stage = real.stage_of(peer)
        return real.stages[stage] if stage is not None else None

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Everything that may happen next.

        Raises:
            Violated: what happens breaks an invariant.
        """
        for place, name in enumerate(self.setting.peers):
            for what, after in self._peer_moves(state, place, name):
                yield (name, *what), self._tidy(after)
        for plan in sorted({peer.served for peer in state.peers if peer.served is not None and peer.phase != "sealed"}):
            for what, after in self._commits(state, plan):
                yield what, self._tidy(after)
        for place, name in enumerate(self.setting.coordinators):
            for what, after in self._coordinator_moves(state, place, name):
                yield (name, *what), self._tidy(after)

    def _tidy(self, state: State) -> State:
        """Forget messages that nobody will take any more, so that equal situations are equal states."""
        peers = state.peers
        if state.votes:
            votes = frozenset(vote for vote in state.votes if self._counts(state, vote))
            state = state._replace(votes=votes) if len(votes) < len(state.votes) else state
        if state.commits:
            commits = frozenset(one for one in state.commits if any(_awaits(peer, one) for peer in peers))
            state = state._replace(commits=commits) if len(commits) < len(state.commits) else state
        return state

    def _counts(self, state: State, vote: tuple[int, str, int, str]) -> bool:
        plan, ballot, step, _ = vote
        arbiter = state.peers[self._place[self._trains[plan][0]]]
        return _awaits(arbiter, (plan, ballot, step)) and (plan, ballot, step) not in state.commits

    # -- peers --------------------------------------------------------------------------------------------------------

    def _peer_moves(self, state: State, place: int, name: str) -> Iterator[Move[State]]:
        peer, rule = state.peers[place], self.rule
        if not peer.up:
            yield ("restarts",), _with(state, place, peer._replace(up=True, life=peer.life + 1))
            return
        if state.crashes < self.setting.crashes:
            found = self._follower.restarted(peer.promise if rule.keeps_promise else Pledge())
            down = Peer(False, peer.life, found)
            yield ("crashes",), _with(state, place, down)._replace(crashes=state.crashes + 1)
        heard = peer.follower.heard
        for one in state.coordinators:
            said = one.epoch.heard
            if said != heard.call and (now := heard.with_call(said)) is not heard:
                yield ("hears", one.epoch), self._react(state, place, name, now, peer.plan)
            if one.offers is not None and one.offers != peer.plan:
                now = heard.with_plan(self._heard_plan(one.offers, name))
                if now is not heard:
                    yield ("hears of", self.plans[one.offers]), self._react(state, place, name, now, one.offers)
        if peer.phase == "sealed" or peer.served is None:
            return
        plan = self.plans[peer.served]
        if self.setting.stalls and not all(state.peers[self._place[other]].up for other in self._trains[peer.served]):
            yield ("stalls",), self._react(state, place, name, ServingEnded(), peer.plan)
        if peer.phase == "loading":
            loaded = self._load(state, place, name, peer.served)
            if loaded is not None:
                vote = (peer.served, "START", plan.mark[0], name)
                after = _with(state, place, peer._replace(phase="ready", coming=loaded))
                yield ("has loaded",), after._replace(votes=state.votes | {vote})
        elif peer.phase == "ready" and (peer.served, "START", plan.mark[0]) in state.commits:
            kept = self._keep(peer, peer.live, plan.mark)
            begins = kept._replace(phase="training", entered=peer.served, live=peer.coming, coming=None)
            yield ("enters",), _with(state, place, begins)
        elif peer.phase == "training":
            yield from self._train(state, place, name, peer, peer.served)

    def _train(self, state: State, place: int, name: str, peer: Peer, served: int) -> Iterator[Move[State]]:
        live, plan = peer.live, self.plans[served]
        assert live is not None
        if live.prepared is None:
            step = live.mark[0] + 1
            if step <= self.setting.steps:
                ready = live._replace(prepared=(step, plan.version, plan.author))
                after = _with(state, place, peer._replace(live=ready))
                yield ("votes on step", step), after._replace(votes=state.votes | {(served, "STEP", step, name)})
        elif (served, "STEP", live.prepared[0]) in state.commits:
            after = _with(state, place, peer._replace(live=_apply(live), held=frozenset()))
            yield ("applies step", live.prepared[0]), after

    def _heard_plan(self, plan: int, name: str) -> HeardPlan:
        return HeardPlan(self.plans[plan].version, self.plans[plan].author, name in self._trains[plan])

    def _react(self, state: State, place: int, name: str, event: FollowerEvent, plan: int | None) -> State:
        """After a follower has taken an event, and all that it asks for is done; `plan` is the newest it knows."""
        peer, begun, events = state.peers[place]._replace(plan=plan), state.begun, [event]
        for event in events:
            if isinstance(event, ServingEnded):
                peer = peer._replace(phase="sealed")
            after, actions = peer.follower.on(event)
            peer = peer._replace(follower=after)
            for action in actions:
                peer, outcome = self._carry_out(name, peer, action)
                events += outcome
            if follower.BeginPlan() in actions and plan is not None:
                begun |= {plan}
        return _with(state, place, peer)._replace(begun=begun)

    def _carry_out(self, name: str, peer: Peer, action: FollowerAction) -> tuple[Peer, list[FollowerEvent]]:
        """See `Runner`."""
        match action:
            case follower.StopServing():
                return peer, [ServingEnded()]
            case follower.AnswerCall() if not self.rule.keeps_prepared and peer.live is not None:
                return peer._replace(live=peer.live._replace(prepared=None)), [PromiseWritten()]
            case follower.AnswerCall() | follower.TakePlan():
                return peer, [PromiseWritten()]
            case follower.DropFormer():
                return peer._replace(live=None, coming=None, held=frozenset(), entered=None), []
            case follower.BeginPlan():
                assert peer.plan is not None
                layers = self._layers(peer.plan, name)
                peer = self._begin(peer._replace(served=peer.plan), self.plans[peer.plan], layers)
                return peer, [ServingEnded()] if layers is None else []
        return peer, []

    def _begin(self, peer: Peer, plan: PlanKey, layers: LayerRange | None) -> Peer:
        """Redo what was final; as a peer of the plan, begin to load."""
        live = peer.live
        if live is not None and live.mark != plan.mark and _prepared(live) == plan.mark and plan.norm:
            peer = peer._replace(live=_apply(live))
        if layers is None:
            return peer
        coming = peer.coming
        peer = self._keep(peer, coming, plan.mark)
        if coming is not None and (coming.mark != plan.mark or coming.layers != layers):
            coming = None
        return peer._replace(phase="loading", coming=coming)

    def _keep(self, peer: Peer, part: Part | None, mark: MarkKey) -> Peer:
        """Beside what else it has of this mark."""
        if not self.rule.stands_by_all:
            return peer
        new = {part._replace(prepared=None)} if part is not None else set()
        return peer._replace(held=frozenset(one for one in peer.held | new if one.mark == mark and mark[0]))

    def _load(self, state: State, place: int, name: str, served: int) -> Part | None:
        """What a peer begins the plan with, if its own memory and the sources that are there have all of it."""
        plan, peer = self.plans[served], state.peers[place]
        layers = self._layers(served, name)
        assert layers is not None
        if plan.mark[0] == 0:
            return Part(layers, plan.mark, ())
        sources = dict(plan.sources)
        history: tuple[Applied, ...] = ()
        for layer in range(*layers):
            found = next(
                (
                    part
                    for part in (*peer.parts, *self._given(state, sources, layer))
                    if part is not None and part.mark == plan.mark and _covers(part.layers, layer)
                ),
                None,
            )
            if found is None:
                return None
            history = found.history
        return Part(layers, plan.mark, history, None, plan.norm)

    def _given(self, state: State, sources: dict[str, tuple[LayerRange, ...]], layer: int) -> Iterator[Part | None]:
        for source, spans in sources.items():
            if not any(_covers(span, layer) for span in spans):
                continue
            if source in self._place:
                other = state.peers[self._place[source]]
                yield from other.parts if self.rule.stands_by_all else (other.live,)
            else:
                yield state.coordinators[self.setting.coordinators.index(source)].kept

    def _commits(self, state: State, plan: int) -> Iterator[Move[State]]:
        """The arbiter's decisions; it hears of them like everybody else, for it may vanish before it applies."""
        key = self.plans[plan]
        peers = self._trains[plan]
        arbiter = state.peers[self._place[peers[0]]]
        if not arbiter.up or arbiter.served != plan:
            return
        if arbiter.phase == "ready":
            ballot, step = "START", key.mark[0]
        elif arbiter.phase == "training" and arbiter.live is not None and arbiter.live.prepared is not None:
            ballot, step = "STEP", arbiter.live.prepared[0]
        else:
            return
        voters = frozenset(voter for of, on, at, voter in state.votes if (of, on, at) == (plan, ballot, step))
        enough = decides(peers, voters) if self.rule.waits_for_votes or ballot == "START" else bool(voters)
        if (plan, ballot, step) in state.commits or not enough:
            return
        after = state._replace(commits=state.commits | {(plan, ballot, step)})
        if ballot == "STEP" and any(self.plans[other].version > key.version for other in state.forced):
            if plan in state.late:
                raise Violated(f"two plans advance: plan {key.version} makes one step after the other final")
            after = after._replace(late=state.late | {plan})
        yield (ballot, step, "is final: plan", key.version, "by", key.author), after

    # -- coordinators -------------------------------------------------------------------------------------------------

    def _back(self, me: str, saved: Durable, file: int, kept: Part | None) -> Coordinator:
        """A coordinator that has just come back to what is on its disk."""
        machine = self.rule.coordinator.of(Role(me, self.setting.alone), saved)
        one = Coordinator(_said(saved.epoch, me), machine, file, file, file, file, kept)
        return self._decide(one, *machine.on(Returned(self._electorates[file])), all_at_once=True)

    def _decide(
        self, one: Coordinator, machine: PlanChange, actions: tuple[Action, ...], *, all_at_once: bool
    ) -> Coordinator:
        """What a coordinator is after it has decided; with `all_at_once`, all that is to be done is done."""
        doing = (*one.doing, *(action for action in actions if isinstance(action, Write | Hold | Publish | Propose)))
        leads = one.made if machine.before != one.machine.before and one.machine.before is not None else one.leads
        one = one._replace(machine=machine, leads=leads, doing=doing)
        while all_at_once and one.doing:
            one = self._do(one, one.doing[0], all_at_once=False)
        return one

    def _do(self, one: Coordinator, action: Action, *, all_at_once: bool) -> Coordinator:
        """What a coordinator is after one of the things to do is done."""
        doing = list(one.doing)
        doing.remove(action)
        one = one._replace(doing=tuple(doing))
        match action:
            case Write(durable) if durable == one.machine.durable:  # else a newer one is to be written
                return self._decide(one, *one.machine.on(Written(durable)), all_at_once=all_at_once)
            case Hold():
                return self._decide(one._replace(file=one.made), *one.machine.on(Held()), all_at_once=all_at_once)
            case Publish(epoch):
                return one._replace(epoch=_said(epoch, one.machine.role.me))
            case Propose():
                return one._replace(offers=one.made)
        return one

    def _coordinator_moves(self, state: State, place: int, me: str) -> Iterator[Move[State]]:
        one = state.coordinators[place]
        if state.outages < self.setting.outages:
            back = self._back(me, one.machine.saved, one.file, one.kept)
            if back != one:
                after = _with_coordinator(state, place, back)
                yield ("is killed and returns",), after._replace(outages=state.outages + 1)
        if one.doing:
            # Disk and network do not wait for each other; each goes by its own order.
            disk = next((action for action in one.doing if isinstance(action, Write | Hold)), None)
            wire = next((action for action in one.doing if isinstance(action, Publish | Propose)), None)
            for action in (disk, wire):
                if action is not None:
                    yield ("does", action), self._led(state, place, self._do(one, action, all_at_once=False))
            return
        phase = one.machine.phase
        if phase in ("settled", "called"):
            yield from self._call(state, place, one)
        if phase == "called":
            yield from self._hear(state, place, one)
            yield from self._offer(state, place, one, me)
        elif phase == "offered":
            yield from self._force(state, place, one)
        elif phase == "settled":
            yield from self._watch(state, place, one)

    def _decided(
        self, state: State, place: int, one: Coordinator, machine: PlanChange, actions: tuple[Action, ...]
    ) -> State:
        """After a decision: what follows is done at once where nobody can be killed in the middle of it."""
        calm = state.outages == self.setting.outages
        return self._led(state, place, self._decide(one, machine, actions, all_at_once=calm))

    def _led(self, state: State, place: int, one: Coordinator) -> State:
        """After a coordinator has done something: its plan is in force once it may come back to it, or has said so."""
        state, plan = _with_coordinator(state, place, one), one.made
        version = self.plans[plan].version
        if plan in state.forced or (one.file != plan and one.machine.saved.epoch.in_force != version):
            return state
        if any(self.plans[other].version == version for other in state.forced):
            raise Violated(f"two plans of version {version} are in force")
        return state._replace(forced=state.forced | {plan})

    def _call(self, state: State, place: int, one: Coordinator) -> Iterator[Move[State]]:
        """End all plans so far: whenever the coordinator likes."""
        seen = set()
        for beyond in (0, max((peer.promise[0] for peer in state.peers if peer.up), default=0)):
            machine, actions = one.machine.on(Call(beyond))
            version = machine.durable.epoch.called
            if version <= self.setting.versions and version not in seen:
                seen.add(version)
                yield ("calls for plan", version), self._decided(state, place, one, machine, actions)

    def _hear(self, state: State, place: int, one: Coordinator) -> Iterator[Move[State]]:
        """A promise comes: its peer may vanish, or make another one, before a plan is made."""
        for name, peer in zip(self.setting.peers, state.peers, strict=True):
            machine, actions = one.machine.on(Stood(name, peer.promise[0], peer.promise[1]))
            if peer.up and machine != one.machine:
                yield ("hears the promise of", name), self._decided(state, place, one, machine, actions)

    def _offer(self, state: State, place: int, one: Coordinator, me: str) -> Iterator[Move[State]]:
        """Publish a plan, if enough have promised: any of them may answer, and the others be late."""
        version = one.machine.durable.epoch.called
        here = [n for n, peer in zip(self.setting.peers, state.peers, strict=True) if peer.up]
        mine = [name for name in here if state.peers[self._place[name]].promise[:2] == (version, me)]
        if self.setting.all_answer and mine != here:
            return
        seen: set[tuple[int, PlanChange]] = set()
        for count in range(len(mine) if self.setting.all_answer else 0, len(mine) + 1):
            for answered in itertools.combinations(mine, count):
                agreed = self._agree(state, one.machine, answered)
                if agreed is None:
                    continue
                told = tuple(self._told(name, state.peers[self._place[name]]) for name in answered)
                mark, norm, sources = resume(told, one.kept.mark if one.kept is not None else None, me)
                self._check_resume(state, self._numbers_of(state, one, agreed), answered, mark)
                self._check_stopped(state, version)
                for layout in self.setting.layouts:
                    trains = tuple(itertools.chain.from_iterable(layout))
                    if not set(here).issuperset(trains):
                        continue
                    idle = tuple(name for name in here if name not in trains)
                    plan = self.number(PlanKey(version, me, layout, idle, mark, norm, sources))
                    machine, actions = agreed.on(Offer(self._electorates[plan]))
                    if (plan, machine) in seen:
                        continue
                    seen.add((plan, machine))
                    after = self._decided(state, place, one._replace(made=plan), machine, actions)
                    yield ("has heard", answered, "and offers", self.plans[plan]), after

    def _agree(self, state: State, machine: PlanChange, answered: tuple[str, ...]) -> PlanChange | None:
        """The machine once it knows that a plan can be the only one, if those who answer now are enough."""
        stands = tuple(self._stand(state, name) for name in answered)
        for stand in stands:
            machine, actions = machine.on(Stood(stand.peer, stand.version, stand.to))
            if actions:
                machine, _ = machine.on(Written(machine.durable))
        machine, actions = machine.on(Seek())
        while machine.phase != "agreed":
            if machine.phase == "late":
                machine, actions = machine.on(Present(stands, time_is_up=True))
                continue
            search = next((action for action in actions if isinstance(action, FindEnded)), None)
            if search is None:
                return None
            machine, actions = machine.on(ProcessesEnded(search.version, self._ended(state, search.doors)))
        return machine

    def _stand(self, state: State, name: str) -> Stand:
        """What a peer says of its promise, and of a plan that it took of another coordinator."""
        peer = state.peers[self._place[name]]
        taken = self._accepted(state, peer)
        learnt = self._electorates[taken] if taken is not None and self.plans[taken].author != peer.promise[1] else None
        return Stand(name, *peer.promise, learnt)

    def _numbers_of(self, state: State, one: Coordinator, agreed: PlanChange) -> tuple[int, ...]:
        """The plans that the next one must follow."""
        taken = {self._accepted(state, peer) for peer in state.peers} | {one.leads}
        numbers = {self._electorates[plan]: plan for plan in sorted(plan for plan in taken if plan is not None)}
        return tuple(numbers[base.plan] for base in agreed.bases)

    def _told(self, name: str, peer: Peer) -> Told:
        """What a peer says that it holds."""
        live = _as_told(peer.live) if peer.live is not None else None
        others = (*((peer.coming,) if peer.coming is not None else ()), *sorted(peer.held))
        return name, live, tuple(map(_as_told, others)) if self.rule.stands_by_all else ()

    def _accepted(self, state: State, peer: Peer) -> int | None:
        """The plan that a peer took last; a promise names its version, and the peer keeps the plan beside it."""
        if peer.plan is not None and self.plans[peer.plan].version == peer.promise[2]:
            return peer.plan
        return next((n for n in sorted(state.forced) if self.plans[n].version == peer.promise[2]), None)

    def _ended(self, state: State, doors: Doors) -> frozenset[str]:
        """Whose process has ended: here a door is the life of the process that took connections at it."""
        lives = {name: peer.life for name, peer in zip(self.setting.peers, state.peers, strict=True) if peer.up}
        return frozenset(name for name, ((_, life),) in doors if lives.get(name) != life)

    def _force(self, state: State, place: int, one: Coordinator) -> Iterator[Move[State]]:
        """Put the plan that was offered in force, if enough have taken it; or give it up."""
        stands = tuple(self._stand(state, name) for name in self.setting.peers)
        machine, actions = one.machine.on(Present(stands))
        if machine.phase == "holding":
            after = self._decided(state, place, one, machine, actions)
            yield ("puts in force plan", self.plans[one.made].version), after
        # A plan that was offered and is given up can still be learnt of, but not come into force.
        yield ("gives up",), self._decided(state, place, one, *one.machine.on(Present((), time_is_up=True)))

    def _watch(self, state: State, place: int, one: Coordinator) -> Iterator[Move[State]]:
        plan = one.leads
        names = self._trains[plan]
        serving = [state.peers[self._place[name]] for name in names]
        if not all(peer.up and peer.served == plan and peer.phase == "training" for peer in serving):
            return
        machine, actions = one.machine.on(Begun(self._electorates[plan]))
        if actions:
            doors = _doors((name, state.peers[self._place[name]].life) for name in names)
            machine, more = machine.on(DoorsFound(self.plans[plan].version, doors))
            after = self._decided(state, place, one, machine, (*actions, *more))
            yield ("hears that all have begun plan", self.plans[plan].version), after
        marks = {peer.live.mark for peer in serving if peer.live is not None}
        if self.setting.checkpoints and len(marks) == 1:
            live = serving[0].live
            assert live is not None
            kept = Part((0, LAYERS), live.mark, live.history)
            if live.mark[0] and (one.kept is None or one.kept.mark != live.mark) and live.mark[0] < self.setting.steps:
                yield ("keeps", live.mark), _with_coordinator(state, place, one._replace(kept=kept))

    # -- invariants ---------------------------------------------------------------------------------------------------

    def _check_resume(self, state: State, before: tuple[int, ...], answered: tuple[str, ...], mark: MarkKey) -> None:
        """No step is lost that the memory of those who answer could keep."""
        peers = [state.peers[self._place[name]] for name in answered]
        # Who trained under the plan that ends, and kept its memory, stands at its last step, or can follow to it.
        for plan in before:
            lives = [peer.live for peer in peers if peer.entered == plan and peer.live is not None]
            if all(any(_covers(live.layers, layer) for live in lives) for layer in range(LAYERS)):
                newest = max(live.mark for live in lives)
                if mark < newest:
                    raise Violated(f"a step is lost: {newest} was applied, and the new plan resumes from {mark}")
        # Whatever lies in anybody's memory as a whole.
        parts = [part for p in peers for part in p.parts]
        norms = {part.mark for part in parts if part.norm}
        for there in {part.mark for part in parts}:
            holders = [part for part in parts if part.mark == there or (_prepared(part) == there and there in norms)]
            whole = all(any(_covers(part.layers, layer) for part in holders) for layer in range(LAYERS))
            if whole and mark < there:
                raise Violated(f"a state is lost: {there} is there, and the new plan resumes from {mark}")

    def _check_stopped(self, state: State, version: int) -> None:
        """Of every plan that came into force, somebody has stopped for good."""
        for plan in state.forced:
            key = self.plans[plan]
            if key.version < version and all(self._may_act(state, name, plan) for name in self._trains[plan]):
                raise Violated(f"plan {version} is made while all of plan {key.version} may go on")

    def _may_act(self, state: State, name: str, plan: int) -> bool:
        """Whether a peer acts, or may still begin to act, under a plan."""
        peer, key = state.peers[self._place[name]], self.plans[plan]
        if not peer.up or peer.promise != (key.version, key.author, key.version) or peer.forgotten >= key.version:
            return False
        served = self.plans[peer.served].version if peer.served is not None else 0
        return served < key.version or (peer.served == plan and peer.phase != "sealed")

    def check(self, state: State) -> None:
        """What must hold in every state.

        Raises:
            Violated: it does not.
        """
        versions = [self.plans[plan].version for plan in state.begun]
        if len(versions) != len(set(versions)):
            raise Violated("two plans of one version were begun")
        if not state.begun <= state.forced:
            raise Violated("a plan was begun that never was in force")
        self._check_memory(state)

    def _check_memory(self, state: State) -> None:
        """All that is in memories, or on disks, is what its mark says."""
        contents: dict[MarkKey, tuple[Applied, ...]] = {}
        parts = [part for peer in state.peers for part in peer.parts]
        parts += [one.kept for one in state.coordinators if one.kept is not None]
        for part in parts:
            if contents.setdefault(part.mark, part.history) != part.history:
                raise Violated(f"{part.mark} is two states: {contents[part.mark]} and {part.history}")
            if [step for step, _, _ in part.history] != list(range(1, part.mark[0] + 1)):
                raise Violated(f"{part.mark} has the history {part.history}")
        for peer in state.peers:
            if peer.phase == "ready" and peer.served is not None and peer.coming is not None:
                plan = self.plans[peer.served]
                if peer.coming.mark != plan.mark:
                    raise Violated(f"a peer begins plan {plan.version} with {peer.coming.mark}, not {plan.mark}")
            if peer.phase != "sealed" and peer.served is not None and self.plans[peer.served].version < peer.promise[0]:
                raise Violated(f"a peer acts under plan {self.plans[peer.served].version} after it promised not to")

    def is_done(self, state: State) -> bool:
        """Whether all peers of some plan have done all steps."""
        for plan in state.forced:
            serving = [state.peers[self._place[name]] for name in self._trains[plan]]
            if all(p.entered == plan and p.live and p.live.mark[0] == self.setting.steps for p in serving):
                return True
        return False

    def may_go_on(self, state: State) -> bool:
        """Whether some coordinator may still make a plan: what the search allows is not used up."""
        return any(
            max([one.epoch.called, *(peer.promise[0] for peer in state.peers)]) < self.setting.versions
            for one in state.coordinators
        )


def _with(state: State, place: int, peer: Peer) -> State:
    return state._replace(peers=(*state.peers[:place], peer, *state.peers[place + 1 :]))


def _with_coordinator(state: State, place: int, one: Coordinator) -> State:
    return state._replace(coordinators=(*state.coordinators[:place], one, *state.coordinators[place + 1 :]))


def _said(epoch: Announced, by: str) -> Said:
    return Said(epoch.called, epoch.in_force, epoch.started, by)


def _doors(lives: Iterable[tuple[str, int]]) -> Doors:
    """A door at which nobody but this life of a peer's process takes connections."""
    return tuple((peer, (("", life),)) for peer, life in lives)


def _awaits(peer: Peer, commit: tuple[int, str, int]) -> bool:
    """Whether a peer can still take this commit."""
    plan, ballot, step = commit
    if not peer.up or peer.served != plan:
        return False
    if ballot == "START":
        return peer.phase in ("loading", "ready")
    return peer.phase in ("loading", "ready") or (
        peer.phase == "training" and peer.live is not None and peer.live.mark[0] < step
    )


def _apply(part: Part) -> Part:
    assert part.prepared is not None
    step, version, _ = part.prepared
    return Part(part.layers, (step, version), (*part.history, part.prepared), None, True)


def _prepared(part: Part) -> MarkKey | None:
    return part.prepared[:2] if part.prepared is not None else None


def _covers(layers: LayerRange, layer: int) -> bool:
    return layers[0] <= layer < layers[1]


def _as_told(part: Part) -> PartTold:
    return part.layers, part.mark, _prepared(part), part.norm


def search(setting: Setting, rule: Rule = THE_RULE) -> Found:
    """Visit every state of a setting under a rule."""
    return search_states(Model(setting, rule))
