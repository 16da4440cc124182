"""The exact simulation of a step, against closed forms, bounds and an independent play without shared links."""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.paper.paper_cost import PaperCostModel
from dtfm_coordinator.allocator.problem.bucket_cut import BucketCut, buckets_of
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES
from dtfm_coordinator.allocator.simulator.simulated_timeline import REDUCTIONS, Simulation
from dtfm_coordinator.allocator.simulator.simulator import simulate
from dtfm_protocol.plan import reductions
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import orders
from tests.coordinator.swarms import DEMAND

F, B = 0.5, 1.25
MESSAGES = (2.0, 1.5)
"""Bytes ahead and back."""
BOTH = pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])


def links(
    peers: str, alpha: float = 0.0, beta: float = np.inf, up: float | None = None, down: float | None = None
) -> Links:
    """Equal links between one-letter peers."""
    count = len(peers)
    limits = [np.full(count, np.inf if limit is None else limit) for limit in (up, down)]
    rows = {peer: row for row, peer in enumerate(peers)}
    return Links(rows, np.full((count, count), alpha), np.full((count, count), beta), *limits)


def plan(*routes: str, schedule: str = "gpipe") -> Plan:
    """Routes as strings of one-letter peers."""
    stages = [(stage, stage + 1) for stage in range(len(routes[0]))]
    return Plan.read({"stages": stages, "routes": [tuple(route) for route in routes], "schedule": schedule}, "plan")


def equal(peers: str) -> dict[str, ActionSeconds]:
    return dict.fromkeys(peers, ActionSeconds(F, B))


@BOTH
@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_free_links_leave_the_bubble_of_gpipe(schedule: str, stages: int, micro_batches: int) -> None:
    route = "abcdef"[:stages]
    played = simulate(
        plan(*[route] * micro_batches, schedule=schedule), links(route), equal(route), (1.0, 1.0), [1.0] * stages
    )
    assert played.cost.total == pytest.approx((micro_batches + stages - 1) * (F + B))
    assert played.cost.compute == pytest.approx(micro_batches * (F + B))


@given(stages=st.integers(1, 6), more=st.integers(0, 8))
@settings(max_examples=30, deadline=None)
def test_a_split_backward_leaves_between_a_third_and_two_thirds_of_the_bubble(stages: int, more: int) -> None:
    """ZB-H1's closed form is (stages - 1)(forward + input - weight), a third of 1F1B's where the three take as long."""
    route, micro_batches = "abcdef"[:stages], stages + more
    whole = plan(*[route] * micro_batches, schedule="zero-bubble")
    split = simulate(whole, links(route), dict.fromkeys(route, ActionSeconds(1, 1, 1)), (1.0, 1.0), [1.0] * stages)
    assert split.cost.compute == pytest.approx(3 * micro_batches)
    assert stages - 1 <= split.cost.total - 3 * micro_batches <= 2 * (stages - 1)


def test_the_gradient_of_a_message_has_a_size_of_its_own() -> None:
    played = simulate(plan("ab"), links("ab", beta=2.0), equal("ab"), (6.0, 1.0), [0.0, 0.0])
    assert [(t.kind, t.bytes, t.end - t.start) for t in played.transfers] == [
        ("activation", 6, 3),
        ("gradient", 1, 0.5),
    ]


def test_messages_over_each_boundary_have_sizes_of_their_own() -> None:
    sizes = ((6.0, 1.0), (4.0, 3.0))
    played = simulate(plan("amx"), links("amx", beta=2.0), equal("amx"), MESSAGES, [0.0] * 3, boundary_bytes=sizes)
    assert [(t.sender, t.receiver, t.bytes, t.end - t.start) for t in played.transfers] == [
        ("a", "m", 6, 3),
        ("m", "x", 4, 2),
        ("x", "m", 3, 1.5),
        ("m", "a", 1, 0.5),
    ]
    assert played.cost.total == pytest.approx(3 * (F + B) + 3 + 2 + 1.5 + 0.5)


def test_the_stage_before_does_not_wait_for_weights() -> None:
    played = simulate(
        plan("ab", schedule="zero-bubble"), links("ab"), dict.fromkeys("ab", ActionSeconds(1, 2, 4)), (1, 1), [0.0, 0.0]
    )
    assert [(span.peer, span.kind, span.start) for span in played.compute] == [
        ("a", "forward", 0), ("b", "forward", 1), ("b", "backward", 2), ("b", "weight", 4), ("a", "backward", 4),
        ("a", "weight", 6),
    ]  # fmt: skip
    assert played.last_backward == 10


def test_a_message_waits_for_its_link_and_then_for_the_delay() -> None:
    # Two micro-batches over one boundary; a message takes 3 s to send and 1 s to arrive, far longer than compute.
    played = simulate(plan("ab", "ab"), links("ab", alpha=1.0, beta=2.0), equal("ab"), (6.0, 6.0), [0.0, 0.0])
    first, second = [t for t in played.transfers if t.kind == "activation"]
    assert (first.ready, first.start, first.end, first.arrival) == (F, F, F + 3, F + 4)
    assert (second.ready, second.start, second.end, second.arrival) == (2 * F, F + 3, F + 6, F + 7)
    last_gradient = (F + 7 + F + B) + 3 + 3 + 1
    assert played.last_backward == pytest.approx(last_gradient + B)
    # The commit of two peers: b's vote reached a long ago, and the answer takes the delay.
    assert played.cost.data_parallel == pytest.approx(1.0)


@pytest.mark.parametrize("limit", ["up", "down"])
def test_a_shared_uplink_or_downlink_halves_the_rates(limit: str) -> None:
    # Activations leave a at once for b and c; gradients of b and c come back to a at once.
    seconds = {peer: ActionSeconds(1e-9, 1e-9) for peer in "abc"}
    alone = simulate(plan("ab", "ac"), links("abc", beta=2.0), seconds, (6.0, 6.0), [0.0, 0.0])
    shared = simulate(plan("ab", "ac"), links("abc", beta=2.0, **{limit: 2.0}), seconds, (6.0, 6.0), [0.0, 0.0])
    slow, fast = ("activation", "gradient") if limit == "up" else ("gradient", "activation")
    assert [t.end - t.start for t in alone.transfers if t.kind != "all-reduce"] == pytest.approx([3.0] * 4)
    assert [t.end - t.start for t in shared.transfers if t.kind == slow] == pytest.approx([6.0] * 2)
    assert [t.end - t.start for t in shared.transfers if t.kind == fast] == pytest.approx([3.0] * 2)


def test_what_an_ended_transfer_leaves_the_others_take_at_once() -> None:
    # The uplink of 2 carries a's two messages at 1 each until, after 3 s, the first link's cap no longer matters.
    own = links("abc", beta=2.0, up=2.0)
    own.beta[0, 1] = 0.5
    played = simulate(plan("ab", "ac"), own, {p: ActionSeconds(1e-9, 1e-9) for p in "abc"}, (3.0, 3.0), [0, 0])
    to_b, to_c = [t for t in played.transfers if t.kind == "activation"]
    assert to_b.end - to_b.start == pytest.approx(6.0)
    assert to_c.end - to_c.start == pytest.approx(2.0)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_an_all_reduce_alone_is_the_papers_but_for_delays_that_overlap(replicas: int) -> None:
    peers, alpha, beta, gradients = "abcde"[:replicas], 0.25, 2.0, 12.0
    route, seconds = plan(*peers), equal(peers)
    commit = 2 * alpha if replicas > 1 else 0.0
    # Links alone carry all of a peer's parts at once; one part there, one sum back.
    apart = simulate(route, links(peers, alpha, beta), seconds, (0.0, 0.0), [gradients])
    once = 2 * (alpha + gradients / (replicas * beta)) if replicas > 1 else 0.0
    assert apart.cost.data_parallel == pytest.approx(once + commit)
    # Where a peer's links share its uplink, its parts take (n - 1) times as long: the paper's bandwidth term, with
    # the delay of one message each way instead of n - 1 of them.
    shared = simulate(route, links(peers, alpha, beta, up=beta), seconds, (0.0, 0.0), [gradients])
    own = links(peers, alpha, beta)
    papers = PaperCostModel(own.alpha, own.beta, 0.0, gradients, replicas).data_parallel(range(replicas))
    overlapped = 2 * max(0, replicas - 2) * alpha
    assert shared.cost.data_parallel == pytest.approx(papers - overlapped + commit)
    assert apart.cost.pipeline == shared.cost.pipeline == 0.0


def test_a_stage_reduces_while_earlier_stages_still_compute() -> None:
    # With one micro-batch each, stage 1 is done B + 1 before stage 0 and its all-reduce of 1 s hides behind that.
    routes = plan("ac", "bd")
    played = simulate(routes, links("abcd", beta=1.0), equal("abcd"), (0.0, 0.0), [0.0, 1.0])
    assert played.cost.data_parallel == pytest.approx(0.0)
    assert played.cost.total == pytest.approx(2 * (F + B))


def test_a_replica_that_is_done_early_waits_for_the_parts_of_the_last() -> None:
    routes, seconds = plan("a", "a", "b"), equal("ab")
    played = simulate(routes, links("ab", beta=1.0), seconds, (0.0, 0.0), [2.0])
    own, other = (next(t for t in played.transfers if t.sender == peer) for peer in "ab")
    assert (other.ready, other.end) == (pytest.approx(F + B), pytest.approx(F + B + 1))
    assert (own.ready, own.end) == (pytest.approx(2 * (F + B)), pytest.approx(2 * (F + B) + 1))
    assert played.committed == pytest.approx(2 * (F + B) + 2)


def test_first_and_last_stage_reduce_what_they_share_beside_their_own() -> None:
    """Two stages of one peer each: there is nothing else to reduce. Each owns half of the 4 bytes."""
    played = simulate(plan("ab"), links("ab", beta=1.0), equal("ab"), (0.0, 0.0), [9.0, 9.0], tied_gradient_bytes=4.0)
    shared = [(t.sender, t.ready, t.start, t.end, t.bytes) for t in played.transfers if t.kind == "tied all-reduce"]
    assert [t.kind for t in played.transfers if t.micro_batch is None] == ["tied all-reduce"] * 4
    # b is done a backward before a, whose part is then on its way until 5.5; a's sum waits for its link until that.
    assert shared == [
        ("b", 2.25, 2.25, 4.25, 2),
        ("a", 3.5, 3.5, 5.5, 2),
        ("a", 4.25, 5.5, 7.5, 2),
        ("b", 5.5, 5.5, 7.5, 2),
    ]
    assert (played.last_backward, played.committed) == (3.5, 7.5)
    # With replicas the stage's own parts go first. Own: 2 bytes a part; shared: 8 among four peers, 2 as well.
    played = simulate(
        plan("ac", "bd"), links("abcd", beta=1.0), equal("abcd"), (0.0, 0.0), [4.0, 4.0], tied_gradient_bytes=8.0
    )
    inside = [(t.kind, t.start, t.end) for t in played.transfers if (t.sender, t.receiver) == ("a", "b")][-4:]
    assert inside == [
        ("all-reduce", 3.5, 5.5), ("tied all-reduce", 5.5, 7.5),
        ("all-reduce", 7.5, 9.5), ("tied all-reduce", 9.5, 11.5),
    ]  # fmt: skip
    assert played.committed == 11.5


def test_what_goes_first_and_what_begins_early_is_as_the_timing_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_between(sender: str, receiver: str) -> list[tuple[str, float]]:
        cut = BucketCut((4.0, 4.0), 2, ((0.5, 1.0), (0.5, 1.0)))
        routes = plan("amc", "bmd")
        played = simulate(
            routes, links("abcdm", beta=1.0), equal("abcdm"), (0.0, 0.0), [8.0, 0.0, 8.0], tied_gradient_bytes=8.0,
            buckets=lambda one, size: cut._replace(final=cut.final[: len(one.stages)]),
        )  # fmt: skip
        ends = [span.end for span in played.compute if span.peer == sender]
        sent = [t for t in played.transfers if (t.sender, t.receiver) == (sender, receiver) and t.micro_batch is None]
        return [(t.kind, t.ready - max(ends)) for t in sent][:2]

    half = -B / 2
    assert first_between("a", "b") == [("all-reduce", half), ("tied all-reduce", half)]
    monkeypatch.setattr(reductions, "SHARED_TIMING", reductions.SHARED_TIMING._replace(priority=-1))
    assert first_between("a", "b") == [("tied all-reduce", half), ("all-reduce", half)]


def test_buckets_that_begin_after_all_actions_are_cut_so(monkeypatch: pytest.MonkeyPatch) -> None:
    routes, demand = plan("amc", "bmd"), replace(DEMAND, layer_parameters=(30_000_000,) * 3)
    cut, (*_, both) = buckets_of(routes, demand), reductions.reductions(routes, tied=True)
    assert cut(both, 1.0).final[1][0] < 1.0
    monkeypatch.setattr(reductions, "SHARED_TIMING", reductions.SHARED_TIMING._replace(begins="after actions"))
    *_, both = reductions.reductions(routes, tied=True)
    assert set(cut(both, 1.0).final) == {(1.0,)}


def test_one_stage_shares_its_tied_matrix_with_nobody_and_middle_stages_take_no_part() -> None:
    whole = simulate(plan("a", "b"), links("ab", beta=1.0), equal("ab"), (0.0, 0.0), [4.0], tied_gradient_bytes=8.0)
    assert {t.kind for t in whole.transfers} == {"all-reduce"}
    three = simulate(plan("amx"), links("amx", beta=1.0), equal("amx"), (0.0, 0.0), [1.0] * 3, tied_gradient_bytes=8.0)
    assert {frozenset((t.sender, t.receiver)) for t in three.transfers if t.micro_batch is None} == {frozenset("ax")}


def test_the_slowest_optimizer_ends_the_step() -> None:
    played = simulate(plan("ab"), links("ab", alpha=1.0), equal("ab"), (0.0, 0.0), [0.0, 0.0], {"a": 2.0, "b": 5.0})
    backward = 2 * (F + B) + 2
    assert (played.last_backward, played.committed) == (pytest.approx(backward), pytest.approx(backward + 1))
    assert played.cost.optimizer == pytest.approx(5.0)
    updates = {span.peer: (span.start, span.end) for span in played.compute if span.kind == "optimizer"}
    # The arbiter's own commit takes no message.
    assert updates == {"a": pytest.approx((backward, backward + 2)), "b": pytest.approx((backward + 1, backward + 6))}


@pytest.mark.parametrize("up", [None, 1.0])
def test_a_pair_that_cannot_talk_costs_infinity_wherever_it_must(up: float | None) -> None:
    broken = links("abc", beta=1.0, up=up)
    broken.beta[0, 1] = 0.0
    on_a_route = simulate(plan("ab"), broken, equal("abc"), (1.0, 1.0), [1.0, 1.0]).cost
    assert (on_a_route.compute, on_a_route.pipeline, on_a_route.data_parallel) == (F + B, math.inf, 0.0)
    in_a_group = simulate(plan("a", "b"), broken, equal("abc"), (1.0, 1.0), [1.0]).cost
    assert (in_a_group.pipeline, in_a_group.data_parallel, in_a_group.optimizer) == (0.0, math.inf, 0.0)
    assert on_a_route.total == in_a_group.total == math.inf
    # The commit, too, must cross from the first peer to every other one.
    assert simulate(plan("acb"), broken, equal("abc"), (1.0, 1.0), [1.0, 1.0, 1.0]).cost.total == math.inf
    assert simulate(plan("bca"), broken, equal("abc"), (1.0, 1.0), [1.0, 1.0, 1.0]).cost.total == math.inf


def test_links_of_infinite_bandwidth_take_no_time() -> None:
    played = simulate(plan("ab"), links("ab"), equal("ab"), (1e9, 1e9), [1e9, 1e9])
    assert played.cost.total == pytest.approx(2 * (F + B))


class Drawn:
    """Routes, links and speeds as hypothesis draws them."""

    def __init__(self, data: st.DataObject, limited: bool) -> None:
        counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        names = iter("abcdefghijkl")
        groups = [[next(names) for _ in range(count)] for count in counts]
        routes = [
            "".join(data.draw(st.sampled_from(peers)) for peers in groups) for _ in range(data.draw(st.integers(3, 9)))
        ]
        self.plan = plan(*routes, schedule=data.draw(st.sampled_from(SCHEDULES)))
        peers = self.plan.peers
        rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
        shape = (len(peers), len(peers))
        limits = [rng.choice([1.0, 3.0, np.inf], len(peers)) if limited else np.full(len(peers), np.inf) for _ in "ud"]
        beta = np.minimum(rng.uniform(0.5, 8.0, shape), np.minimum(limits[0][:, None], limits[1][None, :]))
        alpha = rng.choice([0.0, 0.25, 3.0], shape)
        self.links = Links({peer: row for row, peer in enumerate(peers)}, alpha, beta, *limits)
        self.seconds = {peer: ActionSeconds(*rng.uniform(0.1, [2, 4, 2]).tolist()) for peer in peers}
        self.gradients = [float(rng.choice([0.0, 2.0, 9.0])) for _ in groups]
        self.tied = float(rng.choice([0.0, 5.0])) if len(groups) > 1 else 0.0

    def play(self) -> Simulation:
        return simulate(self.plan, self.links, self.seconds, MESSAGES, self.gradients, tied_gradient_bytes=self.tied)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_byte_is_sent_once_and_nothing_beats_the_busiest_peer_or_link(data: st.DataObject) -> None:
    drawn = Drawn(data, limited=True)
    played = drawn.play()
    assert played == drawn.play()
    routes, stages = drawn.plan.routes, range(len(drawn.plan.stages))
    for kind, towards, size in (("activation", 1, MESSAGES[0]), ("gradient", -1, MESSAGES[1])):
        due = Counter(
            (route[stage], route[stage + towards], index)
            for index, route in enumerate(routes)
            for stage in stages
            if stage + towards in stages
        )
        sent = [transfer for transfer in played.transfers if transfer.kind == kind]
        assert due == Counter((t.sender, t.receiver, t.micro_batch) for t in sent)
        assert {transfer.bytes for transfer in sent} <= {size}
    reduced: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for transfer in played.transfers:
        assert transfer.ready <= transfer.start <= transfer.end <= transfer.arrival
        if transfer.kind in REDUCTIONS:
            reduced[transfer.kind][transfer.sender, transfer.receiver].append(transfer.bytes)
    for stage in stages:
        holders = drawn.plan.replicas(stage)
        for pair in ((one, other) for one in holders for other in holders if one != other):
            parts = [drawn.gradients[stage] / len(holders)] * 2
            assert reduced["all-reduce"][pair] == (parts if drawn.gradients[stage] else [])
    ends = drawn.plan.replicas(0) + drawn.plan.replicas(stages[-1])
    assert reduced["tied all-reduce"] == {
        pair: [drawn.tied / len(ends)] * 2 for pair in permutations(ends, 2) if drawn.tied
    }
    for peer, actions in drawn.plan.shares().items():
        spans = [span for span in played.compute if span.peer == peer]
        assert len(spans) == (3 if drawn.plan.schedule == "zero-bubble" else 2) * actions
        assert all(one.end <= other.start for one, other in pairwise(spans))
    busiest = max(sum(getattr(drawn.seconds[p], a.kind) for a in order) for p, order in orders(drawn.plan).items())
    assert played.cost.compute == pytest.approx(busiest)
    assert min(played.cost.pipeline, played.cost.data_parallel, played.cost.optimizer) >= -1e-9
    assert played.cost.total == pytest.approx(played.committed)
    for (one, other), sizes in _bytes_of_links(played).items():
        assert played.cost.total >= sizes / drawn.links.beta[drawn.links.index[one], drawn.links.index[other]] - 1e-9


def _bytes_of_links(played: Simulation) -> dict[tuple[str, str], float]:
    sizes: dict[tuple[str, str], float] = defaultdict(float)
    for transfer in played.transfers:
        sizes[transfer.sender, transfer.receiver] += transfer.bytes
    return sizes


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_link_uplink_or_downlink_ever_carries_more_than_it_can(data: st.DataObject) -> None:
    drawn = Drawn(data, limited=True)
    played = drawn.play()
    index = drawn.links.index
    groups = defaultdict(list)
    for transfer in played.transfers:
        sender, receiver = index[transfer.sender], index[transfer.receiver]
        groups["link", sender, receiver, drawn.links.beta[sender, receiver]].append(transfer)
        groups["up", sender, drawn.links.uplink[sender]].append(transfer)
        groups["down", receiver, drawn.links.downlink[receiver]].append(transfer)
    for (*name, capacity), carried in groups.items():
        if name[0] == "link":
            ends = [0.0, *(transfer.end for transfer in carried)]
            assert all(t.start >= end - 1e-9 for t, end in zip(carried, ends, strict=False)), "one after another"
        for begin in carried if capacity < np.inf else ():
            for end in carried:
                within = sum(t.bytes for t in carried if t.start >= begin.start and t.end <= end.end)
                assert within <= capacity * max(0.0, end.end - begin.start) * (1 + 1e-6) + 1e-6, name


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_without_limits_the_last_backward_is_that_of_times_followed_peer_by_peer(data: st.DataObject) -> None:
    drawn = Drawn(data, limited=False)
    assert drawn.play().last_backward == pytest.approx(_followed(drawn))


def _followed(drawn: Drawn) -> float:
    """When the last backward ends: each time from the times before it, without events.

    A link is fed by one peer in that peer's own order, so where links are alone peers may be visited in any order.
    """
    own, last = drawn.links, len(drawn.plan.stages) - 1
    arrived: dict[tuple[str, int, str], float] = {}
    clock, done = dict.fromkeys(drawn.plan.peers, 0.0), dict.fromkeys(drawn.plan.peers, 0)
    free: dict[tuple[str, str], float] = defaultdict(float)
    ready = list(drawn.plan.peers)
    while ready:
        peer = ready.pop()
        for action in orders(drawn.plan)[peer][done[peer] :]:
            route = drawn.plan.routes[action.micro_batch]
            stage = route.index(peer)
            is_entry = action.kind == "weight" or (action.kind, stage) == ("forward", 0)
            needed = 0.0 if is_entry else arrived.get((action.kind, action.micro_batch, peer))
            if needed is None:
                break
            clock[peer] = max(clock[peer], needed) + getattr(drawn.seconds[peer], action.kind)
            done[peer] += 1
            if action.kind == "forward" and stage == last:
                arrived["backward", action.micro_batch, peer] = clock[peer]
                continue
            to = stage + 1 if action.kind == "forward" else stage - 1
            if action.kind == "weight" or to < 0:
                continue
            size = MESSAGES[0] if action.kind == "forward" else MESSAGES[1]
            pair = own.index[peer], own.index[route[to]]
            free[peer, route[to]] = max(clock[peer], free[peer, route[to]]) + size / own.beta[pair]
            arrived[action.kind, action.micro_batch, route[to]] = free[peer, route[to]] + own.alpha[pair]
            ready.append(route[to])
    return max(clock.values())
