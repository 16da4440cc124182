"""The simulated step, against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.makespan import Links, all_reduce_seconds, makespan
from dtfm_coordinator.allocator.paper_cost import PaperCostModel
from dtfm_protocol.plan import Plan
from dtfm_protocol.schedule import orders
from dtfm_protocol.view import LayerSeconds, NodeView, View

F, B = 0.5, 1.25


def links(peers: tuple[str, ...], alpha: float = 0.0, beta: float = np.inf, uplink: float = np.inf) -> Links:
    count = len(peers)
    rows = {peer: row for row, peer in enumerate(peers)}
    return Links(rows, np.full((count, count), alpha), np.full((count, count), beta), np.full(count, uplink))


def plan(*routes: str, schedule: str = "gpipe") -> Plan:
    """Routes as strings of one-letter peers."""
    stages = [(stage, stage + 1) for stage in range(len(routes[0]))]
    return Plan.read({"stages": stages, "routes": [tuple(route) for route in routes], "schedule": schedule}, "plan")


def equal(peers: tuple[str, ...]) -> dict[str, LayerSeconds]:
    return dict.fromkeys(peers, LayerSeconds(forward=F, backward=B))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 5])
def test_one_peer_takes_the_sum_of_its_compute(micro_batches: int, schedule: str) -> None:
    cost = makespan(plan(*["a"] * micro_batches, schedule=schedule), links(("a",)), equal(("a",)), 1e6, [1e6])
    assert cost.compute == pytest.approx(micro_batches * (F + B))
    assert (cost.pipeline, cost.data_parallel) == (0.0, 0.0)
    assert cost.total == cost.compute


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_free_links_leave_the_bubble_of_gpipe(schedule: str, stages: int, micro_batches: int) -> None:
    route = "abcdef"[:stages]
    one = plan(*[route] * micro_batches, schedule=schedule)
    cost = makespan(one, links(tuple(route)), equal(tuple(route)), 0.0, [0.0] * stages)
    assert cost.total == pytest.approx((micro_batches + stages - 1) * (F + B))
    assert cost.compute == pytest.approx(micro_batches * (F + B))


def test_a_message_waits_for_the_link_and_then_for_the_delay() -> None:
    # Two micro-batches over one boundary; a message takes 3 s to send and 1 s to arrive, far longer than compute.
    cost = makespan(plan("ab", "ab"), links(("a", "b"), alpha=1.0, beta=2.0), equal(("a", "b")), 6.0, [0.0, 0.0])
    first_arrival = F + 3 + 1
    second_arrival = F + 3 + 3 + 1
    first_gradient_sent = max(second_arrival + F, first_arrival + 2 * F) + B + 3
    second_gradient = first_gradient_sent + 3 + 1
    assert cost.total == pytest.approx(second_gradient + B)


def test_two_links_carry_at_once_unless_the_senders_uplink_is_shared() -> None:
    routes, peers = plan("ab", "ac"), ("a", "b", "c")
    apart = makespan(routes, links(peers, beta=2.0), equal(peers), 6.0, [0.0, 0.0])
    shared = makespan(routes, links(peers, beta=2.0, uplink=2.0), equal(peers), 6.0, [0.0, 0.0])
    # Apart, the gradients come back F after one another and wait for a; shared, the second message leaves when the
    # first is out.
    assert apart.total == pytest.approx(F + 3 + F + B + 3 + 2 * B)
    assert shared.total == pytest.approx(F + 3 + 3 + F + B + 3 + B)


def test_the_all_reduce_is_the_papers_formula_for_groups_of_any_size() -> None:
    rng = np.random.default_rng(0)
    peers = ("a", "b", "c", "d", "e")
    own = Links({p: i for i, p in enumerate(peers)}, rng.random((5, 5)), rng.uniform(1, 9, (5, 5)), np.full(5, np.inf))
    model = PaperCostModel(own.alpha, own.beta, 1.0, 7.0, replicas=3)
    assert all_reduce_seconds(own, ("d", "a", "c"), 7.0) == pytest.approx(model.data_parallel([3, 0, 2]))
    assert all_reduce_seconds(own, ("e",), 7.0) == 0.0
    uneven = plan("ad", "be", "cd", "ae")
    cost = makespan(uneven, own, equal(peers), 1.0, [7.0, 11.0])
    assert cost.data_parallel == max(
        all_reduce_seconds(own, ("a", "b", "c"), 7.0), all_reduce_seconds(own, ("d", "e"), 11.0)
    )


def test_an_unreachable_pair_on_a_route_or_in_a_group_costs_infinity() -> None:
    broken = links(("a", "b"), beta=1.0)
    broken.beta[0, 1] = 0.0
    assert makespan(plan("ab"), broken, equal(("a", "b")), 1.0, [1.0, 1.0]).total == np.inf
    assert makespan(plan("a", "b"), broken, equal(("a", "b")), 1.0, [1.0]).total == np.inf


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_uneven_routes_play_to_the_end_within_their_bounds(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    names = iter("abcdefghijkl")
    stages = [[next(names) for _ in range(count)] for count in counts]
    total = data.draw(st.integers(3, 9))
    routes = ["".join(data.draw(st.sampled_from(peers)) for peers in stages) for _ in range(total)]
    drawn = plan(*routes, schedule=data.draw(st.sampled_from(["gpipe", "1f1b"])))
    seconds = {
        peer: LayerSeconds(forward=data.draw(st.floats(0.1, 2)), backward=data.draw(st.floats(0.1, 4)))
        for peer in drawn.peers
    }
    cost = makespan(drawn, links(drawn.peers, 0.01, 1e3), seconds, 10.0, [0.0] * len(stages))
    busiest = max(sum(getattr(seconds[p], a.kind) for a in actions) for p, actions in orders(drawn).items())
    everything = sum(seconds[p].forward + seconds[p].backward + 2 * (0.01 + 0.01) for route in routes for p in route)
    assert cost.compute == pytest.approx(busiest)
    assert busiest <= cost.total + 1e-9
    assert cost.total <= everything


def test_the_links_of_a_view_are_no_faster_than_its_ends() -> None:
    nodes = (NodeView(id="a", up_gbps=0.5), NodeView(id="b", down_gbps=0.25), NodeView(id="c"))
    view = View(nodes=nodes, latency_ms=((1, 1, 1),) * 3, bandwidth_gbps=((1, 1, 1),) * 3)
    own = Links.of(view)
    assert own.beta[0, 1] == 0.25 * 1.25e8
    assert own.beta[0, 2] == 0.5 * 1.25e8
    assert own.beta[2, 0] == 1.25e8
    assert own.uplink[0] == 0.5 * 1.25e8
    assert own.uplink[1] == np.inf
