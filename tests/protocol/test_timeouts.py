"""The table of timeouts: what must hold between its rows, and the page that tells people of them."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dtfm_coordinator.faults.owed_shares import SLOWEST
from dtfm_coordinator.plan_change.plan_change_driver import STEPS_OF_PATIENCE
from dtfm_node.engine.failure_detector import ROUND_TRIPS, STUCK_TIMES
from dtfm_protocol.control.mqtt import RETRY_PART
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "guarantees.md"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"leave": -1.0}, "leave is -1 s: it cannot be negative"),
        ({"broker_retry_shortest": 5.0}, "broker_retry_shortest is longer than broker_retry_longest"),
        ({"report_silence": 2.0}, "report_silence is no longer than two of report: one lost report"),
        ({"report_return": 1.0}, "report_return is no longer than report"),
        ({"report_paused": 1.0}, "report_paused is no longer than report: who pauses is to say little"),
        ({"report_silence": 20.0}, "cut_off is no longer than report_silence"),
        ({"cut_off": 12.0}, "cut_off is no longer than two pauses before a broker is tried"),
        ({"comeback": 12.0}, "comeback is no longer than two pauses before a broker is tried"),
        ({"takeover": 12.0}, "takeover is no longer than two pauses before a broker is tried"),
        ({"first_look": 15.0}, "first_look is no shorter than takeover"),
        ({"pulse": 1.0}, "silence_shortest is shorter than four of pulse"),
        ({"silence_longest": 2.0}, "silence_shortest is longer than silence_longest"),
        ({"late_promise": 4.0}, "late_promise is no shorter than report_silence"),
        ({"step_end": 60.0}, "leave is no longer than step_end"),
        ({"contribution": 15.0}, "contribution is no shorter than goodbye"),
        ({"park": 61.0}, "leave is shorter than park"),
        ({"settle_in_run": 2.0}, "settle_in_run is longer than settle"),
        ({"probe": 75.0}, "probe_round is no longer than probe"),
        ({"frames_held": 61.0}, "frames_held is longer than probe"),
        ({"publish_look": 61.0}, "publish_look is longer than a third of profile_lifetime"),
        ({"links_lifetime": 100.0}, "links_lifetime is shorter than profile_lifetime"),
        ({"checkpoint_confirm": 2.0}, "checkpoint_confirm is no longer than upload_retry"),
        ({"checkpoint_share": 15.0}, "checkpoint_share is no longer than checkpoint_confirm"),
    ],
)
def test_timeouts_that_do_not_fit_together_are_refused_with_the_reason(wrong: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=f"^timeouts: {re.escape(why)}"):
        replace(TIMEOUTS, **wrong)


def test_every_timeout_is_explained() -> None:
    table = Path(__file__).parents[2] / "protocol" / "dtfm_protocol" / "process" / "timeouts.py"
    explained = set(re.findall(r'^    (\w+): (?:float|int) = [\d.]+\n    """', table.read_text(), flags=re.M))
    assert explained == {field.name for field in fields(Timeouts)}


def waits() -> dict[str, str]:
    """The rows of the page's table of waiting: what is waited for, and how long."""
    table = PAGE.read_text().split("## How long anyone waits")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows[2:]}


def test_the_page_of_guarantees_tells_what_is_in_the_table() -> None:
    t = TIMEOUTS
    part = {0.1: "tenth"}[RETRY_PART]
    assert waits() == {
        "a broken stream": "at once",
        "silence of a peer": f"{t.silence_shortest:g} s without a byte of it, or {t.pulse:g} s + {ROUND_TRIPS:g} "
        f"round trips, or mean + 8 deviations of the gaps; at most {t.silence_longest:g} s",
        "an action that does not end": f"{STUCK_TIMES:g} times its longest one so far, "
        f"{t.action_shortest:g} s at least",
        "a silent daemon gets no work": f"{t.report_silence:g} s",
        "a trainer that the coordinator does not hear, though its connection stands, is cut off": f"{t.cut_off:g} s",
        "the step under way, before a better plan": f"{STEPS_OF_PATIENCE} predicted steps, {t.step_end:g} s at least",
        "promises beyond the majority": f"{t.late_promise:g} s",
        "a broker that is away is tried again": f"after a {part} of the time that it is away, "
        f"{t.broker_retry_shortest:g} to {t.broker_retry_longest:g} s, give or take half",
        "a returning coordinator, for its peers": f"{t.comeback:g} s",
        "a leaving node, for the others": f"{t.leave:g} s; {t.leave_alone:g} s where the broker is gone, too",
        "a second coordinator, for the first": f"{t.takeover:g} s",
        "nodes that are lacking for what `[plan]` fixes, in a run": f"{t.fewer_nodes:g} s",
        "a peer's share of a checkpoint, once another one's is there": f"{t.checkpoint_share:g} s, and a second for "
        f"each {SLOWEST >> 10} KiB of its file that have come",
    }
