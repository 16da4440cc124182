"""Which states lie along the chain of plans, and who may hold which layers of them."""

import pytest
from pydantic import ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.lineage import LINEAGE_LIMIT, LINEAGE_PEERS, Ancestor, Chain
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.plan.signed_commit import SignedCommit

SWARM = "swarm"
FRONT, BACK = (0, 2), (2, 4)


def at(step: int, plan: int) -> Mark:
    return Mark(step=step, plan=plan)


def plan_after(before: Plan | None, version: int, mark: Mark, *routes: tuple[str, ...], **more: object) -> Plan:
    """The plan that a coordinator makes to go on from `mark`: two stages of two layers, or one of four."""
    lineage = before.chain.up_to(mark) if before is not None else ()
    stages = (FRONT, BACK) if len(routes[0]) == 2 else ((0, 4),)
    values: dict[str, object] = {"resume": Resume(mark=mark)} | more
    return Plan.model_validate(
        {"version": version, "author": "c", "stages": stages, "routes": routes, "lineage": lineage, **values}
    )


FIRST = plan_after(None, 1, Mark(), ("a", "x"), ("b", "x"))
SECOND = plan_after(FIRST, 2, at(5, 1), ("a", "y"), shadows=("z", "a"))
THIRD = plan_after(SECOND, 3, at(8, 2), ("y", "d"))


def versions(plan: Plan) -> list[int]:
    return [one.version for one in plan.chain.plans]


def test_a_plan_names_those_that_led_to_its_first_state_and_itself_last() -> None:
    assert [versions(plan) for plan in (FIRST, SECOND, THIRD)] == [[1], [1, 2], [1, 2, 3]]
    first, second, _ = THIRD.chain.plans
    assert (first.stages, first.replicas, first.arbiter) == ((FRONT, BACK), (("a", "b"), ("x",)), "a")
    assert (second.began, second.shadows) == (at(5, 1), ("z", "a"))


def test_plans_after_the_one_that_is_gone_back_to_led_nowhere() -> None:
    assert versions(plan_after(THIRD, 4, at(5, 1), ("a", "x"))) == [1, 4]
    assert versions(plan_after(THIRD, 4, at(8, 2), ("a", "x"))) == [1, 2, 4], "the third made no step"
    assert versions(plan_after(THIRD, 4, Mark(), ("a", "x"))) == [4]
    assert versions(plan_after(plan_after(THIRD, 4, at(50, 9), ("a", "x")), 5, at(50, 9), ("a", "x"))) == [5]


@pytest.mark.parametrize(
    ("mark", "lies"),
    [
        (Mark(), True),
        (at(0, 1), False),
        (at(1, 1), True),
        (at(5, 1), True),
        (at(6, 1), False),  # genuine or not: the second plan began before it
        (at(500, 1), False),
        (at(5, 2), False),  # the second made no fifth step, it began with it
        (at(6, 2), True),
        (at(8, 2), True),
        (at(9, 2), False),
        (at(8, 3), False),
        (at(9, 3), True),
        (at(10_000, 3), True),  # its end is open: a commit must say so
        (at(9, 4), False),
    ],
)
def test_a_state_lies_along_the_chain_up_to_where_the_next_plan_began(mark: Mark, lies: bool) -> None:
    chain = THIRD.chain
    assert chain.has(mark) is lies
    maker = chain.maker(mark)
    assert (maker is not None) is (lies and mark.step > 0)
    assert maker is None or maker.version == mark.plan
    assert chain.is_open(mark) is (mark.plan == 3)


def test_a_chain_without_plans_has_but_the_initial_state() -> None:
    assert [Chain().has(mark) for mark in (Mark(), at(1, 0), at(1, 1))] == [True, False, False]
    assert not Chain().grants("a", Mark(), FRONT, live=True)
    assert Chain().up_to(at(4, 1)) == ()
    assert Chain().began == Mark()


@pytest.mark.parametrize(
    ("peer", "mark", "layers", "live", "may"),
    [
        ("a", at(3, 1), FRONT, True, True),  # trained it
        ("a", at(3, 1), FRONT, False, True),
        ("a", at(3, 1), BACK, True, False),
        ("a", at(3, 1), (0, 4), True, False),
        ("a", at(3, 1), (0, 1), True, False),
        ("x", at(3, 1), BACK, True, True),
        ("y", at(5, 1), BACK, True, True),  # loaded it for the second plan
        ("y", at(4, 1), BACK, True, False),
        ("y", at(8, 2), BACK, True, True),  # trained it
        ("y", at(8, 2), FRONT, True, True),  # loaded it for the third
        ("x", at(8, 2), BACK, True, False),
        ("z", at(7, 2), FRONT, False, True),  # kept a copy of it
        ("z", at(7, 2), FRONT, True, False),  # which is in no memory
        ("z", at(7, 2), BACK, False, False),
        ("z", at(3, 1), FRONT, False, False),
        ("a", at(7, 2), BACK, False, True),
        ("d", at(9, 3), BACK, True, True),
        ("stranger", at(9, 3), BACK, True, False),
    ],
)
def test_who_may_hold_layers_of_a_state(peer: str, mark: Mark, layers: LayerRange, live: bool, may: bool) -> None:
    assert THIRD.chain.grants(peer, mark, layers, live=live) is may


def test_who_gives_the_state_that_a_plan_begins_with_may_hold_it_if_that_plan_fails() -> None:
    """It may have loaded it for another plan that failed, and be the only one to have it by now."""
    sources = (Source(peer="e", layers=(BACK,)),)
    fourth = plan_after(THIRD, 4, at(8, 2), ("y", "d"), resume=Resume(mark=at(8, 2), sources=sources))
    assert fourth.chain.grants("e", at(8, 2), BACK, live=True)
    assert not fourth.chain.grants("e", at(8, 2), FRONT, live=True)
    assert not fourth.chain.grants("e", at(7, 2), BACK, live=True)


def test_only_the_newest_ancestors_are_named_and_what_is_older_is_not_judged() -> None:
    plan = FIRST
    for version in range(2, 40):
        plan = plan_after(plan, version, at(version, version - 1), ("a", "x"))
        assert len(plan.lineage) == min(version - 1, LINEAGE_LIMIT)
    oldest = plan.lineage[0]
    assert oldest.version == 39 - LINEAGE_LIMIT
    chain = plan.chain
    assert chain.has(oldest.began)
    assert chain.reaches(at(oldest.began.step + 1, oldest.version))
    assert not chain.reaches(at(3, 2))
    assert not chain.has(at(3, 2))


def test_of_plans_with_many_peers_fewer_are_named_and_the_last_one_always() -> None:
    many = tuple(f"peer {number}" for number in range(LINEAGE_PEERS // 3))
    wide = tuple(Ancestor(version=v, began=at(v - 1, v - 1), stages=((0, 4),), replicas=(many,)) for v in range(1, 9))
    assert [one.version for one in Chain(wide).up_to(at(8, 8))] == [6, 7, 8]
    huge = Ancestor(version=9, began=at(8, 8), stages=((0, 4),), replicas=((*many, *"abc") * 3,))
    assert Chain((*wide, huge)).up_to(at(9, 9)) == (huge,)


def test_a_plan_of_the_past_has_peers_for_each_stage() -> None:
    with pytest.raises(ValidationError, match="2 stages with peers of 1"):
        Ancestor(version=1, stages=(FRONT, BACK), replicas=(("a",),))
    with pytest.raises(ValidationError):
        Ancestor(version=1, stages=((0, 4),), replicas=((),))


# -- the commit that a plan brings along


ARBITER, OTHER = Identity.generate(), Identity.generate()
SIGNER = Signer(OTHER, SWARM)
MADE = plan_after(None, 1, Mark(), (ARBITER.peer_id, OTHER.peer_id))


def resuming(commit: SignedCommit | None, mark: Mark) -> Plan:
    return plan_after(MADE, 2, mark, ("a", "x"), resume=Resume(mark=mark, commit=commit))


def test_the_commit_of_the_state_that_a_plan_resumes_from_is_the_arbiters() -> None:
    commit = SignedCommit.made(ARBITER, SWARM, 1, 4, Commit(grad_norm=0.25))
    found = resuming(commit, at(4, 1)).resumed_commit(SIGNER)
    assert found is not None
    assert found.grad_norm == 0.25
    assert resuming(None, at(4, 1)).resumed_commit(SIGNER) is None


@pytest.mark.parametrize(
    ("signer", "swarm", "plan", "step"),
    [(OTHER, SWARM, 1, 4), (ARBITER, "other", 1, 4), (ARBITER, SWARM, 1, 5), (ARBITER, SWARM, 2, 4)],
    ids=["by another peer", "of another swarm", "of another step", "of another plan"],
)
def test_any_other_commit_is_refused(signer: Identity, swarm: str, plan: int, step: int) -> None:
    commit = SignedCommit.made(signer, swarm, plan, step, Commit(grad_norm=0.25))
    with pytest.raises(Refused):
        resuming(commit, at(4, 1)).resumed_commit(SIGNER)
