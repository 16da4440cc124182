"""Rounds of measurements in which whoever is free measures, too, where estimates are poor."""

from itertools import chain, combinations

import numpy as np
import pytest

from dtfm_coordinator.links.chosen_pairs import in_rounds
from dtfm_coordinator.links.filled_rounds import POOR, filled
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import NodeView, View

COUNT = 24
IDS = [f"p{place:02}" for place in range(COUNT)]
OF_PLAN = in_rounds([frozenset(pair) for pair in combinations(IDS[:4], 2)])


def a_view(rates: Matrix) -> View:
    """Of each ten of the pairs one is measured, either way."""
    draw = np.random.default_rng(1).random((COUNT, COUNT))
    seen = np.minimum(draw, draw.T) < 0.1
    return View(
        nodes=tuple(NodeView(id=peer) for peer in IDS),
        latency_ms=np.where(seen, 10.0, np.nan),
        bandwidth_gbps=np.where(seen, rates, np.nan),
    )


def irregular() -> View:
    return a_view(np.exp(2 * np.random.default_rng(0).standard_normal((COUNT, COUNT))))


def test_where_estimates_can_be_trusted_nobody_measures_more() -> None:
    view = a_view(np.ones((COUNT, COUNT)))
    assert view.estimated_gbps.spread < POOR
    assert filled(OF_PLAN, view) == OF_PLAN


def test_where_they_are_poor_whoever_is_free_measures_and_no_pair_twice_or_that_is_known() -> None:
    view = irregular()
    assert view.estimated_gbps.spread > POOR
    rounds = filled(OF_PLAN, view)
    assert [turn[: len(first)] for turn, first in zip(rounds, OF_PLAN, strict=True)] == OF_PLAN
    for turn in rounds:
        peers = list(chain(*turn))
        assert len(peers) == len(set(peers))
        assert len(peers) >= COUNT - 2
    pairs = [frozenset(pair) for turn in rounds for pair in turn]
    assert len(pairs) == len(set(pairs))
    beside = [pair for turn, first in zip(rounds, OF_PLAN, strict=True) for pair in turn[len(first) :]]
    assert all(np.isnan(view.bandwidth_gbps[IDS.index(one), IDS.index(other)]) for one, other in beside)
    assert filled(OF_PLAN, view) == rounds


def test_where_nothing_is_to_be_measured_no_round_is_added() -> None:
    assert filled([], irregular()) == []


def test_it_takes_the_links_that_may_be_the_fastest() -> None:
    """All links of four peers are fast, of the others none."""
    rates = np.exp(np.random.default_rng(0).standard_normal((COUNT, COUNT)))
    rates[-4:, :] *= 100
    rates[:, -4:] *= 100
    view = a_view(rates)
    assert view.estimated_gbps.spread > POOR
    (turn,) = filled(OF_PLAN[:1], view)
    first, second = turn[len(OF_PLAN[0]) :][:2]
    assert {*first, *second} == {*IDS[-4:]}


@pytest.mark.parametrize("known", [0.0, 1.0])
def test_pairs_that_cannot_talk_and_pairs_that_are_known_are_left_alone(known: float) -> None:
    view = irregular()
    rates = np.where(np.isnan(view.bandwidth_gbps), known, view.bandwidth_gbps)
    assert filled(OF_PLAN, view.model_copy(update={"bandwidth_gbps": rates})) == OF_PLAN


def test_peers_that_have_filled_rounds_together_measure_only_with_others() -> None:
    view = irregular()
    rounds = filled(OF_PLAN, view, together=[*IDS[:-1], "who has left"])
    beside = [pair for turn, first in zip(rounds, OF_PLAN, strict=True) for pair in turn[len(first) :]]
    assert beside
    assert all(IDS[-1] in pair for pair in beside)
