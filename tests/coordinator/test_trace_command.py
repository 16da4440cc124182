"""Many nodes' traces become one: clocks, rows, arrows, the line that says it, and what is refused."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.main import app
from dtfm_coordinator.tools.trace.clock_alignment import Clocks, align
from dtfm_coordinator.tools.trace.command import merge
from dtfm_coordinator.tools.trace.step_medians import step_medians
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line
from dtfm_protocol.process.trace_format import (
    CLOSING,
    LANES,
    OPENING,
    Lane,
    TraceHeader,
    TraceSpan,
    header_events,
    read_trace,
    span_event,
)

DUST = 1e-6
"""Seconds; what rounding makes of clocks that differ by days."""

Delays = dict[tuple[int, int], float]


def least_of(offsets: Sequence[float], delays: Delays) -> Delays:
    """What nodes see whose clocks lag `offsets` seconds behind, of messages that take `delays`."""
    return {(i, j): delay - offsets[j] + offsets[i] for (i, j), delay in delays.items()}


def errors_of(clocks: Clocks, offsets: Sequence[float]) -> np.ndarray:
    """By how much the corrected clocks of each pair differ."""
    wrong = np.array(clocks.corrections) - offsets
    return np.abs(wrong[:, None] - wrong)


def arrive(clocks: Clocks, least: Delays, slack: float = DUST) -> bool:
    """Whether no message arrives before it was sent."""
    x = clocks.corrections
    return all(x[i] - x[j] <= flight + slack for (i, j), flight in least.items())


@st.composite
def swarms(draw: st.DrawFn) -> tuple[list[float], Delays]:
    """Two to six nodes: how far their clocks lag, and delays of the messages between some of them."""
    count = draw(st.integers(2, 6))
    offsets = draw(st.lists(st.floats(-1e5, 1e5), min_size=count, max_size=count))
    links = draw(st.sets(st.sampled_from(list(permutations(range(count), 2))), min_size=1))
    return offsets, {link: draw(st.floats(0, 2)) for link in sorted(links)}


@given(swarms())
def test_whatever_the_delays_no_message_arrives_before_it_was_sent(swarm: tuple[list[float], Delays]) -> None:
    offsets, delays = swarm
    least = least_of(offsets, delays)
    clocks = align([0.0] * len(offsets), least)
    assert clocks.contradiction <= DUST
    assert arrive(clocks, least)


@given(swarms())
def test_the_stated_uncertainty_is_never_exceeded(swarm: tuple[list[float], Delays]) -> None:
    offsets, delays = swarm
    clocks = align([0.0] * len(offsets), least_of(offsets, delays))
    errors = errors_of(clocks, offsets)
    for group in clocks.groups:
        for one, other in permutations(group, 2):
            assert errors[one, other] <= clocks.uncertainties[one] + DUST
        if len(group) == 1:
            assert clocks.uncertainties[group[0]] == math.inf


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5), st.floats(0, 2), st.floats(0, 2))
def test_two_clocks_are_within_half_the_round_trip(one: float, other: float, there: float, back: float) -> None:
    clocks = align([0.0, 0.0], least_of([one, other], {(0, 1): there, (1, 0): back}))
    assert errors_of(clocks, [one, other])[0, 1] <= (there + back) / 2 + DUST
    assert errors_of(clocks, [one, other])[0, 1] == pytest.approx(abs(there - back) / 2, abs=DUST)
    assert clocks.uncertainties == pytest.approx([(there + back) / 2] * 2, abs=DUST)


@given(swarms())
def test_links_as_slow_there_as_back_leave_no_error(swarm: tuple[list[float], Delays]) -> None:
    offsets, delays = swarm
    even = {(i, j): delays[min((i, j), (j, i), key=lambda link: link not in delays)] for i, j in delays}
    even |= {(j, i): delay for (i, j), delay in even.items()}
    even = {(i, j): even[min(i, j), max(i, j)] for i, j in even}
    clocks = align([0.0] * len(offsets), least_of(offsets, even))
    for group in clocks.groups:
        assert errors_of(clocks, offsets)[np.ix_(group, group)].max() <= DUST


@pytest.mark.parametrize("shape", ["mesh", "star", "pipeline and star"])
def test_clocks_of_a_swarm_are_within_half_the_least_round_trip(shape: str) -> None:
    """Of each pair, by any route. In hundreds of swarms whose links are unlike there and back, by chance."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        count = int(rng.integers(3, 10))
        offsets = rng.normal(0, 10, count)
        latency = rng.uniform(0.005, 0.1, (count, count))
        delay = (latency + latency.T) / 2 * rng.uniform(0.8, 1.2, (count, count))
        delay += rng.exponential(0.02, (count, count))
        delays = {
            (i, j): float(delay[i, j])
            for i, j in permutations(range(count), 2)
            if shape == "mesh" or 0 in (i, j) or (shape != "star" and abs(i - j) == 1)
        }
        clocks = align([0.0] * count, least_of(offsets.tolist(), delays))
        trips = np.full((count, count), np.inf)
        for (i, j), seconds in delays.items():
            trips[i, j] = seconds
        np.fill_diagonal(trips, 0)
        for by in range(count):
            trips = np.minimum(trips, trips[:, by : by + 1] + trips[by])
        assert (errors_of(clocks, offsets.tolist()) <= (trips + trips.T) / 2 + DUST).all()


def test_one_clock_that_is_wrong_is_the_one_that_is_corrected() -> None:
    offsets = [0.0, 0.0, 3600.0, 0.0, 0.0]
    delays = dict.fromkeys(permutations(range(5), 2), 0.01)
    clocks = align([1.8e9] * 5, least_of(offsets, delays))
    assert clocks.corrections == pytest.approx(offsets, abs=DUST)


def test_clocks_that_no_messages_tie_together_keep_their_walls_unless_a_message_would_go_back_in_time() -> None:
    delays = {(0, 1): 0.01, (1, 0): 0.01, (2, 0): 5.0}
    clocks = align([100.0, 200.0, 300.0, 400.0], {**delays, (0, 1): 0.01 - 100, (1, 0): 0.01 + 100})
    assert clocks.groups == ((0, 1), (2,), (3,))
    assert clocks.corrections[3] == 0
    assert clocks.uncertainties[2:] == (math.inf, math.inf)
    late = {(0, 1): 0.01, (1, 0): 0.01, (2, 0): -5.0, (3, 2): -7.0}  # by wall clocks, 5 s and 7 s before the send
    clocks = align([0.0] * 4, late)
    assert arrive(clocks, late)
    assert clocks.corrections[0] - clocks.corrections[1] == pytest.approx(0)


def test_clocks_that_drift_are_eased_by_the_least_that_lets_them_agree() -> None:
    # Early, 1 -> 0 shows no delay; an hour later, after 20 ms of drift, 0 -> 1 shows one of -18 ms.
    drifted = {(0, 1): -0.018, (1, 0): 0.002}
    clocks = align([0.0, 0.0], drifted)
    assert clocks.contradiction == pytest.approx(0.008)
    assert arrive(clocks, drifted, slack=clocks.contradiction + DUST)
    assert not arrive(clocks, drifted)
    everyone = {**drifted, (0, 2): 0.01, (2, 0): 0.01, (1, 2): 0.02, (2, 1): 0.02}
    assert align([0.0] * 3, everyone).contradiction == pytest.approx(0.008)


@given(st.lists(st.floats(-1e9, 1e9), min_size=12, max_size=12))
def test_lies_are_eased_too(flights: list[float]) -> None:
    least = dict(zip(permutations(range(4), 2), flights, strict=True))
    clocks = align([0.0] * 4, least)
    assert all(map(math.isfinite, clocks.corrections))
    assert arrive(clocks, least, slack=clocks.contradiction + 1e-5)


class Node:
    """Writes one node's file, by a clock that is `behind` seconds late and was started `uptime` seconds ago."""

    def __init__(self, peer: str, behind: float = 0.0, uptime: float = 0.0) -> None:
        self.peer, self.behind, self.uptime = peer, behind, uptime
        self._spans: list[TraceSpan] = []

    def did(self, lane: Lane, name: str, begin: float, end: float, **args: str | int) -> None:
        """A span, by the true time."""
        times = (round((at + self.uptime) * 1e9) for at in (begin, end))
        self._spans.append(TraceSpan(lane, name, *times, args))

    def write(self, folder: Path, name: str | None = None, whole: bool = True) -> Path:
        wall = 1.8e9 - self.behind - self.uptime
        header = TraceHeader(peer=self.peer, label=self.peer[-6:], wall=wall, pid=1)
        events = [*header_events(header), *(span_event(span, 1, 1) for span in self._spans)]
        text = OPENING + ",\n".join(events) + (f"\n{CLOSING}" if whole else ',\n{"ph":"X","na')
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or f"node-{self.peer}.json")
        path.write_text(text)
        return path


def say(a: Node, b: Node, kind: str, at: float, seconds: float, latency: float, **args: int) -> None:
    """A message, by the true time."""
    a.did("send", f"{kind} 0", at, at + seconds, peer=b.peer, kind=kind, **args)
    b.did("receive", f"{kind} 0", at + latency, at + seconds + latency, peer=a.peer, kind=kind, **args)


@pytest.fixture(name="three")
def three_nodes_fixture() -> list[Node]:
    return three_nodes()


def three_nodes() -> list[Node]:
    """Two steps of three nodes, whose clocks differ: a pipeline, parts sent to both others at once, a ballot."""
    nodes = [Node("carol", 0.5, 1e5), Node("alice", 0.0, 7.0), Node("bob", -0.25, 3e6)]
    for step in (1, 2):
        at = 2.0 * step
        for number, node in enumerate(nodes):
            begin = at + 0.2 * number
            node.did("wait", "wait for ACTIVATION 0", at, begin, step=step)
            node.did("compute", "forward 0", begin, begin + 0.1, step=step, index=0)
            node.did("compute", "backward 0", begin + 0.1, begin + 0.19, step=step, index=0)
            if number < 2:
                say(node, nodes[number + 1], "ACTIVATION", begin + 0.1, 0.08, 0.01, step=step, index=0, group=0)
            for other in nodes:
                if other is not node:
                    say(node, other, "PART", at + 0.8, 0.3, 0.01, step=step, index=nodes.index(other), group=number)
            node.did("all-reduce", "bucket 0", at + 0.8, at + 1.2, step=step)
        for other in nodes[1:]:
            say(other, nodes[0], "VOTE", at + 1.3, 0.0, 0.001, step=step, index=0, group=0)
            say(nodes[0], other, "COMMIT", at + 1.4, 0.0, 0.001, step=step, index=0, group=0)
        for node in nodes:
            node.did("optimizer", "AdamW", at + 1.41, at + 1.5, step=step)
    return nodes


def merged(folder: Path, *given: Path) -> tuple[dict[str, Any], str]:
    text, said, _ = merge(given or (folder,), folder / "out.json")
    values: dict[str, Any] = json.loads(text)
    return values, said


def of(events: list[dict[str, Any]], phase: str, name: str | None = None) -> Iterator[dict[str, Any]]:
    return (event for event in events if event["ph"] == phase and name in (None, event["name"]))


def names(events: list[dict[str, Any]], what: str, key: str) -> dict[int, str]:
    return {event[key]: event["args"]["name"] for event in of(events, "M", what)}


def test_the_merged_file_is_a_valid_chrome_trace(tmp_path: Path, three: list[Node]) -> None:
    for node in three:
        node.write(tmp_path)
    values, said = merged(tmp_path)
    events = values["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    processes, threads = names(events, "process_name", "pid"), names(events, "thread_name", "tid")
    assert list(processes.values()) == ["node alice", "node bob", "node carol"]
    owner = {event["tid"]: event["pid"] for event in of(events, "M", "thread_name")}
    assert len(owner) == len(threads) == len(list(of(events, "M", "thread_name")))  # a thread has one process
    assert not set(threads) & set(processes)
    order = {event["tid"]: event["args"]["sort_index"] for event in of(events, "M", "thread_sort_index")}
    for pid in processes:
        own = sorted((tid for tid in threads if owner[tid] == pid), key=order.__getitem__)
        assert list(dict.fromkeys(threads[tid].split(" ")[0] for tid in own)) == list(LANES)
        assert "send 2" in {threads[tid] for tid in own}
    assert min(event["ts"] for event in of(events, "X")) == 0
    spans: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in of(events, "X"):
        assert owner[event["tid"]] == event["pid"]
        assert threads[event["tid"]].split(" ")[0] == event["cat"]
        assert event["dur"] > 0
        spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for own_spans in spans.values():
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(sorted(own_spans)))
    total = sum(len(read_trace(path).spans) for path in tmp_path.glob("node-*.json"))
    assert sum(map(len, spans.values())) == total
    assert said.startswith(f"3 nodes, {total} spans, 3.5 s; clocks corrected by up to 500 ms, each known to +- ")
    assert said.endswith(": compare two nodes' spans no closer than that")


def test_the_merged_times_are_the_true_ones_within_the_uncertainty(tmp_path: Path, three: list[Node]) -> None:
    for node in three:
        node.write(tmp_path)
    values, _ = merged(tmp_path)
    begun = [event["ts"] / 1e6 for event in of(values["traceEvents"], "X", "AdamW")]
    within = max(trace["uncertainty_seconds"] for trace in values["metadata"]["traces"])
    assert within < 0.003
    assert sorted(begun) == pytest.approx([1.41] * 3 + [3.41] * 3, abs=within)
    corrections = {trace["peer"]: trace["clock_correction_seconds"] for trace in values["metadata"]["traces"]}
    assert corrections["carol"] - corrections["bob"] == pytest.approx(0.75, abs=within)
    assert values["metadata"]["messages_that_end_before_they_begin"] == 0
    assert values["metadata"]["began"] == pytest.approx(1.8e9 + 2, abs=1)


def test_an_arrow_leads_from_every_send_to_its_receive(tmp_path: Path, three: list[Node]) -> None:
    for node in three:
        node.write(tmp_path)
    events = merged(tmp_path)[0]["traceEvents"]
    processes = names(events, "process_name", "pid")

    def at(point: dict[str, Any]) -> dict[str, Any]:
        (found,) = (
            span
            for span in of(events, "X")
            if span["tid"] == point["tid"] and span["ts"] <= point["ts"] < span["ts"] + span["dur"]
        )
        assert found["pid"] == point["pid"]
        assert events.index(found) < events.index(point)
        return found

    starts = {event["id"]: event for event in of(events, "s")}
    ends = {event["id"]: event for event in of(events, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(list(of(events, "s"))) == sum(event["cat"] == "send" for event in of(events, "X"))
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        assert (start["name"], start["cat"], end["bp"]) == (end["name"], end["cat"], "e")
        send, receive = at(start), at(end)
        assert (send["cat"], receive["cat"]) == ("send", "receive")
        assert processes[send["pid"]] == f"node {receive['args'].pop('peer')}"
        assert processes[receive["pid"]] == f"node {send['args'].pop('peer')}"
        assert send["args"] == receive["args"]


def test_a_message_whose_key_comes_twice_matches_nothing_unless_plans_tell_them_apart(tmp_path: Path) -> None:
    for plans in (False, True):
        a, b = Node("a"), Node("b")
        for number, at in enumerate((1.0, 5.0)):
            plan = {"plan": number + 1} if plans else {}
            say(a, b, "ACTIVATION", at, 0.1, 0.01, step=1, index=0, group=0, **plan)
        folder = tmp_path / str(plans)
        a.write(folder)
        b.write(folder)
        assert merged(folder)[0]["metadata"]["messages"] == (2 if plans else 0)


def test_a_node_that_came_back_is_one_process_with_two_clocks(tmp_path: Path, three: list[Node]) -> None:
    back = Node("bob", -40.0, 11.0)
    for step in (3, 4):
        say(back, three[0], "VOTE", 3.0 + step, 0.0, 0.001, step=step, index=0, group=0)
        say(three[0], back, "COMMIT", 3.1 + step, 0.0, 0.001, step=step, index=0, group=0)
    for node in three:
        node.write(tmp_path, whole=node.peer != "bob")
    back.write(tmp_path, "node-bob-2.json")
    values, said = merged(tmp_path)
    events = values["traceEvents"]
    assert list(names(events, "process_name", "pid").values()) == ["node alice", "node bob", "node carol"]
    votes = sorted(event["ts"] / 1e6 for event in of(events, "X", "VOTE 0") if event["cat"] == "send")
    assert votes[-2:] == pytest.approx([4.0, 5.0], abs=0.003)
    assert said.startswith("3 nodes, ")
    assert said.endswith("; bob without an end: killed, or still running")


def test_medians_say_what_each_nodes_steps_are_made_of(tmp_path: Path, three: list[Node]) -> None:
    bob = three[2]
    bob.did("all-reduce", "bucket 1", 3.0, 3.3, step=1)  # beside bucket 0, from 2.8 to 3.2
    bob.did("compute", "evaluate 0", 4.0, 9.0, step=1)
    back = Node("bob", uptime=11.0)
    back.did("compute", "forward 0", 9.0, 9.4, step=3, index=0)
    paths = [node.write(tmp_path) for node in three] + [back.write(tmp_path, "node-bob-2.json")]
    found = {one.label: one for one in step_medians([read_trace(path) for path in paths])}
    assert list(found) == ["carol", "alice", "bob"]
    alice = found["alice"]
    assert (alice.steps, alice.step) == (2, pytest.approx(1.5))
    assert alice.lanes == pytest.approx({"compute": 0.19, "wait": 0.2, "all-reduce": 0.4, "optimizer": 0.09})
    assert alice.rest == pytest.approx(1.5 - 0.19 - 0.2 - 0.4 - 0.09)
    # Bob's three steps: as one and two, with what is at once counted once; and a third of one forward alone.
    assert found["bob"].steps == 3
    assert found["bob"].lanes == pytest.approx({"compute": 0.19, "wait": 0.4, "all-reduce": 0.4, "optimizer": 0.09})
    first = step_medians([read_trace(paths[2])])[0]
    assert first.lanes["all-reduce"] == pytest.approx((0.5 + 0.4) / 2)


def test_nodes_without_messages_stand_by_their_wall_clocks_and_that_is_said(tmp_path: Path, three: list[Node]) -> None:
    idle = Node("idle", 0.0, 50.0)
    idle.did("compute", "measure", 2.0, 3.0)
    idle.write(tmp_path)
    assert merged(tmp_path)[1] == ("1 node, 1 span, 1.0 s; idle placed by wall clock alone: no messages there and back")
    for node in three:
        node.write(tmp_path)
    values, said = merged(tmp_path)
    assert "; idle placed by wall clock alone" in said
    assert values["metadata"]["traces"][-1]["uncertainty_seconds"] is None


def test_messages_that_no_clocks_let_arrive_in_time_are_counted(tmp_path: Path) -> None:
    a, b = Node("a"), Node("b")
    for step in range(10):
        drift = 0.01 * step  # b's clock runs slow by a hundredth
        say(a, b, "ACTIVATION", step, 0.001, 0.001 - drift, step=step, index=0, group=0)
        say(b, a, "GRADIENT", step + 0.5 - drift, 0.001, 0.001 + drift, step=step, index=0, group=0)
    a.write(tmp_path)
    b.write(tmp_path)
    values, said = merged(tmp_path)
    late = values["metadata"]["messages_that_end_before_they_begin"]
    assert 0 < late < 20
    assert f"; {late} of 20 messages still end before they begin, by up to 43 ms: clocks have drifted" in said
    arrows = [event for event in values["traceEvents"] if event["ph"] == "s"]
    assert len(arrows) == 20 - late


def run(*arguments: str | Path) -> None:
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_the_command_writes_the_file_and_says_what_steps_are_made_of(
    tmp_path: Path, three: list[Node], capfd: pytest.CaptureFixture[str]
) -> None:
    for node in three:
        node.write(tmp_path / node.peer)
    out = tmp_path / "carol" / "trace.json"
    for _ in range(2):  # the second time, its own file lies in a folder that it is given
        run("trace", tmp_path / "carol", tmp_path / "bob", tmp_path / "alice" / "node-alice.json", "--out", out)
        captured = capfd.readouterr()
        line, title, *table = captured.out.splitlines()
        assert line.endswith(f": {out}")
        assert title.strip() == "medians of a step"
        assert [row.split()[1] for row in table if " 190 ms " in row] == ["carol", "bob", "alice"]
        assert captured.err == ""
        assert len(json.loads(out.read_text())["metadata"]["traces"]) == 3


def nothing(folder: Path, nodes: list[Node]) -> list[Path]:
    folder.mkdir()
    (folder / "other.json").write_text("{}")
    return [folder]


def missing(folder: Path, nodes: list[Node]) -> list[Path]:
    return [folder / "node-x.json"]


def no_trace(folder: Path, nodes: list[Node]) -> list[Path]:
    nodes[0].write(folder)
    (folder / "node-x.json").write_text('{"traceEvents":[]}')
    return [folder]


def twice(folder: Path, nodes: list[Node]) -> list[Path]:
    return [nodes[0].write(folder / name) for name in ("one", "two")]


def empty(folder: Path, nodes: list[Node]) -> list[Path]:
    return [Node("x").write(folder)]


def crowded(folder: Path, nodes: list[Node]) -> list[Path]:
    node = Node("x")
    for _ in range(4097):
        node.did("send", "ACTIVATION 1", 1.0, 2.0)
    return [node.write(folder)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nothing, r"holds no node-\*\.json: give the folder"),
        (missing, r"cannot read the trace .*node-x\.json: it is not there"),
        (no_trace, r"node-x\.json is not a node's trace"),
        (twice, r"node-carol\.json and .*node-carol\.json are of the same node at the same time: give one of them"),
        (empty, r"the traces hold no spans"),
        (crowded, r"node-x\.json: more than 4096 spans of send at once"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    three: list[Node],
    capfd: pytest.CaptureFixture[str],
    given: Callable[[Path, list[Node]], list[Path]],
    message: str,
) -> None:
    paths = given(tmp_path / "traces", three)
    out = tmp_path / "out" / "trace.json"
    out.parent.mkdir()
    with pytest.raises(UserError, match=message):
        merge(paths, out)
    with pytest.raises(SystemExit) as ended:
        run("trace", *paths, "--out", out)
    assert ended.value.code == command_line.EXIT_USER
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert list(out.parent.iterdir()) == []


def test_a_file_that_cannot_be_written_or_is_an_input_is_refused(
    tmp_path: Path, three: list[Node], capfd: pytest.CaptureFixture[str]
) -> None:
    path = three[0].write(tmp_path)
    before = path.read_bytes()
    for out, message in (
        (tmp_path / "none" / "trace.json", "there is no folder"),
        (tmp_path, "it is a folder"),
        (path, "is one of the traces that are merged"),
    ):
        with pytest.raises(SystemExit) as ended:
            run("trace", tmp_path, "--out", out)
        assert ended.value.code == command_line.EXIT_USER
        assert message in capfd.readouterr().err
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
