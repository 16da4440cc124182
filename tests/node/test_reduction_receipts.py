"""Receipts of reduced parts: where holders differ, who has lied is named, and nobody else, whatever a liar says."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dtfm_node.engine.frame_seals import FrameSeals
from dtfm_node.engine.reduction_receipts import PartReceipt, StepReceipts, judge, receipt_of, reduction_of, squares_of
from dtfm_protocol.plan.ballot import Vote
from dtfm_protocol.plan.plan import Plan, SealHash
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.wire.frames import Key, Kind
from tests.harness.named_peers import signer_of

STEP = 5
TIED = 1 << 15
PLAN = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "x"), ("b", "x"), ("c", "y")))
HELD = {peer: reduction_of(PLAN, peer) for peer in PLAN.peers}
FIRST = ("a", "b", "c")
GROUPS = (0, 1, TIED)
JUDGE = FrameSeals(signer_of("arbiter"), 1)


def part(owner: str, group: int, index: int, content: str = "true", squares: float = 2.0, **other: Any) -> PartReceipt:
    """A reduced part as its owner seals it; what it contains is known by its name."""
    key = Key(Kind.REDUCED, other.get("step", STEP), index, group)
    digest = hashlib.sha256(f"{group} {index} {content}".encode()).digest()
    seals = FrameSeals(signer_of(owner), other.get("plan", 1))
    return receipt_of(key, seals.seal(key, digest, squares), squares)


@dataclass
class Side:
    """What one holder of the first stage holds, and says."""

    parts: dict[tuple[int, int], PartReceipt] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    """What its vote says other than what follows from the parts."""

    @property
    def vote(self) -> Vote:
        receipts = StepReceipts(parts=tuple(self.parts.values()))
        groups: dict[int, list[float]] = {}
        for one in sorted(self.parts.values(), key=lambda one: (one.group, one.index)):
            groups.setdefault(one.group, []).append(one.squares)
        true = {
            "reduced": receipts.reduced,
            "shared": receipts.shared,
            "sum_squares": {group: squares_of(squares) for group, squares in groups.items()},
        }
        return Vote.model_validate(true | self.claims)


def holders(group: int) -> tuple[str, ...]:
    reduction = HELD["a"](group)
    assert reduction is not None
    return reduction.holders


def honest() -> dict[str, Side]:
    parts = {
        (group, index): part(owner, group, index) for group in GROUPS for index, owner in enumerate(holders(group))
    }
    return {peer: Side(dict(parts)) for peer in FIRST}


def named(sides: dict[str, Side], given: dict[str, tuple[PartReceipt, ...]] | None = None) -> dict[str, str]:
    receipts = {peer: StepReceipts(parts=tuple(side.parts.values())) for peer, side in sides.items()}
    receipts |= {peer: StepReceipts(parts=parts) for peer, parts in (given or {}).items()}
    return judge(STEP, {peer: side.vote for peer, side in sides.items()}, receipts, HELD, JUDGE)


def test_who_keeps_to_the_rules_is_not_named() -> None:
    assert named(honest()) == {}
    assert len({side.vote.model_dump_json() for side in honest().values()}) == 1
    assert honest()["a"].vote.sum_squares == {0: 6.0, 1: 6.0, TIED: 10.0}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("other", [{"content": "false"}, {"squares": 3.0}])
@pytest.mark.parametrize("victims", [("a",), ("a", "c"), ("b",)])
def test_an_owner_that_seals_two_things_for_one_part_is_named_alone(
    group: int, other: dict[str, Any], victims: tuple[str, ...]
) -> None:
    """Also where it keeps the other one to itself."""
    sides = honest()
    for peer in victims:
        sides[peer].parts[group, 1] = part("b", group, 1, **other)
    assert set(named(sides)) == {"b"}
    assert "different contents" in named(sides)["b"]


def test_an_owner_that_is_in_another_stage_is_named_by_what_it_has_sealed() -> None:
    """The embeddings are shared with `x` and `y`, whose receipts nobody has asked for."""
    sides = honest()
    sides["a"].parts[TIED, 3] = part("x", TIED, 3, "false")
    assert set(named(sides)) == {"x"}


Lie = Callable[[Side], tuple[PartReceipt, ...] | None]


def votes_another_root(side: Side) -> None:
    side.claims["reduced"] = "0" * 64


def votes_no_root(side: Side) -> None:
    side.claims["shared"] = ""


def votes_other_squares(side: Side) -> None:
    side.claims["sum_squares"] = {0: 1e30, 1: 6.0, TIED: 10.0}


def votes_one_more_bucket(side: Side) -> None:
    side.claims["sum_squares"] = {0: 6.0, 1: 6.0, 2: 1e30, TIED: 10.0}


def votes_one_bucket_less(side: Side) -> None:
    side.claims["sum_squares"] = {0: 6.0, TIED: 10.0}


def gives_no_receipts(side: Side) -> tuple[PartReceipt, ...]:
    return ()


def gives_all_but_one(side: Side) -> tuple[PartReceipt, ...]:
    return tuple(side.parts.values())[1:]


def holds_all_but_one(side: Side) -> None:
    del side.parts[1, 2]


def holds_one_bucket_less(side: Side) -> None:
    for index in range(3):
        del side.parts[0, index]


def holds_nothing(side: Side) -> None:
    side.parts.clear()


def forges_a_seal(side: Side) -> None:
    side.parts[0, 2] = part("b", 0, 2, "false")


def forges_a_bucket(side: Side) -> None:
    for index in range(3):
        side.parts[2, index] = part("b", 2, index)


def repeats_another_step(side: Side) -> None:
    for place, owner in enumerate(FIRST):
        side.parts[0, place] = part(owner, 0, place, "old", step=STEP - 1)


def repeats_another_plan(side: Side) -> None:
    for place, owner in enumerate(FIRST):
        side.parts[0, place] = part(owner, 0, place, "old", plan=2)


def invents_a_part(side: Side) -> None:
    side.parts[0, 3] = part("b", 0, 3)


def repeats_a_part(side: Side) -> tuple[PartReceipt, ...]:
    return (*side.parts.values(), side.parts[0, 0])


LIES: list[Lie] = [
    votes_another_root,
    votes_no_root,
    votes_other_squares,
    votes_one_more_bucket,
    votes_one_bucket_less,
    gives_no_receipts,
    gives_all_but_one,
    holds_all_but_one,
    holds_one_bucket_less,
    holds_nothing,
    forges_a_seal,
    forges_a_bucket,
    repeats_another_step,
    repeats_another_plan,
    invents_a_part,
    repeats_a_part,
]


@pytest.mark.parametrize("others", [("a",), ("a", "c")])
@pytest.mark.parametrize("lie", LIES)
def test_a_holder_that_votes_or_gives_what_it_did_not_get_is_named_alone(lie: Lie, others: tuple[str, ...]) -> None:
    sides = {peer: side for peer, side in honest().items() if peer in (*others, "b")}
    given = lie(sides["b"])
    assert set(named(sides, {} if given is None else {"b": given})) == {"b"}


@given(
    lies=st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(0, 4), st.booleans(), st.booleans()), max_size=4),
    takes=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_whatever_one_holder_makes_up_nobody_else_is_named_and_it_is_where_votes_differ(
    lies: list[tuple[int, int, bool, bool]], takes: list[bool]
) -> None:
    """Parts with its own seal or with others' forged ones, dropped or changed, here and with its victims."""
    sides = honest()
    for (group, index, drops, own), taken in zip(lies, takes, strict=False):
        if drops:
            sides["b"].parts.pop((group, index), None)
            continue
        sides["b"].parts[group, index] = part("b", group, index, "made up", 9.0)
        if own and taken and index == 1:  # what others take has the owner's seal
            sides["c"].parts[group, index] = part("b", group, index, "another", 8.0)
    found = named(sides)
    assert set(found) <= {"b"}
    votes = {peer: (side.vote.reduced, side.vote.shared, side.vote.sum_squares) for peer, side in sides.items()}
    if any(vote != votes["a"] for vote in votes.values()):
        assert set(found) == {"b"}


UNLIKE = PLAN.model_copy(update={"parts": SummedParts(stages=((WHOLE - 7, 0, 7), ()), shared=(0, 1, 0, WHOLE - 1, 0))})
OWNERS = {0: (0, 2), 1: (0, 2), TIED: (1, 3)}
"""Places of those who sum a part there."""


def of_unlike_parts() -> dict[str, Side]:
    parts = {(group, index): part(holders(group)[index], group, index) for group in GROUPS for index in OWNERS[group]}
    return {peer: Side(dict(parts)) for peer in FIRST}


def named_of_unlike_parts(sides: dict[str, Side]) -> dict[str, str]:
    receipts = {peer: StepReceipts(parts=tuple(side.parts.values())) for peer, side in sides.items()}
    held = {peer: reduction_of(UNLIKE, peer) for peer in UNLIKE.peers}
    return judge(STEP, {peer: side.vote for peer, side in sides.items()}, receipts, held, JUDGE)


def test_where_some_sum_nothing_the_honest_are_not_named_and_the_others_are() -> None:
    assert named_of_unlike_parts(of_unlike_parts()) == {}
    double = of_unlike_parts()
    double["b"].parts[0, 2] = part("c", 0, 2, "false")
    assert set(named_of_unlike_parts(double)) == {"c"}
    lacking = of_unlike_parts()
    del lacking["a"].parts[TIED, 3]
    assert set(named_of_unlike_parts(lacking)) == {"a"}


def test_a_receipt_of_a_part_that_nobody_sums_proves_nothing() -> None:
    """Not even with the seal of the holder that sums none."""
    sides = of_unlike_parts()
    sides["b"].parts[0, 1] = part("b", 0, 1)
    found = named_of_unlike_parts(sides)
    assert set(found) == {"b"}
    assert "has no owner" in found["b"]


@pytest.mark.parametrize(("name", "hash_of"), [("sha256", hashlib.sha256), ("blake3", blake3)])
async def test_a_plan_names_the_hash_that_seals_carry(name: SealHash, hash_of: Callable[[bytes], Any]) -> None:
    for payload in (b"short", bytes(1 << 17)):
        assert await FrameSeals(signer_of("a"), 1, name).hash(payload) == hash_of(payload).digest()
