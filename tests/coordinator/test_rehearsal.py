"""A plan that was rehearsed holds for those for whom it was made, as they were then, and for such steps."""

import pytest

from dtfm_coordinator.leader.rehearsal import Rehearsal
from dtfm_coordinator.membership.members import Member
from dtfm_protocol.job.amendment import Settings
from tests.coordinator.peers import JOB, plan_of

SETTINGS = Settings.of(JOB)
REHEARSAL = Rehearsal.of(plan_of("a", "b"), SETTINGS, [Member(peer, 0, session="one") for peer in "abc"])


def members(**sessions: str) -> list[Member]:
    return [Member(peer, 0, session=session) for peer, session in sessions.items()]


def test_whoever_else_is_there_stands_by() -> None:
    plan = REHEARSAL.plan_for(members(a="one", b="one", c="two", d="one"), SETTINGS)
    assert plan is not None
    assert (plan.peers, plan.idle) == (("a", "b"), ("c", "d"))


@pytest.mark.parametrize("there", [{"a": "one", "c": "one"}, {"a": "one", "b": "two"}], ids=["gone", "started again"])
def test_without_one_of_its_peers_as_it_was_it_holds_no_more(there: dict[str, str]) -> None:
    assert REHEARSAL.plan_for(members(**there), SETTINGS) is None


def test_for_other_steps_it_does_not_hold() -> None:
    other = SETTINGS._replace(training=SETTINGS.training.model_copy(update={"global_batch": 16}))
    assert REHEARSAL.plan_for(members(a="one", b="one"), other) is None
