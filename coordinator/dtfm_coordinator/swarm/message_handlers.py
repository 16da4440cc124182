"""Handlers of what a coordinator hears. Nothing here waits: the reader of messages would stand still."""

import logging
from collections.abc import Callable, Collection

from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector, mark_of
from dtfm_coordinator.records.metrics_recorder import MetricsRecorder
from dtfm_coordinator.records.state_votes import votes_in
from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.control.messages import CHALLENGE, PRESENCE, REPORT, Challenge, Presence, Report
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.identity.keys import called
from dtfm_protocol.plan.peer_state import PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.version_agreement import told_to_coordinator

SAFE_REST_TIMES = 50.0
"""Times as long as a look for the safe state of a large swarm has taken that the next one waits."""
LARGE = 32
"""Members from which a swarm is a large one."""


class MessageHandlers:
    """Handlers of peers' messages and of checkpoints; each notes what it hears, in the order in which it comes."""

    def __init__(
        self,
        state: SwarmState,
        recorder: MetricsRecorder,
        announcer: Announcer,
        coordinators: Collection[str],
        *,
        stood: Callable[[str, PeerState, Plan | None], None],
        started: Callable[[Plan], bool],
    ) -> None:
        """Take where to note what is heard; nothing is read before `listen`.

        Args:
            coordinators: peer ids of the coordinators, which are no members.
            stood: told what a peer has promised and holds, and which plan it shows as taken.
            started: told when all peers of the plan in force train; returns whether that is news.
        """
        self._state, self._recorder, self._announcer = state, recorder, announcer
        self._coordinators, self._stood, self._started = coordinators, stood, started
        self._begun: Plan | None = None
        """Plan that was found to have begun: nobody looks again whether all train under it."""
        self._safe_due = 0.0
        """Clock's seconds before which nobody looks for a newer safe state."""

    def listen(self, control: ControlPlane, archive: CheckpointCollector) -> None:
        """Begin to read what peers say and hand in."""
        archive.subscribe(kept=self._keep, rows=self._recorder.record_for_good, voted=self._state.voted)
        control.on(PRESENCE, self._hear_presence)
        control.on(REPORT, self._hear_report)
        control.on(CHALLENGE, self._hear_challenge)

    def _keep(self, manifest: Manifest) -> None:
        """Note that a checkpoint is whole."""
        self._state.kept = mark_of(manifest)
        log.info("The model after step %s is safe on this disk.", f"{manifest.step:,}")
        self._state.notify()

    def _hear_presence(self, peer: str, message: Presence) -> None:
        if peer in self._coordinators:
            return
        members = self._state.members
        before = members.get(peer)
        was_online = before is not None and before.online
        if before is not None and before.session != message.session:
            self._state.pace.forget(peer)  # it measures itself anew
        members.seen(peer, message)
        member = members.get(peer)
        is_online = member is not None and member.online
        if is_online != was_online:
            name = called(peer, member.name if member else "")
            log.info("%s %s", name, "has joined." if is_online else "has left.")
            if member is not None and is_online and (said := told_to_coordinator(product_version(), member.version)):
                log.log(logging.WARNING if members.is_unfit(member) else logging.INFO, "%s %s.", name, said)
            if not is_online:
                self._state.links.forget(peer)
        self._state.notify()

    def _hear_challenge(self, peer: str, challenge: Challenge) -> None:
        """Answer a node that enters: it learns that this coordinator lives, and the time from whatever is said now."""
        self._announcer.answer(peer, challenge.session)

    def _hear_report(self, peer: str, message: Report) -> None:
        """Note what a peer says of itself; what it says of others, and of the training, only where it has a part."""
        state, plan = self._state, self._state.plan
        peers = state.serving if peer in state.serving else frozenset[str]()
        is_under_it = bool(peers) and plan is not None and message.plan_version == plan.version
        lost = tuple(one for one in message.lost if is_under_it and one in peers)
        if not state.members.reported(peer, message.model_copy(update={"lost": lost, "rows": ()})):
            return
        if message.probed is not None:
            state.links.answered(peer, message.probed)
        self._stood(peer, message.standing, message.taken)
        state.voted(votes_in(message.standing))
        state.voted(message.evidence)
        state.look_at_arbiter()
        if peers:  # only who trains knows what a step was
            self._recorder.record(message.rows)
        if plan is not None and is_under_it:
            self._hear_trainer(peer, plan, peers, message)
        is_safer = self._is_safer()  # asked in any case: with fast steps every report brings rows
        if message.rows or is_safer:
            self._announcer.tell_ledger()
        state.notify()

    def _is_safer(self) -> bool:
        """Whether a newer state is safe than before; a large swarm is looked at less often than it reports."""
        state = self._state
        begun = state.clock.now()
        if begun < self._safe_due:
            return False
        found = state.is_safer()
        if len(state.members.known()) > LARGE:
            now = state.clock.now()
            self._safe_due = now + SAFE_REST_TIMES * (now - begun)
        return found

    def _hear_trainer(self, peer: str, plan: Plan, peers: frozenset[str], message: Report) -> None:
        """Note what a peer of the plan in force says of its work under it."""
        state = self._state
        if message.state == "training":
            gbps = {sender: rate for sender, rate in message.received_gbps.items() if sender in peers}
            state.pace.reported(peer, plan, message.step, message.busy_seconds)
            state.link_watch.reported(peer, plan.version, message.step, gbps)
            state.progress.reached(peer, plan, message.step, message.standing.holdings)
            going = {receiver: rate for receiver, rate in message.sent_gbps.items() if receiver in peers}
            state.link_watch.sending(peer, plan.version, going)
            state.owed.reached(peer, plan.version, message.step)
            if self._begun is not plan and state.all_train(plan) and self._started(plan):
                self._begun = plan
                state.begun(plan)
        if message.state == "diverged":
            alone = peers == {peer}
            state.divergence.reported(peer, plan.version, message.step, message.text, alone=alone)
        if message.state == "stalled" and message.refused in peers:
            self._state.fell_out(peer, message.refused, plan.version, message.text)
        self._recorder.reached(plan, message.step)
