"""What coordinators may do next: call, hear promises, offer a plan, put it in force, keep a checkpoint, die, return."""

import itertools
from collections.abc import Iterator
from functools import cache, partial

from dtfm_coordinator.plan_change import plan_change_events as change
from dtfm_coordinator.plan_change.judged_holdings import judge
from dtfm_coordinator.plan_change.plan_change_events import Action, ChangeEvent, Durable, Role, Stand
from dtfm_coordinator.plan_change.resume_point import resume_from
from dtfm_node.control.latest_plan import HeardCall
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.plan import Resume
from tests.coordinator.commit_invariants import check_resume, check_stopped
from tests.coordinator.commit_lies import Shown, told
from tests.coordinator.commit_setting import Rule, Setting
from tests.coordinator.commit_state import (
    LAYERS,
    Coordinator,
    MadePlan,
    Part,
    Peer,
    State,
    chain_of,
    drive,
    electorate,
    plan_of,
    standing,
)
from tests.harness.state_search import Move, Violated


def returned(name: str, saved: Durable, file: MadePlan, setting: Setting, rule: Rule) -> Coordinator:
    """A coordinator that has just come back to what is on its disk."""
    machine = rule.coordinator.of(Role(name, alone=len(setting.coordinators) == 1), saved)
    one = Coordinator(machine, HeardCall(*saved.epoch, by=name), file, file, file)
    return drive(one, change.Returned(electorate(file)), partial(_do, ()))


def coordinator_moves(state: State, one: Coordinator, setting: Setting, rule: Rule) -> Iterator[Move[State]]:
    """All that one coordinator may do, or have happen to it, next."""
    if state.outages < setting.outages:
        back = returned(one.name, one.machine.saved, one.file, setting, rule)._replace(kept=one.kept)
        if back != one:
            yield ("is killed and returns",), state.put(back)._replace(outages=state.outages + 1)
    if one.doing:
        # Disk and network do not wait for each other; each goes by its own order.
        disk = next((action for action in one.doing if isinstance(action, change.Write | change.Hold)), None)
        wire = next((action for action in one.doing if isinstance(action, change.Publish | change.Propose)), None)
        for action in (disk, wire):
            if action is not None:
                yield ("does", action), _led(state, _done(state, one, action))
        return
    decided = partial(_decided, state, calm=state.outages == setting.outages)
    phase = one.machine.phase
    if phase in ("settled", "called"):
        # All plans so far are ended whenever the coordinator likes.
        newest = max((peer.machine.pledge.version for peer in state.peers if peer.up), default=0)
        calls = {one.on(call)[0].machine.durable.epoch.called: call for call in (change.Call(newest), change.Call())}
        for version, call in calls.items():
            if version <= setting.versions:
                yield ("calls for plan", version), decided(one, call)
    if phase == "called":
        for peer in state.peers:
            # A promise comes: its peer may vanish, or make another one, before a plan is made.
            stood = change.Stood(peer.name, peer.machine.pledge.version, peer.machine.pledge.to)
            if peer.up and one.on(stood)[0] != one:
                yield ("hears the promise of", peer.name), decided(one, stood)
        for agreed, plan in _plans(state, one, setting, rule):
            yield ("offers", plan), decided(agreed._replace(made=plan), change.Offer(electorate(plan)))
    elif phase == "offered":
        taken = change.Present(tuple(_stand(state, peer) for peer in state.peers))
        if one.on(taken)[0].machine.phase == "holding":
            yield ("puts in force", one.made), decided(one, taken)
        # A plan that was offered and is given up can still be learnt of, but not come into force.
        yield ("gives up",), decided(one, change.Present((), time_is_up=True))
    elif phase == "settled":
        trainers, begun = state.trainers(one.file), change.Begun(electorate(one.file))
        if all(peer.served is one.file and peer.phase == "training" for peer in trainers):
            if one.on(begun)[1]:
                yield ("hears that all have begun", one.file), decided(one, begun)
            if setting.checkpoints:
                yield from _keep(state, one, trainers, setting.steps)


# -- what is done -------------------------------------------------------------------------------------------------


def _decided(state: State, one: Coordinator, event: ChangeEvent, *, calm: bool) -> State:
    """After a decision: what follows is done at once where nobody can be killed in the middle of it."""
    return _led(state, drive(one, event, partial(_do if calm else _queue, state.peers)))


def _led(state: State, one: Coordinator) -> State:
    """After a coordinator has done something: its plan is in force once it may come back to it, or has said so."""
    state, plan = state.put(one), one.made
    if plan in state.forced or (one.file is not plan and one.machine.saved.epoch.in_force != plan.version):
        return state
    if any(other.version == plan.version for other in state.forced):
        raise Violated(f"two plans of version {plan.version} are in force")
    return state._replace(forced=state.forced | {plan})


def _done(state: State, one: Coordinator, action: Action) -> Coordinator:
    """After one of the things to do is done; what follows is to be done, too."""
    doing = list(one.doing)
    doing.remove(action)
    one, events = _do(state.peers, one._replace(doing=tuple(doing)), action)
    for event in events:
        one = drive(one, event, partial(_queue, state.peers))
    return one


def _queue(peers: tuple[Peer, ...], one: Coordinator, action: Action) -> tuple[Coordinator, list[ChangeEvent]]:
    if isinstance(action, change.Write | change.Hold | change.Publish | change.Propose):
        return one._replace(doing=(*one.doing, action)), []
    return _do(peers, one, action)


def _do(peers: tuple[Peer, ...], one: Coordinator, action: Action) -> tuple[Coordinator, list[ChangeEvent]]:
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
            return one, [change.DoorsFound(plan.version, doors(peers, plan.peers))]
        case change.FindEnded(version, known):
            lives = {peer.name: peer.life for peer in peers if peer.up}
            ended = frozenset(name for name, ((_, life),) in known if lives.get(name) != life)
            return one, [change.ProcessesEnded(version, ended)]
    return one, []


def doors(peers: tuple[Peer, ...], names: tuple[str, ...]) -> change.Doors:
    """Where these peers take connections: see `_do`."""
    lives = {peer.name: peer.life for peer in peers}
    return tuple((name, (("", lives[name]),)) for name in names)


# -- a new plan ---------------------------------------------------------------------------------------------------


def _plans(state: State, one: Coordinator, setting: Setting, rule: Rule) -> Iterator[tuple[Coordinator, MadePlan]]:
    """What may be offered, if enough have promised: any of them may answer, and the others be late."""
    version = one.machine.durable.epoch.called
    here = [peer for peer in state.peers if peer.up]
    mine = [peer for peer in here if peer.machine.pledge[:2] == (version, one.name)]
    if setting.all_answer and mine != here:
        return
    counts = range(len(mine) if setting.all_answer else 0, len(mine) + 1)
    for answered in itertools.chain.from_iterable(itertools.combinations(mine, count) for count in counts):
        agreed = _agree(state, one, answered)
        if agreed.machine.phase != "agreed":
            continue
        taken = {one.file, *map(state.accepted, state.peers)} - {None}
        base = agreed.machine.bases[-1].plan
        follows = next(plan for plan in taken if plan is not None and electorate(plan) == base)
        chain = chain_of(follows, rule.chain)
        check_stopped(state, version)
        truth = tuple((peer.name, peer.memory.shown) for peer in answered)
        plans = tuple(sorted(state.forced, key=lambda plan: plan.version))
        parts = [part for peer in state.peers for part in peer.memory.held.whole]
        final = frozenset(part.mark for part in parts if part.signer is not None)
        for shown in told(truth, setting.liars, plans, follows, final):
            resume = _resume(shown, one.name, one.kept, chain, rule)
            check_resume(state, follows, answered, resume, setting.liars)
            names = [peer.name for peer in here]
            for layout in setting.layouts:
                trains = set(itertools.chain.from_iterable(layout))
                if trains.issubset(names):
                    idle = tuple(name for name in names if name not in trains)
                    lineage = chain.up_to(resume.mark)
                    yield agreed, plan_of(version, one.name, layout, idle, resume, lineage, rule.plan)


def _agree(state: State, one: Coordinator, answered: tuple[Peer, ...]) -> Coordinator:
    """As far as the coordinator comes towards a new plan if only these answer."""
    stands = tuple(_stand(state, peer) for peer in answered)
    do = partial(_do, state.peers)
    for stand in stands:
        one = drive(one, change.Stood(stand.peer, stand.version, stand.to), do)
    one = drive(one, change.Seek(), do)
    while one.machine.phase == "late":
        one = drive(one, change.Present(stands, time_is_up=True), do)
    return one


def _stand(state: State, peer: Peer) -> Stand:
    """What a peer says of its promise, and of a plan that it took of another coordinator."""
    pledge, taken = peer.machine.pledge, state.accepted(peer)
    learnt = electorate(taken) if taken is not None and taken.author != pledge.to else None
    return Stand(peer.name, *pledge, learnt)


@cache
def _resume(shown: Shown, me: str, kept: Part | None, chain: Chain, rule: Rule) -> Resume:
    checkpoints = {me: [kept.mark]} if kept is not None else {}
    copies = judge({peer: standing(parts) for peer, parts in shown}, chain, rule.is_signed).copies
    return resume_from(copies, checkpoints, LAYERS, chain)


def _keep(state: State, one: Coordinator, trainers: list[Peer], steps: int) -> Iterator[Move[State]]:
    """Where all stand at one step, the coordinator may keep that; after the last one there is no need."""
    parts = [peer.memory.live for peer in trainers if peer.memory.live is not None]
    mark = parts[0].mark
    if any(part.mark != mark for part in parts) or (one.kept is not None and one.kept.mark == mark):
        return
    if 0 < mark.step < steps:
        yield ("keeps", mark), state.put(one._replace(kept=Part((0, LAYERS), mark, parts[0].history)))
