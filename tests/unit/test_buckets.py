"""Buckets: every parameter in one, every element of it owned by one holder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_node.engine.buckets import Bucket, buckets_of
from dtfm_protocol.plan import Plan

PLAN = Plan(
    version=1,
    stages=((0, 1), (1, 2), (2, 4)),
    routes=(("a", "m", "x"), ("b", "m", "y"), ("a", "n", "y"), ("a", "n", "z")),
)
SIZES = {"norm": 4, "embed": 40, "layer.1": 10, "layer.0": 10}


@given(holders=st.integers(1, 9), elements=st.integers(0, 10_000))
def test_the_parts_of_a_bucket_cover_it_evenly_without_gap_or_overlap(holders: int, elements: int) -> None:
    bucket = Bucket(0, tuple(map(str, range(holders))), ("w",), elements)
    parts = [bucket.part(index) for index in range(holders)]
    assert [low for low, _ in parts] == [0, *(high for _, high in parts[:-1])]
    assert parts[-1][1] == elements
    sizes = [high - low for low, high in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_untied_a_stage_has_one_bucket_of_its_replicas(stage: int) -> None:
    (bucket,) = buckets_of(PLAN, stage, SIZES, tied=())
    assert bucket == Bucket(stage, PLAN.replicas(stage), ("embed", "layer.0", "layer.1", "norm"), 64)


def test_a_tied_matrix_is_reduced_by_both_ends_together() -> None:
    first, shared = buckets_of(PLAN, 0, SIZES, tied=("embed",))
    assert first == Bucket(0, ("a", "b"), ("layer.0", "layer.1", "norm"), 24)
    assert shared == Bucket(3, ("a", "b", "x", "y", "z"), ("embed",), 40)
    last, again = buckets_of(PLAN, 2, SIZES, tied=("embed",))
    assert last.holders == ("x", "y", "z")
    assert again == shared
    (middle,) = buckets_of(PLAN, 1, {"layer.2": 7}, tied=("embed",))
    assert middle == Bucket(1, ("m", "n"), ("layer.2",), 7)


def test_with_one_stage_a_tied_matrix_is_shared_with_nobody_else() -> None:
    plan = Plan(version=1, stages=((0, 4),), routes=(("a",), ("b",)))
    (bucket,) = buckets_of(plan, 0, SIZES, tied=("embed",))
    assert bucket.holders == ("a", "b")
    assert bucket.elements == sum(SIZES.values())


@given(sizes=st.dictionaries(st.text(max_size=5), st.integers(1, 99), min_size=1), data=st.data())
def test_every_parameter_is_in_one_bucket_in_an_order_of_names_alone(
    sizes: dict[str, int], data: st.DataObject
) -> None:
    tied = tuple(data.draw(st.sets(st.sampled_from(sorted(sizes)))))
    shuffled = dict(data.draw(st.permutations(list(sizes.items()))))
    for stage in (0, 2):
        buckets = buckets_of(PLAN, stage, sizes, tied)
        assert sorted(name for bucket in buckets for name in bucket.names) == sorted(sizes)
        assert sum(bucket.elements for bucket in buckets) == sum(sizes.values())
        assert buckets_of(PLAN, stage, shuffled, tied[::-1]) == buckets
