"""People see what a service does before its coordinator leads: what is prepared, of whom it stands by, why it ends."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.serve.beginning import FAILED, PREPARING, STANDING_BY, Beginning
from dtfm_coordinator.serve.standby_words import StandbyView, standby_health
from dtfm_coordinator.serve.web.page_address import PageAddress, PageOptions
from dtfm_coordinator.serve.web.page_server import page_served
from dtfm_coordinator.swarm.overview.overview import Health
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from tests.coordinator.peers import JOB, Peers
from tests.harness.page_visitor import PageVisitor

pytestmark = pytest.mark.unit
VIEW = StandbyView("12D3KooWLeaderAbc", True, None, 409, 412, 3, False)


def begun(folder: Path) -> Beginning:
    return Beginning("tiny", 500, folder)


def status(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return values


async def test_what_is_prepared_is_on_the_page_and_in_the_status(tmp_path: Path) -> None:
    beginning = begun(tmp_path)
    options = PageOptions(PageAddress.parse("0"))
    async with page_served(options, beginning.feed, tmp_path), beginning.shown():
        beginning.say("Turning the text into tokens: 4 of 312 million characters (1 %).")
        url = (tmp_path / "page-url").read_text().strip()
        page = PageVisitor(int(url.rsplit(":", 1)[1].strip("/")))
        shown = (await page.get("/api/overview")).values
        assert shown["phase"] == PREPARING
        assert shown["health"]["sentence"].startswith("Turning the text into tokens")
        assert "Nodes can join as soon as this is done" in shown["health"]["advice"]
        assert (shown["job"], shown["progress"]["steps"]) == ("tiny", 500)
        assert (await page.get("/metrics")).body.count(b'dtfm_phase{phase="preparing"} 1') == 1
    assert status(tmp_path)["overview"] == shown


async def test_who_looks_is_told_why_the_service_ends(tmp_path: Path) -> None:
    beginning = begun(tmp_path)
    with pytest.raises(UserError):
        async with beginning.shown():
            raise UserError("data.text: b.txt is not UTF-8 (byte 7): convert it or leave it out")
    newest = beginning.feed.newest
    assert newest is not None
    assert (newest.phase, newest.health.level) == (FAILED, "bad")
    assert "b.txt is not UTF-8" in newest.health.sentence
    assert "start `dtfm-coordinator serve` again" in newest.health.advice
    assert status(tmp_path)["phase"] == FAILED
    is_whole, told = beginning.feed.since(0)
    assert is_whole
    assert b"b.txt is not UTF-8" in told


async def test_who_looks_is_told_of_a_fault_inside_groups_and_of_none_when_it_is_stopped(tmp_path: Path) -> None:
    beginning = begun(tmp_path)
    with pytest.raises(ExceptionGroup):
        async with beginning.shown(), asyncio.TaskGroup():
            raise UserError("the broker is away")
    assert status(tmp_path)["overview"]["health"]["sentence"] == "The coordinator has stopped: the broker is away"
    other = begun(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        async with other.shown():
            raise asyncio.CancelledError
    assert other.feed.newest is None or other.feed.newest.phase == PREPARING


async def test_once_the_coordinator_leads_it_tells_the_rest_on_the_same_page(tmp_path: Path) -> None:
    """With what has happened so far."""
    beginning = begun(tmp_path)
    peers = Peers(tmp_path)
    context = replace(peers.context, feed=beginning.feed, board=beginning.board)
    async with beginning.shown():
        log.warning("The invite names 127.0.0.1.")
        beginning.show(STANDING_BY, Health(sentence="Standing by."))
        beginning.over()
        file = StatusFile(context, peers.state, peers.announcer, peers.rows)
        file.write()
        beginning.show(PREPARING, Health(sentence="Too late."))
    assert file.feed is beginning.feed
    newest = beginning.feed.newest
    assert newest is not None
    assert (newest.phase, newest.job) == ("waiting", JOB.name)
    assert "The invite names 127.0.0.1." in [one.text for one in newest.news.values()]


@pytest.mark.parametrize(
    ("view", "level", "words"),
    [
        (VIEW, "wait", ["Standing by: derAbc leads.", "up to step 409, 3 steps behind.", "takes over by itself"]),
        (VIEW._replace(step=412, is_paused=True), "wait", ["leads, and has paused the run", "up to step 412."]),
        (VIEW._replace(step=0, heard_step=0), "wait", ["No step of the run has come to it yet."]),
        (VIEW._replace(leader="", takes_over_in=42.0), "warn", ["no coordinator leads", "takes over in 42 s unless"]),
        (VIEW._replace(is_connected=False, takes_over_in=42.0), "warn", ["the swarm does not answer", "network is up"]),
    ],
)
def test_of_whom_a_coordinator_stands_by_and_how_far_behind_is_said(
    view: StandbyView, level: str, words: list[str]
) -> None:
    found = standby_health(view)
    assert found.level == level
    for word in words:
        assert word in f"{found.sentence} {found.advice}"
