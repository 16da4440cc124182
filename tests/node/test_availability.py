"""When a node may work: its person's order, hours of the day, and what the machine tells, without flapping."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from dtfm_node.commands.pause import pause, resume
from dtfm_node.limits.availability import BY_ORDER, Availability, Look, MayWork, PauseCause, Rules
from dtfm_node.limits.availability_watch import AvailabilityWatch
from dtfm_node.limits.draining import PROGRESS_BYTES, Draining
from dtfm_node.limits.hours import Hours
from dtfm_node.limits.machine_readings import MachineReading
from dtfm_node.limits.pause_order import ORDER, PauseOrder, read_order, seconds_of, write_order
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import locked
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.harness.manual_clock import ManualClock, settle

NOON, NIGHT = 12 * 60, 23 * 60
ALL = Rules(not_on_battery=True, when_idle=True, not_metered=True)


def verdict(rules: Rules, minute: int = NOON, order: PauseOrder | None = None, **reading: object) -> MayWork:
    """What a first look gives, and another one a minute later that shows the same."""
    shown = MachineReading(**reading)  # type: ignore[arg-type]
    machine, _ = Availability(rules).on(Look(0.0, 0.0, minute, shown, order))
    return machine.on(Look(60.0, 60.0, minute, shown, order))[1]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22-7", [22 * 60, 0, 7 * 60 - 1], [7 * 60, NOON, 22 * 60 - 1]),
        ("9-17", [9 * 60, 17 * 60 - 1], [17 * 60, 0]),
        ("22:30-6:45,12-13", [22 * 60 + 30, 6 * 60 + 44, NOON], [6 * 60 + 45, 13 * 60]),
        ("0-24:00", [], []),
        ("20-24", [20 * 60, 24 * 60 - 1], [0]),
    ],
)
def test_hours_are_spans_of_the_day_that_may_go_over_midnight(text: str, inside: list[int], outside: list[int]) -> None:
    if not inside:
        with pytest.raises(UserError, match="no part of a day"):
            Hours.parsed(text)
        return
    spans = Hours.parsed(text)
    assert all(any(span.has(minute) for span in spans) for minute in inside)
    assert not any(span.has(minute) for span in spans for minute in outside)
    assert Hours.parsed(",".join(map(str, spans))) == spans


@pytest.mark.parametrize("text", ["", "22", "7-7", "25-3", "22-7-8", "9:60-10", "at night", "22-7,"])
def test_what_is_no_span_of_the_day_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match=r"--hours .*(22-7|0 to 24)"):
        Hours.parsed(text)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (verdict(Rules()), ""),
        (verdict(ALL), ""),
        (verdict(Rules(Hours.parsed("22-7"))), "outside the hours 22-7"),
        (verdict(Rules(Hours.parsed("22-7")), NIGHT), ""),
        (verdict(ALL, on_battery=True), "on battery"),
        (verdict(ALL, is_metered=True), "on a metered network"),
        (verdict(ALL, idle_seconds=3.0), "somebody uses this machine"),
        (verdict(ALL, idle_seconds=300.0), ""),
        (verdict(ALL, load_of_others=2.0), "somebody uses this machine: other programs compute"),
        (verdict(ALL, load_of_others=0.1), ""),
        (verdict(ALL, other_gpu_use=True), "somebody uses this machine: another program computes on the GPU"),
        (verdict(Rules(), on_battery=True, is_metered=True, idle_seconds=0.0, load_of_others=9.0), ""),
        (verdict(ALL, order=PauseOrder()), "paused by its person until `dtfm-node resume`"),
        (verdict(ALL, order=PauseOrder(until=59.0)), ""),
    ],
)
def test_a_node_says_in_plain_words_why_it_does_not_work(found: MayWork, why: str) -> None:
    assert found == MayWork(not why, why)


def test_an_order_comes_before_all_else_and_says_whether_anybody_is_waited_for() -> None:
    found = verdict(ALL, order=PauseOrder(at_once=True), on_battery=True)
    assert found == MayWork(False, "paused by its person until `dtfm-node resume`", at_once=True)


def looks(rules: Rules, *shown: tuple[float, MachineReading]) -> list[bool]:
    """Whether the node works after each of these looks."""
    machine, found = Availability(rules), []
    for now, reading in shown:
        machine, after = machine.on(Look(now, now, NOON, reading))
        found.append(after.works)
    return found


BUSY, CALM = MachineReading(load_of_others=2.0), MachineReading(load_of_others=0.0)


def test_a_moments_load_is_no_use_and_a_moments_rest_no_idleness() -> None:
    idle = Rules(when_idle=True)
    assert looks(idle, (0, CALM), (1, BUSY), (2, CALM), (3, BUSY), (4, CALM)) == [True] * 5
    lasting = PauseCause.LOAD.lasts
    assert looks(idle, (0, BUSY), (lasting - 1, BUSY), (lasting, BUSY)) == [True, True, False]
    end = lasting + PauseCause.LOAD.calm
    assert looks(idle, (0, BUSY), (lasting, BUSY), (end - 1, CALM), (end, CALM)) == [True, False, False, True]
    assert looks(idle, (0, BUSY), (lasting, BUSY), (end - 1, BUSY), (end, CALM)) == [True, False, False, False]


def test_a_plug_that_is_pulled_counts_at_once_and_one_that_is_put_in_after_a_while() -> None:
    battery, mains = MachineReading(on_battery=True), MachineReading(on_battery=False)
    shown = [(0.0, mains), (1.0, battery), (2.0, mains), (1.0 + PauseCause.BATTERY.calm, mains)]
    assert looks(Rules(not_on_battery=True), *shown) == [True, False, False, True]


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200.0), ("90min", 5400.0), ("1h30m", 5400.0), ("1.5 h", 5400.0), ("1d", 86400.0)]
)
def test_a_pause_is_as_long_as_a_person_writes_it(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "two hours", "2h!", "0s", "400d", "-2h"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--for"):
        seconds_of(text)


def test_an_order_is_kept_in_the_folder_and_what_is_none_is_no_order(tmp_path: Path) -> None:
    assert read_order(tmp_path) is None
    write_order(tmp_path, PauseOrder(until=5.0, at_once=True))
    assert read_order(tmp_path) == PauseOrder(until=5.0, at_once=True)
    write_order(tmp_path, None)
    write_order(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
    for rubbish in ("", "{", '{"until": "soon"}', '{"until": NaN}', "[]"):
        (tmp_path / ORDER).write_text(rubbish)
        assert read_order(tmp_path) is None


# -- the wait until others have what a node holds -------------------------------------------------------------------


def test_waiting_for_others_is_given_up_when_nothing_goes_out_any_more_or_the_broker_is_gone() -> None:
    wait = Draining(limit=60.0, alone_limit=1.0, since=0.0, sent=0)
    assert not wait.looked(59.0, 1 << 30, works=True, connected=True).is_vain(59.0)
    assert wait.looked(60.0, 1 << 30, works=True, connected=True).is_vain(60.0), "it must end its work by then"
    fetched = wait.looked(59.0, PROGRESS_BYTES, works=False, connected=True)
    assert not fetched.is_vain(118.0)
    assert fetched.looked(118.0, PROGRESS_BYTES + 1, works=False, connected=True).is_vain(119.0)
    alone = wait.looked(1.0, 0, works=True, connected=False)
    assert not alone.is_vain(1.9)
    assert alone.looked(1.5, 0, works=True, connected=False).is_vain(2.0)
    assert not alone.looked(1.5, 0, works=True, connected=True).is_vain(2.0)


# -- the watch ------------------------------------------------------------------------------------------------------


class Machine:
    """A machine that tells what a test wants."""

    def __init__(self, reading: MachineReading = MachineReading()) -> None:  # noqa: B008
        self.reading = reading

    async def read(self) -> MachineReading:
        return self.reading


class Node:
    """A node that pauses when it is told to do so at once."""

    is_paused = False
    works = True

    def __init__(self) -> None:
        self.heard: list[str] = []

    def pause(self, why: str, *, at_once: bool = False, saved: bool = True) -> None:
        self.heard.append(f"{why}{', at once' if at_once else ''}{'' if saved else ', unsaved'}")
        self.is_paused = self.is_paused or at_once

    def go_on(self) -> None:
        self.heard.append("goes on")
        self.is_paused = False


async def watched(folder: Path, machine: Machine, node: Node, clock: ManualClock) -> asyncio.Task[None]:
    watch = AvailabilityWatch(folder, ALL, machine, clock=clock)
    task = asyncio.create_task(watch.run(node, lambda: True, lambda: 0))
    await settle()
    return task


async def test_a_node_that_is_to_pause_is_stopped_where_nobody_takes_over_in_time(tmp_path: Path) -> None:
    node, clock, machine = Node(), ManualClock(), Machine()
    task = await watched(tmp_path, machine, node, clock)
    machine.reading = MachineReading(on_battery=True)
    await clock.advance(TIMEOUTS.availability_look)
    assert node.heard == ["on battery"]
    await clock.advance(TIMEOUTS.leave - TIMEOUTS.availability_look)
    assert not node.is_paused
    await clock.advance(2 * TIMEOUTS.availability_look)
    assert node.heard[1:] == ["on battery, at once"], "what it alone holds is written to its disk"
    machine.reading = MachineReading(on_battery=False)
    await clock.advance(PauseCause.BATTERY.calm + TIMEOUTS.availability_look)
    assert node.heard[2:] == ["goes on"]
    task.cancel()


async def test_a_persons_order_is_followed_and_forgotten_when_it_is_over(tmp_path: Path) -> None:
    node, clock = Node(), ManualClock()
    task = await watched(tmp_path, Machine(), node, clock)
    order = PauseOrder(until=time.time() + 3600.0, at_once=True)
    write_order(tmp_path, order)
    await clock.advance(TIMEOUTS.availability_look)
    assert node.heard == [f"{BY_ORDER} {order.words(time.time())}, at once, unsaved"]
    write_order(tmp_path, PauseOrder(until=time.time() - 1.0))
    await clock.advance(TIMEOUTS.availability_look)
    assert node.heard[1:] == ["goes on"]
    assert not (tmp_path / ORDER).exists()
    task.cancel()


async def test_a_node_that_starts_when_it_may_not_work_waits_and_says_why_once(tmp_path: Path) -> None:
    machine, clock, said = Machine(MachineReading(is_metered=True)), ManualClock(), list[str]()
    watch = AvailabilityWatch(tmp_path, ALL, machine, clock=clock)
    task = asyncio.create_task(watch.until_available(said.append))
    await clock.advance(30.0)
    assert (said, task.done()) == (["on a metered network"], False)
    machine.reading = MachineReading()
    await clock.advance(PauseCause.METERED.calm + TIMEOUTS.availability_look)
    assert task.done()


async def test_a_limit_that_this_system_cannot_hold_is_refused(tmp_path: Path) -> None:
    def watch(rules: Rules) -> AvailabilityWatch:
        return AvailabilityWatch(tmp_path, rules, Machine())

    for rules, option in (
        (Rules(not_on_battery=True), "--not-on-battery"),
        (Rules(not_metered=True), "--not-metered"),
    ):
        with pytest.raises(UserError, match=f"{option}: this system does not tell"):
            await watch(rules).check()
    await watch(Rules(when_idle=True)).check()
    await AvailabilityWatch(tmp_path, ALL, Machine(MachineReading(on_battery=False, is_metered=False))).check()


# -- the commands ---------------------------------------------------------------------------------------------------


def test_pause_waits_for_the_node_and_resume_takes_the_order_back(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no node runs"):
        pause(tmp_path, None, 1.0, at_once=False)
    with pytest.raises(UserError, match="was not paused"):
        resume(tmp_path)
    with locked(tmp_path):
        (tmp_path / "status.json").write_text(json.dumps({"state": "paused", "at": 0.0}))
        assert "it still waits until others have" in pause(tmp_path, 60.0, 0.0, at_once=False)
        (tmp_path / "status.json").write_text(json.dumps({"state": "paused", "at": time.time() + 60.0}))
        assert pause(tmp_path, None, 30.0, at_once=True) == "paused until `dtfm-node resume`"
        assert read_order(tmp_path) == PauseOrder(at_once=True)
        assert resume(tmp_path) == "it goes on"
    assert read_order(tmp_path) is None
