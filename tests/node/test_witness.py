"""Witness of one node: what it keeps of flows that the other end began and ended."""

from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.witness import Witness
from dtfm_protocol.discovery.records import Link


def flow(seconds: float) -> SteadyRate:
    """What was seen of a flow of 1 MB/s that went on for so long."""
    seen = SteadyRate(0.01)
    for look in range(1, int(seconds / 0.005) + 1):
        seen.came(look * 0.005, int(look * 5e3))
    return seen


@pytest.mark.parametrize(("received", "sent", "counts"), [(0.5, 0.5, True), (0.05, 0.5, False), (0.5, 0.05, False)])
def test_what_lasted_for_a_moment_is_told_but_does_not_count_as_what_a_line_carries(
    received: float, sent: float, counts: bool
) -> None:
    witness, told = Witness(), dict[str, Link]()
    witness.when_seen = told.__setitem__
    witness._flows["liar"] = {"send": flow(received), "fetch": flow(sent)}
    stream: Any = SimpleNamespace(
        peer="liar", way="direct", progress=lambda: SimpleNamespace(round_trip=0.01, delivered=1, received=1)
    )
    witness.ended(stream)
    assert told["liar"].received_gbps == pytest.approx(0.008, rel=0.1)
    assert witness.carried == ({"liar": (told["liar"].sent_gbps, told["liar"].received_gbps)} if counts else {})
