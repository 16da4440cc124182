"""How a daemon enters a swarm whose coordinator is starting."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.control.display import Display
from dtfm_node.daemon import Daemon
from dtfm_node.engine.job_survey import JobSurvey, Surveyor
from dtfm_node.engine.runtime import Runtime
from dtfm_node.limits.availability import Rules
from dtfm_node.limits.availability_watch import AvailabilityWatch
from dtfm_node.limits.machine_readings import MachineReading
from dtfm_node.limits.pause_order import PauseOrder, write_order
from dtfm_node.node_options import NodeOptions
from dtfm_protocol.control.messages import CHALLENGE, REPORT, Report, Topic
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema
from tests.coordinator.peers import JOB as ANY_JOB
from tests.coordinator.test_planner import CONFIG
from tests.harness.manual_clock import ManualClock, settle
from tests.harness.membership import invite_of

INVITE = invite_of()
JOB = ANY_JOB.model_copy(update={"config": CONFIG})


class Control:
    """A broker's side of the control plane."""

    last_error = ""
    clock_ahead: float | None = None

    def __init__(self, connected: bool) -> None:
        self.connected = asyncio.Event()
        if connected:
            self.connected.set()
        self.clock_told = asyncio.Event()
        self.clock_told.set()
        self.said: list[str] = []

        self.bodies: list[Schema] = []
        self.asked = asyncio.Event()
        self.reported = asyncio.Event()

    async def publish(self, topic: Topic, body: Schema) -> None:
        self.said.append(topic.name)
        self.bodies.append(body)
        if topic is CHALLENGE:
            self.asked.set()
        if topic is REPORT:
            self.reported.set()


async def surveyed(job: ResolvedJob) -> JobSurvey:
    return JobSurvey(1, 2)


def entering(
    folder: Path,
    connected: bool,
    timeout: float,
    surveyor: Surveyor = surveyed,
    challenge: float = 0.0,
    clock_answer: float = 30.0,
) -> tuple[Daemon, Control, Any]:
    quick = replace(TIMEOUTS, identity_challenge=challenge, clock_answer=clock_answer)
    daemon = Daemon(INVITE, folder, NodeOptions(timeout=timeout), Display("plain"), quick, surveyor)
    control: Any = Control(connected)
    return daemon, control, entered(daemon, control)


async def entered(daemon: Daemon, control: Any) -> JobSurvey:
    """Do what comes before this node serves, without ports, and return what the job asks for."""
    found: list[JobSurvey] = []
    stand_in: Any = daemon

    async def opening(*met: Any) -> AbstractAsyncContextManager[None]:
        control.said.append("opens its ports")
        return nullcontext()

    async def serve(machine: Runtime, survey: JobSurvey, *met: Any) -> None:
        found.append(survey)

    stand_in._opening, stand_in._serve = opening, serve
    await daemon._arrival.enter(control)
    admission: Any = None
    watch: Any = None
    with Runtime.running(torch.device("cpu")) as machine:
        await daemon._begin(machine, control, admission, watch)
    return found[0]


async def test_a_node_asks_for_nothing_until_a_coordinator_serves(tmp_path: Path) -> None:
    """Its broker may be there long before it is: a question would be heard by nobody."""
    daemon, control, entry = entering(tmp_path, True, 30.0)
    task = asyncio.create_task(entry)
    await settle()
    assert control.said == []
    daemon._inbox._take_job("", JOB)
    assert await asyncio.wait_for(task, 30) == JobSurvey(1, 2)
    assert control.said == ["challenge", "opens its ports"]


async def test_who_has_just_made_its_key_does_not_wait_for_another_daemon_that_has_it(tmp_path: Path) -> None:
    daemon, control, entry = entering(tmp_path, True, 30.0, challenge=1000.0)
    daemon._arrival.has_new_key = True
    daemon._inbox._take_job("", JOB)
    assert await asyncio.wait_for(entry, 30) == JobSurvey(1, 2)
    assert control.said == ["challenge", "opens its ports"], "what time it is it asks all the same"


async def test_who_has_an_older_key_waits_whether_another_daemon_has_it(tmp_path: Path) -> None:
    daemon, control, entry = entering(tmp_path, True, 30.0, challenge=1000.0)
    daemon._inbox._take_job("", JOB)
    task = asyncio.create_task(entry)
    await asyncio.wait_for(control.asked.wait(), 30)
    await settle()
    assert control.said == ["challenge"]
    task.cancel()


async def test_a_coordinator_that_is_slow_to_tell_the_time_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its clock a node whose own is off would be turned away by the DHT."""
    followed: list[Callable[[], float]] = []
    monkeypatch.setattr("dtfm_node.arrival.go_by", followed.append)
    daemon, control, entry = entering(tmp_path, True, 30.0)
    control.clock_told.clear()
    daemon._inbox._take_job("", JOB)
    task = asyncio.create_task(entry)
    await asyncio.wait_for(control.asked.wait(), 30)
    await settle()
    assert control.said == ["challenge"]
    control.clock_ahead = 3600.0
    control.clock_told.set()
    await asyncio.wait_for(task, 30)
    control.clock_ahead = 7200.0  # what one message tells later moves nobody who is in
    assert [ahead() for ahead in followed] == [3600.0]


@pytest.mark.parametrize("second", [-3600.0, 0.1])
async def test_a_message_that_was_read_late_sets_no_clock_for_longer_than_until_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: float
) -> None:
    """The clock of a machine that was busy for seconds looks as if it were ahead by as much."""
    went_by: list[Callable[[], float]] = []
    monkeypatch.setattr("dtfm_node.arrival.go_by", went_by.append)
    daemon, control, entry = entering(tmp_path, True, 30.0)
    control.clock_ahead = -3600.0
    daemon._inbox._take_job("", JOB)
    task = asyncio.create_task(entry)
    await asyncio.wait_for(control.asked.wait(), 30)
    while control.clock_told.is_set():  # noqa: ASYNC110 - the node looks around in its own time
        await asyncio.sleep(0)
    control.clock_ahead = second
    control.clock_told.set()
    await asyncio.wait_for(task, 30)
    if second > 0:
        assert went_by == []
        return
    (ahead,) = went_by
    found = []
    for told in (second, -40.0, 0.3, 5.0):
        control.clock_ahead = told
        found.append(ahead())
    assert found == [second, -40.0, 0.0, 0.0]


async def test_a_coordinator_that_never_tells_the_time_keeps_nobody_out(tmp_path: Path) -> None:
    daemon, control, entry = entering(tmp_path, True, 30.0, clock_answer=0.01)
    control.clock_told.clear()
    daemon._inbox._take_job("", JOB)
    assert await asyncio.wait_for(entry, 30) == JobSurvey(1, 2)


async def test_the_job_is_surveyed_while_others_may_object_and_no_longer_than_that(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def survey(job: ResolvedJob) -> JobSurvey:
        begun.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    daemon, _, entry = entering(tmp_path, True, 30.0, survey, challenge=3600.0)
    task = asyncio.create_task(entry)
    daemon._inbox._take_job("", JOB)
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    await asyncio.wait({task})
    assert ended.is_set()


async def test_a_job_that_cannot_run_here_ends_the_entry(tmp_path: Path) -> None:
    async def survey(job: ResolvedJob) -> JobSurvey:
        raise UserError("too large")

    daemon, _, entry = entering(tmp_path, True, 30.0, survey, challenge=3600.0)
    daemon._inbox._take_job("", JOB)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(entry, 30)
    assert [str(error) for error in caught.value.exceptions] == ["too large"]


@pytest.mark.parametrize(("connected", "why"), [(False, "did not let this node in"), (True, "nobody has said")])
async def test_a_node_gives_up_where_nobody_leads_and_says_what_is_missing(
    tmp_path: Path, connected: bool, why: str
) -> None:
    _, control, entry = entering(tmp_path, connected, 0.05)
    with pytest.raises(UserError, match=f"no coordinator: its broker .*{why}"):
        await asyncio.wait_for(entry, 30)
    assert control.said == []


def beginning(folder: Path) -> tuple[Daemon, Control, ManualClock, asyncio.Task[bool]]:
    """A daemon that begins while its person has paused it."""
    write_order(folder, PauseOrder())
    daemon, control, entry = entering(folder, True, 30.0)
    entry.close()
    clock = ManualClock()
    watch = AvailabilityWatch(folder, Rules(), NoReadings(), clock=clock)
    return daemon, control, clock, asyncio.create_task(daemon._until_available(watch, control))


class NoReadings:
    """A machine that tells nothing."""

    async def read(self) -> MachineReading:
        return MachineReading()


async def test_a_node_that_begins_with_a_pause_is_a_member_that_says_why_it_does_nothing(tmp_path: Path) -> None:
    daemon, control, clock, task = beginning(tmp_path)
    await settle()
    assert control.said == [], "nobody leads yet, and it waits for that"
    daemon._inbox._take_job("", JOB)
    await asyncio.wait_for(control.reported.wait(), 30)
    assert control.said == ["challenge", "presence", "report"]
    report = control.bodies[-1]
    assert isinstance(report, Report)
    assert (report.state, report.text) == ("paused", "paused by its person until `dtfm-node resume`")
    write_order(tmp_path, None)
    await clock.advance(TIMEOUTS.availability_look)
    assert await asyncio.wait_for(task, 30), "it goes on to work"
    assert daemon._reporter._now().state == "measuring"


async def test_a_node_that_is_sent_away_while_it_pauses_does_not_begin(tmp_path: Path) -> None:
    daemon, _, _, task = beginning(tmp_path)
    await settle()
    daemon._inbox.sent_away.set()
    assert not await asyncio.wait_for(task, 30)


async def test_a_node_that_may_work_begins_without_a_word_of_a_pause(tmp_path: Path) -> None:
    daemon, control, entry = entering(tmp_path, True, 30.0)
    entry.close()
    watch = AvailabilityWatch(tmp_path, Rules(), NoReadings(), clock=ManualClock())
    assert await asyncio.wait_for(daemon._until_available(watch, control), 30)
    assert control.said == []
