"""New stages out of known ones: every peer at most once, and only counts that are allowed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.allocator.search.layout_variation import lengthened, regrouped
from dtfm_coordinator.allocator.search.starts import Stages

PEERS = 12


@st.composite
def stages(draw: st.DrawFn) -> Stages:
    """Up to five stages, on some of the peers."""
    peers, counts = draw(st.permutations(range(PEERS))), draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    ends = np.cumsum(counts).tolist()
    return [
        peers[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True) if end <= PEERS or end == ends[0]
    ]


def idle_of(placed: Stages) -> list[int]:
    return sorted(set(range(PEERS)) - {peer for members in placed for peer in members})


@given(placed=stages(), seed=st.integers(0, 99), most=st.integers(1, 6))
def test_a_stage_more_or_fewer_leaves_the_others_as_they_are(placed: Stages, seed: int, most: int) -> None:
    changed = lengthened(placed, idle_of(placed), most, np.random.default_rng(seed))
    everybody = [peer for members in changed for peer in members]
    assert len(everybody) == len(set(everybody))
    assert 1 <= len(changed) <= max(most, len(placed))
    fresh = [members for members in changed if members not in placed]
    gone = [members for members in placed if members not in changed]
    assert len(fresh) + len(gone) <= 1
    assert [members for members in changed if members not in fresh] == [m for m in placed if m not in gone]
    assert {len(members) for members in fresh} <= {len(members) for members in placed}


@pytest.mark.parametrize("change", ["longer", "shorter"])
def test_either_is_tried_at_every_place(change: str) -> None:
    placed, found = [[0, 1], [2, 3], [4, 5]], set[int]()
    for seed in range(200):
        changed = lengthened(placed, idle_of(placed), 6, np.random.default_rng(seed))
        if change == "longer" and len(changed) == 4:
            found.add(next(place for place, members in enumerate(changed) if members not in placed))
        elif change == "shorter" and len(changed) == 2:
            found.add(next(place for place, members in enumerate(placed) if members not in changed))
    assert found == set(range(4 if change == "longer" else 3))


def test_where_there_is_neither_an_idle_peer_nor_a_second_stage_nothing_changes() -> None:
    everybody = [list(range(PEERS))]
    assert all(lengthened(everybody, [], 6, np.random.default_rng(seed)) == everybody for seed in range(20))


@given(placed=stages(), seed=st.integers(0, 99))
def test_split_and_merged_stages_have_each_peer_once(placed: Stages, seed: int) -> None:
    changed = regrouped(placed, 6, 6, np.random.default_rng(seed))
    everybody = [peer for members in changed for peer in members]
    assert len(everybody) == len(set(everybody))
    assert all(changed)
