"""What coordinators may do next: call, hear promises, offer a plan, put it in force, keep a checkpoint, die, return."""

import itertools
from collections.abc import Iterator
from functools import partial

from dtfm_coordinator.plan_change import plan_change_events as change
from dtfm_coordinator.plan_change.judged_holdings import judge
from dtfm_coordinator.plan_change.plan_change_events import Action, ChangeEvent, Durable, Role, Stand
from dtfm_coordinator.plan_change.resume_point import resume_from
from dtfm_node.control.latest_plan import HeardCall
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.plan import Resume
from tests.coordinator.commit_invariants import check_resume, check_stopped
from tests.coordinator.commit_lies import told
from tests.coordinator.commit_setting import Rule, Setting
from tests.coordinator.commit_state import (
    LAYERS,
    Coordinator,
    Kept,
    MadePlan,
    Part,
    Peer,
    Shown,
    State,
    accepted,
    chain_of,
    drive,
    electorate,
    plan_of,
    standing,
    trainers,
)
from tests.harness.memo import only, remembered
from tests.harness.state_search import Move, Violated, Words

Lives = tuple[tuple[str, int, bool], ...]
"""For each peer, the life that it lives or has lived, and whether it lives."""


def returned(name: str, saved: Durable, file: MadePlan, setting: Setting, rule: Rule) -> Coordinator:
    """A coordinator that has just come back to what is on its disk."""
    machine = rule.coordinator.of(Role(name, alone=len(setting.coordinators) == 1), saved)
    one = Coordinator(machine, HeardCall(*saved.epoch, by=name), file, file, file)
    return drive(one, change.Returned(electorate(file)), partial(_do, ()))


def coordinator_moves(state: State, one: Coordinator, setting: Setting, rule: Rule) -> Iterator[Move[State]]:
    """All that one coordinator may do, or have happen to it, next."""
    name, lives = one.name, lives_of(state.peers)
    if state.outages < setting.outages:
        for what, back in _backs(one, setting, rule):
            if back is not one:
                yield what, state.put(back)._replace(outages=state.outages + 1)
    if one.doing:
        # Disk and network do not wait for each other; each goes by its own order.
        disk = next((action for action in one.doing if isinstance(action, change.Write | change.Hold)), None)
        wire = next((action for action in one.doing if isinstance(action, change.Publish | change.Propose)), None)
        for action in (disk, wire):
            if action is not None:
                yield (name, "does", action), _led(state, _done(one, action, lives))
        return
    calm = state.outages == setting.outages
    phase = one.machine.phase
    promises = _promises(state.peers, state.forced)
    if phase in ("settled", "called"):
        for what, after in _calls(one, promises, lives, newest_version(one, setting), calm=calm):
            yield what, _led(state, after)
    if phase == "called":
        for what, after in _hears(one, promises, lives, calm=calm):
            yield what, _led(state, after)
        for agreed, plan in _plans(one, state.peers, state.forced, state.begun, state.kept, setting, rule):
            offering = only(agreed._replace(made=plan))
            after = _decided(offering, change.Offer(electorate(plan)), lives, calm=calm)
            yield (name, "offers", plan), _led(state, after)
    elif phase == "offered":
        taken = change.Present(_stands(state.peers))
        if _holds(one, taken):
            yield (name, "puts in force", one.made), _led(state, _decided(one, taken, lives, calm=calm))
        # A plan that was offered and is given up can still be learnt of, but not come into force.
        after = _decided(one, change.Present((), time_is_up=True), lives, calm=calm)
        yield (name, "gives up"), _led(state, after)
    elif phase == "settled":
        train = trainers(state.peers, one.file)
        if all(peer.served is one.file and peer.phase == "training" for peer in train):
            after = _decided(one, change.Begun(electorate(one.file)), lives, calm=calm)
            if after is not one:
                yield (name, "hears that all have begun", one.file), _led(state, after)
            if setting.checkpoints:
                yield from _keep(state, one, train, setting.steps)


@remembered
def _backs(one: Coordinator, setting: Setting, rule: Rule) -> tuple[tuple[Words, Coordinator], ...]:
    back = only(returned(one.name, one.machine.saved, one.file, setting, rule)._replace(kept=one.kept))
    found: list[tuple[Words, Coordinator]] = [((one.name, "is killed and returns"), back)]
    if setting.later:
        saved, first = first_disk(setting, rule)
        older = returned(one.name, saved._replace(forgotten=setting.versions), first, setting, rule)
        found.append(((one.name, "is killed, and its disk is put back"), older))
    return tuple(found)


@remembered
def first_disk(setting: Setting, rule: Rule) -> tuple[Durable, MadePlan]:
    """What a coordinator has on its disk when the first plan has begun, and that plan."""
    trains = tuple(itertools.chain.from_iterable(setting.first))
    idle = (*(peer for peer in setting.peers if peer not in trains), *setting.spares)
    first = plan_of(1, setting.coordinators[0], setting.first, idle, Resume(), (), rule.plan)
    lives = tuple((name, 0, True) for name in setting.peers)
    return Durable(change.Announced(1, in_force=1, started=1), doors=doors(lives, trains), doors_of=1), first


def newest_version(one: Coordinator, setting: Setting) -> int:
    """The newest version that a coordinator may call for."""
    return setting.versions + (setting.later if one.machine.durable.forgotten else 0)


@remembered
def _calls(
    one: Coordinator, promises: tuple[change.Stood, ...], lives: Lives, versions: int, *, calm: bool
) -> tuple[tuple[Words, Coordinator], ...]:
    """What a coordinator is after it has ended all plans so far, which it may do whenever it likes."""
    newest = max((stood.version for stood in promises), default=0)
    calls = {one.on(call)[0].machine.durable.epoch.called: call for call in (change.Call(newest), change.Call())}
    return tuple(
        ((one.name, "calls for plan", version), _decided(one, call, lives, calm=calm))
        for version, call in calls.items()
        if version <= versions
    )


@remembered
def _hears(
    one: Coordinator, promises: tuple[change.Stood, ...], lives: Lives, *, calm: bool
) -> tuple[tuple[Words, Coordinator], ...]:
    """What a promise makes of a coordinator, where it is news: its peer may vanish, or make another one, before a plan
    is made."""
    after = [(stood, _decided(one, stood, lives, calm=calm)) for stood in promises]
    return tuple(((one.name, "hears the promise of", stood.peer), now) for stood, now in after if now is not one)


@remembered
def _holds(one: Coordinator, taken: change.Present) -> bool:
    """Whether enough peers have taken what a coordinator offers."""
    return one.on(taken)[0].machine.phase == "holding"


# -- what coordinators see of peers -------------------------------------------------------------------------------


@remembered
def lives_of(peers: tuple[Peer, ...]) -> Lives:
    """What tells which processes still run."""
    return tuple((peer.name, peer.life, peer.up) for peer in peers)


@remembered
def _promises(peers: tuple[Peer, ...], forced: frozenset[MadePlan]) -> tuple[change.Stood, ...]:
    """What those who are there have promised, and the plans that they show with that."""
    return tuple(_promise(peer, forced) for peer in peers if peer.up)


@remembered
def _promise(peer: Peer, forced: frozenset[MadePlan]) -> change.Stood:
    pledge, call, taken = peer.machine.pledge, peer.machine.heard.call, accepted(peer, forced)
    shown = electorate(taken) if taken is not None and pledge.shows_taken(taken.author, call) else None
    return change.Stood(peer.name, pledge.version, pledge.to, shown)


@remembered
def _stands(peers: tuple[Peer, ...]) -> tuple[Stand, ...]:
    """What peers say of their promises."""
    return tuple(Stand(peer.name, *peer.machine.pledge) for peer in peers)


# -- what is done -------------------------------------------------------------------------------------------------


@remembered
def _decided(one: Coordinator, event: ChangeEvent, lives: Lives, *, calm: bool) -> Coordinator:
    """After a decision: what follows is done at once where nobody can be killed in the middle of it."""
    return drive(one, event, partial(_do if calm else _queue, lives))


def _led(state: State, one: Coordinator) -> State:
    """After a coordinator has done something: its plan is in force once it may come back to it, or has said so."""
    state, plan = state.put(one), one.made
    if plan in state.forced or (one.file is not plan and one.machine.saved.epoch.in_force != plan.version):
        return state
    if any(other.version == plan.version for other in state.forced):
        raise Violated(f"two plans of version {plan.version} are in force")
    return state._replace(forced=state.forced | {plan})


@remembered
def _done(one: Coordinator, action: Action, lives: Lives) -> Coordinator:
    """After one of the things to do is done; what follows is to be done, too."""
    doing = list(one.doing)
    doing.remove(action)
    one, events = _do(lives, one._replace(doing=tuple(doing)), action)
    for event in events:
        one = drive(one, event, partial(_queue, lives))
    return only(one)


def _queue(lives: Lives, one: Coordinator, action: Action) -> tuple[Coordinator, list[ChangeEvent]]:
    if isinstance(action, change.Write | change.Hold | change.Publish | change.Propose):
        return one._replace(doing=(*one.doing, action)), []
    return _do(lives, one, action)


def _do(lives: Lives, one: Coordinator, action: Action) -> tuple[Coordinator, list[ChangeEvent]]:
    """See `PlanChangeDriver`. A door is the life of the process that takes connections at it."""
    match action:
        case change.Write(durable) if durable == one.machine.durable:  # else a newer one is to be written
            return one, [change.Written(durable)]
        case change.Hold():
            return one._replace(file=one.made), [change.Held()]
        case change.Publish(epoch):
            return one._replace(said=HeardCall(*epoch, by=one.name)), []
        case change.Propose():
            return one._replace(offers=one.made), []
        case change.FindDoors(plan):
            return one, [change.DoorsFound(plan.version, doors(lives, plan.peers))]
        case change.FindEnded(version, known):
            now = {name: life for name, life, up in lives if up}
            ended = frozenset(name for name, ((_, life),) in known if now.get(name) != life)
            return one, [change.ProcessesEnded(version, ended)]
    return one, []


def doors(lives: Lives, names: tuple[str, ...]) -> change.Doors:
    """Where these peers take connections: see `_do`."""
    by_name = {name: life for name, life, _ in lives}
    return tuple((name, (("", by_name[name]),)) for name in names)


# -- a new plan ---------------------------------------------------------------------------------------------------


@remembered
def _plans(
    one: Coordinator,
    peers: tuple[Peer, ...],
    forced: frozenset[MadePlan],
    begun: frozenset[MadePlan],
    kept: Kept,
    setting: Setting,
    rule: Rule,
) -> tuple[tuple[Coordinator, MadePlan], ...]:
    """What may be offered, if enough have promised: any of them may answer, and the others be late."""
    version = one.machine.durable.epoch.called
    here = [peer for peer in peers if peer.up]
    mine = [peer for peer in here if peer.machine.pledge[:2] == (version, one.name)]
    if setting.all_answer and mine != here:
        return ()
    counts = range(len(mine) if setting.all_answer else 0, len(mine) + 1)
    found = list[tuple[Coordinator, MadePlan]]()
    for answered in itertools.chain.from_iterable(itertools.combinations(mine, count) for count in counts):
        agreed = _agree(one, tuple(_promise(peer, forced) for peer in answered), lives_of(peers))
        if agreed.machine.phase != "agreed":
            continue
        taken = {one.file, *(accepted(peer, forced) for peer in peers)} - {None}
        base = agreed.machine.bases[-1].plan
        follows = next(plan for plan in taken if plan is not None and electorate(plan) == base)
        chain = chain_of(follows, rule.chain)
        check_stopped(peers, forced, version)
        truth = tuple((peer.name, peer.memory.shown) for peer in answered)
        plans = tuple(sorted(forced, key=lambda plan: plan.version))
        parts = [part for peer in peers for part in peer.memory.held.whole]
        final = frozenset(part.mark for part in parts if part.signer is not None)
        for shown in told(truth, setting.liars, plans, follows, final):
            resume = _resume(shown, dict(kept).get(one.name), one.name, chain, rule)
            check_resume(peers, kept, begun, follows, answered, resume, setting.liars)
            names = [peer.name for peer in here]
            for layout in setting.layouts:
                trains = set(itertools.chain.from_iterable(layout))
                if trains.issubset(names):
                    idle = tuple(name for name in names if name not in trains)
                    lineage = chain.up_to(resume.mark)
                    found.append((agreed, plan_of(version, one.name, layout, idle, resume, lineage, rule.plan)))
    return tuple(found)


@remembered
def _agree(one: Coordinator, answers: tuple[change.Stood, ...], lives: Lives) -> Coordinator:
    """As far as the coordinator comes towards a new plan if only these answer."""
    do = partial(_do, lives)
    for answer in answers:
        one = drive(one, answer, do)
    one = drive(one, change.Seek(), do)
    while one.machine.phase == "late":
        one = drive(one, change.Present((), time_is_up=True), do)
    return one


@remembered
def _resume(shown: Shown, kept: Part | None, me: str, chain: Chain, rule: Rule) -> Resume:
    checkpoints = {me: [kept.mark]} if kept is not None else {}
    standings = {peer: standing(parts) for peer, parts in shown}
    copies = judge(standings, chain, rule.is_signed, rule.voted(shown, chain)).copies
    return resume_from(copies, checkpoints, LAYERS, chain)


def _keep(state: State, one: Coordinator, train: tuple[Peer, ...], steps: int) -> Iterator[Move[State]]:
    """Where all stand at one step, the coordinator may keep that; after the last one there is no need."""
    parts = [peer.memory.live for peer in train if peer.memory.live is not None]
    mark = parts[0].mark
    if any(part.mark != mark for part in parts) or (one.kept is not None and one.kept.mark == mark):
        return
    if 0 < mark.step < steps:
        kept = Part((0, LAYERS), mark, parts[0].history)
        yield (one.name, "keeps", mark), state.put(only(one._replace(kept=kept)))
