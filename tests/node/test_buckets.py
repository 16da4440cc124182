"""Buckets: every gradient in one, every element of it owned by one holder, the same for all replicas."""

from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.buckets import Bucket, Flat, flats_of
from dtfm_protocol.plan import reductions as module
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES, SHARED_BUCKETS, SHARED_TIMING, Reduction

PLAN = Plan(
    version=1,
    stages=((0, 1), (1, 2), (2, 4)),
    routes=(("a", "m", "x"), ("b", "m", "y"), ("a", "n", "y"), ("a", "n", "z")),
)
GROUPS = [{"head": 8, "norm": 4}, {"layer.1": 10}, {"layer.0": 10}, {"embed": 40}]
BOTH = Reduction((0, 2), ("a", "b", "x", "y", "z"), timing=SHARED_TIMING)
Groups = Sequence[Mapping[str, int]]

sizes = st.integers(1, 40)


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, int]]:
    """Parameters by group, in the order of a backward; some groups may be empty, as the ends of a stage are."""
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5).filter(any))
    return [{f"p{place}.{number}": draw(sizes) for number in range(count)} for place, count in enumerate(counts)]


def in_pieces(elements: int, stage: int, groups: Groups, shared: Collection[str] = ()) -> tuple[Flat, ...]:
    """So many elements a bucket, at most."""
    return flats_of(PLAN, stage, groups, shared, most_bytes=4 * elements)


def where(flat: Flat, groups: Groups) -> dict[str, tuple[int, int]]:
    """Where each parameter of a flat gradient lies."""
    size = {name: elements for group in groups for name, elements in group.items()}
    places, start = {}, 0
    for name in flat.names:
        places[name] = (start, start + size[name])
        start += size[name]
    return places


@given(holders=st.integers(1, 9), elements=st.integers(0, 10_000))
def test_the_parts_of_a_bucket_cover_it_evenly_without_gap_or_overlap(holders: int, elements: int) -> None:
    parts = Bucket(0, Reduction((0,), tuple(map(str, range(holders)))), 0, elements, 0).parts
    assert [low for low, _ in parts] == [0, *(high for _, high in parts[:-1])]
    assert parts[-1][1] == elements
    lengths = [high - low for low, high in parts]
    assert max(lengths) - min(lengths) <= 1


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any), elements=st.integers(0, 10_000))
def test_unlike_parts_cover_a_bucket_in_proportion(sizes: list[int], elements: int) -> None:
    reduction = Reduction((0,), tuple(map(str, range(len(sizes)))), parts=tuple(sizes))
    parts = Bucket(0, reduction, 0, elements, 0).parts
    assert [low for low, _ in parts] == [0, *(high for _, high in parts[:-1])]
    assert parts[-1][1] == elements
    for (low, high), size, amount in zip(parts, sizes, reduction.amounts(elements), strict=True):
        assert abs(high - low - amount) < 1
        assert size or low == high


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_untied_a_small_stage_has_one_bucket_of_its_replicas(stage: int) -> None:
    (flat,) = flats_of(PLAN, stage, GROUPS, shared=())
    assert flat.names == ("head", "norm", "layer.1", "layer.0", "embed")
    assert flat.elements == 72
    assert flat.buckets == (Bucket(0, Reduction((stage,), PLAN.replicas(stage)), 0, 72, after=3),)


def test_a_tied_matrix_is_reduced_by_both_ends_together() -> None:
    """It is the last group of the first stage, and in the first group of the last stage."""
    own, both = flats_of(PLAN, 0, GROUPS[1:], shared=("embed",))
    assert own.buckets == (Bucket(0, Reduction((0,), ("a", "b")), 0, 20, after=1),)
    assert both.buckets == (Bucket(SHARED_BUCKETS[0], BOTH, 0, 40, after=2),)
    own, again = flats_of(PLAN, 2, [{"embed": 40, "norm": 4}, {"layer.1": 10}, {}], shared=("embed",))
    assert own == Flat(("norm", "layer.1"), 14, (Bucket(0, Reduction((2,), ("x", "y", "z")), 0, 14, after=1),))
    assert again.buckets == (Bucket(SHARED_BUCKETS[0], BOTH, 0, 40, after=0),)
    (middle,) = flats_of(PLAN, 1, [{}, {"layer.2": 7}, {}], shared=("embed",))
    assert middle.buckets == (Bucket(0, Reduction((1,), ("m", "n")), 0, 7, after=1),)


def test_buckets_begin_and_go_first_as_their_timing_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_TIMING", SHARED_TIMING._replace(begins="after actions", priority=-1))
    both, own = flats_of(PLAN, 2, [{"embed": 40, "norm": 4}, {"layer.1": 10}, {}], shared=("embed",), most_bytes=48)
    assert both.buckets[0].reduction.is_shared
    assert [bucket.after for bucket in both.buckets] == [2, 2, 2, 2]
    assert [bucket.after for bucket in own.buckets] == [1, 1]


def test_with_one_stage_a_tied_matrix_is_shared_with_nobody_else() -> None:
    plan = Plan(version=1, stages=((0, 4),), routes=(("a",), ("b",)))
    (flat,) = flats_of(plan, 0, GROUPS, shared=("embed",))
    assert flat.buckets == (Bucket(0, Reduction((0,), ("a", "b")), 0, 72, after=3),)


def test_a_bucket_is_ready_with_the_last_group_that_reaches_into_it() -> None:
    """Groups end at 12, 22, 32 and 72."""
    (flat,) = in_pieces(11, 1, GROUPS)
    assert [bucket.start for bucket in flat.buckets] == [0, 11, 22, 33, 44, 55, 66]
    assert [bucket.elements for bucket in flat.buckets] == [11, 11, 11, 11, 11, 11, 6]
    assert [bucket.after for bucket in flat.buckets] == [0, 1, 3, 3, 3, 3, 3]
    (flat,) = in_pieces(12, 1, GROUPS)
    assert [bucket.after for bucket in flat.buckets] == [0, 2, 3, 3, 3, 3]


def test_a_bucket_has_at_most_bucket_bytes_of_gradient() -> None:
    most = BUCKET_BYTES // 4
    (flat,) = flats_of(PLAN, 1, [{"norm": 5}, {"layer": 2 * most}, {"embed": most // 2}], shared=())
    assert [bucket.elements for bucket in flat.buckets] == [most, most, most // 2 + 5]
    assert sum(bucket.elements for bucket in flat.buckets) == flat.elements


@given(groups=groups(), most=st.integers(1, 60), stage=st.sampled_from([0, 1, 2]), data=st.data())
@settings(max_examples=200)
def test_every_element_of_every_parameter_is_in_one_bucket(
    groups: list[dict[str, int]], most: int, stage: int, data: st.DataObject
) -> None:
    names = [name for group in groups for name in group]
    tied = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1)) if stage != 1 else set()
    flats = in_pieces(most, stage, groups, tied)
    assert sorted(name for flat in flats for name in flat.names) == sorted(names)
    numbers = [bucket.group for flat in flats for bucket in flat.buckets]
    assert len(set(numbers)) == len(numbers)
    group_of = {name: place for place, group in enumerate(groups) for name in group}
    for flat in flats:
        assert [bucket.start for bucket in flat.buckets] == list(range(0, flat.elements, most))
        assert all(0 < bucket.elements <= most for bucket in flat.buckets)
        assert sum(bucket.elements for bucket in flat.buckets) == flat.elements
        places = where(flat, groups)
        for bucket in flat.buckets:
            reaching = {
                group_of[name]
                for name, (low, high) in places.items()
                if low < bucket.start + bucket.elements and high > bucket.start
            }
            assert bucket.after == max(reaching)
            shared = bucket.group in SHARED_BUCKETS
            assert shared == bool(tied & set(flat.names))
            assert bucket.holders == (PLAN.replicas(0) + PLAN.replicas(2) if shared else PLAN.replicas(stage))
    order = [bucket.after for bucket in flats[0].buckets]
    assert order == sorted(order)  # first final, first reduced


@given(first=groups(), last=groups(), shared=st.dictionaries(st.sampled_from("uvw"), sizes, min_size=1), data=st.data())
def test_both_ends_cut_what_they_share_alike(
    first: list[dict[str, int]], last: list[dict[str, int]], shared: dict[str, int], data: st.DataObject
) -> None:
    """Wherever in its backward each of them has it."""
    most = data.draw(st.integers(1, 60))
    own_first, at_first = in_pieces(most, 0, [*first, shared], shared)
    own_last, at_last = in_pieces(most, 2, [shared, *last], shared)
    assert at_first.names == at_last.names == tuple(shared)
    for one, other in zip(at_first.buckets, at_last.buckets, strict=True):
        assert (one.group, one.holders, one.start, one.elements) == (
            other.group,
            other.holders,
            other.start,
            other.elements,
        )
        assert (one.after, other.after) == (len(first), 0)
    own = {bucket.group for flat in (own_first, own_last) for bucket in flat.buckets}
    assert not own & {bucket.group for bucket in at_first.buckets}


def test_a_buckets_number_fits_the_frames_field() -> None:
    assert SHARED_BUCKETS[0] > 0
    assert SHARED_BUCKETS[-1] < 1 << 16
