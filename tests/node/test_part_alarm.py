"""Parts that no honest peer sends are seen by the receiver's own; what stays below the bounds is said here, too."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.part_alarm import (
    BEYOND,
    SMALLEST_PART,
    SUMS,
    WINDOW,
    Agreement,
    NormHistory,
    PartAlarm,
    PartSeen,
    PartsSeen,
    Retries,
    Strain,
    compare_parts,
)
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import Reduction

ME, OTHER = 0, 1
"""Parts of the bucket: the one that "a" owns, and one that "b" owns."""


def alarm_of(*peers: str, bucket: int = 10 * SMALLEST_PART, **options: Any) -> tuple[PartAlarm, Bucket]:
    """The alarm of "a", where each of `peers` serves one micro-batch of the whole model."""
    plan = Plan(version=1, stages=((0, 1),), routes=tuple((peer,) for peer in peers))
    return PartAlarm(plan, "a", **options), Bucket(0, Reduction((0,), plan.peers), 0, bucket, after=0)


def seen(
    norm: float = 1.0, *, own: float = 1.0, cosine: float = 0.1, density: float = 1.0, **others: float
) -> PartsSeen:
    """What "a" sees of "b", and of others by their norms."""
    parts = {peer: PartSeen(one, cosine) for peer, one in ({"b": norm} | others).items()}
    return PartsSeen(SMALLEST_PART, own, density, parts)


def usual(alarm: PartAlarm, bucket: Bucket, index: int = ME, steps: int = WINDOW, **figures: Any) -> int:
    """Steps in which nothing is wrong; the step after them."""
    for step in range(1, steps + 1):
        assert not faults(alarm.judge(bucket, index, step, seen(**figures)))
    return steps + 1


def faults(strains: dict[str, Strain]) -> dict[str, str]:
    return {peer: strain.fault for peer, strain in strains.items() if strain.fault}


def test_a_norm_far_beyond_the_receivers_own_is_an_alarm_at_once() -> None:
    alarm, bucket = alarm_of("a", "b")
    step = usual(alarm, bucket)
    assert not faults(alarm.judge(bucket, ME, step, seen(0.9 * BEYOND)))
    found = faults(alarm.judge(bucket, ME, step + 1, seen(2.0 * BEYOND)))
    assert found == {"b": "whose norm is 2 times the most that is usual"}


def test_few_steps_say_less_of_what_is_usual() -> None:
    alarm, bucket = alarm_of("a", "b")
    assert not faults(alarm.judge(bucket, ME, 1, seen(0.9 * BEYOND * math.sqrt(WINDOW))))
    alarm, bucket = alarm_of("a", "b")
    assert faults(alarm.judge(bucket, ME, 1, seen(1.1 * BEYOND * math.sqrt(WINDOW))))


def test_who_has_seen_odd_gradients_itself_expects_odder_ones() -> None:
    history = NormHistory()
    for norm in [1.0] * (WINDOW - 1) + [10.0]:
        history.add(norm, 1)
    assert history.largest(1) == pytest.approx(100 * BEYOND)
    assert history.smallest(1) == pytest.approx(1 / BEYOND)


def test_the_receivers_own_odd_step_accuses_nobody() -> None:
    """Its own norm has fallen, or has risen: the others' are as before."""
    for own in (1e-6, 1e6):
        alarm, bucket = alarm_of("a", "b")
        step = usual(alarm, bucket)
        assert not faults(alarm.judge(bucket, ME, step, seen(own=own)))


def test_lies_of_one_sender_make_no_other_look_wrong() -> None:
    for lie in (0.0, 1e9):
        alarm, bucket = alarm_of("a", "b", "c")
        step = usual(alarm, bucket, c=1.0)
        assert faults(alarm.judge(bucket, ME, step, seen(c=lie))).keys() == {"c"}


def test_a_liar_cannot_lift_the_bound_little_by_little() -> None:
    alarm, bucket = alarm_of("a", "b")
    norm = 1.0
    for step in range(1, 1000):
        if faults(alarm.judge(bucket, ME, step, seen(norm))):
            break
        norm *= 1.1
    assert norm < 2 * BEYOND


def test_nothing_and_next_to_nothing_are_alarms_where_the_receiver_has_something() -> None:
    for norm in (0.0, 0.5 / BEYOND):
        alarm, bucket = alarm_of("a", "b")
        step = usual(alarm, bucket)
        (fault,) = faults(alarm.judge(bucket, ME, step, seen(norm))).values()
        assert fault.endswith("of the least that is usual")


def test_rows_that_no_token_has_touched_are_no_alarm() -> None:
    alarm, bucket = alarm_of("a", "b")
    step = usual(alarm, bucket, density=0.1)
    assert not faults(alarm.judge(bucket, ME, step, seen(0.0, density=0.1)))


def test_a_receiver_without_a_gradient_of_its_own_judges_nobody() -> None:
    alarm, bucket = alarm_of("a", "b")
    usual(alarm, bucket, norm=1e9, own=0.0)


def test_parts_of_a_few_numbers_are_not_judged() -> None:
    alarm, bucket = alarm_of("a", "b", bucket=8)
    few = compare_parts(torch.ones(4), {"b": torch.full((4,), -1e9)})
    for step in range(1, 100):
        assert not alarm.judge(bucket, ME, step, few)


@pytest.mark.parametrize(("theirs", "factor"), [(1, 8.0**0.5), (8, 1.0)])
def test_a_mean_over_fewer_micro_batches_may_be_larger_by_the_noise(theirs: int, factor: float) -> None:
    """Parts are sums over the peer's own share: what is compared is the mean over it."""
    plan = Plan(version=1, stages=((0, 1),), routes=(("a",),) * 8 + (("b",),) * theirs)
    alarm, bucket = PartAlarm(plan, "a"), Bucket(0, Reduction((0,), plan.peers), 0, 10 * SMALLEST_PART, after=0)
    step = usual(alarm, bucket, norm=float(theirs), own=8.0)
    assert not faults(alarm.judge(bucket, ME, step, seen(0.9 * BEYOND * factor * theirs, own=8.0)))
    assert faults(alarm.judge(bucket, ME, step + 1, seen(1.1 * BEYOND * factor * theirs, own=8.0)))


def of_targets(**targets: int) -> tuple[PartAlarm, Bucket, dict[str, int]]:
    """The alarm of "a" where each step's targets may be others: those that the returned value holds by then."""
    plan = Plan(version=1, stages=((0, 1),), routes=(("a",), ("b",)))
    now = dict(targets)
    alarm = PartAlarm(plan, "a", targets=lambda step: now)
    return alarm, Bucket(0, Reduction((0,), plan.peers), 0, 10 * SMALLEST_PART, after=0), now


def test_a_mean_over_few_targets_may_be_larger_by_the_noise() -> None:
    """Parts are divided by the targets of the whole step, so that 1 of 101 weighs what each of 200 does."""
    alarm, bucket, now = of_targets(a=100, b=100)
    step = usual(alarm, bucket)
    now["b"] = 1
    alone = 200 / 101 / 100  # what the part is where the mean over its target has the usual norm
    assert not faults(alarm.judge(bucket, ME, step, seen(0.9 * BEYOND * 10 * alone, own=200 / 101)))
    assert faults(alarm.judge(bucket, ME, step + 1, seen(1.1 * BEYOND * 10 * alone, own=200 / 101))).keys() == {"b"}


def test_a_peer_without_a_target_may_send_nothing_and_not_much_else() -> None:
    alarm, bucket, now = of_targets(a=100, b=100)
    step = usual(alarm, bucket)
    now["b"] = 0
    assert not faults(alarm.judge(bucket, ME, step, seen(0.0, own=2.0)))
    assert faults(alarm.judge(bucket, ME, step + 1, seen(1e4, own=2.0))).keys() == {"b"}
    now["b"] = 100
    assert faults(alarm.judge(bucket, ME, step + 2, seen(0.0))).keys() == {"b"}


def test_a_receiver_without_a_target_still_knows_what_is_usual() -> None:
    alarm, bucket, now = of_targets(a=100, b=100)
    step = usual(alarm, bucket)
    now["a"] = 0
    for _ in range(WINDOW):
        assert not faults(alarm.judge(bucket, ME, step, seen(2.0, own=0.0, density=0.0)))
    assert faults(alarm.judge(bucket, ME, step + 1, seen(4 * BEYOND, own=0.0, density=0.0))).keys() == {"b"}


def test_a_sum_is_judged_by_the_micro_batches_of_all() -> None:
    """An owner adds its own part unseen; the others see what comes out."""
    alarm, bucket = alarm_of("a", "b")
    step = usual(alarm, bucket, index=OTHER, norm=2.0)
    assert not faults(alarm.judge(bucket, OTHER, step, seen(0.9 * 2 * SUMS * BEYOND)))
    assert faults(alarm.judge(bucket, OTHER, step + 1, seen(1.1 * 2 * SUMS * BEYOND))).keys() == {"b"}


def test_what_first_and_last_stage_share_is_compared_with_the_senders_own_past() -> None:
    """To one it is rows that tokens look up, to the other columns that all outputs use."""
    plan = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "b"),))
    alarm, bucket = PartAlarm(plan, "a"), Bucket(1 << 15, Reduction((0, 1), ("a", "b")), 0, 10 * SMALLEST_PART, after=0)
    step = usual(alarm, bucket, norm=1e6, cosine=-0.9)
    assert faults(alarm.judge(bucket, ME, step, seen(1e6 * 2 * BEYOND))).keys() == {"b"}


def test_honest_directions_may_differ_at_any_step_and_do_not_for_ever() -> None:
    agreement = Agreement(0.0)
    for number in range(10_000):
        agreement.add((-1.0) ** number)
        assert agreement.contradiction <= 1
    steps = 0
    while agreement.contradiction <= 1:
        agreement.add(-0.3)
        steps += 1
    assert 30 < steps < 200


def test_gradients_drawn_from_a_small_text_without_replacement_may_contradict() -> None:
    """Two halves of all there is: where the whole gradient is zero, they are opposite."""
    alarm, bucket = alarm_of("a", "b", micro_batches=2)
    usual(alarm, bucket, steps=500, cosine=-1.0)
    alarm, bucket = alarm_of("a", "b", micro_batches=100)
    usual(alarm, bucket, steps=500, cosine=-1 / 99)


def test_a_step_that_was_refused_again_and_again_goes_through_in_the_end() -> None:
    """The bounds are wider for a plan's first step, for that alone, and with each plan that begins there."""
    retries = Retries()
    assert [retries.begun(step) for step in (0, 7, 7, 7, 8)] == [1, 1, 8, 64, 1]
    alarm, bucket = alarm_of("a", "b", lenience=64.0)
    odd = 2 * BEYOND * WINDOW
    assert not faults(alarm.judge(bucket, ME, 1, seen(odd)))
    assert faults(alarm.judge(bucket, ME, 2, seen(odd)))


def test_any_number_of_plans_that_begin_at_one_step_gives_a_finite_lenience() -> None:
    retries = Retries()
    assert all(math.isfinite(retries.begun(1)) for _ in range(2000))


# Gradients as they are: a true one that all share, and noise.

Lie = Callable[[torch.Tensor], torch.Tensor]
OTHER_NOISE = torch.Generator().manual_seed(1)


def noise(part: torch.Tensor) -> torch.Tensor:
    other = torch.randn(len(part), generator=OTHER_NOISE)
    return other * (part.norm() / other.norm())


@pytest.mark.parametrize(
    ("lie", "is_seen"),
    [
        (lambda part: part, False),
        (lambda part: 1000 * part, True),
        (lambda part: -1000 * part, True),
        (lambda part: 0 * part, True),
        (lambda part: -part, True),
        (lambda part: -10 * part, True),
        (lambda part: 10 * part, False),
        (noise, False),
    ],
    ids=["honest", "x1000", "x-1000", "zeros", "opposite", "x-10", "x10", "noise"],
)
def test_what_is_seen_of_gradients_that_agree_a_little(lie: Lie, is_seen: bool) -> None:
    alarm, bucket = alarm_of("a", "b")
    generator = torch.Generator().manual_seed(0)
    true = 0.5 * torch.randn(SMALLEST_PART, generator=generator)
    found: dict[str, str] = {}
    for step in range(1, 200):
        mine, theirs = (true + torch.randn(SMALLEST_PART, generator=generator) for _ in range(2))
        found = faults(alarm.judge(bucket, ME, step, compare_parts(mine, {"b": lie(theirs) if step > 20 else theirs})))
        if found:
            break
    assert bool(found) == is_seen


def test_a_comparison_of_zeros_and_of_values_beyond_squaring_has_numbers() -> None:
    zeros, large = torch.zeros(8), torch.full((8,), 1e30)
    assert compare_parts(zeros, {"b": large}).others["b"].cosine == 0.0
    assert compare_parts(large, {"b": zeros}).others["b"] == PartSeen(0.0, 0.0)
    alarm, bucket = alarm_of("a", "b")
    step = usual(alarm, bucket)
    assert faults(alarm.judge(bucket, ME, step, seen(math.inf))).keys() == {"b"}
    assert not alarm.judge(bucket, ME, step + 1, seen(math.inf, own=math.inf))


def test_figures_of_a_comparison() -> None:
    found = compare_parts(torch.tensor([3.0, 4.0, 0.0, 0.0]), {"b": torch.tensor([0.0, -2.0, 0.0, 0.0])})
    assert found == PartsSeen(4, 5.0, 0.5, {"b": PartSeen(2.0, pytest.approx(-0.8))})  # type: ignore[arg-type]


@pytest.mark.parametrize("elements", [1, 7, 100_003])
def test_what_is_seen_of_parts_is_what_torch_says_of_them(elements: int) -> None:
    drawn = torch.Generator().manual_seed(elements)
    own, one, other = (torch.randn(2 * elements, generator=drawn)[::2] for _ in range(3))
    seen = compare_parts(own, {"b": one, "c": other})
    assert seen.norm == pytest.approx(float(torch.linalg.vector_norm(own.double())), rel=1e-12)
    for peer, part in (("b", one), ("c", other)):
        cosine = float(torch.nn.functional.cosine_similarity(own.double(), part.double(), dim=0))
        assert seen.others[peer].norm == pytest.approx(float(torch.linalg.vector_norm(part.double())), rel=1e-12)
        assert seen.others[peer].cosine == pytest.approx(cosine, rel=1e-9, abs=1e-12)
    assert compare_parts(own, {}).norm == seen.norm


def chained() -> tuple[PartAlarm, Bucket]:
    """The alarm of "b" of four, to whom "c" sends what it and "d" have of the part that "a" owns."""
    plan = Plan(version=1, stages=((0, 1),), routes=(("a",), ("b",), ("c",), ("d",)))
    trees = ((0, 0, 1, 2), (), (), ())
    return PartAlarm(plan, "b"), Bucket(0, Reduction((0,), plan.peers, trees=trees), 0, 10 * SMALLEST_PART, after=0)


def from_peer(peer: str, norm: float, own: float = 1.0) -> PartsSeen:
    return PartsSeen(SMALLEST_PART, own, 1.0, {peer: PartSeen(norm, 0.1)})


def test_the_sum_that_comes_along_a_tree_is_judged_as_a_mean_over_all_whose_it_is() -> None:
    """Two sum to twice the norm of one at most; its sender has let pass what is usual by its own history."""
    alarm, bucket = chained()
    for step in range(1, WINDOW + 1):
        assert not faults(alarm.judge(bucket, 0, step, from_peer("c", 2.0)))
        assert not faults(alarm.judge(bucket, 0, step, from_peer("a", 4.0)))
    assert not faults(alarm.judge(bucket, 0, WINDOW + 1, from_peer("c", 2 * 0.9 * BEYOND * SUMS)))
    found = faults(alarm.judge(bucket, 0, WINDOW + 2, from_peer("c", 2 * 2.0 * BEYOND * SUMS)))
    assert found == {"c": "whose norm is 2 times the most that is usual"}


def test_a_total_that_comes_along_a_tree_is_its_owners_word() -> None:
    alarm, bucket = chained()
    for step in range(1, WINDOW + 1):
        assert not faults(alarm.judge(bucket, 0, step, from_peer("c", 2.0)))
        assert not faults(alarm.judge(bucket, 0, step, from_peer("a", 4.0)))
    assert faults(alarm.judge(bucket, 0, WINDOW + 1, from_peer("a", 4 * 2.0 * BEYOND * SUMS))).keys() == {"a"}


def test_who_sums_on_the_way_counts_its_own_norm_once_a_step() -> None:
    """Half as many steps would else seem to be known, and bounds be closer than what is known allows."""
    alarm, bucket = chained()
    alarm.judge(bucket, 0, 1, from_peer("c", 2.0))
    alarm.judge(bucket, 0, 1, from_peer("a", 4.0))
    assert not faults(alarm.judge(bucket, 0, 2, from_peer("c", 2 * 0.9 * BEYOND * math.sqrt(WINDOW / 2) * SUMS)))
