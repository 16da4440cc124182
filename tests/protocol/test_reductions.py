"""Reductions of a plan, and the parts that it sizes: what does not add up is refused by whoever reads the plan."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import (
    BUCKET_BYTES,
    BUCKETS_UNDER_WAY,
    OWN_BUCKETS,
    OWN_TIMING,
    SHARED_BUCKETS,
    SHARED_TIMING,
    SMALLEST_TREE_BUCKET,
    TREE_BUCKETS,
    Reduction,
    by_priority,
    held_by,
    reductions,
)
from dtfm_protocol.plan.summed_parts import WHOLE
from dtfm_protocol.schema import needs_of
from tests.harness.drawn_trees import drawn_trees

PLAN: dict[str, Any] = {
    "stages": [[0, 1], [1, 2], [2, 3]],
    "routes": [["a", "m", "x"], ["b", "m", "y"], ["c", "m", "y"]],
    "wire": {"activations": "fp32", "gradients": "int8"},
}
PARTS: dict[str, Any] = {"stages": [[WHOLE - 5, 0, 5], [], [0, WHOLE]], "shared": [1, 2, 3, WHOLE - 6, 0]}


@given(st.integers(1, 7), st.none() | st.integers(0, 99))
def test_whose_sums_come_to_whom_is_what_their_parents_say(count: int, seed: int | None) -> None:
    one = Reduction((0,), tuple(map(str, range(count))), trees=() if seed is None else drawn_trees(count, seed))
    for index in range(count):
        for place in range(count):
            below = tuple(at for at in range(count) if at != place and one.parent(index, at) == place)
            assert one.children(index, place) == below


def test_how_much_comes_at_once_follows_from_parts_and_trees() -> None:
    four = ("a", "b", "c", "d")
    assert [Reduction((0,), four).gathers(place) for place in range(4)] == [0.75] * 4
    assert [Reduction((0,), four, parts=(0, WHOLE, 0, 0)).gathers(place) for place in range(4)] == [0, 3, 0, 0]
    hub = tuple(tuple(owner if place in {0, owner} else 0 for place in range(4)) for owner in range(4))
    gathers = [Reduction((0,), four, trees=hub).gathers(place) for place in range(4)]
    # Of its own part three come to a, of each other part two, and its own sum goes on; to the others comes a's alone.
    assert gathers == [0.25 * 3 + 3 * 0.25 * (2 + 1), 0.25, 0.25, 0.25]


def test_of_many_replicas_each_finds_its_part_at_once() -> None:
    """A table of all would have a million million entries."""
    many = Reduction((0,), tuple(map(str, range(10_000))))
    assert many.children(17, 3) == ()
    assert len(many.children(17, 17)) == 9_999
    assert many.bounds(20_000)[17] == (34, 36)
    assert many.amounts(10_000.0)[17] == 1.0


def test_every_stage_reduces_its_own_and_both_ends_what_they_share() -> None:
    own = [
        Reduction((0,), ("a", "b", "c"), "int8"),
        Reduction((1,), ("m",), "int8"),
        Reduction((2,), ("x", "y"), "int8"),
    ]
    plan = Plan.model_validate(PLAN)
    assert reductions(plan, tied=False) == tuple(own)
    both = Reduction((0, 2), ("a", "b", "c", "x", "y"), "int8", timing=SHARED_TIMING)
    found = reductions(plan, tied=True)
    assert found == (*own, both)
    assert held_by(found, "y") == (own[2], both)
    assert held_by(found, "m") == (own[1],)
    assert (own[0].buckets, both.buckets) == (OWN_BUCKETS, SHARED_BUCKETS)
    lone = Plan.model_validate({"stages": [[0, 3]], "routes": [["a"], ["b"]]})
    assert reductions(lone, tied=True) == (Reduction((0,), ("a", "b")),)


def test_each_says_of_which_layers_it_is_when_it_begins_and_what_goes_first() -> None:
    plan = Plan.model_validate(PLAN)
    *own, both = reductions(plan, tied=True)
    assert [one.layers(plan) for one in own] == list(plan.stages)
    assert both.layers(plan) == (0, 0)
    assert {one.timing for one in own} == {OWN_TIMING}
    assert by_priority([both, *own]) == [*own, both]
    later = replace(own[0], timing=OWN_TIMING._replace(priority=9))
    assert by_priority([later, both]) == [both, later]


def test_a_plan_sizes_the_parts_and_some_sum_nothing() -> None:
    first, middle, last, both = reductions(Plan.model_validate(PLAN | {"parts": PARTS}), tied=True)
    assert first.owners == (0, 2)
    assert first.bounds(WHOLE) == [(0, WHOLE - 5), (WHOLE - 5, WHOLE - 5), (WHOLE - 5, WHOLE)]
    assert (middle.parts, middle.owners) == ((), (0,))
    assert last.owners == (1,)
    assert last.bounds(7) == [(0, 0), (0, 7)]
    assert both.owners == (0, 1, 2, 3)
    assert both.amounts(WHOLE) == [1.0, 2.0, 3.0, WHOLE - 6.0, 0.0]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"stages": [[1, 0, 5], [], []]}, "parts of stage 1 that add up to 6, not to 65536"),
        ({"stages": [[WHOLE + 5, -5, 0], [], []]}, "parts.stages.0"),
        ({"stages": [[], [], [-1, WHOLE + 1]]}, "should be at least 0 (got -1)"),
        ({"stages": [[0.5, WHOLE, 0], [], []]}, "parts.stages.0.0"),
        ({"stages": [[0, WHOLE], [], []]}, "2 parts for the 3 peers of stage 1"),
        ({"stages": [[], []]}, "parts: of 2 stages, for 3"),
        ({"stages": [[], [], []], "shared": [0, WHOLE]}, "2 shared parts for the 5 peers of first and last stage"),
        ({"stages": [[], [], []], "shared": [0, 0, 0, 0, 9]}, "what first and last stage share that add up to 9"),
    ],
)
def test_parts_that_cannot_be_are_refused_in_one_line(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        Plan.read(PLAN | {"parts": parts}, "the plan")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_one_stage_shares_with_itself_has_no_parts() -> None:
    with pytest.raises(UserError, match="shared parts for the 0 peers"):
        Plan.read(
            {"stages": [[0, 1]], "routes": [["a"], ["b"]], "parts": {"stages": [[]], "shared": [WHOLE]}}, "the plan"
        )


TREES: dict[str, Any] = {"stages": [[[0, 2, 0], [], [1, 2, 2]], [], [[], [1, 1]]], "shared": [[]] * 5}


def test_along_a_tree_each_holder_sends_its_sum_to_its_parent() -> None:
    first, middle, last, both = reductions(Plan.model_validate(PLAN | {"trees": TREES}), tied=True)
    assert [first.parent(0, place) for place in range(3)] == [0, 2, 0]
    assert [first.children(0, place) for place in range(3)] == [(2,), (), (1,)]
    assert [first.summed(0, place) for place in range(3)] == [(0, 1, 2), (1,), (1, 2)]
    assert [first.part_codec(0, place) for place in (1, 2)] == ["int8", "fp32"]
    assert [first.parent(1, place) for place in range(3)] == [1, 1, 1]
    assert first.children(1, 1) == (0, 2)
    assert first.summed(2, 1) == (0, 1)
    assert (middle.trees, last.children(1, 1)) == ((), (0,))
    assert [both.parent(3, place) for place in range(5)] == [3] * 5


def test_what_goes_along_trees_is_cut_into_as_many_buckets_as_are_under_way() -> None:
    straight, tree = Reduction((0,), ("a", "b", "c")), Reduction((0,), ("a", "b", "c"), trees=((0, 0, 1), (), ()))
    assert (straight.under_way, straight.bucket_elements(10**9)) == (BUCKETS_UNDER_WAY, BUCKET_BYTES // 4)
    assert tree.under_way == TREE_BUCKETS
    most = BUCKET_BYTES // 4 * BUCKETS_UNDER_WAY // TREE_BUCKETS
    assert tree.bucket_elements(10**9) == most
    assert tree.bucket_elements(TREE_BUCKETS * most // 2) == most // 2
    assert tree.bucket_elements(1000) == SMALLEST_TREE_BUCKET // 4


@given(st.integers(2, 9), st.integers(0, 99))
def test_any_tree_is_taken_and_sums_everybody_once(count: int, seed: int) -> None:
    peers = [chr(ord("a") + place) for place in range(count)]
    trees = drawn_trees(count, seed)
    plan = Plan.model_validate(
        {"stages": [[0, 1]], "routes": [[peer] for peer in peers], "trees": {"stages": [list(trees)]}}
    )
    (one,) = reductions(plan, tied=False)
    for index in range(count):
        assert one.summed(index, index) == tuple(range(count))
        assert sum(len(one.children(index, place)) for place in range(count)) == count - 1


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        ({"stages": [[[0, 2, 1], [], []], [], []]}, "tree 1 of stage 1: what holder 2 sends never comes to the owner"),
        ({"stages": [[[0, 1, 0], [], []], [], []]}, "tree 1 of stage 1: what holder 2 sends never comes to the owner"),
        ({"stages": [[[1, 1, 1], [], []], [], []]}, "tree 1 of stage 1: its owner sends to another"),
        ({"stages": [[[0, 0], [], []], [], []]}, "tree 1 of stage 1: it names 2 of 3 holders"),
        ({"stages": [[[0, 0, 3], [], []], [], []]}, "tree 1 of stage 1: there is no holder 3 among 3"),
        ({"stages": [[[0, 0, -1], [], []], [], []]}, "trees.stages.0.0.2"),
        ({"stages": [[[], []], [], []]}, "2 trees for the 3 peers of stage 1"),
        ({"stages": [[], []]}, "trees: of 2 stages, for 3"),
        ({"stages": [[], [], []], "shared": [[], []]}, "2 shared trees for the 5 peers of first and last stage"),
        ({"stages": [[], [], []], "shared": [[1] * 5, *[[]] * 4]}, "tree 1 of what first and last stage share: its"),
    ],
)
def test_trees_that_cannot_be_are_refused_in_one_line(trees: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        Plan.read(PLAN | {"trees": trees}, "the plan")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_who_does_not_know_of_trees_refuses_such_a_plan_and_reads_others() -> None:
    assert "trees" not in Plan.model_validate(PLAN).model_dump(mode="json")
    assert needs_of(Plan.model_validate(PLAN | {"trees": TREES})) == ("trees",)


def test_who_does_not_know_of_parts_refuses_such_a_plan_and_reads_others() -> None:
    plain = Plan.model_validate(PLAN)
    assert "parts" not in plain.model_dump(mode="json")
    assert needs_of(plain) == ()
    assert needs_of(Plan.model_validate(PLAN | {"parts": PARTS})) == ("parts",)
