"""What `explain` says of plans: by value on small ones, by perturbation on random ones; its figures; its refusals."""

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from rich.console import Console

from dtfm_coordinator.allocator.paper.paper_cost import cost_of_pipelines
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds, ModelDemand, memory_needed
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES
from dtfm_coordinator.allocator.simulator.simulated_timeline import Transfer, TransferKind
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_coordinator.commands.plan_commands import ScheduleChoice, WireName
from dtfm_coordinator.main import app
from dtfm_coordinator.tools.explain import schedule_chart, step_report
from dtfm_coordinator.tools.explain.estimated_links import estimate_lines
from dtfm_coordinator.tools.explain.explained_plan import explained_plan, workload_of
from dtfm_coordinator.tools.explain.idle_peers import tried, with_replica
from dtfm_coordinator.tools.explain.next_node import Growth, growth, with_median_node
from dtfm_coordinator.tools.explain.paper_findings import paper_findings
from dtfm_coordinator.tools.explain.step_findings import StepFindings, check, step_findings
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import CodecName, Planning, ScheduleName, Wire
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.view.view import GBIT, LayerSeconds, NodeView, View

DEMAND = ModelDemand(
    layer_parameters=(1000,) * 4,
    embedding_parameters=500,
    head_parameters=500,
    message_values=250_000,
    layer_activation_bytes=1_000,
)
"""A message has 1 MB: 8 ms at 1 Gbit/s."""
JOB = """
name = "small"
[model]
architecture = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 4
num_attention_heads = 2
num_key_value_heads = 2
[data]
text = "cpython"
tokenizer = "bytes"
[training]
steps = 1
global_batch = 4
micro_batch = 1
sequence_length = 16
learning_rate = 1e-3
"""


def swarm(
    peers: str,
    gbps: float = 10.0,
    ms: float = 1.0,
    slow: dict[str, float] | None = None,
    links: dict[str, float] | None = None,
    **node: float,
) -> View:
    """Peers of one letter; `slow` multiplies a peer's seconds, `links` sets the Gbit/s of "ab" and of "ba"."""
    count = len(peers)
    bandwidth = np.full((count, count), gbps)
    for pair, value in (links or {}).items():
        bandwidth[peers.index(pair[0]), peers.index(pair[1])] = value
        bandwidth[peers.index(pair[1]), peers.index(pair[0])] = value
    return View(
        nodes=tuple(
            NodeView(
                id=peer,
                region="here" if index < count / 2 else "there",
                layer_seconds=LayerSeconds(
                    forward=0.01 * (slow or {}).get(peer, 1), backward=0.02 * (slow or {}).get(peer, 1), optimizer=0.001
                ),
                **node,
            )
            for index, peer in enumerate(peers)
        ),
        latency_ms=np.full((count, count), ms),
        bandwidth_gbps=bandwidth,
    )


def plan(*routes: str, schedule: str = "1f1b") -> Plan:
    """Routes as strings of one-letter peers, over four layers."""
    depth = len(routes[0])
    ends = [round(4 * stage / depth) for stage in range(depth + 1)]
    stages = list(pairwise(ends))
    return Plan.read({"stages": stages, "routes": [tuple(route) for route in routes], "schedule": schedule}, "plan")


def work(micro_batches: int = 4, planning: Planning | None = None) -> Workload:
    return Workload(DEMAND, micro_batches, planning or Planning())


def found(of: Plan, view: View) -> StepFindings:
    job = work(len(of.routes))
    return step_findings(of, view, job, predict(view, job, of))


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
    assert told.stages[0].peers[0].memory_needed == DEMAND.memory_bytes(0, 2, 2)


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


# Idle peers, and the next node.


def test_an_idle_peer_is_tried_as_a_replica_of_each_stage() -> None:
    of, view = plan("ab", "ab", "ab", "ab"), swarm("abc", gbps=100.0, ms=0.0)
    (one,) = tried(of, view, work(), ("c",))
    assert one.stage in (0, 1)
    best = min(
        predict(view, work(), plan(*routes)).cost.total
        for routes in (("cb", "ab", "cb", "ab"), ("ab", "ac", "ab", "ac"), ("ab", "cb", "ab", "cb"))
    )
    assert one.seconds <= best * 1.2
    assert one.seconds < predict(view, work(), of).cost.total


def test_an_idle_peer_that_can_serve_nothing_is_told_why() -> None:
    of = plan("ab", "ab", "ab", "ab")
    hopeless = {
        "too slow": swarm("abc", slow={"c": 100.0}),
        "memory": swarm("abc").model_copy(
            update={"nodes": tuple(n.model_copy(update={"memory_bytes": 10.0}) for n in swarm("abc").nodes)}
        ),
        "cannot reach": swarm("abc", links={"ac": 0.0, "bc": 0.0}),
    }
    for reason, view in hopeless.items():
        (one,) = tried(of, view, work(), ("c",))
        assert one.stage is None
        assert reason in one.obstacle


def test_a_new_replica_takes_its_share_from_all_over_the_step() -> None:
    seconds = dict.fromkeys("ab", ActionSeconds(1, 2))
    joined = with_replica(plan(*["ab"] * 8), "c", 1, seconds, seconds["b"])
    assert joined is not None
    assert joined.micro_batches("c") in ((0, 2, 4, 6), (1, 3, 5, 7))
    assert with_replica(plan("ab"), "c", 1, seconds, seconds["b"]) is None


def test_the_next_node_is_the_median_of_its_peers() -> None:
    view = swarm("abc", slow={"b": 3.0, "c": 5.0}, links={"ab": 1.0, "ac": 2.0, "bc": 3.0}, memory_bytes=4e9)
    larger = with_median_node(view, work())
    node = larger.nodes[-1]
    assert node.layer_seconds is not None
    assert node.layer_seconds.weight == pytest.approx(0.03)
    assert (node.layer_seconds.forward, node.memory_bytes, node.up_gbps) == (pytest.approx(0.03), 4e9, None)
    assert larger.bandwidth_gbps[3, :3] == pytest.approx([1.5, 2.0, 2.5])
    assert larger.latency_ms[:3, 3] == pytest.approx([1.0] * 3)
    assert larger.part(view.ids) == view


def test_the_next_node_brings_a_gain_where_links_are_free_and_none_where_the_layout_is_fixed() -> None:
    view = swarm("ab", gbps=1000.0, ms=0.0)
    gain = growth(view, work(12), evaluations=200)
    assert gain is not None
    assert gain.is_noticeable
    assert gain.gain == pytest.approx(1 - gain.then / gain.now)
    assert 0.2 < gain.gain < 0.4
    fixed = growth(view, work(12, Planning(stages=2, replicas=1)), evaluations=200)
    assert fixed is not None
    assert not fixed.is_noticeable
    assert step_report.growth_lines(fixed, fixed.now)[0].startswith("the next node would bring nothing")
    assert growth(swarm("a"), work(12), evaluations=10) is None


@pytest.mark.parametrize(
    ("found", "total", "words"),
    [
        (Growth(7.05, 7.33, True, 7.40), 7.59, ["a longer search finds 7.05 s", "the next node: not to be told"]),
        (Growth(7.05, 6.90, True, 7.40), 7.05, ["the next node: not to be told"]),
        (Growth(7.05, 7.33, False, 7.05), 7.05, ["the next node: not to be told"]),
        (Growth(7.05, 7.05, False, 7.05), 7.05, ["the next node would bring nothing"]),
        (Growth(7.05, 6.00, True, 7.40), 7.05, ["the next node would bring 14.9 %"]),
    ],
)
def test_what_two_searches_differ_by_anyhow_is_no_verdict(found: Growth, total: float, words: list[str]) -> None:
    lines = step_report.growth_lines(found, total)
    assert [line[: len(start)] for line, start in zip(lines, words, strict=True)] == words


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
