"""A node that has slept, or has moved, connects anew at once, and one that has not does not."""

import asyncio
from itertools import pairwise

import pytest

from dtfm_node.control.wake_watch import LOOK_SECONDS, MachineLook, WakeWatch, watch_for_wake
from dtfm_protocol.process.outage import LONGEST_PAUSE_SECONDS, Outage

HOME, TRAIN = frozenset({"192.0.2.7", "2001:db8::7"}), frozenset({"198.51.100.3"})


def look(wall: float, awake: float, addresses: frozenset[str] = HOME) -> MachineLook:
    return MachineLook(wall, awake, addresses)


def told(*looks: MachineLook) -> list[str]:
    watch, said = WakeWatch(), []
    for one in looks:
        watch, why = watch.on(one)
        said.append(why)
    return said


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ([look(0, 0), look(2, 2), look(4, 4)], ["", "", ""]),
        ([look(0, 0), look(8 * 3600, 2)], ["", "this machine has slept (8 h)"]),
        ([look(0, 0), look(60, 60)], ["", ""]),  # a process that was held up, and did not sleep
        ([look(0, 0), look(-3600, 2)], ["", ""]),  # a clock that was set back
        ([look(0, 0), look(2, 2, TRAIN), look(4, 4, TRAIN)], ["", "this machine has other addresses than before", ""]),
        ([look(0, 0), look(2, 2, HOME | TRAIN)], ["", ""]),  # one more way out, and the old one is there
        ([look(0, 0), look(2, 2, frozenset()), look(4, 4)], ["", "", ""]),  # away, and back with the same
        (
            [look(0, 0), look(2, 2, frozenset()), look(4, 4, TRAIN)],
            ["", "", "this machine has other addresses than before"],
        ),
    ],
)
def test_only_a_sleep_or_an_address_that_is_gone_is_a_reason(looks: list[MachineLook], words: list[str]) -> None:
    assert told(*looks) == words


async def test_connections_are_made_anew_at_the_first_look_after_the_wake() -> None:
    clock, anew = {"wall": 0.0, "awake": 0.0}, list[float]()

    async def pause(seconds: float) -> None:
        assert seconds == LOOK_SECONDS
        slept = 3600.0 if clock["awake"] == 2 * LOOK_SECONDS else 0.0
        clock["awake"] += seconds
        clock["wall"] += seconds + slept
        if clock["awake"] > 10 * LOOK_SECONDS:
            raise ZeroDivisionError

    async def connect() -> None:
        anew.append(clock["awake"])

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(
            watch_for_wake(
                lambda: tuple(HOME), connect, wall=lambda: clock["wall"], awake=lambda: clock["awake"], pause=pause
            ),
            10,
        )
    assert anew == [3 * LOOK_SECONDS]


def test_a_day_without_a_coordinator_is_a_dozen_lines_and_one_more_when_it_is_back() -> None:
    now = 0.0
    outage = Outage(lambda: now)
    lines = []
    while now < 86_400:
        lines += [line] if (line := outage.fails("no coordinator")) else []
        now += 2.0
    assert lines[0] == "no coordinator; trying again"
    assert lines[1].startswith("no coordinator; still trying, for 1 min now")
    assert 8 <= len(lines) <= 14
    assert outage.ends("the coordinator is here") == "the coordinator is here again, after 24 h"
    assert outage.ends("the coordinator is here") == ""
    assert outage.fails("gone") == "gone; trying again", "the next one begins anew"


def test_pauses_between_lines_have_an_end() -> None:
    now = 0.0
    outage, times = Outage(lambda: now), list[float]()
    while now < 10 * 86_400:
        times += [now] if outage.fails("away") else []
        now += 600.0
    assert max(b - a for a, b in pairwise(times)) <= LONGEST_PAUSE_SECONDS + 600
