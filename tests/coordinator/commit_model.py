"""A small model of the commit rule and of plan succession, and a search through all its states.

What decides is the code itself: `Follower`, the peers' machine, `PlanChange`, the coordinators', `PeerState`,
`resume_from`, `Plan.electors`, and `Arbiter`. What surrounds it (daemons, disks, messages) is written down here as
actions that may happen in any order: that a message is late, lost or overtaken is that its action happens late, or
never, or after another one.

- `commit_setting`: how far to look, and which variants of the product decide
- `commit_state`: peers and coordinators as values, and how a machine is driven
- `commit_peers`, `commit_coordinators`: what may happen next
- `commit_lies`: what peers that lie may say
- `commit_mistakes`: peers and coordinators that decide wrongly, each in one thing
- `commit_invariants`: what must hold
"""

from collections.abc import Iterator

from dtfm_node.control.latest_plan import Heard, HeardCall
from tests.coordinator.commit_coordinators import coordinator_moves, first_disk, newest_version, returned
from tests.coordinator.commit_invariants import check_state
from tests.coordinator.commit_peers import commits, first_peer, forget_messages, peer_moves
from tests.coordinator.commit_setting import THE_RULE, Rule, Setting
from tests.coordinator.commit_state import MadePlan, Peer, State, heard_plan, trainers
from tests.harness.memo import forget, remembered
from tests.harness.state_search import Found, Move, search_states


class Model:
    """All moves of a setting under a rule; see `StateModel`."""

    def __init__(self, setting: Setting, rule: Rule) -> None:
        self.setting, self.rule = setting, rule

    def start(self) -> State:
        """Plan 1 is in force, and all its peers have begun it."""
        setting, rule = self.setting, self.rule
        saved, first = first_disk(setting, rule)
        call = HeardCall(*saved.epoch, by=first.author)
        peers = tuple(first_peer(name, first, rule, Heard(call, heard_plan(first, name))) for name in setting.peers)
        coordinators = tuple(returned(name, saved, first, setting, rule) for name in setting.coordinators)
        return State(peers, coordinators, forced=frozenset({first}), begun=frozenset({first}))

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Everything that may happen next.

        Raises:
            Violated: what happens breaks an invariant.
        """
        setting, rule = self.setting, self.rule
        served = dict.fromkeys(peer.served for peer in state.peers if peer.served and peer.phase != "sealed")
        for peer in state.peers:
            for what, after in peer_moves(state, peer, setting, rule):
                yield what, forget_messages(after)
        for plan in served:
            for what, after in commits(state, plan, rule):
                yield what, forget_messages(after)
        # What coordinators do leaves peers as they are, and so what is awaited.
        for one in state.coordinators:
            yield from coordinator_moves(state, one, setting, rule)

    check = staticmethod(check_state)

    def is_done(self, state: State) -> bool:
        """Whether all peers of some plan have done all steps."""
        return any(_is_done(state.peers, plan, self.setting.steps) for plan in state.forced)

    def may_go_on(self, state: State) -> bool:
        """Whether some coordinator may still make a plan: what the search allows is not used up."""
        newest = max(peer.machine.pledge.version for peer in state.peers)
        coordinators = state.coordinators
        return any(max(one.said.called, newest) < newest_version(one, self.setting) for one in coordinators)


@remembered
def _is_done(peers: tuple[Peer, ...], plan: MadePlan, steps: int) -> bool:
    memories = [peer.memory for peer in trainers(peers, plan)]
    return all(one.entered is plan and one.live is not None and one.live.mark.step == steps for one in memories)


def search(setting: Setting, rule: Rule = THE_RULE) -> Found:
    """Visit every state of a setting under a rule."""
    try:
        return search_states(Model(setting, rule))
    finally:
        forget()
