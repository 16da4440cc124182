"""A lone stage votes no norm that is unlike its own before, or unlike all other stages'."""

import pytest

from dtfm_node.engine.lone_stage_alarm import BETWEEN_STAGES, LoneStageAlarm
from dtfm_node.engine.part_alarm import BEYOND, WINDOW
from dtfm_protocol.plan.plan import Plan

PLAN = Plan(version=1, stages=((0, 1), (1, 2), (2, 3)), routes=(("a", "m", "x"),))
"""Three lone stages; "a" is the arbiter."""


def vote(votes: LoneStageAlarm, step: int, **norms: float) -> dict[str, str]:
    """What is wrong with the votes of norms; those that are not said are 1."""
    norms = dict.fromkeys(PLAN.peers, 1.0) | norms
    strains = votes.judge(step, {peer: norm**2 for peer, norm in norms.items()})
    return {peer: strain.fault for peer, strain in strains.items() if strain.fault}


def usual(votes: LoneStageAlarm) -> int:
    for step in range(1, WINDOW + 1):
        assert not vote(votes, step)
    return WINDOW + 1


@pytest.mark.parametrize("norm", [2 * BEYOND, 1e14, 0.0, 0.5 / BEYOND])
def test_a_norm_unlike_those_before_is_its_voters_fault(norm: float) -> None:
    votes = LoneStageAlarm(PLAN)
    step = usual(votes)
    assert vote(votes, step, x=norm).keys() == {"x"}


@pytest.mark.parametrize("norm", [0.9 * BEYOND, 1.1 / BEYOND])
def test_a_norm_that_is_odd_but_usual_is_no_fault(norm: float) -> None:
    votes = LoneStageAlarm(PLAN)
    assert not vote(votes, usual(votes), x=norm)


def test_the_first_votes_are_held_to_the_other_stages() -> None:
    assert vote(LoneStageAlarm(PLAN), 1, x=1.1 * BETWEEN_STAGES).keys() == {"x"}
    assert not vote(LoneStageAlarm(PLAN), 1, x=0.9 * BETWEEN_STAGES)


def test_a_lie_that_grows_ends_at_the_other_stages() -> None:
    votes, norm = LoneStageAlarm(PLAN), 1.0
    for step in range(1, 2000):
        if vote(votes, step, x=norm):
            break
        norm *= 1.1
    assert norm <= 1.2 * BETWEEN_STAGES


def test_a_stage_that_votes_next_to_nothing_makes_no_other_look_wrong() -> None:
    assert not vote(LoneStageAlarm(PLAN), 1, x=1e-20)
    assert not vote(LoneStageAlarm(PLAN), 1, x=1e-20, m=1e-20)


def test_stages_of_several_peers_and_the_arbiters_own_are_not_judged_here() -> None:
    plan = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "x"), ("a", "y")))
    assert not LoneStageAlarm(plan).judge(1, {"a": 1e30, "x": 1.0, "y": 1e30})


def test_a_step_without_any_gradient_is_no_fault() -> None:
    assert not vote(LoneStageAlarm(PLAN), 1, a=0.0, m=0.0, x=0.0)


def test_a_step_of_few_targets_may_have_a_larger_norm_by_the_noise() -> None:
    squares = dict.fromkeys(PLAN.peers, 1.0)
    for targets, is_fault in ((1, False), (10_000, True)):
        votes = LoneStageAlarm(PLAN)
        for step in range(1, WINDOW + 1):
            assert not votes.judge(step, squares, 10_000)["x"].fault
        strains = votes.judge(WINDOW + 1, squares | {"x": (90 * BEYOND) ** 2}, targets)
        assert bool(strains["x"].fault) == is_fault


def test_a_step_that_was_refused_before_has_wider_bounds() -> None:
    votes = LoneStageAlarm(PLAN, lenience=8.0)
    assert not vote(votes, 1, x=5 * BETWEEN_STAGES)
    assert vote(votes, 2, x=5 * BETWEEN_STAGES)
