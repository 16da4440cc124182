"""While training goes well, links are measured that would make a better plan if they were good, and no others."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dtfm_coordinator.leader.spare_measuring import PATIENCE, SpareMeasuring
from dtfm_coordinator.links import filled_rounds
from dtfm_coordinator.links.view_bounds import at_best
from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.view.view import View
from tests.coordinator.laid_out_swarm import Swarm
from tests.coordinator.peers import Drawing, plan_of

PEERS = "abcdefgh"
SLOW, BEST, FAST = 0.1, 0.13, 0.5
STANDSTILL = 7.0


class OfTwo(Drawing):
    """A planner that takes the two peers with the best link between them, where that is better by a tenth than what the
    two in force have."""

    is_forced = False

    def plan(
        self,
        view: View,
        in_force: Plan | None = None,
        horizon: float | None = None,
        standstill: float = 0.0,
        begun: Plan | None = None,
    ) -> Plan:
        super().plan(view, in_force, horizon, standstill, begun)
        rates = np.where(np.eye(len(view.ids)), -np.inf, view.beta())
        rates = np.minimum(rates, rates.T)
        best = np.unravel_index(int(rates.argmax()), rates.shape)
        if in_force is not None:
            one, other = (view.ids.index(peer) for peer in in_force.peers)
            if rates[best] < 1.1 * rates[one, other]:
                return in_force
        return plan_of(*sorted(view.ids[place] for place in best), version=0)


@pytest.fixture
async def swarm(tmp_path: Path) -> Swarm:
    """Each has measured its link with the three behind it, and that of "a" and "b" is the best known. They are so
    unlike that those which are not known may be better."""
    found = Swarm(tmp_path)
    found.planner = OfTwo(1)
    await found.join(*PEERS)
    for place, peer in enumerate(PEERS):
        others = {PEERS[(place + far) % len(PEERS)]: SLOW / (1 + place * far % 5) for far in (1, 2, 3)}
        measure(found, peer, others | ({"b": BEST} if peer == "a" else {}))
    found.state.plan = plan_of("a", "b")
    found.gbps = {frozenset(pair): SLOW for pair in combinations(PEERS, 2)}
    found.control.said.clear()
    return found


def measure(swarm: Swarm, peer: str, rates: dict[str, float]) -> None:
    links = {other: Link(round_trip_ms=20.0, sent_gbps=gbps, received_gbps=gbps) for other, gbps in rates.items()}
    swarm.state.links.reported(peer, LinkReport(links=links))


def spare(swarm: Swarm) -> SpareMeasuring:
    return SpareMeasuring(swarm.state, swarm.planner, swarm.one, lambda: STANDSTILL)  # type: ignore[arg-type]


def unmeasured(swarm: Swarm) -> set[str]:
    links = swarm.state.links
    return {"".join(sorted(pair)) for pair in links.unmeasured([frozenset(pair) for pair in combinations(PEERS, 2)])}


async def look(swarm: Swarm, one: SpareMeasuring) -> bool:
    plan = swarm.state.plan
    assert plan is not None
    return await one.look(plan)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No estimates are so poor that more is measured than what a plan might use."""
    monkeypatch.setattr(filled_rounds, "POOR", np.inf)


@pytest.mark.usefixtures("trusted")
async def test_a_fast_link_that_nobody_knows_is_found_by_and_by_and_nobody_is_told_of_looks(swarm: Swarm) -> None:
    one, before = spare(swarm), unmeasured(swarm)
    assert before == {"ae", "bf", "cg", "dh"}
    swarm.gbps[frozenset("dh")] = FAST
    looks = 0
    while not await look(swarm, one):
        looks += 1
        assert looks <= len(before)
    assert "dh" in swarm.asked
    assert set(swarm.asked) <= before
    assert len(swarm.asked) == len(set(swarm.asked))
    assert all(len(turn.pairs) == 1 for turn in swarm.rounds)
    assert not any(turn.quick for turn in swarm.rounds), "a quick one takes a whole line, which training uses, too"
    assert swarm.phases == []
    assert set(swarm.planner.standstills) == {STANDSTILL}


async def test_where_estimates_are_poor_all_who_are_free_measure_in_the_round_of_a_look(swarm: Swarm) -> None:
    one, before = spare(swarm), unmeasured(swarm)
    assert not await look(swarm, one)
    assert len(swarm.rounds) == 1
    assert set(swarm.asked) == before


async def test_no_look_measures_a_link_that_training_uses(swarm: Swarm) -> None:
    before = unmeasured(swarm)
    swarm.state.plan = plan_of("a", "e")
    await look(swarm, spare(swarm))
    assert set(swarm.asked) == before - {"ae"}


@pytest.mark.usefixtures("trusted")
async def test_where_no_unknown_link_is_any_good_all_are_left_alone_in_the_end(swarm: Swarm) -> None:
    one = spare(swarm)
    for _ in range(len(unmeasured(swarm)) + 1):
        assert not await look(swarm, one)
    looks, asked = len(swarm.planner.views), swarm.asked
    assert not await look(swarm, one)
    assert (len(swarm.planner.views), swarm.asked) == (looks, asked), "nothing has changed"
    measure(swarm, "a", {"b": BEST * 1.01})
    await look(swarm, one)
    assert len(swarm.planner.views) > looks


async def test_where_all_links_are_known_no_plan_is_made(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    swarm.planner = OfTwo(1)
    await swarm.trains("a", "b", "c")
    one = spare(swarm)
    assert not await look(swarm, one)
    assert swarm.planner.views == []
    assert swarm.rounds == []


@pytest.fixture
def shared(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    """One in which whatever is measured shares its line: what a link carries at least is known of it."""

    def result(peer: str, turn: ProbeRound) -> ProbeResult:
        found = Swarm.result(swarm, peer, turn)
        assert found.link is not None
        return found.model_copy(update={"link": found.link.model_copy(update={"is_least": True})})

    monkeypatch.setattr(swarm, "result", result)
    return swarm


async def test_a_link_that_carries_much_beside_training_is_a_reason_for_another_plan_once(shared: Swarm) -> None:
    one, swarm = spare(shared), shared
    swarm.gbps = dict.fromkeys(swarm.gbps, FAST)
    assert await look(swarm, one)
    asked = swarm.asked
    for _ in range(3):
        assert not await look(swarm, one)
    assert swarm.asked == asked


async def test_a_link_whose_lines_training_shares_is_looked_at_once_a_plan_and_is_no_reason_for_another(
    shared: Swarm,
) -> None:
    swarm = shared
    one, before = spare(swarm), unmeasured(swarm)
    for _ in range(len(before) + 2):
        assert not await look(swarm, one)
    asked = swarm.asked
    assert 1 < len(asked) == len(set(asked))
    assert unmeasured(swarm) == before
    assert swarm.state.plan is not None
    swarm.state.plan = swarm.state.plan.model_copy(update={"version": 2})
    await look(swarm, one)
    assert len(swarm.asked) == len(asked) + 1


async def test_where_no_plan_fits_it_is_not_tried_again(swarm: Swarm) -> None:
    swarm.planner.needed = 9
    swarm.planner.as_missing = False
    one = spare(swarm)
    for _ in range(2):
        assert not await look(swarm, one)
    assert len(swarm.planner.views) == 1
    with pytest.raises(UserError):
        swarm.planner.plan(swarm.planner.views[0])


async def test_looks_leave_a_pause_and_there_are_none_at_a_layout_that_the_owner_has_fixed(swarm: Swarm) -> None:
    one = SpareMeasuring(
        swarm.state, swarm.planner, swarm.one, lambda: 0.0, replace(TIMEOUTS, spare_look=3.0)  # type: ignore[arg-type]
    )  # fmt: skip
    assert one.pause == 3.0
    one._took = 1.0
    assert one.pause == PATIENCE
    swarm.planner.is_forced = True  # type: ignore[attr-defined]
    assert one.pause is None


async def test_at_best_nothing_that_was_measured_changes_and_nothing_is_better_than_its_ends(swarm: Swarm) -> None:
    known = swarm.one.view(swarm.ready())
    nodes = tuple(node.model_copy(update={"up_gbps": SLOW / 2} if node.id == "a" else {}) for node in known.nodes)
    known = known.model_copy(update={"nodes": nodes})
    best = at_best(known)
    measured = ~np.isnan(known.bandwidth_gbps)
    np.testing.assert_array_equal(best.bandwidth_gbps[measured], known.bandwidth_gbps[measured])
    assert (best.beta() >= known.beta()).all()
    assert (best.alpha() <= known.alpha()).all()
    assert best.bandwidth_gbps[0, 4] == SLOW / 2 < best.bandwidth_gbps[4, 0]
