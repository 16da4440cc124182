"""Pairs that are measured: few a peer, disjoint in a round, and the ones that tell most."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.links.chosen_pairs import (
    ECHOES,
    FEW,
    LANDMARKS,
    PARTNERS,
    Flags,
    echoes,
    first_partners,
    in_rounds,
    is_stranger,
    next_partners,
)
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.link_matrix import Matrix


def nothing(count: int) -> Flags:
    return np.zeros((count, count), dtype=bool)


def all_rounds(tried: Flags, delays: Matrix, gbps: Matrix) -> list[list[tuple[int, int]]]:
    """The rounds until nobody is a stranger; what is asked for is measured at what `gbps` says."""
    tried, known, rounds = tried.copy(), np.full_like(gbps, np.nan), []
    while pairs := next_partners(tried, delays, known):
        assert len({peer for pair in pairs for peer in pair}) == 2 * len(pairs)
        for one, other in pairs:
            assert not tried[one, other]
            tried[one, other] = tried[other, one] = True
            known[one, other], known[other, one] = gbps[one, other], gbps[other, one]
        rounds.append(pairs)
    assert not is_stranger(tried, known).any()
    return rounds


def newcomer() -> tuple[int, Flags, Matrix, Matrix]:
    """A newcomer to 29 who are known, what was tried, delays and rates: 7 is its nearest, and 11 sends fastest."""
    count, new = 30, 29
    rng = np.random.default_rng(0)
    tried = ~np.eye(count, dtype=bool)
    tried[new] = tried[:, new] = False
    delays, gbps = rng.uniform(5, 9, (count, count)), rng.uniform(0.1, 0.2, (count, count))
    delays[new, 7], gbps[11, 2] = 1.0, 3.0
    return new, tried, delays, gbps


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 17, 64, 256])
def test_rounds_are_as_few_however_many_there_are(count: int) -> None:
    rng = np.random.default_rng(count)
    rounds = all_rounds(nothing(count), rng.random((count, count)), rng.random((count, count)))
    assert len(rounds) <= PARTNERS + 2
    if count <= FEW:
        assert sum(map(len, rounds)) == count * (count - 1) // 2


def test_a_newcomer_is_measured_with_the_nearest_and_with_who_sends_fastest() -> None:
    new, tried, delays, gbps = newcomer()
    known = np.where(tried, gbps, np.nan)
    rounds = []
    while pairs := next_partners(tried, delays, known):
        ((one, other),) = pairs
        rounds.append({one, other} - {new})
        tried[one, other] = tried[other, one] = True
        known[one, other], known[other, one] = gbps[one, other], gbps[other, one]
    assert rounds[:2] == [{7}, {11}]
    assert len(rounds) == PARTNERS


@pytest.mark.parametrize("count", [5, 30])
def test_a_newcomer_that_reaches_none_of_its_partners_has_one_more(count: int) -> None:
    tried, known, new = ~np.eye(count, dtype=bool), np.ones((count, count)), count - 1
    tried[new] = tried[:, new] = False
    known[new] = known[:, new] = np.nan
    delays = np.ones((count, count))
    for number in range(PARTNERS + 1):
        ((one, other),) = next_partners(tried, delays, known)
        assert {one, other} == {new, min(one, other)}
        assert is_stranger(tried, known).tolist() == [False] * new + [True]
        tried[one, other] = tried[other, one] = True
        assert number < PARTNERS or next_partners(tried, delays, known) == []
    known[0, new] = known[new, 0] = 1.0
    tried[new] = tried[:, new] = False
    tried[new, :PARTNERS] = tried[:PARTNERS, new] = True
    assert next_partners(tried, delays, known) == [], "it has reached one"


def test_a_newcomer_that_has_met_who_sends_fastest_is_measured_with_the_nearest() -> None:
    new, tried, delays, gbps = newcomer()
    known = np.where(tried, gbps, np.nan)
    assert first_partners(tried, known, {new}) == [(11, new)], "no delay of its own is known"
    tried[11, new] = tried[new, 11] = True
    known[11, new] = known[new, 11] = 1.0
    assert first_partners(tried, known, {new}) == [], "it has a partner"
    assert next_partners(tried, delays, known, {new}) == [(7, new)]
    tried[7, new] = tried[new, 7] = True
    assert next_partners(tried, delays, known, {new}) == []


def test_who_takes_round_trips_measures_no_pair_and_each_newcomer_has_another_partner() -> None:
    count = 12
    tried = ~np.eye(count, dtype=bool)
    tried[8:] = tried[:, 8:] = False
    pairs = first_partners(tried, np.full((count, count), np.nan), {8, 9, 10, 11})
    assert {other for _, other in pairs} == {8, 9, 10, 11}
    assert len({one for one, _ in pairs} & {*range(8)}) == 4
    assert first_partners(nothing(count), np.full((count, count), np.nan), range(count)) == []


def test_round_trips_are_few_a_peer_and_go_to_common_landmarks() -> None:
    count = 50
    wanted = echoes(count, np.ones(count, dtype=bool), nothing(count))
    assert {len(others) for others in wanted.values()} == {ECHOES}
    assert all(peer not in others for peer, others in wanted.items())
    common = [peer for peer in range(count) if sum(peer in others for others in wanted.values()) >= count - LANDMARKS]
    assert len(common) >= LANDMARKS


def test_a_newcomer_asks_for_round_trips_to_those_who_are_known() -> None:
    known = nothing(12)
    known[:10, :10] = ~np.eye(10, dtype=bool)
    is_new = np.arange(12) >= 10
    wanted = echoes(12, is_new, known)
    assert set(wanted) == {10, 11}
    assert all(set(others[:LANDMARKS]) <= set(range(10)) for others in wanted.values())
    assert echoes(12, np.zeros(12, dtype=bool), known) == {}


def test_rounds_of_given_pairs_hold_each_once_and_are_hardly_more_than_the_busiest_peer_needs() -> None:
    pairs = [frozenset(pair) for pair in combinations("abcdefgh", 2)] + [frozenset(("a", "z"))]
    rounds = in_rounds(pairs)
    assert sorted(map(sorted, (pair for one in rounds for pair in one))) == sorted(map(sorted, pairs))
    assert all(len({peer for pair in one for peer in pair}) == 2 * len(one) for one in rounds)
    assert len(rounds) <= 8 + 1
    assert in_rounds([]) == []


@given(st.sets(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("tuvwxyz")), min_size=1))
def test_pairs_without_odd_circles_take_as_many_rounds_as_the_busiest_peer_has_pairs(
    pairs: set[tuple[str, str]],
) -> None:
    rounds = in_rounds(pairs)
    busiest = max(Counter(peer for pair in pairs for peer in pair).values())
    assert len(rounds) == busiest
    assert sorted(pair for one in rounds for pair in one) == sorted(pairs)
    assert all(len({peer for pair in one for peer in pair}) == 2 * len(one) > 0 for one in rounds)


@given(
    st.sets(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("abcdefg")).filter(lambda pair: pair[0] < pair[1]))
)
def test_any_pairs_are_each_in_one_round_in_which_nobody_is_twice(pairs: set[tuple[str, str]]) -> None:
    rounds = in_rounds(pairs)
    assert sorted(pair for one in rounds for pair in one) == sorted(pairs)
    assert all(len({peer for pair in one for peer in pair}) == 2 * len(one) > 0 for one in rounds)
    assert len(rounds) <= 2 * max(Counter(peer for pair in pairs for peer in pair).values(), default=0)


def test_a_plan_uses_the_links_of_its_routes_and_of_its_replicas() -> None:
    plan = Plan(version=1, stages=((0, 1), (1, 2), (2, 3)), routes=(("a", "b", "d"), ("a", "c", "e")))
    used = {frozenset(pair) for pair in ("ab", "bd", "ac", "ce", "bc", "de")}
    assert pairs_of(plan) == used
    assert pairs_of(plan, tied=True) == used | {frozenset("ad"), frozenset("ae")}
