"""A step as it was measured, beside the simulated one: which step, its spans and messages, and what is said of it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from dtfm_coordinator.main import app
from dtfm_coordinator.tools.explain.measured_report import measured_lines, measured_table
from dtfm_coordinator.tools.trace.aligned_traces import read_aligned
from dtfm_coordinator.tools.trace.measured_step import MeasuredStep, PeerSeconds, measured_step
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.lettered_swarm import DEMAND, JOB, swarm
from tests.coordinator.lettered_swarm import plan as plan_of
from tests.coordinator.test_trace_command import Node, say, three_nodes

LINE = Plan(stages=((0, 1), (1, 2), (2, 3)), routes=(("carol", "alice", "bob"),), version=4)


def measured(folder: Path, nodes: list[Node], plan: Plan = LINE, step: int | None = None) -> MeasuredStep:
    for node in nodes:
        node.write(folder)
    return measured_step(read_aligned([folder]), plan, step)


def test_a_step_is_told_by_the_common_clock(tmp_path: Path) -> None:
    found = measured(tmp_path, three_nodes(), step=1)
    assert (found.number, len(found.others)) == (1, 2)
    assert found.total == pytest.approx(1.5, abs=0.003)
    assert found.to_next == pytest.approx(2.0, abs=0.003)
    assert found.last_backward == pytest.approx(0.59, abs=0.003)
    assert found.committed == pytest.approx(1.41, abs=0.003)
    by_peer = {
        peer: [(span.kind, round(span.start, 1)) for span in found.compute if span.peer == peer] for peer in LINE.peers
    }
    assert by_peer == {
        "carol": [("forward", 0.0), ("backward", 0.1), ("optimizer", 1.4)],
        "alice": [("forward", 0.2), ("backward", 0.3), ("optimizer", 1.4)],
        "bob": [("forward", 0.4), ("backward", 0.5), ("optimizer", 1.4)],
    }
    messages = {(one.sender, one.receiver, one.kind) for one in found.transfers}
    assert messages == {
        ("carol", "alice", "activation"), ("alice", "bob", "activation"),
        *((one, other, "all-reduce") for one in LINE.peers for other in LINE.peers if one != other),
    }  # fmt: skip
    assert all(one.start <= one.end <= one.arrival for one in found.transfers)
    (first,) = (one for one in found.transfers if one.kind == "activation" and one.sender == "carol")
    assert (first.start, first.arrival) == (pytest.approx(0.1, abs=0.003), pytest.approx(0.19, abs=0.003))


def test_what_a_peer_does_adds_up_to_its_updates_end(tmp_path: Path) -> None:
    found = measured(tmp_path, three_nodes(), step=2)
    assert found.to_next is None
    one = PeerSeconds.of(found.compute, "bob", found.committed)
    assert one.compute == pytest.approx(0.19, abs=1e-6)
    assert one.waits == pytest.approx(0.4, abs=0.003)
    assert one.compute + one.waits + one.reduction + one.optimizer == pytest.approx(found.total, abs=0.003)


def longer(nodes: list[Node], step: int, at: float, seconds: float) -> None:
    """Another step, of another length."""
    for node in nodes:
        node.did("compute", "forward 0", at, at + 0.1, step=step, index=0)
        node.did("compute", "backward 0", at + 0.1, at + 0.2, step=step, index=0)
        node.did("optimizer", "AdamW", at + seconds - 0.1, at + seconds, step=step)


def test_the_step_of_median_length_is_taken_of_those_that_ran_as_the_plan_says(tmp_path: Path) -> None:
    nodes = three_nodes()
    longer(nodes, 3, 10.0, 9.0)
    longer(nodes, 4, 20.0, 3.0)
    nodes[0].did("compute", "forward 1", 25.0, 26.0, step=4, index=1)  # one micro-batch more than the plan has
    longer(nodes, 5, 30.0, 2.0)
    longer(nodes[:2], 6, 40.0, 4.0)  # cut short
    longer(nodes, 7, 50.0, 1.6)
    longer(nodes, 7, 60.0, 1.6)  # twice: the swarm had gone back
    found = measured(tmp_path, nodes)
    assert len(found.others) == 4
    assert found.total == pytest.approx(1.5, abs=0.003)
    with pytest.raises(UserError, match=r"4 whole steps of this plan, between step 1 and step 5, and step 7 is none"):
        measured_step(read_aligned([tmp_path]), LINE, 7)


def test_steps_whose_messages_name_the_plan_go_before_alike_ones_of_others(tmp_path: Path) -> None:
    nodes = three_nodes()
    longer(nodes, 3, 10.0, 9.0)
    say(nodes[0], nodes[1], "ACTIVATION", 10.1, 0.1, 0.01, step=3, index=0, group=0, plan=4)
    assert measured(tmp_path, nodes).number == 3


def test_an_embeddings_reduction_is_told_from_a_stages_own(tmp_path: Path) -> None:
    nodes = three_nodes()
    say(nodes[0], nodes[2], "REDUCED", 3.2, 0.01, 0.01, step=1, index=1, group=1 << 15)
    kinds = {(one.sender, one.kind) for one in measured(tmp_path, nodes, step=1).transfers}
    assert ("carol", "tied all-reduce") in kinds
    assert ("alice", "tied all-reduce") not in kinds


def test_traces_that_do_not_go_with_the_plan_are_refused_with_what_to_do(tmp_path: Path) -> None:
    nodes = three_nodes()
    with pytest.raises(UserError, match="no trace of dora, which the plan gives work to"):
        measured(tmp_path, nodes, Plan(stages=((0, 1), (1, 2)), routes=(("carol", "dora"),)))
    with pytest.raises(UserError, match="no whole step that ran as this plan says: give the plan under which"):
        measured(tmp_path, nodes, Plan(stages=((0, 1), (1, 2)), routes=(("carol", "alice"),) * 2))


def test_clocks_that_are_far_apart_beside_the_step_are_warned_of(tmp_path: Path) -> None:
    found = measured(tmp_path, three_nodes(), step=1)
    said = measured_lines(3.0, found, 0.3)
    assert said[0].startswith("measured: 1.5 s, 0.50 times what is predicted (step 1, of 2 whole steps of 1.5 s to 1.5")
    assert said[1].startswith("from step to step: 2 s,")
    assert said[2].startswith("warning: two nodes' clocks may be 300 ms apart, 20 % of this step")
    assert not any("warning" in line for line in measured_lines(3.0, found, 0.01))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of two peers and four micro-batches, its view and job, and traces of one step of it."""
    monkeypatch.chdir(tmp_path)
    swarm("ab").save(Path("view.json"))
    Path("job.toml").write_text(JOB)
    of = plan_of("ab", "ab", "ab", "ab")
    assert of.layers == len(DEMAND.layer_parameters)
    Path("plan.json").write_text(of.model_dump_json())
    nodes = [Node("a", 0.1, 5.0), Node("b", 0.0, 90.0)]
    for number, node in enumerate(nodes):
        for index in range(4):
            at = 1 + 0.1 * number + 0.3 * index
            node.did("compute", f"forward {index}", at, at + 0.1, step=8, index=index)
            node.did("compute", f"backward {index}", at + 0.15, at + 0.25, step=8, index=index)
        node.did("optimizer", "AdamW", 3.0, 3.1, step=8)
    say(nodes[0], nodes[1], "ACTIVATION", 1.1, 0.01, 0.001, step=8, index=0, group=0)
    say(nodes[1], nodes[0], "GRADIENT", 1.36, 0.01, 0.001, step=8, index=0, group=0)
    for node in nodes:
        node.write(Path("traces"))
    return tmp_path


def test_the_command_sets_a_measured_step_beside_the_predicted_one(
    files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["explain", "plan.json", "--view", "view.json", "--job", "job.toml", "--budget", "0"]
    app([*given, "--figure", "predicted.svg"], standalone_mode=False)
    assert "measured" not in capfd.readouterr().out
    app([*given, "--trace", "traces", "--figure", "both.svg"], standalone_mode=False)
    said = capfd.readouterr().out
    assert "measured: 2.1 s, " in said
    assert "(step 8, the only whole step of this plan in the traces;" in said
    assert "compare two nodes' spans no closer than that" in said
    predicted, both = (Path(f"{name}.svg").read_text() for name in ("predicted", "both"))
    assert "measured: 2.1 s, step 8" in both
    assert "measured" not in predicted
    assert both.count("last action") == 2 * predicted.count("last action")


def test_the_table_has_two_rows_a_peer(tmp_path: Path) -> None:
    found = measured(tmp_path, three_nodes(), step=1)
    out = Console(width=100, file=io.StringIO())
    out.print(measured_table(LINE, found, found))  # type: ignore[arg-type]  # any timeline has what it reads
    assert isinstance(out.file, io.StringIO)
    rows = [line for line in out.file.getvalue().splitlines() if "predicted │" in line or "measured  │" in line]
    assert len(rows) == 6
    assert "190 ms" in rows[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "traces"], "--trace goes with --job"),
        (["--job", "job.toml", "--step", "3"], "--step goes with --trace"),
        (["--job", "job.toml", "--trace", "traces", "--step", "3"], "step 3 is none of them"),
        (["--job", "job.toml", "--trace", "nowhere"], "cannot read the trace nowhere"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], said: str, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["explain", "plan.json", "--view", "view.json", *arguments], standalone_mode=False)
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line
