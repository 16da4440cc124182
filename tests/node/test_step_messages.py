"""What one peer is to send is what another is to receive, on every layout."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.buckets import flats_of
from dtfm_node.engine.expected_frames import ballot_frames, evaluation_frames, step_frames
from dtfm_node.engine.frame_seals import SEAL_BYTES
from dtfm_node.engine.step_messages import (
    StepMessage,
    arbiter_of,
    ballot_messages,
    boundary_messages,
    evaluation_messages,
    losses_due,
    received,
    reduction_messages,
    sent,
    share_of,
)
from dtfm_protocol.job.job_file import Training, Wire
from dtfm_protocol.plan.ballot import Ballot
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.wire.codecs import payload_bytes
from dtfm_protocol.wire.frames import Key, Kind
from tests.harness.drawn_trees import drawn_trees
from tests.node.engine_swarm import PLANS, plan_of

STEP, EVALUATED = 3, 13
GROUPS = [{"norm": 4}, {"layer": 10}, {"embed": 40}]
TRAINING = Training(steps=9, global_batch=8, micro_batch=2, sequence_length=16, learning_rate=1.0)
HIDDEN = 32
Messages = Callable[[Plan, str], list[StepMessage]]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to four stages of up to three peers, any routes through them, any wires."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    micro_batches = draw(st.integers(1, 6))
    routes = [
        [f"{stage}.{draw(st.integers(0, count - 1))}" for stage, count in enumerate(counts)]
        for _ in range(micro_batches)
    ]
    codecs = st.sampled_from(["fp32", "bf16", "fp16", "int8"])
    wires = st.fixed_dictionaries({"activations": codecs, "gradients": codecs})
    plain = Plan.model_validate({"stages": [(stage, stage + 1) for stage in range(len(counts))], "routes": routes})
    sizes = [len(plain.replicas(stage)) for stage in range(len(counts))]
    both = [sizes[0] + sizes[-1]] if len(sizes) > 1 else [0]
    stages, shared = ([draw(summed(count)) for count in some] for some in (sizes, both))
    trees = [drawn_trees(count, draw(st.integers(0, 99))) if draw(st.booleans()) else () for count in sizes]
    return Plan.model_validate(
        {
            "trees": {"stages": trees, "shared": drawn_trees(both[0], 5) if draw(st.booleans()) else ()},
            "parts": {"stages": stages, "shared": shared[0]},
            "version": 1,
            "stages": [(stage, stage + 1) for stage in range(len(counts))],
            "routes": routes,
            "wire": draw(wires),
            "boundaries": draw(st.just([]) | st.lists(wires, min_size=len(counts) - 1, max_size=len(counts) - 1)),
        }
    )


def summed(count: int) -> st.SearchStrategy[list[int]]:
    """Parts of so many holders, or none: for equal ones."""
    cuts = st.lists(st.integers(0, WHOLE), min_size=count - 1, max_size=count - 1).map(sorted)
    parts = cuts.map(lambda found: [high - low for low, high in pairwise([0, *found, WHOLE])])
    return st.just([]) if count == 0 else st.just([]) | parts


def reductions(plan: Plan, peer: str) -> list[StepMessage]:
    """Of buckets of a few elements, some of them of a matrix that both ends hold."""
    stage = plan.stage_of(peer)
    assert stage is not None
    flats = flats_of(plan, stage, GROUPS, {"embed"}, most_bytes=4 * 7)
    return [one for flat in flats for bucket in flat.buckets for one in reduction_messages(bucket, peer)]


KINDS: dict[str, Messages] = {
    "boundaries": boundary_messages,
    "evaluation": lambda plan, peer: evaluation_messages(plan, peer, EVALUATED),
    "reductions": reductions,
    "ballots": lambda plan, peer: [one for ballot in Ballot for one in ballot_messages(plan, peer, ballot)],
}


def assert_both_sides_agree(plan: Plan, messages: Messages) -> None:
    outgoing: Counter[StepMessage] = Counter()
    incoming: Counter[StepMessage] = Counter()
    for peer in plan.peers:
        mine = messages(plan, peer)
        assert all(peer in (one.sender, one.receiver) and one.sender != one.receiver for one in mine)
        outgoing.update(sent(mine, peer))
        incoming.update(received(mine, peer))
        keys = [(one.sender, one.key(STEP)) for one in received(mine, peer)]
        assert len(set(keys)) == len(keys), "two frames of one sender have the same key"
    assert outgoing == incoming
    assert not outgoing or max(outgoing.values()) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLANS)
def test_what_a_peer_is_to_send_is_what_another_is_to_receive(name: str, kind: str) -> None:
    assert_both_sides_agree(plan_of(name), KINDS[kind])


@given(plans(), st.sampled_from(sorted(KINDS)))
@settings(max_examples=150, deadline=None)
def test_it_is_on_any_routes(plan: Plan, kind: str) -> None:
    assert_both_sides_agree(plan, KINDS[kind])


@given(plans())
@settings(max_examples=60, deadline=None)
def test_each_boundary_of_each_route_is_crossed_once_each_way(plan: Plan) -> None:
    """And by one evaluation message, as often as the routes come round."""
    crossed = [one for peer in plan.peers for one in sent(boundary_messages(plan, peer), peer)]
    wanted: Counter[StepMessage] = Counter()
    for index, route in enumerate(plan.routes):
        for before, after in pairwise(route):
            wanted[StepMessage(Kind.ACTIVATION, index, before, after)] += 1
            wanted[StepMessage(Kind.GRADIENT, index, after, before)] += 1
    assert Counter(crossed) == wanted
    evaluated = [one for peer in plan.peers for one in sent(evaluation_messages(plan, peer, EVALUATED), peer)]
    assert Counter(evaluated) == Counter(
        StepMessage(Kind.EVALUATION, index, before, after)
        for index in range(EVALUATED)
        for route in [plan.routes[index % len(plan.routes)]]
        for before, after in pairwise(route)
    )
    for peer in plan.peers:
        assert share_of(plan, peer, len(plan.routes)) == plan.micro_batches(peer)


@given(plans())
@settings(max_examples=60, deadline=None)
def test_every_peer_but_the_arbiter_votes_once_and_hears_once(plan: Plan) -> None:
    others = Counter(plan.peers[1:])
    arbiter = arbiter_of(plan)
    messages = ballot_messages(plan, arbiter, Ballot.STEP)
    assert Counter(one.sender for one in received(messages, arbiter, Kind.VOTE)) == others
    assert Counter(one.receiver for one in sent(messages, arbiter, Kind.COMMIT)) == others


@given(plans())
@settings(max_examples=60, deadline=None)
def test_each_frame_that_is_sent_is_posted_by_its_receiver_with_its_size(plan: Plan) -> None:
    shape = (TRAINING.micro_batch, TRAINING.sequence_length, HIDDEN)
    # What crosses the boundary before each stage, and the one behind it; there is none at the ends.
    crossing = [None, *(plan.boundaries or [plan.wire] * (len(plan.stages) - 1)), None]
    for peer in plan.peers:
        stage = plan.stage_of(peer)
        assert stage is not None
        before, after = crossing[stage], crossing[stage + 1]
        buckets = [bucket for flat in flats_of(plan, stage, GROUPS, set(), most_bytes=28) for bucket in flat.buckets]
        posted = {(one.sender, one.key): one.size for one in step_frames(plan, peer, STEP, TRAINING, HIDDEN, buckets)}
        due = received(boundary_messages(plan, peer), peer)
        for bucket in buckets:
            due += received(reduction_messages(bucket, peer), peer)
        assert posted.keys() == {(one.sender, one.key(STEP)) for one in due}
        for (sender, key), size in posted.items():
            if key.kind.is_bulk:
                bucket = buckets[key.group]
                low, high = bucket.parts[key.index]
                seal = SEAL_BYTES if key.kind is Kind.REDUCED else 0
                of_several = len(bucket.reduction.summed(key.index, bucket.holders.index(sender))) > 1
                codec = "fp32" if of_several and key.kind is Kind.PART else plan.wire.gradients
                assert size == payload_bytes(codec, (high - low,)) + seal
            else:
                wire = before if key.kind is Kind.ACTIVATION else after
                assert wire is not None
                codec = wire.activations if key.kind is Kind.ACTIVATION else wire.gradients
                assert size == payload_bytes(codec, shape)
        batches = [2] * (EVALUATED - 1) + [1]
        frames = list(evaluation_frames(plan, peer, STEP, batches, TRAINING.sequence_length, HIDDEN))
        assert [one.key for one in frames] == keys(received(evaluation_messages(plan, peer, EVALUATED), peer))
        for one in frames:
            batch = (batches[one.key.index], *shape[1:])
            assert before is not None
            assert one.size == payload_bytes(before.activations, batch)
        ballots = list(ballot_frames(plan, peer, STEP, Ballot.STEP))
        assert [one.key for one in ballots] == keys(received(ballot_messages(plan, peer, Ballot.STEP), peer))
        assert not any(one.exact for one in ballots)


def keys(messages: Iterable[StepMessage]) -> list[Key]:
    return [one.key(STEP) for one in messages]


def test_three_holders_send_parts_to_their_owners_and_totals_to_all() -> None:
    plan = Plan(version=1, stages=((0, 1),), routes=(("a",), ("b",), ("c",)), wire=Wire())
    ((bucket,),) = [flat.buckets for flat in flats_of(plan, 0, GROUPS, set())]
    assert reduction_messages(bucket, "b") == [
        StepMessage(Kind.PART, 0, "b", "a"),
        StepMessage(Kind.PART, 2, "b", "c"),
        StepMessage(Kind.PART, 1, "a", "b"),
        StepMessage(Kind.PART, 1, "c", "b"),
        StepMessage(Kind.REDUCED, 1, "b", "a"),
        StepMessage(Kind.REDUCED, 1, "b", "c"),
        StepMessage(Kind.REDUCED, 0, "a", "b"),
        StepMessage(Kind.REDUCED, 2, "c", "b"),
    ]


def test_who_sums_nothing_sends_its_part_to_those_who_do_and_is_sent_their_totals() -> None:
    parts = SummedParts(stages=((WHOLE - 1, 0, 1),))
    plan = Plan(version=1, stages=((0, 1),), routes=(("a",), ("b",), ("c",)), parts=parts)
    ((bucket,),) = [flat.buckets for flat in flats_of(plan, 0, GROUPS, set())]
    assert reduction_messages(bucket, "b") == [
        StepMessage(Kind.PART, 0, "b", "a"),
        StepMessage(Kind.PART, 2, "b", "c"),
        StepMessage(Kind.REDUCED, 0, "a", "b"),
        StepMessage(Kind.REDUCED, 2, "c", "b"),
    ]


@pytest.mark.parametrize("micro_batches", [0, 1, 4, 7])
def test_each_loss_is_due_from_the_one_peer_of_the_last_stage_that_computes_it(micro_batches: int) -> None:
    plan = Plan(stages=((0, 1), (1, 2)), routes=(("a", "x"), ("a", "x"), ("a", "y"), ("b", "y")))
    due = losses_due(plan, micro_batches)
    assert tuple(due) == plan.peers
    assert due["a"] == due["b"] == ()
    assert sorted([*due["x"], *due["y"]]) == list(range(micro_batches))
    assert all(plan.routes[index % 4][1] == peer for peer in ("x", "y") for index in due[peer])
