"""From a view to the plan that is published: what a forced plan leaves open, and what is its own."""

import numpy as np
import pytest

from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.problem.model_demand import memory_needed
from dtfm_coordinator.allocator.workload import Workload
from dtfm_coordinator.leader import planner as planning
from dtfm_coordinator.leader.planner import Planner, UnmeasuredLinks
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training, Wire
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.model.stage_demand import peer_demand
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

CONFIG = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
VIEW = View(
    nodes=tuple(NodeView(id=name, layer_seconds=LayerSeconds(forward=0.01, backward=0.02)) for name in "abc"),
    latency_ms=np.ones((3, 3)),
    bandwidth_gbps=np.ones((3, 3)),
)
FORCED = {"stages": [(0, 2), (2, 4)], "routes": [("one", "two")] * 4}


def job(**choices: object) -> ResolvedJob:
    shard = Shard(sha256="0" * 64, tokens=1000)
    return ResolvedJob(
        name="job",
        config=CONFIG,
        corpus=Corpus(dtype="uint16", vocab_size=64, shards=(shard,)),
        training=Training(steps=1, global_batch=4, micro_batch=1, sequence_length=8, learning_rate=1e-3),
        evaluation=Evaluation(),
        plan=Planning.model_validate(choices),
        checkpoint=Checkpointing(),
    )


def for_job(forced: Plan | None, **choices: object) -> Planner:
    resolved = job(**choices)
    return Planner(resolved, requirements(resolved.config, resolved.training), forced, 0)


def placed(forced: dict[str, object], **choices: object) -> Plan:
    return for_job(Plan.model_validate(FORCED | forced), **choices).plan(VIEW)


@pytest.mark.parametrize(
    ("planned", "own", "schedule"),
    [
        ("auto", {}, "1f1b"),
        ("gpipe", {}, "gpipe"),
        ("auto", {"schedule": "zero-bubble"}, "zero-bubble"),
        ("gpipe", {"schedule": "1f1b"}, "1f1b"),
    ],
)
def test_a_forced_plan_without_a_schedule_takes_the_jobs(planned: str, own: dict[str, object], schedule: str) -> None:
    plan = placed(own, schedule=planned)
    assert (plan.schedule, plan.routes, plan.idle) == (schedule, (("a", "b"),) * 4, ("c",))
    assert plan.reason == "forced by --plan"


def test_a_forced_plan_takes_the_jobs_wire_and_keeps_its_own_recomputing() -> None:
    wire = {"activations": "int8", "gradients": "fp16"}
    assert placed({}, wire=wire).wire == Wire(activations="int8", gradients="fp16")
    assert placed({"wire": "bf16"}, wire=wire).wire == Wire(activations="bf16", gradients="bf16")
    plain, anew = placed({}).cost, placed({"recompute": (0,)})
    assert anew.recompute == (0,)
    assert anew.cost is not None
    assert plain is not None
    # The first stage of a chain recomputes two layers of each micro-batch; the last has its head as well.
    assert anew.cost.total > plain.total


def test_an_open_schedule_is_chosen() -> None:
    plan = for_job(None, stages=2, replicas=1).plan(VIEW)
    assert plan.reason.startswith(f"2 stages x 1 peer, {plan.schedule}: ")


@pytest.mark.parametrize(("asked", "within"), [(None, 600.0), (60.0, 60.0), (1e9, 600.0)])
def test_a_move_must_pay_back_within_the_jobs_horizon_or_a_shorter_one(
    monkeypatch: pytest.MonkeyPatch, asked: float | None, within: float
) -> None:
    asked_for: list[tuple[float, float]] = []

    def note(
        view: View, work: Workload, seed: int, *, in_force: Plan | None, standstill: float, begun: Plan | None
    ) -> None:
        asked_for.append((work.planning.horizon, standstill))

    monkeypatch.setattr(planning, "allocate", note)
    for_job(None, stages=2, replicas=1, horizon=600.0).plan(VIEW, None, asked, 3.0)
    assert asked_for == [(within, 3.0)]


def test_an_owner_may_fix_another_layout_while_the_run_goes_on() -> None:
    planner = for_job(None, stages=2, replicas=1)
    assert (planner.is_forced, planner.is_changed) == (False, False)
    planner.plan(VIEW)
    assert not planner.is_changed
    planner.force(Plan.model_validate(FORCED | {"stages": [(0, 1), (1, 4)]}))
    assert (planner.is_forced, planner.is_changed) == (True, True)
    plan = planner.plan(VIEW)
    assert (plan.stages, plan.reason) == (((0, 1), (1, 4)), "forced by --plan")
    assert (planner.is_forced, planner.is_changed) == (True, False)
    assert planner.plan(VIEW, plan).stages == plan.stages


def test_a_layout_that_is_fixed_from_the_start_is_no_change() -> None:
    planner = for_job(Plan.model_validate(FORCED))
    assert (planner.is_forced, planner.is_changed) == (True, False)
    planner.force(Plan.model_validate(FORCED | {"stages": [(0, 3), (3, 4)]}))
    assert planner.is_changed
    assert planner.plan(VIEW).stages == ((0, 3), (3, 4))
    assert not planner.is_changed


def test_another_layout_keeps_peers_where_the_plan_in_force_has_them() -> None:
    planner = for_job(Plan.model_validate(FORCED | {"routes": [("c", "b")] * 4}))
    before = planner.plan(VIEW)
    planner.force(Plan.model_validate(FORCED | {"stages": [(0, 3), (3, 4)]}))
    assert planner.plan(VIEW, before).routes == before.routes == (("c", "b"),) * 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"stages": [(0, 2), (2, 5)]}, "cover 5 layers and the model has 4"),
        ({"routes": [("one", "two")] * 3}, "3 routes and a step has 4 micro-batches"),
    ],
)
def test_a_layout_that_does_not_fit_the_job_changes_nothing(wrong: dict[str, object], words: str) -> None:
    planner = for_job(None, stages=2, replicas=1)
    with pytest.raises(UserError, match=words):
        planner.force(Plan.model_validate(FORCED | wrong))
    assert (planner.is_forced, planner.is_changed) == (False, False)
    planner.force(Plan.model_validate(FORCED))
    planner.plan(VIEW)
    with pytest.raises(UserError, match=words):
        planner.force(Plan.model_validate(FORCED | wrong))
    assert not planner.is_changed
    assert planner.plan(VIEW).stages == ((0, 2), (2, 4))


def test_a_forced_plan_over_a_link_that_could_not_be_measured_is_refused_in_one_line() -> None:
    bandwidth = np.full((3, 3), np.nan)
    bandwidth[0, 1] = 0.0
    view = View(nodes=VIEW.nodes, latency_ms=VIEW.latency_ms, bandwidth_gbps=bandwidth)
    with pytest.raises(UnmeasuredLinks, match=r"link could not be measured: a and b$") as refused:
        for_job(Plan.model_validate(FORCED)).plan(view)
    assert refused.value.pairs == [("a", "b")]


@pytest.mark.parametrize(
    ("choices", "stages", "replicas"),
    [
        ({"stages": 2, "replicas": 2}, 2, 3),
        ({"replicas": 4}, None, 3),
        ({"stages": 4}, None, None),
    ],
)
def test_a_run_that_has_lost_nodes_goes_on_with_those_that_are_left_and_says_so(
    choices: dict[str, object], stages: int | None, replicas: int | None
) -> None:
    """Three are here, and four were needed."""
    planner = for_job(None, **choices)
    assert (planner.fewest_nodes, planner.fewest_in_run) == (4, 1)
    with pytest.raises(NotEnoughNodes):
        planner.plan(VIEW)
    before = Plan.model_validate({"stages": [(0, 2), (2, 4)], "routes": [("a", "b"), ("c", "d")] * 2})
    plan = planner.plan(VIEW, before)
    assert "the job's [plan] needs 4 nodes and 3 are here: it goes on with those" in plan.reason
    assert stages in (None, len(plan.stages))
    assert replicas in (None, len(plan.peers))


def test_a_strict_job_waits_for_what_it_fixes() -> None:
    planner = for_job(None, stages=2, replicas=2, strict=True)
    before = Plan.model_validate({"stages": [(0, 2), (2, 4)], "routes": [("a", "b"), ("c", "d")] * 2})
    assert planner.fewest_in_run == 4
    with pytest.raises(NotEnoughNodes):
        planner.plan(VIEW, before)


def test_what_the_job_fixes_comes_back_with_the_nodes_whatever_the_move_costs() -> None:
    planner = for_job(None, stages=1, replicas=3, horizon=1e-6)
    before = Plan.model_validate({"stages": [(0, 4)], "routes": [("a",), ("b",)] * 2, "idle": ["c"]})
    plan = planner.plan(VIEW, before)
    assert [len(plan.replicas(stage)) for stage in range(len(plan.stages))] == [3]
    assert "the job's [plan] fixes other stages or replicas" in plan.reason


def test_an_amended_job_is_planned_for_with_its_batch_and_its_constraints() -> None:
    planner = for_job(None, stages=1, replicas=2)
    before = planner.plan(VIEW)
    twice = planner.settings.amended({"training.global_batch": 16, "training.micro_batch": 2, "plan.replicas": 3})
    planner.amend(twice)
    after = planner.plan(VIEW)
    assert (len(before.routes), len(after.routes)) == (4, 8)
    assert (len(before.peers), len(after.peers), planner.fewest_nodes) == (2, 3, 3)
    planner.amend(planner.settings.amended({"training.global_batch": 8, "plan.replicas": 2}))
    again = planner.plan(VIEW)  # as many micro-batches as before, each twice as large
    assert before.cost is not None
    assert again.cost is not None
    assert again.cost.compute == pytest.approx(2 * (before.cost.compute or 0.0), rel=0.01)
    with pytest.raises(UserError, match="layers"):
        planner.amend(twice.amended({"plan.stages": 9}))
    with pytest.raises(UserError, match="tokens"):
        planner.amend(twice.amended({"training.global_batch": 200}))


def test_a_forced_plan_whose_in_flight_numbers_memory_does_not_hold_is_refused_in_one_line() -> None:
    pace = {"forward": [9, 9], "backward": [9, 9], "ahead": [0], "ahead_delay": [99], "back": [0], "back_delay": [99]}
    forced = Plan.model_validate(FORCED | {"pacing": pace | {"in_flight": [4, 1], "kept": [4, 1]}})
    assert for_job(forced, schedule="gpipe").plan(VIEW).schedule == "1f1b"  # which its pace is of
    resolved = job()
    needed = memory_needed(forced, requirements(resolved.config, resolved.training))["one"]
    for short in (0, 1):
        nodes = tuple(node.model_copy(update={"memory_bytes": needed - short}) for node in VIEW.nodes)
        view = VIEW.model_copy(update={"nodes": nodes})
        if not short:
            assert for_job(forced).plan(view).pacing is not None
            continue
        with pytest.raises(
            UserError, match=r"a would keep 4 micro-batches in flight, which takes .*: lower pacing"
        ) as no:
            for_job(forced).plan(view)
        assert "\n" not in str(no.value)


def test_a_forced_plan_by_which_one_sums_more_than_it_has_memory_for_is_refused_in_one_line() -> None:
    resolved, routes = job(), [[peer] for peer in ("one", "two", "three", "one")]
    parts = {"stages": [[65_536, 0, 0]]}
    forced = Plan.model_validate({"stages": [[0, 4]], "routes": routes, "parts": parts})
    demand = requirements(resolved.config, resolved.training)
    needed = memory_needed(forced, demand)
    assert needed["one"] > needed["two"]
    for peer in forced.peers:
        assert peer_demand(resolved.config, resolved.training, forced, peer).total == needed[peer]
    for short in (0, 1):
        nodes = tuple(node.model_copy(update={"memory_bytes": needed["one"] - short}) for node in VIEW.nodes)
        view = VIEW.model_copy(update={"nodes": nodes})
        if not short:
            assert for_job(forced).plan(view).parts is not None
            continue
        with pytest.raises(UserError, match=r"a would keep .* with what it sums .*: have it sum less") as no:
            for_job(forced).plan(view)
        assert "\n" not in str(no.value)


def test_a_plans_seconds_go_by_the_view_that_is_given_and_are_infinite_where_peers_cannot_talk() -> None:
    planner = for_job(None)
    plan = Plan.model_validate(FORCED | {"version": 0, "routes": [("a", "c")] * 4, "idle": ()})
    gbps = np.ones((3, 3))
    fast = planner.seconds(plan, VIEW)
    gbps[0, 2] = 1e-6
    assert fast < planner.seconds(plan, View(nodes=VIEW.nodes, latency_ms=VIEW.latency_ms, bandwidth_gbps=gbps))
    silent = View(nodes=VIEW.nodes, latency_ms=VIEW.latency_ms, bandwidth_gbps=np.zeros((3, 3)))
    assert planner.seconds(plan, silent) == np.inf
