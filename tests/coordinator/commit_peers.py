"""What peers may do next: hear, load, vote, apply, crash and return; and what the arbiter of a plan makes final."""

from collections.abc import Iterator
from functools import cache

from dtfm_node.control.latest_plan import Heard
from dtfm_node.runner import follower
from dtfm_node.runner.follower import FollowerAction, FollowerEvent, Pledge, PromiseWritten, ServingEnded
from dtfm_node.state.held_states import HeldStates
from dtfm_protocol.plan.ballot import Vote
from dtfm_protocol.plan.peer_state import Mark
from tests.coordinator.commit_setting import Rule, Setting
from tests.coordinator.commit_state import MadePlan, Part, Peer, State, drive, electorate, heard_plan, layers_of
from tests.harness.state_search import Move, Violated


def first_peer(name: str, plan: MadePlan, rule: Rule, heard: Heard) -> Peer:
    """A peer at the start: if it trains under the first plan, it has begun that."""
    peer = drive(Peer(name, rule.follower(), rule.memory(), heard=plan), heard, _do)
    layers = layers_of(plan, name)
    if layers is None:
        return peer
    memory = peer.memory._replace(held=HeldStates(coming=Part(layers, plan.resume.mark)))
    return peer._replace(phase="training", memory=memory.enter(plan))


def peer_moves(state: State, peer: Peer, setting: Setting, rule: Rule) -> Iterator[Move[State]]:
    """All that one peer may do, or have happen to it, next."""
    if not peer.up:
        yield ("restarts",), state.put(peer._replace(up=True, life=peer.life + 1))
        return
    if state.crashes < setting.crashes:
        found = rule.follower.restarted(peer.machine.pledge)
        down = Peer(peer.name, found, rule.memory(), up=False, life=peer.life)
        yield ("crashes",), state.put(down)._replace(crashes=state.crashes + 1)
        if setting.restores:
            older = down._replace(machine=rule.follower.restarted(Pledge(1, setting.coordinators[0], 1)))
            yield ("crashes, and its disk is an older one",), state.put(older)._replace(crashes=state.crashes + 1)
    yield from _hear(state, peer)
    if peer.served is not None and peer.phase != "sealed":
        if setting.stalls and not all(other.up for other in state.trainers(peer.served)):
            yield ("stalls",), _told(state, peer._replace(phase="sealed"), ServingEnded())
        yield from _work(state, peer, peer.served, setting.steps)


def _hear(state: State, peer: Peer) -> Iterator[Move[State]]:
    heard = peer.machine.heard
    for one in state.coordinators:
        if (now := heard.with_call(one.said)) != heard:
            yield ("hears", one.said), _told(state, peer, now)
        if (now := heard.with_plan(heard_plan(one.offers, peer.name))) != heard:
            yield ("hears of", one.offers), _told(state, peer._replace(heard=one.offers), now)


def _told(state: State, peer: Peer, event: FollowerEvent) -> State:
    after = drive(peer, event, _do)
    begun = {after.served} if after.served is not None else set()
    return state.put(after)._replace(begun=state.begun | begun)


def _do(peer: Peer, action: FollowerAction) -> tuple[Peer, list[FollowerEvent]]:
    """See `Runner`."""
    match action:
        case follower.StopServing():
            return peer._replace(phase="sealed"), [ServingEnded()]
        case follower.AnswerCall() | follower.TakePlan():
            return peer, [PromiseWritten()]
        case follower.DropFormer():
            return peer._replace(memory=type(peer.memory)()), []
        case follower.BeginPlan():
            plan = peer.heard
            assert plan is not None
            layers, memory = layers_of(plan, peer.name), peer.memory.redo(plan.resume)
            if layers is None:
                return peer._replace(served=plan, memory=memory), [ServingEnded()]
            return peer._replace(served=plan, phase="loading", memory=memory.begin(layers, plan.resume.mark)), []
    return peer, []


def _work(state: State, peer: Peer, plan: MadePlan, steps: int) -> Iterator[Move[State]]:
    memory = peer.memory
    if peer.phase == "loading":
        loaded = _loaded(state, peer, plan)
        if loaded is not None:
            ready = peer._replace(phase="ready", memory=memory._replace(held=memory.held._replace(coming=loaded)))
            yield ("has loaded",), _voted(state, ready)
    elif peer.phase == "ready":
        if peer.vote in state.commits:
            yield ("enters",), state.put(peer._replace(phase="training", memory=memory.enter(plan)))
    elif memory.live is not None and memory.live.prepared is None:
        step = memory.live.mark.step + 1
        if step <= steps:
            ready = peer._replace(memory=memory.prepare(Mark(step=step, plan=plan.version)))
            yield ("votes on step", step), _voted(state, ready)
    elif peer.vote in state.commits:
        yield ("applies a step",), state.put(peer._replace(memory=memory.apply()))


def _voted(state: State, peer: Peer) -> State:
    assert peer.vote is not None
    return state.put(peer)._replace(votes=state.votes | {(peer.vote, peer.name)})


def _loaded(state: State, peer: Peer, plan: MadePlan) -> Part | None:
    """What a peer begins the plan with, if its own memory and the sources that are there have all of it."""
    layers, resume = layers_of(plan, peer.name), plan.resume
    assert layers is not None
    history = Part(layers, resume.mark).history
    for layer in range(*layers) if resume.mark.step else ():
        there = [part for part in (*peer.memory.held.whole, *_given(state, plan, layer)) if part.mark == resume.mark]
        found = next((part for part in there if part.covers(layer)), None)
        if found is None:
            return None
        history = found.history
    return Part(layers, resume.mark, history, resume.commit.signature if resume.commit is not None else None)


def _given(state: State, plan: MadePlan, layer: int) -> Iterator[Part]:
    """All that the sources of a plan have, who are to give this layer."""
    giving = {one.peer for one in plan.resume.sources if any(low <= layer < high for low, high in one.layers)}
    for peer in state.peers:
        if peer.name in giving:
            yield from peer.memory.shown
    for one in state.coordinators:
        if one.name in giving and one.kept is not None:
            yield one.kept


def commits(state: State, plan: MadePlan, rule: Rule) -> Iterator[Move[State]]:
    """The arbiter's decisions; it hears of them like everybody else, for it may vanish before it applies."""
    arbiter = state.trainers(plan)[0]
    step = arbiter.vote
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


@cache
def _decides(rule: Rule, peers: tuple[str, ...], voters: frozenset[str]) -> bool:
    """Whether these votes make a step final."""
    arbiter = rule.arbiter(dict.fromkeys(peers, ()))
    answers = [arbiter.take(peer, Vote()) for peer in sorted(voters)]
    return bool(answers) and answers[-1] is not None


def forget_messages(state: State) -> State:
    """Without messages that nobody will take any more, so that equal situations are equal states."""
    votes = frozenset(
        (step, voter)
        for step, voter in state.votes
        if step not in state.commits and state.trainers(step[0])[0].awaits(step)
    )
    final = frozenset(step for step in state.commits if any(peer.awaits(step) for peer in state.peers))
    return state._replace(votes=votes, commits=final)
