"""A node's trace: what is written, what is left of it when the node is killed, and what is refused."""

import contextlib
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import dtfm_node.engine.tracer
from dtfm_node.engine.tracer import FLUSH_SPANS, NO_TRACE, TraceFile, Tracer
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.trace_format import (
    LANES,
    LARGEST_FILE,
    Rows,
    TraceHeader,
    TraceSpan,
    header_events,
    lane_events,
    read_trace,
    span_event,
)

PEER = Identity.generate().peer_id
HEADER = TraceHeader(peer=PEER, label=short(PEER), wall=1.8e9, pid=7)


def lines(*events: str) -> str:
    return "[\n" + "".join(f"{event},\n" for event in [*header_events(HEADER), *events])


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "node-x.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@contextlib.contextmanager
def warnings() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    found: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Lines()
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


def test_what_is_noted_is_read_back_to_the_nanosecond(tmp_path: Path) -> None:
    begin, wall = time.monotonic(), time.time() - time.monotonic()
    with TraceFile.open(tmp_path / "deep" / "traces", PEER) as trace:
        for number, lane in enumerate(LANES):
            trace.span(lane, f"{lane} {number}", begin, begin + 0.25, peer=PEER, kind="PART", step=7, index=number)
        trace.span("compute", "no time at all", begin, begin)
    read = read_trace(trace.path)
    assert read.whole
    assert (read.header.peer, read.header.label, read.header.pid) == (PEER, short(PEER), os.getpid())
    assert read.header.wall == pytest.approx(wall, abs=0.1)
    assert [span.lane for span in read.spans] == [*LANES, "compute"]
    for number, span in enumerate(read.spans[:-1]):
        assert span == TraceSpan(
            LANES[number],
            f"{LANES[number]} {number}",
            round(begin * 1e9),
            round((begin + 0.25) * 1e9),
            {"peer": PEER, "kind": "PART", "step": 7, "index": number},
        )
    assert read.spans[-1].end - read.spans[-1].begin == 1


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_the_file_is_a_chrome_trace_whose_threads_are_rows_of_lanes_without_overlap(tmp_path: Path) -> None:
    with TraceFile.open(tmp_path, PEER) as trace:
        for begin, end in ((0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (2.5, 2.6), (3.0, 5.0)):
            trace.span("send", "ACTIVATION 1", begin, end)
        trace.span("compute", "forward 1", 0.0, 1.0)
    events = events_of(trace.path)
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    assert sorted(named.values()) == ["compute", "send", "send 2", "send 3"]
    assert sorted(named, key=order.__getitem__) == sorted(named, key=lambda tid: named[tid])
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {f"node {short(PEER)}"}
    ends: defaultdict[int, float] = defaultdict(float)
    for event in events:
        assert {"ph", "name", "pid", "tid", "args"} <= event.keys()
        if event["ph"] == "X":
            assert event["ts"] >= ends[event["tid"]]
            ends[event["tid"]] = event["ts"] + event["dur"]
            assert named[event["tid"]].startswith(event["cat"])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=60))
def test_no_two_spans_of_a_row_overlap_and_there_are_no_more_rows_than_spans_at_once(
    spans: list[tuple[int, int]],
) -> None:
    rows = Rows()
    placed = [(rows.place(begin, begin + length), begin, begin + length) for begin, length in sorted(spans)]
    for row in {row for row, _, _ in placed}:
        own = [(begin, end) for which, begin, end in placed if which == row]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
    at_once = max((sum(begin <= at < end for _, begin, end in placed) for _, at, _ in placed), default=0)
    assert {row for row, _, _ in placed} == set(range(at_once))


@pytest.mark.process
def test_a_node_that_is_killed_leaves_all_but_its_last_second(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from dtfm_node.engine.tracer import TraceFile
trace = TraceFile.open(Path({str(tmp_path)!r}), {PEER!r})
now = time.monotonic()
for step in range(30):
    trace.span("compute", "forward", now + step / 10, now + step / 10 + 0.1, step=step)
print("done", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.send_signal(signal.SIGKILL)
    (path,) = tmp_path.iterdir()
    read = read_trace(path)
    assert not read.whole
    assert 30 - 11 <= len(read.spans) <= 30  # a tenth of a second each
    assert [span.args["step"] for span in read.spans] == list(range(len(read.spans)))


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_last_line_that_is_torn_is_left_out(tmp_path: Path, cut: int) -> None:
    event = span_event(TraceSpan("wait", "wait for ACTIVATION 3", 1_000, 2_000, {"step": 1}), 7, 3)
    read = read_trace(written(tmp_path, lines(event, event, event).rstrip("\n")[:-cut]))
    assert len(read.spans) == (3 if cut == 1 else 2)  # of the third, only the comma is missing
    assert not read.whole
    assert read.spans[0] == TraceSpan("wait", "wait for ACTIVATION 3", 1_000, 2_000, {"step": 1})


def test_every_start_of_a_node_has_a_file_of_its_own(tmp_path: Path) -> None:
    opened = [TraceFile.open(tmp_path, PEER) for _ in range(3)]
    for trace in opened:
        trace.close()
    name = f"node-{short(PEER)}"
    assert [trace.path.name for trace in opened] == [f"{name}.json", f"{name}-2.json", f"{name}-3.json"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "traces"):
        with pytest.raises(UserError, match=rf"cannot write a trace to {folder}: .*; choose another --trace$"):
            TraceFile.open(folder, PEER)


def test_a_full_disk_ends_the_trace_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = False

    class Disk(FileIO):
        def write(self, data: Any) -> int:
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:100])  # a disk may take less than it is given

    monkeypatch.setattr(dtfm_node.engine.tracer, "FileIO", Disk)
    with warnings() as said, TraceFile.open(tmp_path, PEER) as trace:
        now = time.monotonic()
        trace.span("compute", "forward", now, now + 2)
        full = True
        for step in range(3):
            trace.span("compute", "forward", now + 2 * step + 2, now + 2 * step + 4)
    assert said == [f"the trace {trace.path} ends here, training goes on: No space left on device"]
    assert len(read_trace(trace.path).spans) == 1
    with pytest.raises(UserError, match="No space left on device"):
        TraceFile.open(tmp_path / "other", PEER)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_trace_ends_at_the_largest_size_that_is_read(tmp_path: Path) -> None:
    with warnings() as said, TraceFile.open(tmp_path, PEER, largest=20_000) as trace:
        now = time.monotonic()
        for step in range(1000):
            trace.span("compute", "forward", now + step, now + step + 1)
    assert len(said) == 1
    assert "ends here: it has" in said[0]
    assert trace.path.stat().st_size < 20_000
    read = read_trace(trace.path)
    assert read.whole
    assert len(read.spans) > 50


def test_a_disk_that_hangs_costs_spans_and_no_memory(tmp_path: Path) -> None:
    with warnings() as said, TraceFile.open(tmp_path, PEER, most_pending=10) as trace:
        now = time.monotonic() - 100  # none of them is due to be written
        for _ in range(25):
            trace.span("compute", "forward", now, now + 1)
    assert said == [f"the trace {trace.path} lacks 15 spans: the disk was too slow"]
    assert len(read_trace(trace.path).spans) == 10


def test_threads_may_note_spans_at_the_same_time(tmp_path: Path) -> None:
    each, lanes = 3 * FLUSH_SPANS, LANES[:4]
    with TraceFile.open(tmp_path, PEER) as trace:

        def work(number: int) -> None:
            for step in range(each):
                trace.span(lanes[number], "work", step / 1000, (step + 1) / 1000, step=step)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(lanes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    steps: defaultdict[str, list[str | int]] = defaultdict(list)
    for span in read_trace(trace.path).spans:
        steps[span.lane].append(span.args["step"])
    assert steps == {lane: list(range(each)) for lane in lanes}


def test_after_its_end_a_trace_takes_nothing_and_ends_no_second_time(tmp_path: Path) -> None:
    trace: Tracer
    with TraceFile.open(tmp_path, PEER) as trace:
        pass
    before = trace.path.read_bytes()
    trace.span("compute", "forward", 0.0, 1e12)
    trace.close()
    assert trace.path.read_bytes() == before
    NO_TRACE.span("compute", "forward", 0.0, 1.0, step=1)


SPAN = '{"ph":"X","name":"a","cat":"wait","ts":1,"dur":1,"pid":1,"tid":1,"args":{}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is not a node's trace: give what"),
        ("[\n", r"is not a node's trace"),
        ('{"traceEvents":[]}', r"is not a node's trace"),
        (f"[\n{SPAN},\n", r"is not a node's trace"),
        ("[\n{}\n", r"line 2: .*discriminator 'ph'"),
        (lines("nonsense"), r"line 4: Invalid JSON"),
        (lines(SPAN.replace("wait", "walk"), SPAN), r"line 4: X\.cat: .*\(got 'walk'\)$"),
        (lines(SPAN.replace('"dur":1', '"dur":-1'), SPAN), r"line 4: X\.dur: "),
        (lines(SPAN.replace('"ts":1', '"ts":NaN'), SPAN), r"line 4: "),
        (lines(SPAN.replace('"ts":1', '"ts":1e300'), SPAN), r"line 4: X\.ts: "),
        (lines(SPAN.replace('"a"', '"\\u001b[2J"'), SPAN), r"line 4: X\.name: .*\(got '\\x1b\[2J'\)$"),
        (lines(SPAN.replace("{}", '{"a":[]}'), SPAN), r"line 4: X\.args\.a"),
        (lines(SPAN.replace('"a"', f'"{"a" * 50_000}"'), SPAN), r"line 4: "),
        (lines("[" * 10_000), r"line 4: "),
        (lines(SPAN).replace('"format":1', '"format":2'), r"line 2: format: .*\(got 2\)$"),
        (lines(SPAN) + "]\n" + lines(SPAN), r"goes on after its end, at line 6"),
    ],
)
def test_what_is_no_trace_is_refused_with_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it is not there"):
        read_trace(tmp_path / "node-x.json")
    with pytest.raises(UserError, match="it is no file"):
        read_trace(tmp_path)
    with written(tmp_path, "[\n").open("r+b") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(UserError, match="has more than 268 MB"):
        read_trace(tmp_path / "node-x.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(alphabet='[]{},:"\\nphXM0.1-e\n ', max_size=200).map(str.encode),
        st.tuples(st.integers(0, 2000), st.binary(max_size=20), st.integers(0, 30)),
    )
)
@example(b"[\n\xff\n")
def test_garbage_is_refused_or_read_and_never_more(tmp_path: Path, garbage: bytes | tuple[int, bytes, int]) -> None:
    """Bytes, or a trace in which bytes were put in place of others."""
    if isinstance(garbage, tuple):
        at, put, gone = garbage
        whole = (lines(*lane_events("wait", 0, 7, 3), *[SPAN] * 5) + "]").encode()
        garbage = whole[:at] + put + whole[at + gone :]
    with contextlib.suppress(UserError):
        assert len(read_trace(written(tmp_path, garbage)).spans) <= 6
