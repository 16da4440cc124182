"""How far training has come, by what peers show: no single one holds the count up, or makes it up."""

import pytest

from dtfm_coordinator.plan_change.commit_signatures import is_signed
from dtfm_coordinator.swarm.step_progress import StepProgress
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.peer_state import Holding
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.plan.signed_commit import SignedCommit

SWARM = "a" * 64
ARBITER, OTHER = (Identity.generate() for _ in range(2))
PLAN = Plan(
    version=3,
    stages=((0, 4),),
    routes=((ARBITER.peer_id,), (OTHER.peer_id,)),
    resume=Resume(mark=Mark(step=10, plan=2)),
)


class Watched:
    """A progress, with a clock that a test sets."""

    def __init__(self) -> None:
        self.time = 0.0
        self.progress = StepProgress(lambda: self.time, lambda commit, arbiter: is_signed(SWARM, commit, arbiter))

    def says(self, peer: Identity, step: int, *shown: SignedCommit, plan: Plan = PLAN) -> float:
        """Have a peer say that it has applied a step, ten seconds later; the seconds of the step under way."""
        self.time += 10.0
        holdings = [Holding(mark=Mark(step=one.step, plan=one.plan), layers=(0, 4), commit=one) for one in shown]
        self.progress.reached(peer.peer_id, plan, step, holdings)
        return self.progress.seconds()


def commit(step: int, by: Identity = ARBITER, plan: int = 3, swarm: str = SWARM) -> SignedCommit:
    return SignedCommit.made(by, swarm, plan, step, Commit(grad_norm=0.5))


def test_a_step_has_been_under_way_since_the_one_before_was_proven_to_be_applied() -> None:
    watched = Watched()
    assert watched.says(OTHER, 10) == 0.0  # from where the plan goes on
    assert watched.says(OTHER, 10) == 10.0
    assert watched.says(OTHER, 11, commit(11)) == 0.0
    assert watched.says(OTHER, 11, commit(11)) == 10.0
    assert watched.says(OTHER, 13, commit(12), commit(13)) == 0.0
    back = PLAN.model_copy(update={"version": 4})
    assert watched.says(OTHER, 10, plan=back) == 0.0, "the run has gone back, and trains again"


@pytest.mark.parametrize(
    "shown",
    [
        (),
        (commit(11),),
        (commit(10**9, by=OTHER),),
        (commit(10**9, plan=4),),
        (commit(10**9, swarm="b" * 64),),
    ],
    ids=["nothing", "an older commit", "its own", "that of another plan", "that of another swarm"],
)
def test_a_peer_that_names_a_step_to_come_does_not_keep_others_from_being_heard(
    shown: tuple[SignedCommit, ...],
) -> None:
    watched = Watched()
    watched.says(OTHER, 11, commit(11))
    assert watched.says(OTHER, 10**9, *shown) == 10.0
    assert watched.says(OTHER, 12, commit(12)) == 0.0


def test_an_arbiter_that_signs_steps_to_come_is_not_heard_where_others_train() -> None:
    watched = Watched()
    watched.says(OTHER, 11, commit(11))
    assert watched.says(ARBITER, 10**9, commit(10**9)) == 10.0
    assert watched.says(OTHER, 12, commit(12)) == 0.0
    alone = PLAN.model_copy(update={"routes": ((ARBITER.peer_id,),)})
    assert Watched().says(ARBITER, 11, commit(11), plan=alone) == 0.0
