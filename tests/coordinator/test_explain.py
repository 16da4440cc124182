"""What `explain` says of plans: by value on small ones, by perturbation on random ones; its figures; its refusals."""

import io
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from rich.console import Console

from dtfm_coordinator.allocator.paper.paper_cost import cost_of_pipelines
from dtfm_coordinator.allocator.problem.model_demand import memory_needed
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES
from dtfm_coordinator.allocator.simulator.simulated_timeline import Transfer, TransferKind
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_coordinator.commands.plan_commands import ScheduleChoice, WireName
from dtfm_coordinator.main import app
from dtfm_coordinator.tools.explain import schedule_chart, step_report
from dtfm_coordinator.tools.explain.estimated_links import estimate_lines
from dtfm_coordinator.tools.explain.explained_plan import explained_plan, workload_of
from dtfm_coordinator.tools.explain.paper_findings import paper_findings
from dtfm_coordinator.tools.explain.step_findings import check, step_findings
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import CodecName, Planning, ScheduleName, Wire
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.view.view import GBIT, NodeView, View
from tests.coordinator.lettered_swarm import DEMAND, JOB, found, plan, swarm, work

# The findings.


def test_one_slow_link_is_the_bottleneck() -> None:
    told = found(plan("abc", "abc", "dbc", "dbc"), swarm("abcd", links={"bc": 0.01}))
    assert set(told.bottleneck.place) == {"b", "c"}
    line = step_report.bottleneck_line(told.bottleneck, told.cost.total)
    assert line.startswith("bottleneck: the link between")
    assert "of the critical path" in line
    assert "transfer" in line
    assert told.links[0].gbps == pytest.approx(0.01)
    assert {told.links[0].sender, told.links[0].receiver} == {"b", "c"}
    assert told.links[0].bytes == 4e6
    assert told.links[0].busy == pytest.approx(4e6 / (0.01 * GBIT))


def test_a_slow_peer_is_the_bottleneck() -> None:
    told = found(plan("ab", "cb", "ab", "cb"), swarm("abc", slow={"c": 20.0}))
    assert told.bottleneck.place == ("c",)
    assert "the compute of c" in step_report.bottleneck_line(told.bottleneck, told.cost.total)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_peers_seconds_add_up_to_the_step(schedule: str) -> None:
    of = plan("ab", "cb", "ad", "cd", schedule=schedule)
    told = found(of, swarm("abcd", gbps=0.5, ms=7.0, slow={"c": 2.0, "d": 3.0}, memory_bytes=1e9))
    peers = [peer for stage in told.stages for peer in stage.peers]
    assert [peer.peer for peer in peers] == ["a", "c", "b", "d"]
    for peer in peers:
        parts = (peer.compute, peer.bubble, peer.transfer, peer.reduction, peer.optimizer, peer.rest)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(told.cost.total)
        assert peer.micro_batches == 2
        assert peer.memory_there == 1e9
        assert peer.memory_needed == memory_needed(of, DEMAND)[peer.peer]
    assert told.stages[0].peers[0].memory_needed == DEMAND.memory_bytes(0, 2, 2, reduced="fp32")


def test_a_stage_that_recomputes_is_told_and_needs_less_memory_and_more_time() -> None:
    of, view = plan("ab", "ab", "ab", "ab"), swarm("ab")
    anew = of.model_copy(update={"recompute": (0,)})
    kept, told = found(of, view).stages, found(anew, view).stages
    assert [stage.recomputes for stage in told] == [True, False]
    needed = DEMAND.memory_bytes(0, 2, 2, recompute=True)
    assert told[0].peers[0].memory_needed == needed
    # Four micro-batches of two more forwards of 10 ms.
    assert told[0].peers[0].compute == pytest.approx(kept[0].peers[0].compute + 4 * 0.02)
    assert told[1].peers[0].compute == kept[1].peers[0].compute
    out = Console(width=140, markup=False, highlight=False, file=io.StringIO())
    step_report.show(out, found(anew, view), None, (), None, asked_growth=False)
    assert isinstance(out.file, io.StringIO)
    assert "1 to 2, recomputed" in out.file.getvalue()


def test_waiting_is_bubble_until_the_input_is_made_and_transfer_while_it_travels() -> None:
    told = found(plan("ab"), swarm("ab", gbps=1.0, ms=2.0))
    first, last = (stage.peers[0] for stage in told.stages)
    # b waits 20 ms for a's forward and 10 ms for its message; a waits for both of b's actions, and as long.
    assert (last.bubble, last.transfer) == (pytest.approx(0.02), pytest.approx(0.01))
    assert (first.bubble, first.transfer) == (pytest.approx(0.07), pytest.approx(0.01))


def test_the_all_reduce_names_its_slowest_link() -> None:
    told = found(plan("a", "b", "c", "a"), swarm("abc", ms=0.0, links={"bc": 0.001}))
    (stage,) = told.stages
    assert stage.slowest_link is not None
    assert {stage.slowest_link.sender, stage.slowest_link.receiver} == {"b", "c"}
    # A third of 5000 gradients of 4 bytes, there and back.
    assert stage.slowest_link.bytes == pytest.approx(20_000 / 3)
    assert stage.all_reduce > 0


def test_a_message_that_waited_behind_others_is_not_the_slowest_for_that() -> None:
    message = Transfer("a", "b", "all-reduce", None, 4e6, ready=1.0, start=1.0, end=5.0, arrival=6.0)
    assert step_report.reduction_message(message) == "a -> b: 4 MB in 5 s"
    small = message._replace(kind="tied all-reduce", bytes=2e3, start=7.0, end=7.5, arrival=8.0)
    assert step_report.reduction_message(small) == (
        "a -> b: 2 kB of the embedding that first and last stage share in 1 s, after 6 s behind others"
    )
    # b's share of the shared matrix is small, and has the same link as its stage's gradients.
    of, job = plan("am", "bx"), work(2)
    shared = replace(job, demand=replace(job.demand, tied_parameters=50))
    view = swarm("abmx", gbps=0.001)
    for stage in step_findings(of, view, shared, predict(view, shared, of)).stages:
        assert stage.slowest_link is not None
        assert stage.slowest_link.kind == "all-reduce"


def test_a_plan_of_other_figures_is_told_so() -> None:
    of, view = plan("ab"), swarm("ab")
    total = found(of, view).cost.total
    stated = {factor: Cost(kind="makespan", total=factor * total, data_parallel=0, pipeline=0) for factor in (1.005, 2)}
    assert step_report.difference_line(found(of.model_copy(update={"cost": stated[1.005]}), view)) is None
    assert "+100 %" in str(step_report.difference_line(found(of.model_copy(update={"cost": stated[2]}), view)))


def test_a_matrix_that_first_and_last_stage_share_is_told() -> None:
    of, job = plan("amx"), work(1)
    view = swarm("amx", gbps=0.001)  # 0.125 MB a second
    shared = replace(job, demand=replace(job.demand, tied_parameters=500))
    untied, tied = (step_findings(of, view, one, predict(view, one, of)) for one in (job, shared))
    # Each of the two sends the other its part and the sum of its own, 1 kB; a waits for its own part's way alone.
    assert tied.cost.total - untied.cost.total == pytest.approx(2 * (0.008 + 0.001))
    assert {(link.sender, link.receiver) for link in tied.links if link.kinds == ("tied all-reduce",)} == {
        ("a", "x"), ("x", "a"),
    }  # fmt: skip
    assert [stage.slowest_link is not None for stage in tied.stages] == [True, False, True]
    assert set(schedule_chart.THIN) == set(get_args(TransferKind)) <= set(schedule_chart.LABELS)


def test_a_pair_that_only_a_shared_matrix_needs_is_named() -> None:
    of, job, view = plan("amx", "bmx"), work(2), swarm("abmx")
    gbps = view.bandwidth_gbps.copy()
    gbps[3, 1] = 0.0
    cut = View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=gbps)
    step_findings(of, cut, job, predict(cut, job, of))
    shared = replace(job, demand=replace(job.demand, tied_parameters=500))
    with pytest.raises(UserError, match="x -> b has 0 Gbit/s"):
        step_findings(of, cut, shared, predict(cut, shared, of))


def test_a_pair_that_cannot_talk_is_named() -> None:
    with pytest.raises(UserError, match="a -> b has 0 Gbit/s"):
        found(plan("ab"), swarm("ab", links={"ab": 0.0}))


def test_a_plan_of_another_job_is_refused() -> None:
    with pytest.raises(UserError, match="cover 4 layers"):
        check(plan("ab"), Workload(replace(DEMAND, layer_parameters=(1,) * 5), 1, Planning()))
    with pytest.raises(UserError, match=r"1 routes .* 4 micro-batches"):
        check(plan("ab"), work(4))


# Another wire or schedule than the plan's.


def wired(name: CodecName) -> Wire:
    return Wire(activations=name, gradients=name)


def test_a_plan_that_names_no_wire_takes_the_jobs() -> None:
    told = explained_plan(plan("ab"), Planning(wire=wired("bf16")))
    assert told.plan.wire == wired("bf16")
    assert told.lines == ("the plan names no wire: the job's is taken, bf16",)
    bare = Plan.read({"stages": [(0, 4)], "routes": [("a",)]}, "plan")
    assert explained_plan(bare, Planning(schedule="gpipe")).plan.schedule == "gpipe"
    assert explained_plan(bare, Planning()).plan.schedule == bare.schedule


def test_a_plans_own_wire_and_schedule_hold_and_a_job_of_others_is_told() -> None:
    of = plan("ab").model_copy(update={"wire": wired("bf16")})
    told = explained_plan(of, Planning(wire=wired("int8"), schedule="gpipe"))
    assert (told.plan.wire, told.plan.schedule) == (of.wire, of.schedule)
    assert told.lines == (
        "explained with the plan's wire, bf16; the job says int8 (`--wire int8` for that)",
        "explained with the plan's schedule, 1f1b; the job says gpipe (`--schedule gpipe` for that)",
    )
    assert workload_of(told.plan, work(1, Planning(wire=wired("int8"), schedule="gpipe"))).planning == Planning(
        wire=wired("bf16"), schedule="1f1b"
    )
    same = Planning(wire=of.wire, schedule="auto")
    assert explained_plan(of, same).lines == ()
    assert workload_of(of, work(1, same)).planning == same


def test_what_if_is_of_the_same_placement_and_forgets_what_the_plan_predicts() -> None:
    cost = Cost(kind="makespan", total=1.0, data_parallel=0, pipeline=0)
    of = plan("ab").model_copy(update={"wire": wired("bf16"), "cost": cost})
    told = explained_plan(of, Planning(wire=of.wire), "int8", "zero-bubble")
    assert told.is_what_if
    assert told.plan == of.model_copy(update={"wire": wired("int8"), "schedule": "zero-bubble", "cost": None})
    assert told.lines == (
        "what if: explained with wire int8, not with the plan's bf16",
        "what if: explained with schedule zero-bubble, not with the plan's 1f1b",
    )
    as_is = explained_plan(of, Planning(wire=of.wire), "bf16", "1f1b")
    assert (as_is.plan, as_is.is_what_if, as_is.lines) == (of, False, ())
    assert step_report.what_if_line(2.0, 1.5) == "as the plan is, a step takes 2 s: -25.0 % by the change"


def test_what_if_a_plan_with_coarse_boundaries_had_one_wire_over_all() -> None:
    of = plan("abc").model_copy(update={"wire": wired("bf16"), "boundaries": (wired("int8"), wired("bf16"))})
    job = Planning(wire=of.wire, slow_wire="int8")
    assert explained_plan(of, job).lines == ()
    assert explained_plan(of, job).plan == of
    told = explained_plan(of, job, "bf16")
    assert told.is_what_if
    assert told.plan.boundaries == ()
    assert told.lines == ("what if: explained with wire bf16, not with the plan's bf16 and 1 of 2 boundaries in int8",)
    assert workload_of(told.plan, work(1, job), "bf16").planning == Planning(wire=of.wire)
    assert workload_of(of, work(1, job)).planning == job
    assert explained_plan(of, Planning(wire=of.wire)).lines == (
        "explained with the plan's 1 of 2 boundaries in int8; the job's slow_wire is none",
    )


def test_each_boundary_is_told_with_its_codecs_and_bytes() -> None:
    coarse = Wire(activations="int8", gradients="fp16")
    of = plan("abc", "abc").model_copy(update={"boundaries": (Wire(), coarse)})
    first, second, last = (stage.onward for stage in found(of, swarm("abc")).stages)
    assert first is not None
    assert second is not None
    assert last is None
    assert (first.wire, (first.ahead_bytes, first.back_bytes)) == (Wire(), DEMAND.message_bytes(Wire()))
    assert (second.wire, (second.ahead_bytes, second.back_bytes)) == (coarse, DEMAND.message_bytes(coarse))
    assert step_report.boundary_message(second) == "int8 activations, fp16 gradients: 258 kB there, 500 kB back"
    shown = io.StringIO()
    step_report.show(Console(file=shown, width=200), found(of, swarm("abc")), None, (), None, asked_growth=False)
    assert "int8 activations, fp16 gradients: 258 kB there" in shown.getvalue()
    assert "fp32: 1 MB there, 1 MB back" in shown.getvalue()


def test_the_command_offers_all_wires_and_schedules() -> None:
    assert [one.value for one in WireName] == list(get_args(CodecName))
    assert [one.value for one in ScheduleChoice] == list(get_args(ScheduleName))


# The paper's cost.


def test_the_papers_cost_in_parts_is_the_papers_cost() -> None:
    rng = np.random.default_rng(0)
    peers = "abcdef"
    view = swarm(peers).model_copy(
        update={"bandwidth_gbps": rng.uniform(0.1, 5, (6, 6)), "latency_ms": rng.uniform(1, 50, (6, 6))}
    )
    of = plan("acf", "dbe")
    told = paper_findings(of, view, 3e7, 2e7)
    rows = [[peers.index(peer) for peer in route] for route in of.pipelines]
    cost = cost_of_pipelines(view.alpha(), view.beta(), rows, 3e7, 2e7)
    assert (told.total, told.data_parallel) == (pytest.approx(cost.total), pytest.approx(cost.data_parallel))
    assert told.pipeline == pytest.approx(cost.pipeline)
    assert [stage.peers for stage in told.stages] == [("a", "d"), ("c", "b"), ("f", "e")]
    assert told.boundaries[0].forward_pair in (("a", "c"), ("d", "b"))
    assert told.boundaries[0].backward_pair in (("c", "a"), ("b", "d"))


def test_the_papers_cost_is_of_pipelines_that_share_no_peer() -> None:
    with pytest.raises(UserError, match="share no peer"):
        paper_findings(plan("ab", "cb"), swarm("abc"), 1, 1)
    with pytest.raises(UserError, match="a -> b, which has 0 Gbit/s"):
        paper_findings(plan("ab"), swarm("ab", links={"ab": 0.0}), 1, 1)


def test_names_in_tables_are_not_markup() -> None:
    view = swarm("ab")
    view = view.model_copy(update={"nodes": (view.nodes[0].model_copy(update={"id": "[bold]"}), view.nodes[1])})
    of = Plan(stages=((0, 2), (2, 4)), routes=(("[bold]", "b"),))
    out = Console(width=140, markup=False, highlight=False, file=io.StringIO())
    step_report.show(out, found(of, view), None, (), None, asked_growth=False)
    assert isinstance(out.file, io.StringIO)
    assert "[bold]" in out.file.getvalue()


# The command.


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    swarm("abc").save(Path("view.json"))
    Path("job.toml").write_text(JOB)
    Path("plan.json").write_text(plan("ab", "ab", "ab", "ab").model_dump_json())
    Path("short.json").write_text(plan("ab", "ab").model_dump_json())
    Path("other.json").write_text(plan("ax", "ax", "ax", "ax").model_dump_json())
    deep = Plan(stages=((0, 2), (2, 5)), routes=(("a", "b"),) * 4)
    Path("deep.json").write_text(deep.model_dump_json())
    pipelines = plan("a", "b").model_copy(update={"cost": Cost(kind="paper", total=1.0, data_parallel=1, pipeline=0)})
    Path("paper.json").write_text(pipelines.model_dump_json())
    made = plan("ab").model_copy(update={"cost": Cost(kind="makespan", total=1.0, data_parallel=1, pipeline=0)})
    Path("made.json").write_text(made.model_dump_json())
    return tmp_path


def told(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    app(["explain", *arguments], standalone_mode=False)
    return capfd.readouterr().out


def test_the_command_tells_a_plans_step_and_draws_it(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = told(
        ["plan.json", "--view", "view.json", "--job", "job.toml", "--budget", "0.05", "--figure", "figure.svg"], capfd
    )
    for part in (
        "a step: compute",
        "bottleneck: ",
        "critical path: ",
        "idle: 1 of",
        "the next node ",
        "drew figure.svg",
    ):
        assert part in said
    assert Path("figure.svg").stat().st_size > 10_000
    said = told(["plan.json", "--view", "view.json", "--job", "job.toml", "--budget", "0", "--wire", "int8"], capfd)
    assert "the next node" not in said
    assert said.startswith("what if: explained with wire int8, not with the plan's fp32\nas the plan is, a step takes ")


def test_the_command_tells_the_papers_cost(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--activation-bytes", "1e6", "--gradient-bytes", "1e6"]
    said = told(["paper.json", "--view", "view.json", *sizes, "--figure", "figure.png"], capfd)
    assert "by the paper's cost: data parallel 0.003 s + pipeline 0.000 s" in said
    assert "the plan itself states 1.000 s" in said
    assert Path("figure.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["other.json", "--job", "job.toml"], "the view has no node 'x'"),
        (["short.json", "--job", "job.toml"], "has 2 routes"),
        (["deep.json", "--job", "job.toml"], "cover 5 layers and the job's model has 4"),
        (["plan.json", "--job", "job.toml", "--figure", "figure.jpg"], "figure.jpg: a figure is drawn as"),
        (
            ["plan.json", "--job", "job.toml", "--budget", "0", "--figure", "no/figure.png"],
            "cannot write no/figure.png",
        ),
        (["plan.json", "--job", "job.toml", "--gradient-bytes", "1"], "goes with the paper's cost"),
        (["nowhere.json", "--job", "job.toml"], "cannot read the plan nowhere.json"),
        (["paper.json"], "--activation-bytes and --gradient-bytes are missing"),
        (["made.json"], "--job is missing"),
        (["paper.json", "--wire", "int8"], "--wire goes with --job"),
        (["other.json", "--activation-bytes", "1", "--gradient-bytes", "1"], "the view has no node 'x'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["explain", *arguments, "--view", "view.json"], standalone_mode=False)
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_links_of_the_plan_that_nobody_measured_are_counted_with_what_they_may_be_off() -> None:
    delays = np.array([[0, 20.0, np.nan], [20.0, 0, 20.0], [np.nan, 20.0, 0]])
    rates = np.array([[0, 1.0, np.nan], [np.nan, 0, 1.0], [1.0, 1.0, 0]])
    view = View(nodes=tuple(NodeView(id=name) for name in "abc"), latency_ms=delays, bandwidth_gbps=rates)
    both = Plan(version=1, stages=((0, 2), (2, 4)), routes=(("a", "b"), ("c", "b")))
    assert estimate_lines(both, view, tied=False) == [
        "estimated, of 6 links of the plan: delays of 2, to within 200%, and rates of 2, to within a factor of 8 in "
        "nine of ten cases"
    ]
    one = Plan(version=1, stages=((0, 2), (2, 4)), routes=(("c", "b"),))
    assert estimate_lines(one, view, tied=False) == []


def test_lines_of_the_plans_peers_that_are_estimated_are_counted_with_what_they_may_be_off() -> None:
    spreads = {"a": 3.0, "b": 1.5, "c": 4.0, "d": None}
    nodes = tuple(NodeView(id=name, up_gbps=1.0, line_spread=spread) for name, spread in spreads.items())
    view = View(nodes=nodes, latency_ms=np.full((4, 4), 20.0), bandwidth_gbps=np.ones((4, 4)))
    some = Plan(version=1, stages=((0, 2), (2, 3), (3, 4)), routes=(("a", "b", "d"),))
    assert estimate_lines(some, view, tied=False) == [
        "estimated, of 3 nodes of the plan: what 2 can send and receive in all, to within a factor of 3 in nine of ten "
        "cases"
    ]
