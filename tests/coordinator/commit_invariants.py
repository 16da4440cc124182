"""What must hold in every state of the search of the commit rule, and whenever a plan is made."""

import sys

from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.plan import Resume
from tests.coordinator.commit_lies import NEVER
from tests.coordinator.commit_state import LAYERS, Kept, MadePlan, Part, Peer, State, layers_of, trainers
from tests.harness.memo import remembered
from tests.harness.state_search import Violated


def check_resume(
    peers: tuple[Peer, ...],
    kept: Kept,
    begun: frozenset[MadePlan],
    follows: MadePlan,
    answered: tuple[Peer, ...],
    resume: Resume,
    liars: tuple[str, ...],
) -> None:
    """A new plan goes on from a state that leads on, and is there; no step is lost that the memory of those who answer
    truly could keep.

    Args:
        begun: all plans that peers have begun.
        follows: the newest plan that the new one follows.
        liars: those who answer, and may have said what is not true.

    Raises:
        Violated: the state that is resumed from is made up, led nowhere, or is an older one.
    """
    mark, line = resume.mark, _line(begun, follows)
    if not _leads_on(mark, line):
        raise Violated(f"what led nowhere is gone on from: {mark}, after {follows}")
    for source in resume.sources:
        for layers in source.layers:
            if not _has(peers, kept, source.peer, layers, mark) and not _had(begun, source.peer, layers, mark):
                raise Violated(f"what is made up is gone on from: {source.peer} has no layers {layers} of {mark}")
    # Who trained under the plan that ends, and kept its memory, stands at its last step, or can follow to it.
    memories = [peer.memory for peer in answered if peer.name not in liars]
    lives = [memory.live for memory in memories if memory.entered is follows and memory.live is not None]
    newest = max((live.mark for live in lives), key=lambda mark: mark.order, default=mark)
    if _whole(lives) and mark.order < newest.order and _leads_on(newest, line):
        raise Violated(f"a step is lost: {newest} was applied, and the new plan resumes from {mark}")
    # Whatever lies in anybody's memory as a whole.
    parts = [part for memory in memories for part in memory.held.whole]
    final = {part.mark for part in parts if part.signer is not None}
    for there in {part.mark for part in parts}:
        holders = [part for part in parts if part.mark == there or (part.prepared == there and there in final)]
        if _whole(holders) and mark.order < there.order and _leads_on(there, line):
            raise Violated(f"a state is lost: {there} is there, and the new plan resumes from {mark}")


def _had(begun: frozenset[MadePlan], who: str, layers: LayerRange, mark: Mark) -> bool:
    """Whether a source was given these layers of a state that may be real: then it holds up those who load from it, and
    makes up nothing."""
    return mark.step != NEVER and any(
        layers_of(plan, who) == layers and (plan.version == mark.plan or plan.resume.mark == mark) for plan in begun
    )


def _line(begun: frozenset[MadePlan], plan: MadePlan) -> list[tuple[MadePlan, int]]:
    """The plans that led to one, newest first, each with its last step that did."""
    made = {one.version: one for one in begun}
    line = [(plan, sys.maxsize)]
    while (mark := line[-1][0].resume.mark).step:
        line.append((made[mark.plan], mark.step))
    return line


def _leads_on(mark: Mark, line: list[tuple[MadePlan, int]]) -> bool:
    return mark == Mark() or any(
        plan.version == mark.plan and plan.resume.mark.step < mark.step <= end for plan, end in line
    )


def _has(peers: tuple[Peer, ...], kept: Kept, who: str, layers: LayerRange, mark: Mark) -> bool:
    """Whether a source truly has, or can make, these layers of a state."""
    on_disk = [part for name, part in kept if name == who]
    truly = [part for peer in peers if peer.name == who for part in peer.memory.held.whole]
    return any(part.layers == layers and mark in (part.mark, part.prepared) for part in (*on_disk, *truly))


def _whole(parts: list[Part]) -> bool:
    return all(any(part.covers(layer) for part in parts) for layer in range(LAYERS))


def check_stopped(peers: tuple[Peer, ...], forced: frozenset[MadePlan], version: int) -> None:
    """Of every plan that came into force, somebody has stopped for good before plan `version` is made.

    Raises:
        Violated: all of one may go on.
    """
    for plan in forced:
        if plan.version < version and all(_may_act(peer, plan) for peer in trainers(peers, plan)):
            raise Violated(f"plan {version} is made while all of plan {plan.version} may go on")


def _may_act(peer: Peer, plan: MadePlan) -> bool:
    """Whether a peer acts, or may still begin to act, under a plan."""
    machine = peer.machine
    if not peer.up or machine.pledge != (plan.version, plan.author, plan.version) or machine.forgotten >= plan.version:
        return False
    served = peer.served.version if peer.served is not None else 0
    return served < plan.version or (peer.served is plan and peer.phase != "sealed")


def check_state(state: State) -> None:
    """What must hold always.

    Raises:
        Violated: it does not.
    """
    _check_begun(state.begun, state.forced)
    _check_contents(state.peers, state.kept)
    _check_paces(state.peers)
    for peer in state.peers:
        _check_peer(peer)


# What was found in order once is not looked at again: each of these looks at nothing but what it is given, and what
# breaks a rule ends the search.


@remembered
def _check_begun(begun: frozenset[MadePlan], forced: frozenset[MadePlan]) -> None:
    if len({plan.version for plan in begun}) != len(begun):
        raise Violated("two plans of one version were begun")
    if not begun <= forced:
        raise Violated("a plan was begun that never was in force")


@remembered
def _check_peer(peer: Peer) -> None:
    plan, coming = peer.served, peer.memory.held.coming
    if plan is None or peer.phase == "sealed":
        return
    if peer.phase == "ready" and coming is not None and coming.mark != plan.resume.mark:
        raise Violated(f"a peer begins plan {plan.version} with {coming.mark}, not {plan.resume.mark}")
    if plan.version < peer.machine.pledge.version:
        raise Violated(f"a peer acts under plan {plan.version} after it promised not to")


@remembered
def _check_paces(peers: tuple[Peer, ...]) -> None:
    """All peers of a plan compute one step by the same durations, and so in orders that fit together."""
    paces: dict[tuple[MadePlan, Mark], Mark | None] = {}
    for peer in peers:
        plan, live, pace = peer.served, peer.memory.live, peer.memory.pace
        if peer.phase != "training" or plan is None or live is None:
            continue
        if paces.setdefault((plan, live.mark), pace) != pace:
            raise Violated(f"step {live.mark.step + 1} of plan {plan.version} is computed by unlike durations")


@remembered
def _check_contents(peers: tuple[Peer, ...], kept: Kept) -> None:
    """All that is in memories, or on disks, is what its mark says."""
    contents: dict[Mark, Part] = {}
    for part in (*(part for peer in peers for part in peer.memory.held.whole), *(part for _, part in kept)):
        if contents.setdefault(part.mark, part).history != part.history:
            raise Violated(f"{part.mark} is two states: {contents[part.mark].history} and {part.history}")
        if [step for step, _ in part.history] != list(range(1, part.mark.step + 1)):
            raise Violated(f"{part.mark} has the history {part.history}")
