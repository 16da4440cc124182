"""Sender of notices: runs the owner's command, and posts to the owner's webhook."""

import asyncio
import contextlib
import os
import shlex
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from dtfm_coordinator.serve.notices.notice_watch import Notice, NoticeWatch
from dtfm_coordinator.swarm.overview.overview import Overview
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log

COMMAND_SECONDS = 60.0
"""Time that the command has for one notice."""
WEBHOOK_SECONDS = 15.0
PAUSES = (2.0, 20.0)
"""Seconds before each further attempt, where the webhook was not reached."""
WAITING_LIMIT = 100
"""Notices that wait to be sent; with one more, the oldest is not."""
STDERR_CHARACTERS = 300


@dataclass(frozen=True)
class NoticeOptions:
    """Where notices go, and when a run counts as stalled."""

    command: tuple[str, ...] = ()
    """Program and its arguments, started anew for each notice; (): none."""
    webhook: str = ""
    """URL to which each notice is posted as JSON; "": none."""
    stalled_seconds: float = 600.0

    @classmethod
    def parse(cls, command: str | None, webhook: str | None, stalled_minutes: float) -> "NoticeOptions | None":
        """Read the options of `serve`; None where notices go nowhere.

        Args:
            command: a command line, split as a shell splits it; no shell runs it.

        Raises:
            UserError: an option cannot be used.
        """
        if command is None and webhook is None:
            return None
        try:
            words = tuple(shlex.split(command or ""))
        except ValueError as error:
            raise UserError(f"--on-event: {command!r} is no command line: {error}") from None
        if command is not None and not words:
            raise UserError("--on-event: name a program, as in --on-event 'notify-send dtfm'")
        if words and shutil.which(words[0]) is None:
            raise UserError(
                f"--on-event: there is no program {words[0]} that could be run: give its path, and see that "
                "it may be run (chmod +x)"
            )
        if webhook is not None and (
            urlsplit(webhook).scheme not in {"http", "https"} or not urlsplit(webhook).hostname
        ):
            raise UserError(f"--webhook: {webhook!r} is no http:// or https:// URL")
        return cls(words, webhook or "", 60.0 * stalled_minutes)


class NoticeSender:
    """Sender of one run's notices, one after the other."""

    def __init__(self, options: NoticeOptions, pauses: tuple[float, ...] = PAUSES) -> None:
        """Send nothing before `running`.

        Args:
            pauses: seconds before each further attempt, where the webhook was not reached.
        """
        self._options, self._pauses = options, pauses
        self._watch = NoticeWatch(options.stalled_seconds)
        self._waiting: asyncio.Queue[Notice] = asyncio.Queue()

    def look(self, overview: Overview) -> None:
        """Take what is worth a notice in the newest overview; it is sent as soon as those before it are."""
        for notice in self._watch.look(overview):
            if self._waiting.qsize() >= WAITING_LIMIT:
                self._waiting.get_nowait()
                self._waiting.task_done()
                log.warning("too many notices wait to be sent: the oldest is not")
            self._waiting.put_nowait(notice)

    async def try_out(self, job: str) -> None:
        """Send a notice of nothing, and wait until it was taken, or refused, which is a line of the log."""
        text = "This is a test: notices of this run come here."
        await self._send(Notice(event="test", at=time.time(), job=job, swarm="", step=0, steps=0, text=text))

    @contextlib.asynccontextmanager
    async def running(self, last_seconds: float) -> AsyncIterator[None]:
        """Send notices within the block, and at its end those that still wait, for so many seconds at most: the last
        one comes when the run ends."""
        sending = asyncio.create_task(self._run())
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(last_seconds):
                    await self._waiting.join()
            sending.cancel()
            await asyncio.wait([sending])

    async def _run(self) -> None:
        while True:
            notice = await self._waiting.get()
            try:
                await self._send(notice)
            finally:
                self._waiting.task_done()

    async def _send(self, notice: Notice) -> None:
        options, ways = self._options, []
        if options.command:
            ways.append(self._run_command(notice))
        if options.webhook:
            ways.append(self._post(notice))
        await asyncio.gather(*ways)

    async def _run_command(self, notice: Notice) -> None:
        """Run the command: the notice is its standard input as JSON, and its main parts are in its environment."""
        program = self._options.command[0]
        told = {
            "DTFM_EVENT": notice.event,
            "DTFM_TEXT": notice.text,
            "DTFM_JOB": notice.job,
            "DTFM_STEP": str(notice.step),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self._options.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | told,
            )
        except OSError as error:
            log.warning("cannot run %s to tell of %r: %s", program, notice.event, error.strerror)
            return
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                _, said = await process.communicate(notice.model_dump_json().encode())
        except TimeoutError:
            log.warning(
                "%s was ended: it took more than %.0f s to be told of %r", program, COMMAND_SECONDS, notice.event
            )
        else:
            if process.returncode:
                words = said.decode(errors="replace").strip()[-STDERR_CHARACTERS:]
                log.warning("%s, told of %r, ended with code %d: %s", program, notice.event, process.returncode, words)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _post(self, notice: Notice) -> None:
        """Post the notice, again after a pause where nobody answers or the server has a fault."""
        host = urlsplit(self._options.webhook).hostname  # the rest of the URL may hold a secret
        for pause in (*self._pauses, None):
            fault = await asyncio.to_thread(_posted, self._options.webhook, notice.model_dump_json().encode())
            if not fault:
                return
            if pause is None or fault.startswith("it refuses"):
                log.warning("cannot tell the webhook at %s of %r: %s", host, notice.event, fault)
                return
            await asyncio.sleep(pause)


def _posted(url: str, body: bytes) -> str:
    """Post JSON; return what went wrong, in one line, "" if nothing did."""
    headers = {"Content-Type": "application/json", "User-Agent": "dtfm"}
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"it refuses with status {error.code}" if error.code < 500 else f"it answers with status {error.code}"
    except (OSError, ValueError) as error:  # an URLError and a TimeoutError are OSErrors
        return str(getattr(error, "reason", error)) or "no answer"
