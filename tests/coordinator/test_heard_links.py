"""Links as a coordinator hears of them: which are kept, which are forgotten, and which are suspected of being slow."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.links.link_degradation import SECONDS, STEPS, WARM_STEPS
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.peers import Peers, linked, plan_of
from tests.harness.manual_clock import ManualClock


async def test_links_of_a_peer_that_leaves_are_forgotten_and_no_others(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a", "b", "c")
    linked(peers, "a", "b", "c")
    links = peers.state.links
    links.tried([("a", "b"), ("a", "c"), ("b", "c")])
    await peers.goodbye("a")
    assert links.gbps("a", "b") is links.gbps("b", "a") is links.gbps("c", "a") is None
    assert not links.known("a", "b")
    assert (links.gbps("b", "c"), links.gbps("c", "b")) == (1.0, 1.0)
    assert links.known("b", "c")


async def test_links_of_a_peer_that_says_hello_or_goodbye_once_more_are_kept(tmp_path: Path) -> None:
    """After a reconnection presence is published anew, and a last will may follow a goodbye."""
    peers = Peers(tmp_path)
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await peers.hello("a")
    assert peers.state.links.gbps("a", "b") == 1.0
    await peers.goodbye("a")
    linked(peers, "a", "b")
    await peers.goodbye("a")
    assert peers.state.links.gbps("a", "b") == 1.0


async def test_links_that_are_known_before_a_peer_says_hello_are_kept(tmp_path: Path) -> None:
    """A coordinator that takes over reads them from the DHT."""
    peers = Peers(tmp_path)
    linked(peers, "a", "b")
    await peers.hello("a")
    assert peers.state.links.gbps("a", "b") == 1.0


async def train(peers: Peers, clock: ManualClock, rate: float, **fields: Any) -> None:
    """`b` tells of several steps in which frames came from `a`."""
    for step in range(1, WARM_STEPS + STEPS + 1):
        clock.skip(SECONDS)
        values: dict[str, Any] = {"state": "training", "plan_version": 1, "step": step, "received_gbps": {"a": rate}}
        await peers.report("b", **(values | fields))


async def test_a_link_whose_frames_come_more_slowly_than_it_was_measured_is_suspected(tmp_path: Path) -> None:
    clock = ManualClock()
    peers = Peers(tmp_path, clock=clock)
    peers.state.plan = plan_of("a", "b")
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await train(peers, clock, 0.1)
    assert peers.state.link_watch.suspects(peers.state.links.gbps) == {("a", "b")}


async def test_a_link_whose_frames_come_as_fast_as_it_was_measured_is_not_suspected(tmp_path: Path) -> None:
    clock = ManualClock()
    peers = Peers(tmp_path, clock=clock)
    peers.state.plan = plan_of("a", "b")
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await train(peers, clock, 0.9)
    assert peers.state.link_watch.suspects(peers.state.links.gbps) == set()


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        (plan_of("a", "b"), {"state": "stalled"}),
        (plan_of("a", "b", version=2), {}),
        (plan_of("a", "b"), {"plan_version": 2}),
        (None, {}),
    ],
)
async def test_frames_of_who_does_not_train_under_the_plan_in_force_tell_nothing(
    tmp_path: Path, plan: Plan | None, fields: dict[str, Any]
) -> None:
    clock = ManualClock()
    peers = Peers(tmp_path, clock=clock)
    peers.state.plan = plan
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await train(peers, clock, 0.1, **fields)
    assert peers.state.link_watch.suspects(peers.state.links.gbps) == set()


async def test_links_to_peers_that_are_not_in_the_plan_are_not_kept(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    for step in range(1, 50):
        gbps = {f"made up {step} {number}": 1.0 for number in range(500)} | {"a": 1.0}
        await peers.report("b", "training", plan_version=1, step=step, received_gbps=gbps, lost=tuple(gbps))
    assert set(peers.state.link_watch._seen) == {("a", "b")}
    assert [member.peer for member in peers.state.members.online()] == ["b"]
