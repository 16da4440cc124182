"""A world is what a view says, as plain numbers: bytes, seconds, and null for what has no limit."""

import json
import math

import numpy as np
import pytest

from dtfm_lab.emulation.accuracy import LinkMeasurement, pairs_to_try
from dtfm_lab.emulation.wiring import MOST_HOSTS, Wiring
from dtfm_protocol.errors import UserError
from dtfm_protocol.view.link_matrix import rows
from dtfm_protocol.view.view import NodeView, View

VIEW = View(
    nodes=(NodeView(id="a", up_gbps=0.008, down_gbps=0.08), NodeView(id="b"), NodeView(id="c", down_gbps=0.004)),
    latency_ms=np.array([[0.0, 10.0, 20.0], [30.0, 0.0, 5.0], [40.0, 6.0, 0.0]]),
    bandwidth_gbps=np.array([[0.0, 0.016, 0.8], [0.0, 0.0, 0.8], [0.08, 0.0008, 0.0]]),
)


def test_a_views_links_are_bytes_and_seconds() -> None:
    wiring = Wiring.of(VIEW)
    assert wiring.delay == [[0.0, 0.01, 0.02], [0.03, 0.0, 0.005], [0.04, 0.006, 0.0]]
    assert wiring.rate == [[None, 2e6, 1e8], [0.0, None, 1e8], [1e7, 1e5, None]]
    assert (wiring.up, wiring.down) == ([1e6, None, None], [1e7, None, 5e5])
    assert (wiring.loss, wiring.queue_seconds) == (0.0, 0.2)


def test_all_rates_are_scaled_and_delays_are_not() -> None:
    plain, scaled = Wiring.of(VIEW), Wiring.of(VIEW, scale=0.25, loss=0.1, queue_ms=50.0)
    assert scaled.delay == plain.delay
    assert scaled.rate == [[None if one is None else one / 4 for one in row] for row in plain.rate]
    assert (scaled.up, scaled.down) == ([2.5e5, None, None], [2.5e6, None, 1.25e5])
    assert (scaled.loss, scaled.queue_seconds) == (0.1, 0.05)


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
@pytest.mark.parametrize("option", ["scale", "loss", "queue_ms"])
def test_numbers_without_end_and_those_that_are_none_are_refused(option: str, wrong: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} {wrong}: give a finite number"):
        Wiring.of(VIEW, **{option: wrong})


def test_a_network_that_loses_everything_is_refused() -> None:
    with pytest.raises(UserError, match="the emulated network: loss: should be less than 1"):
        Wiring.of(VIEW, loss=1.0)


def test_what_was_not_measured_is_estimated_as_for_plans() -> None:
    gaps = View(
        nodes=VIEW.nodes,
        latency_ms=np.array([[0.0, 10.0, np.nan], [30.0, 0.0, np.nan], [np.nan, np.nan, 0.0]]),
        bandwidth_gbps=np.full((3, 3), np.nan),
    )
    wiring = Wiring.of(gaps)
    assert wiring.delay == rows(gaps.alpha())
    rate = gaps.beta()
    assert [[wiring.rate[i][j] for j in range(3) if j != i] for i in range(3)] == [
        [rate[i, j] for j in range(3) if j != i] for i in range(3)
    ]


def test_a_pair_alone_has_the_least_of_its_limits() -> None:
    wiring = Wiring.of(VIEW)
    assert [wiring.path_rate(*pair) for pair in [(0, 1), (0, 2), (1, 2), (1, 0), (2, 1), (2, 0)]] == [
        1e6, 5e5, 5e5, 0.0, 1e5, 1e7,
    ]  # fmt: skip
    assert wiring.round_trip(0, 2) == wiring.round_trip(2, 0) == pytest.approx(0.06)


def test_wires_are_given_infinity_for_what_has_no_limit() -> None:
    links = Wiring.of(VIEW, loss=0.5, queue_ms=100.0).links()
    assert links.rate.tolist() == [[math.inf, 2e6, 1e8], [0.0, math.inf, 1e8], [1e7, 1e5, math.inf]]
    assert links.delay.tolist() == [[0.0, 0.01, 0.02], [0.03, 0.0, 0.005], [0.04, 0.006, 0.0]]
    assert (links.up, links.down) == ([1e6, math.inf, math.inf], [1e7, math.inf, 5e5])
    assert (links.loss, links.queue_seconds) == (0.5, 0.1)


def test_the_forwarding_process_is_told_in_json_that_everything_reads() -> None:
    wiring = Wiring.of(VIEW, scale=0.3)
    text = wiring.model_dump_json()
    assert "Infinity" not in text
    assert "\n" not in text
    assert json.loads(text)["rate"][0][0] is None
    assert Wiring.model_validate_json(text) == wiring


def test_a_lab_has_so_many_hosts_at_most() -> None:
    def view(count: int) -> View:
        nodes = tuple(NodeView(id=f"n{number}") for number in range(count))
        return View(nodes=nodes, latency_ms=np.ones((count, count)), bandwidth_gbps=np.ones((count, count)))

    assert len(Wiring.of(view(MOST_HOSTS)).up) == MOST_HOSTS
    with pytest.raises(UserError, match=f"{MOST_HOSTS} hosts at most, and the view has {MOST_HOSTS + 1}"):
        Wiring.of(view(MOST_HOSTS + 1))


def test_the_fastest_the_slowest_and_the_farthest_pair_that_talk_are_tried() -> None:
    """Not 1 -> 0, which cannot talk."""
    assert pairs_to_try(Wiring.of(VIEW)) == [(2, 0), (2, 1), (0, 2)]
    one = View(nodes=VIEW.nodes[:1], latency_ms=np.zeros((1, 1)), bandwidth_gbps=np.zeros((1, 1)))
    assert pairs_to_try(Wiring.of(one)) == []
    silent = View(nodes=VIEW.nodes, latency_ms=np.ones((3, 3)), bandwidth_gbps=np.zeros((3, 3)))
    assert pairs_to_try(Wiring.of(silent)) == []
    two = View(nodes=VIEW.nodes[:2], latency_ms=np.ones((2, 2)), bandwidth_gbps=np.array([[0.0, 1.0], [0.0, 0.0]]))
    assert pairs_to_try(Wiring.of(two)) == [(0, 1)]


def test_what_was_measured_is_said_beside_what_was_asked_for() -> None:
    found = LinkMeasurement(0, 1, round_trip=0.0412, rate=0.95 * 1448 / 1500 * 1e6)
    assert found.text(Wiring.of(VIEW)) == (
        "round trip 41.2 ms of 40.0; 7.337 Mbit/s of payload, 95.0% of what 8 Mbit/s can carry"
    )
