"""Reductions of a plan, and the parts that it sizes: what does not add up is refused by whoever reads the plan."""

from typing import Any

import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import OWN_BUCKETS, SHARED_BUCKETS, Reduction, held_by, reductions
from dtfm_protocol.plan.summed_parts import WHOLE
from dtfm_protocol.schema import needs_of

PLAN: dict[str, Any] = {
    "stages": [[0, 1], [1, 2], [2, 3]],
    "routes": [["a", "m", "x"], ["b", "m", "y"], ["c", "m", "y"]],
    "wire": {"activations": "fp32", "gradients": "int8"},
}
PARTS: dict[str, Any] = {"stages": [[WHOLE - 5, 0, 5], [], [0, WHOLE]], "shared": [1, 2, 3, WHOLE - 6, 0]}


def test_every_stage_reduces_its_own_and_both_ends_what_they_share() -> None:
    own = [
        Reduction((0,), ("a", "b", "c"), "int8"),
        Reduction((1,), ("m",), "int8"),
        Reduction((2,), ("x", "y"), "int8"),
    ]
    plan = Plan.model_validate(PLAN)
    assert reductions(plan, tied=False) == tuple(own)
    both = Reduction((0, 2), ("a", "b", "c", "x", "y"), "int8")
    found = reductions(plan, tied=True)
    assert found == (*own, both)
    assert held_by(found, "y") == (own[2], both)
    assert held_by(found, "m") == (own[1],)
    assert (own[0].buckets, both.buckets) == (OWN_BUCKETS, SHARED_BUCKETS)
    lone = Plan.model_validate({"stages": [[0, 3]], "routes": [["a"], ["b"]]})
    assert reductions(lone, tied=True) == (Reduction((0,), ("a", "b")),)


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


def test_who_does_not_know_of_parts_refuses_such_a_plan_and_reads_others() -> None:
    plain = Plan.model_validate(PLAN)
    assert "parts" not in plain.model_dump(mode="json")
    assert needs_of(plain) == ()
    assert needs_of(Plan.model_validate(PLAN | {"parts": PARTS})) == ("parts",)
