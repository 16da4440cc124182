"""An owner who does not look is told, once, that a run is done, has failed, stands still, or has lost a member."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from dtfm_coordinator.main import app
from dtfm_coordinator.serve.notices.notice_sender import NoticeOptions, NoticeSender
from dtfm_coordinator.serve.notices.notice_watch import NoticeWatch
from dtfm_coordinator.swarm.overview.overview import Health, MemberView, Overview, PlanView, Progress, Storage
from dtfm_protocol.errors import UserError

PLAN = PlanView(version=1, reason="", layers=2, micro_batches=1, stages=(), pipelines=(), hops=())


def member(role: str = "trains", stage: int | None = 0) -> MemberView:
    return MemberView.model_validate(
        {
            "name": "ann", "device": "cpu", "role": role, "does": "", "level": "good", "stage": stage, "layers": None,
            "micro_batches": 1, "step": 1, "tokens": 0, "sent_bytes": 0, "received_bytes": 0, "share": 0,
            "seconds": 0, "seen_at": None, "version": "1",
            "up_gbps": None, "down_gbps": None,
        }
    )  # fmt: skip


def overview(at: float, step: int = 5, phase: str = "training", **values: Any) -> Overview:
    known: dict[str, Any] = {
        "at": at, "swarm": "s", "job": "demo", "phase": phase, "text": "", "figures": {}, "plan": PLAN, "members": {},
        "news": {}, "storage": Storage(), "progress": Progress(step=step, steps=9),
        "health": Health(sentence=f"It is {phase}.", advice="Do something."),
    }  # fmt: skip
    return Overview.model_validate(known | values)


def told(*overviews: Overview, stalled_seconds: float = 600.0) -> list[tuple[str, float]]:
    watch = NoticeWatch(stalled_seconds)
    return [(notice.event, notice.at) for one in overviews for notice in watch.look(one)]


def test_an_end_is_told_once_and_not_where_it_was_there_before() -> None:
    assert told(overview(0), overview(1, phase="done"), overview(2, phase="done")) == [("done", 1)]
    assert told(overview(0, phase="done"), overview(1, phase="done")) == []
    assert told(overview(0), overview(1, phase="failed")) == [("failed", 1)]
    assert told(overview(0), overview(1, phase="failed", has_diverged=True)) == [("loss-not-finite", 1)]
    known = [overview(1, has_diverged=True), overview(2, has_diverged=True)]
    assert told(overview(0), *known, overview(3, phase="failed", has_diverged=True)) == [
        ("loss-not-finite", 1), ("failed", 3),
    ]  # fmt: skip


def test_a_loss_that_rises_and_steps_that_are_run_again_are_told_once() -> None:
    rising = [overview(1, loss_rises=True), overview(2, loss_rises=True)]
    assert told(overview(0), *rising) == [("loss-rises", 1)]
    back = PLAN.model_copy(update={"version": 2, "resumed": 3})
    watch = NoticeWatch(600.0)
    (notice,) = [one for run in (overview(0), overview(1, step=3, plan=back)) for one in watch.look(run)]
    assert (notice.event, notice.text) == (
        "went-back",
        "The run went back to the state after step 3, the newest that is left whole: 2 steps are run again.",
    )
    assert told(overview(0), overview(1, plan=back.model_copy(update={"resumed": 5}))) == []
    assert told(overview(0, plan=None), overview(1, plan=back)) == []


def test_a_stall_is_told_once_and_its_end_too() -> None:
    run = [overview(0), overview(500), overview(600), overview(900), overview(1000, step=6), overview(1500, step=6)]
    assert told(*run) == [("stalled", 600), ("going-on", 1000)]
    assert told(*run, overview(1600, step=6)) == [("stalled", 600), ("going-on", 1000), ("stalled", 1600)]


@pytest.mark.parametrize(
    "quiet", [{"is_paused": True}, {"phase": "done"}, {"phase": "waiting", "step": 0, "plan": None}]
)
def test_a_run_that_is_paused_over_or_not_begun_does_not_stall(quiet: dict[str, Any]) -> None:
    assert told(overview(0, **quiet), overview(10_000, **quiet)) == []


def test_a_pause_is_no_part_of_a_stall() -> None:
    run = [overview(0), overview(590), overview(595, is_paused=True), overview(10_000, is_paused=True)]
    assert told(*run, overview(10_001), overview(10_500)) == []
    assert told(*run, overview(10_001), overview(10_601)) == [("stalled", 10_601)]


def test_who_had_a_part_and_is_gone_is_lost_and_who_left_politely_is_not() -> None:
    both = {"a": member(), "b": member()}
    assert told(overview(0, members=both), overview(1, members=both | {"b": member("gone")})) == [("member-lost", 1)]
    assert told(overview(0, members=both), overview(1, members={"a": member()})) == [("member-lost", 1)]
    spare = both | {"b": member("leaving", stage=None)}
    assert told(overview(0, members=spare), overview(1, members={"a": member()})) == []
    assert told(overview(0, members=both), overview(1, phase="done", members={})) == [("done", 1)]
    assert told(overview(0, members=both), overview(1, is_paused=True, members={})) == [], "nobody goes on"


@asynccontextmanager
async def receiver(*answers: int) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A web server on this machine that answers with these statuses, then with 200; its URL, and what was posted."""
    posted: list[dict[str, Any]] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(left.pop(0) if left else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?secret=1", posted
    finally:
        await asyncio.to_thread(server.shutdown)
        thread.join()
        server.server_close()


async def send(options: NoticeOptions) -> None:
    sender = NoticeSender(options, pauses=(0.0, 0.0))
    async with sender.running(20.0):
        sender.look(overview(0))
        sender.look(overview(1, phase="failed"))


async def test_the_webhook_gets_the_notice_as_json_also_at_a_second_attempt() -> None:
    async with receiver(503) as (url, posted):
        await send(NoticeOptions(webhook=url))
    assert [one["event"] for one in posted] == ["failed", "failed"]
    assert posted[1] == posted[0] | {"step": 5, "steps": 9, "text": "It is failed.", "advice": "Do something."}


@pytest.mark.parametrize(("answers", "attempts"), [((404,), 1), ((500, 500, 500, 500), 3)])
async def test_a_webhook_that_does_not_take_it_is_named_without_its_secret(
    caplog: pytest.LogCaptureFixture, answers: tuple[int, ...], attempts: int
) -> None:
    async with receiver(*answers) as (url, posted):
        await send(NoticeOptions(webhook=url))
    assert len(posted) == attempts
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("cannot tell the webhook at 127.0.0.1 of 'failed'")
    assert "secret" not in said


@pytest.mark.process
async def test_the_command_gets_the_notice_and_no_shell_reads_it(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read() + os.environ['DTFM_EVENT'])"
    )
    await send(NoticeOptions(command=(sys.executable, "-c", program, str(tmp_path / "$(said)"))))
    said = (tmp_path / "$(said)").read_text()
    assert json.loads(said.removesuffix("failed"))["text"] == "It is failed."


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/nowhere/at-all",), "cannot run /nowhere/at-all to tell of 'failed': No such file or directory"),
        ((sys.executable, "-c", "raise SystemExit('out of order')"), "ended with code 1: out of order"),
    ],
)
async def test_a_command_that_fails_is_said(
    caplog: pytest.LogCaptureFixture, command: tuple[str, ...], said: str
) -> None:
    await send(NoticeOptions(command=command))
    assert said in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("command", "webhook", "said"),
    [
        ("'", None, "no command line"),
        ("./nosuch.sh 1", None, "there is no program ./nosuch.sh"),
        (" ", None, "name a program"),
        (None, "ftp://x", "no http:// or https:// URL"),
    ],
)
def test_options_that_cannot_be_used_are_refused(command: str | None, webhook: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        NoticeOptions.parse(command, webhook, 10.0)


def test_no_option_is_no_notice() -> None:
    assert NoticeOptions.parse(None, None, 10.0) is None
    command = f"{sys.executable} -c 'print(1)'"
    assert NoticeOptions.parse(command, None, 2.0) == NoticeOptions((sys.executable, "-c", "print(1)"), "", 120.0)


def test_an_owner_can_try_whether_notices_come_before_anything_is_served(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    program = f"{sys.executable} -c \"import os; open('{heard}', 'w').write(os.environ['DTFM_EVENT'])\""
    job = str(Path(__file__).parents[2] / "examples" / "demo.toml")
    tried = ["serve", job, "--state-dir", str(tmp_path / "run"), "--test-event"]
    assert "say whom to tell" in CliRunner().invoke(app, tried).stderr
    assert CliRunner().invoke(app, [*tried, "--on-event", program]).exit_code == 0
    assert heard.read_text() == "test"
    assert not (tmp_path / "run").exists()
