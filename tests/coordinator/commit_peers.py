"""What peers may do next: hear, load, vote, apply, crash and return; and what the arbiter of a plan makes final."""

from collections.abc import Iterator

from dtfm_node.control.latest_plan import Heard, HeardCall
from dtfm_node.runner import follower
from dtfm_node.runner.follower import (
    FollowerAction,
    FollowerEvent,
    PauseAsked,
    PauseOver,
    Pledge,
    PromiseWritten,
    ServingEnded,
)
from dtfm_node.state.held_states import HeldStates
from dtfm_protocol.plan.ballot import Vote
from dtfm_protocol.plan.peer_state import Mark
from tests.coordinator.commit_setting import Rule, Setting
from tests.coordinator.commit_state import (
    Kept,
    MadePlan,
    Part,
    Peer,
    State,
    Step,
    drive,
    electorate,
    heard_plan,
    layers_of,
    trainers,
)
from tests.harness.memo import only, remembered
from tests.harness.state_search import Move, Violated, Words


def first_peer(name: str, plan: MadePlan, rule: Rule, heard: Heard) -> Peer:
    """A peer at the start: if it trains under the first plan, it has begun that."""
    peer = drive(Peer(name, rule.follower(), rule.memory(), heard=plan), heard, _do)
    layers = layers_of(plan, name)
    if layers is None:
        return peer
    memory = peer.memory._replace(held=HeldStates(coming=Part(layers, plan.resume.mark)))
    return only(peer._replace(phase="training", memory=memory.enter(plan)))


def peer_moves(state: State, peer: Peer, setting: Setting, rule: Rule) -> Iterator[Move[State]]:
    """All that one peer may do, or have happen to it, next."""
    if not peer.up:
        yield (peer.name, "restarts"), state.put(only(peer._replace(up=True, life=peer.life + 1)))
        return
    if state.crashes < setting.crashes:
        for what, after in _crashes(peer, setting, rule):
            yield what, state.put(after)._replace(crashes=state.crashes + 1)
        if setting.pauses and peer.machine.pausing is None:
            at_once = PauseAsked(holds=True, settled=True, at_once=True)
            yield (peer.name, "pauses"), _put(state, drive(peer, at_once, _do))._replace(crashes=state.crashes + 1)
    if peer.machine.pausing is not None:
        yield (peer.name, "goes on"), _put(state, drive(peer, PauseOver(), _do))
    for one in state.coordinators:
        for what, after in _hears(peer, one.said, one.offers):
            yield what, _put(state, after)
    if peer.served is not None and peer.phase != "sealed":
        if setting.stalls and not all(other.up for other in trainers(state.peers, peer.served)):
            yield (peer.name, "stalls"), _put(state, drive(peer._replace(phase="sealed"), ServingEnded(), _do))
        yield from _work(state, peer, setting.steps, rule)
    if setting.ahead:
        for what, after in _given_ahead(peer, state.peers):
            yield what, state.put(after)


@remembered
def _crashes(peer: Peer, setting: Setting, rule: Rule) -> tuple[tuple[Words, Peer], ...]:
    found = rule.follower.restarted(peer.machine.pledge)
    down = Peer(peer.name, found, rule.memory(), up=False, life=peer.life)
    if not setting.restores:
        return (((peer.name, "crashes"), only(down)),)
    older = down._replace(machine=rule.follower.restarted(Pledge(1, setting.coordinators[0], 1)))
    return (
        ((peer.name, "crashes"), only(down)),
        ((peer.name, "crashes, and its disk is an older one"), only(older)),
    )


@remembered
def _hears(peer: Peer, said: HeardCall, offers: MadePlan) -> tuple[tuple[Words, Peer], ...]:
    """What a coordinator's last words, and its last plan, make of a peer, where they are news."""
    heard, found = peer.machine.heard, list[tuple[Words, Peer]]()
    if (now := heard.with_call(said)) != heard:
        found.append(((peer.name, "hears", said), drive(peer, now, _do)))
    if (now := heard.with_plan(heard_plan(offers, peer.name))) != heard:
        found.append(((peer.name, "hears of", offers), drive(peer._replace(heard=offers), now, _do)))
    return tuple(found)


def _put(state: State, peer: Peer) -> State:
    """The state with a peer as it is now, which may have begun a plan."""
    after = state.put(peer)
    if peer.served is None or peer.served in state.begun:
        return after
    return after._replace(begun=state.begun | {peer.served})


def _do(peer: Peer, action: FollowerAction) -> tuple[Peer, list[FollowerEvent]]:
    """See `Runner`."""
    match action:
        case follower.StopServing():
            return peer._replace(phase="sealed"), [ServingEnded()]
        case follower.AnswerCall() | follower.TakePlan():
            return peer, [PromiseWritten()]
        case follower.DropFormer() | follower.Pause():
            return peer._replace(memory=type(peer.memory)()), []
        case follower.BeginPlan():
            plan = peer.heard
            assert plan is not None
            layers, memory = layers_of(plan, peer.name), peer.memory.redo(plan.resume)
            if layers is None:
                return peer._replace(served=plan, memory=memory), [ServingEnded()]
            return peer._replace(served=plan, phase="loading", memory=memory.begin(layers, plan.resume.mark)), []
    return peer, []


@remembered
def _given_ahead(peer: Peer, peers: tuple[Peer, ...]) -> tuple[tuple[Words, Peer], ...]:
    """What a peer is after another one has given it what it trains, or something else in its place."""
    found = list[tuple[Words, Peer]]()
    for other in peers:
        live = other.memory.live
        if other is peer or not other.up or other.phase != "training" or live is None or not live.mark.step:
            continue
        truly = Part(live.layers, live.mark, live.history)
        for what, part in (("the state of", truly), ("a lie of", truly._replace(history=live.history[:-1]))):
            if part != peer.memory.ahead:
                after = peer._replace(memory=peer.memory._replace(ahead=part))
                found.append(((peer.name, "is given ahead", what, other.name), only(after)))
    return tuple(found)


def _work(state: State, peer: Peer, steps: int, rule: Rule) -> Iterator[Move[State]]:
    live = peer.memory.live
    if peer.phase == "loading":
        ready = _loaded(peer, state.peers, state.kept, rule)
        if ready is not None:
            yield (peer.name, "has loaded"), _voted(state, ready)
    elif peer.phase == "training" and live is not None and live.prepared is None:
        if live.mark.step < steps:
            yield (peer.name, "votes on step", live.mark.step + 1), _voted(state, _prepared(peer))
    elif peer.vote in state.commits:
        what = "enters" if peer.phase == "ready" else "applies a step"
        yield (peer.name, what), state.put(_went_on(peer))


def _voted(state: State, peer: Peer) -> State:
    assert peer.vote is not None
    return state.put(peer)._replace(votes=state.votes | {(peer.vote, peer.name)})


@remembered
def _prepared(peer: Peer) -> Peer:
    """What a peer is when the gradients of its next step are reduced."""
    plan, live = peer.served, peer.memory.live
    assert plan is not None
    assert live is not None
    return only(peer._replace(memory=peer.memory.prepare(Mark(step=live.mark.step + 1, plan=plan.version))))


@remembered
def _went_on(peer: Peer) -> Peer:
    """What a peer is after what it voted for is final: it has begun its plan, or applied a step."""
    assert peer.served is not None
    if peer.phase == "training":
        arbitrates = peer.name == electorate(peer.served).peers[0]
        return only(peer._replace(memory=peer.memory.apply(arbitrates=arbitrates)))
    return only(peer._replace(phase="training", memory=peer.memory.enter(peer.served)))


@remembered
def _loaded(peer: Peer, peers: tuple[Peer, ...], kept: Kept, rule: Rule) -> Peer | None:
    """What a peer is when it has loaded what its plan begins with, if its own memory and the sources that are there
    have all of it."""
    plan, memory = peer.served, peer.memory
    assert plan is not None
    layers, resume = layers_of(plan, peer.name), plan.resume
    assert layers is not None
    history = Part(layers, resume.mark).history
    for layer in range(*layers) if resume.mark.step else ():
        there = [part for part in (*memory.held.whole, *_given(peers, kept, plan, layer)) if part.mark == resume.mark]
        found = next((part for part in there if part.covers(layer)), None)
        if found is None:
            return None
        ahead = memory.ahead
        is_ahead = ahead is not None and ahead.covers(layer) and ahead.mark.step == resume.mark.step
        history = ahead.history if ahead is not None and is_ahead and rule.serves(ahead, found) else found.history
    loaded = Part(layers, resume.mark, history, resume.commit.signature if resume.commit is not None else None)
    return only(peer._replace(phase="ready", memory=memory._replace(held=memory.held._replace(coming=loaded))))


def _given(peers: tuple[Peer, ...], kept: Kept, plan: MadePlan, layer: int) -> Iterator[Part]:
    """All that the sources of a plan have, who are to give this layer."""
    giving = {one.peer for one in plan.resume.sources if any(low <= layer < high for low, high in one.layers)}
    for peer in peers:
        if peer.name in giving:
            yield from peer.memory.shown
    for who, part in kept:
        if who in giving:
            yield part


def commits(state: State, plan: MadePlan, rule: Rule) -> Iterator[Move[State]]:
    """The arbiter's decisions; it hears of them like everybody else, for it may vanish before it applies."""
    step = trainers(state.peers, plan)[0].vote
    if step is None or step[0] is not plan or step in state.commits:
        return
    voters = frozenset(voter for on, voter in state.votes if on == step)
    if not _decides(rule, electorate(plan).peers, voters):
        return
    after = state._replace(commits=state.commits | {step})
    if step[1] > plan.resume.mark.step and any(other.version > plan.version for other in state.forced):
        if plan in state.late:
            raise Violated(f"two plans advance: plan {plan.version} makes one step after the other final")
        after = after._replace(late=state.late | {plan})
    yield ("step", step[1], "is final:", plan), after


@remembered
def _decides(rule: Rule, peers: tuple[str, ...], voters: frozenset[str]) -> bool:
    """Whether these votes make a step final."""
    arbiter = rule.arbiter(dict.fromkeys(peers, ()))
    answers = [arbiter.take(peer, Vote()) for peer in sorted(voters)]
    return bool(answers) and answers[-1] is not None


def forget_messages(state: State) -> State:
    """Without messages that nobody will take any more, so that equal situations are equal states."""
    if not state.votes and not state.commits:
        return state
    votes, final = _awaited(state.peers, state.votes, state.commits)
    if len(votes) == len(state.votes) and len(final) == len(state.commits):
        return state
    return state._replace(votes=votes, commits=final)


@remembered
def _awaited(
    peers: tuple[Peer, ...], votes: frozenset[tuple[Step, str]], commits: frozenset[Step]
) -> tuple[frozenset[tuple[Step, str]], frozenset[Step]]:
    """Those votes, and those commits, that somebody may still take."""
    asked = [(step, voter) for step, voter in votes if step not in commits]
    return (
        frozenset((step, voter) for step, voter in asked if trainers(peers, step[0])[0].awaits(step)),
        frozenset(step for step in commits if any(peer.awaits(step) for peer in peers)),
    )
