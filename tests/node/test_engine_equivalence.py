"""The swarm's mathematics is that of one process: every plan is held to the plain loop of `dtfm-node solo`."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_node.commands.solo import Solo
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_pace import Pacing
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.schedule import actions_of, most_in_flight, orders, plain_in_flight
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from tests.harness.drawn_trees import drawn_trees
from tests.node.engine_reference import LESS, LESS_APART, alone, assert_same_training, distance, state_in, values_of
from tests.node.engine_swarm import CPU, PLANS, STEPS, Swarm, home, identical, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow


def test_the_reference_learns_clips_and_evaluates(home: Path) -> None:
    """Else the comparisons below would compare nothing."""
    job, reference = job_of(home), alone(home, False)
    assert any(row.grad_norm > job.training.clip_norm for row in reference.rows)
    assert [row.step for row in reference.rows if row.eval_loss is not None] == [4, 6]
    assert len({row.loss for row in reference.rows}) == STEPS
    assert len({key.partition("/")[0] for key in reference.state}) == 3


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", PLANS)
async def test_any_plan_trains_as_one_process_does(home: Path, name: str, tied: bool) -> None:
    found = await Swarm(home, job_of(home, tied=tied), plan_of(name)).run()
    assert_same_training(found, alone(home, tied), 1e-5)


@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
@pytest.mark.parametrize(
    ("name", "tied"), [("1x1", False), ("1x4", False), ("1x4", True), ("2x2", True), ("crossed routes", True)]
)
async def test_the_schedule_does_not_change_what_is_computed(home: Path, name: str, schedule: str, tied: bool) -> None:
    found = await Swarm(home, job_of(home, tied=tied), plan_of(name, schedule=schedule)).run()
    assert_same_training(found, alone(home, tied), 1e-5)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(("name", "recompute"), [("1x1", [0]), ("2x2", [0, 1]), ("crossed routes", [1])])
async def test_recomputing_a_stage_does_not_change_what_is_computed(
    home: Path, name: str, recompute: list[int], schedule: str
) -> None:
    found = await Swarm(home, job_of(home), plan_of(name, recompute=recompute, schedule=schedule)).run()
    assert_same_training(found, alone(home, False), 1e-5)


def far_apart(plan: Plan) -> Plan:
    """The plan with the pace of unequal peers on links that take longer than all compute, and eight more in flight than
    free links would need."""
    split, shares = plan.schedule == "zero-bubble", plan.shares()
    numbers, pairs = range(len(plan.peers)), range(len(plan.pairs))
    plain = [plain_in_flight(plan, plan.stage_of(peer) or 0, shares, peer) for peer in plan.peers]
    return plan.model_copy(
        update={
            "pacing": Pacing(
                forward=tuple(3 + number for number in numbers),
                backward=tuple(7 - number for number in numbers),
                weight=tuple(2 + number for number in numbers) if split else (),
                in_flight=tuple(flying + 8 for flying, _ in plain),
                kept=tuple(kept + 8 for _, kept in plain),
                ahead=tuple(5 + number for number in pairs),
                ahead_delay=tuple(300 - number for number in pairs),
                back=tuple(2 + number for number in pairs),
                back_delay=tuple(200 + number for number in pairs),
            )
        }
    )


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(
    ("name", "tied", "recompute"),
    [("1x4", True, []), ("2x2", False, [0]), ("uneven shares", True, [0, 1]), ("crossed routes", False, [1])],
)
async def test_orders_for_slow_links_with_many_in_flight_compute_the_same(
    home: Path, name: str, tied: bool, schedule: str, recompute: list[int]
) -> None:
    """Twelve micro-batches a step, of which plans without a pace keep four at most."""
    plain = plan_of(name, routes=3 * PLANS[name][1], schedule=schedule, recompute=recompute)
    plan = far_apart(plain)
    first = plan.peers[0]
    assert most_in_flight(actions_of(plan, first)) > most_in_flight(actions_of(plain, first))
    assert orders(plan) != orders(plain)
    found = await Swarm(home, job_of(home, tied=tied, global_batch=24), plan).run()
    assert_same_training(found, alone(home, tied, global_batch=24), 1e-5)


def by_hand(plan: Plan) -> Plan:
    """The plan with parts of all sizes: the first of several replicas sums nothing, each other one twice as much as the
    one before it."""

    def parts(count: int) -> tuple[int, ...]:
        sizes = [0, *(2**place for place in range(count - 1))] if count > 1 else [1]
        found = [WHOLE * size // sum(sizes) for size in sizes]
        return (*found[:-1], WHOLE - sum(found[:-1]))

    counts = [len(plan.replicas(stage)) for stage in range(len(plan.stages))]
    shared = parts(counts[0] + counts[-1]) if len(counts) > 1 else ()
    return Plan.model_validate(
        plan.model_dump() | {"parts": SummedParts(stages=tuple(map(parts, counts)), shared=shared)}
    )


@pytest.mark.parametrize("codec", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("name", "tied"), [("4x1", True), ("2x2", True), ("2x2", False), ("uneven shares", False), ("crossed routes", True)]
)
async def test_whoever_sums_how_much_the_same_is_computed(home: Path, name: str, tied: bool, codec: str) -> None:
    """In fp32 as one process computes it, wherever parts begin; on a narrow wire near it, replicas bit-identical."""
    swarm = Swarm(home, job_of(home, tied=tied), by_hand(plan_of(name, wire={"gradients": codec})))
    for peer in swarm.peers.values():
        peer.training_stage = in_small_buckets
    found = await swarm.run()
    if codec == "fp32":
        assert_same_training(found, alone(home, tied), 1e-5)
    else:
        assert distance(found.state, alone(home, tied).state) < 0.1


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "tied", "seed"), [("4x1", True, 0), ("4x1", False, 1), ("2x2", True, 2), ("crossed routes", True, 3)]
)
async def test_along_trees_the_same_is_computed(home: Path, name: str, tied: bool, seed: int, codec: str) -> None:
    """In fp32 as one process computes it; on a narrow wire near it, replicas bit-identical."""
    plan = plan_of(name, wire={"gradients": codec})
    counts = [len(plan.replicas(stage)) for stage in range(len(plan.stages))]
    shared = drawn_trees(counts[0] + counts[-1], seed) if len(counts) > 1 else ()
    trees = ReductionTrees(stages=tuple(drawn_trees(count, seed) for count in counts), shared=shared)
    swarm = Swarm(home, job_of(home, tied=tied), by_hand(plan.model_copy(update={"trees": trees})))
    for peer in swarm.peers.values():
        peer.training_stage = in_small_buckets
    found = await swarm.run()
    if codec == "fp32":
        assert_same_training(found, alone(home, tied), 1e-5)
    else:
        assert distance(found.state, alone(home, tied).state) < 0.1


def in_small_buckets(*arguments: Any) -> TrainingStage:
    return TrainingStage(*arguments, bucket_bytes=12_000)


@pytest.mark.parametrize(
    ("name", "tied", "schedule"),
    [
        ("4x1", False, "1f1b"),
        ("4x1", True, "zero-bubble"),
        ("2x2", False, "zero-bubble"),
        ("2x2", True, "1f1b"),
        ("crossed routes", False, "zero-bubble"),
        ("crossed routes", True, "zero-bubble"),
        ("crossed routes", True, "1f1b"),
    ],
)
async def test_many_small_buckets_reduce_to_the_same(home: Path, name: str, tied: bool, schedule: str) -> None:
    """Buckets that cut through parameters, and are sent while the backward still runs."""
    swarm = Swarm(home, job_of(home, tied=tied), plan_of(name, schedule=schedule))
    for peer in swarm.peers.values():
        peer.training_stage = in_small_buckets
    found = await swarm.run()
    stage = next(iter(swarm.peers.values())).stage
    assert stage is not None
    assert len(stage.gradients.buckets[0]) > 2
    assert_same_training(found, alone(home, tied), 1e-5)


OTHER_UPDATES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.8, "weight_decay_on": "all"},
    "adamw": {"betas": (0.8, 0.99), "eps": 1e-6, "schedule": "linear", "schedule_floor": 0.0},
}


@pytest.mark.parametrize("update", OTHER_UPDATES)
@pytest.mark.parametrize(("name", "tied"), [("uneven shares", False), ("crossed routes", True)])
async def test_any_update_trains_as_one_process_does(home: Path, name: str, tied: bool, update: str) -> None:
    keys = OTHER_UPDATES[update]
    found = await Swarm(home, job_of(home, tied=tied, **keys), plan_of(name)).run()
    reference = alone(home, tied, **keys)
    assert_same_training(found, reference, 1e-5)
    assert reference.rows[-1].loss != alone(home, tied).rows[-1].loss


@pytest.mark.parametrize("kept", LESS)
@pytest.mark.parametrize(
    ("name", "tied", "schedule"), [("uneven shares", False, "1f1b"), ("crossed routes", True, "zero-bubble")]
)
async def test_states_in_less_than_fp32_train_near_one_process_with_replicas_bit_identical(
    home: Path, name: str, tied: bool, schedule: str, kept: str
) -> None:
    found = await Swarm(home, job_of(home, tied=tied, **LESS[kept]), plan_of(name, schedule=schedule)).run()
    assert_same_training(found, alone(home, tied, **LESS[kept]), LESS_APART)


@pytest.mark.parametrize("kept", ["moments in 8 bits", "weights in bf16", "both"])
def test_states_in_less_than_fp32_are_others_and_near(home: Path, kept: str) -> None:
    found, whole = (
        {key: value for key, value in values_of(one.state).items() if key.startswith("weight/")}
        for one in (alone(home, False, **LESS[kept]), alone(home, False))
    )
    assert 1e-4 < distance(found, whole) < 0.02


@pytest.mark.parametrize("kept", LESS)
def test_one_process_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(
    home: Path, tmp_path: Path, kept: str
) -> None:
    job = job_of(home, **LESS[kept])
    (tmp_path / "tokens").symlink_to(home / "tokens")
    for first, last in ((1, 3), (4, STEPS)):
        solo = Solo(job, tmp_path, CPU)
        assert solo.resume() == first - 1
        rows = [solo.step(step) for step in range(first, last + 1)]
        solo.keep(rows[-1])
    assert identical(state_in(tmp_path, job), alone(home, False, **LESS[kept]).state)


@pytest.mark.parametrize("wire", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
async def test_a_lossy_wire_stays_near_and_keeps_replicas_bit_identical(home: Path, wire: str, tied: bool) -> None:
    found = await Swarm(home, job_of(home, tied=tied), plan_of("crossed routes", wire=wire)).run()
    reference = alone(home, tied)
    for ours, theirs in zip(found.rows, reference.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=0.05)
    assert distance(found.state, reference.state) < 0.1
    assert found.rows[0].loss != reference.rows[0].loss


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize(
    ("name", "boundary", "schedule"),
    [("1x4", 1, "zero-bubble"), ("2x2", 0, "1f1b"), ("crossed routes", 0, "1f1b"), ("crossed routes", 1, "gpipe")],
)
async def test_one_coarse_boundary_stays_near_and_keeps_replicas_bit_identical(
    home: Path, name: str, boundary: int, schedule: str, codec: str
) -> None:
    plain = plan_of(name, schedule=schedule)
    boundaries = ["fp32"] * (len(plain.stages) - 1)
    boundaries[boundary] = codec
    found = await Swarm(home, job_of(home), plan_of(name, schedule=schedule, boundaries=boundaries)).run()
    reference = alone(home, False)
    for ours, theirs in zip(found.rows, reference.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=0.05)
    assert distance(found.state, reference.state) < 0.1
    assert found.rows[0].loss != reference.rows[0].loss


async def test_boundaries_of_one_wire_are_that_wire_where_nothing_is_reduced(home: Path) -> None:
    wire = {"activations": "int8", "gradients": "bf16"}
    ways: list[dict[str, Any]] = [
        {"wire": wire},
        {"boundaries": [wire] * 3},
        {"wire": "int8", "boundaries": [wire] * 3},
    ]
    runs = [await Swarm(home, job_of(home), plan_of("1x4", **fields)).run() for fields in ways]
    for other in runs[1:]:
        assert identical(other.state, runs[0].state)
        assert [row.loss for row in other.rows] == [row.loss for row in runs[0].rows]
    assert runs[0].rows[0].loss != alone(home, False).rows[0].loss


async def test_coarse_boundaries_leave_what_is_reduced_in_the_plans_wire(home: Path) -> None:
    """In fp32, as one process computes it: the boundaries' own codecs are without loss here."""
    plan = plan_of("crossed routes", wire={"activations": "int8", "gradients": "fp32"}, boundaries=["fp32", "fp32"])
    assert_same_training(await Swarm(home, job_of(home), plan).run(), alone(home, False), 1e-5)


async def test_bf16_products_train_over_any_plan(home: Path) -> None:
    job = job_of(home, precision="bf16")
    one = await Swarm(home, job, plan_of("1x1")).run()
    many = await Swarm(home, job, plan_of("crossed routes")).run()
    for ours, theirs in zip(many.rows, one.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
    assert one.rows[0].loss != alone(home, False).rows[0].loss


async def test_a_run_is_a_function_of_job_and_plan(home: Path) -> None:
    """Sums run in a fixed order, whichever peer is faster."""
    runs = [await Swarm(home, job_of(home), plan_of("crossed routes")).run() for _ in range(2)]
    assert identical(runs[0].state, runs[1].state)
    assert [(row.loss, row.grad_norm) for row in runs[0].rows] == [(row.loss, row.grad_norm) for row in runs[1].rows]
