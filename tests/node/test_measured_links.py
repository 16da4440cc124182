"""What a node keeps of the links that it has measured."""

from typing import Any

import pytest

from dtfm_node.links import measured_links
from dtfm_node.links.measured_links import MeasuredLinks
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.witness import Witness
from dtfm_protocol.control.messages import ProbeRound
from dtfm_protocol.discovery.records import MOST_NEIGHBOURS, Link, LinkReport
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.harness.manual_clock import ManualClock


async def test_of_very_many_links_the_newest_are_kept_as_many_as_a_report_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def probe(*_: Any, **__: Any) -> Link:
        return Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0)

    monkeypatch.setattr(measured_links, "probe", probe)
    links = MeasuredLinks(MemoryDataPlane(MemoryNetwork(), "me"), UplinkPacer(), Witness(), ManualClock())
    peers = [f"peer {number}" for number in range(MOST_NEIGHBOURS + 3)]
    for number, peer in enumerate([*peers[:5], *peers]):
        await links.measure(peer, ProbeRound(id=number, addresses={}))
    assert [*links.links] == peers[3:]
    assert len(LinkReport(links=links.links).links) == MOST_NEIGHBOURS
