"""`dtfm-node fetch-model`: takes the model home that this machine has helped to train.

It asks the coordinator alone, whether a node runs here or not, and needs no more than the credential that it has.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from dtfm_node.commands.kept_invite import INVITE
from dtfm_node.commands.model_download import ModelDownload, partial_folder
from dtfm_node.control.desk_client import DeskClient, NoCoordinator, Visit
from dtfm_node.control.enrolment_client import EnrolmentClient
from dtfm_protocol.bounds import printable
from dtfm_protocol.control.member_requests import MODEL, OfferedModel
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.quantities import bytes_in_words

CONNECT_SECONDS = 10.0
"""Limit of reaching a coordinator."""
RETRY_SECONDS = 2.0
"""Pause before asking again for what may be there later, or after a connection that broke."""
ATTEMPTS = 5
"""Connections, one after the other, over which nothing comes before the command gives up."""
PATIENCE_SECONDS = 300.0
"""Seconds for which a newer model that is being written out is waited for, where there is an older one."""
LINES = 10
"""Lines of progress where there is no terminal."""


async def fetch_model(folder: Path, out: Path | None) -> None:
    """Fetch the model as the node with the state folder `folder`, which may be running.

    Raises:
        UserError: no node has joined with it, no coordinator answers, there is no model to be had, or it cannot be kept
            here.
    """
    try:
        invite = Invite.decode((folder / INVITE).read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        raise UserError(
            f"no node has joined with {folder}: only members can fetch the model; join first, or name another "
            "--state-dir"
        ) from None
    identity = Identity.load_or_create(folder / "key")
    credentials = EnrolmentClient(invite, identity, folder)
    if credentials.known() is None:
        raise UserError(f"the node of {folder} is no member yet: `dtfm-node join --state-dir {folder}` first")
    admission = await credentials.obtain(CONNECT_SECONDS)  # a new one, where it is about to expire
    await FetchModel(DeskClient(invite, identity, admission), out, _say).run()


class FetchModel:
    """Fetch of one swarm's newest model to a folder."""

    def __init__(
        self,
        client: DeskClient,
        out: Path | None,
        say: Callable[[str], None],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take whom to ask, and where the model is to be.

        Args:
            client: asks the coordinators.
            out: the folder; None: one in the present folder that is called as job and step are.
            say: tells the person, line by line.
            pause: waits for some seconds.

        Raises:
            UserError: there is something at `out` already.
        """
        self._client, self._out, self._say, self._pause = client, out, say, pause
        self._wanted: int | None = None
        """Step of the newest model that there was when this was first asked for; None: not known."""
        self._waited = 0.0
        """Seconds for which that one was waited for."""
        self._came = 0
        """Bytes that have come so far."""
        if out is not None:
            _check_free(out)

    async def run(self) -> None:
        """Fetch the model, on one connection after the other.

        Raises:
            UserError: no coordinator answers, there is no model to be had, or it cannot be kept here.
        """
        failed, waits = 0, ""
        while True:
            before = self._came
            try:
                async with self._client.visit(CONNECT_SECONDS) as visit:
                    waited = await self._fetch(visit)
            except NoCoordinator as error:
                if not self._came:
                    raise _away(error) from None
                fault = str(error)
            except Refused as error:
                raise UserError(f"the model cannot be fetched: {printable(str(error))}") from None
            except (OSError, EOFError) as error:
                fault = str(error) or "no answer"
            else:
                if not waited:
                    return
                if waited != waits:
                    self._say(f"waiting: {printable(waited)}")
                waits, failed = waited, 0
                await self._pause(RETRY_SECONDS)
                continue
            failed = 0 if self._came > before else failed + 1
            if failed == ATTEMPTS:
                raise UserError(
                    f"the coordinator has gone away ({printable(fault)}); what has come is kept: the same command goes "
                    "on from there"
                )
            await self._pause(RETRY_SECONDS)

    async def _fetch(self, visit: Visit) -> str:
        """Ask for the model, and fetch it; return why it is to be asked for again later, "": it is here."""
        async with asyncio.timeout(CONNECT_SECONDS):
            answer = await visit.ask(MODEL)
        if self._wanted is None:
            self._wanted = answer.newest
        if answer.model is None:
            if answer.later:
                return answer.refused or "not yet"
            raise Refused(answer.refused or "the coordinator offers none")
        if self._wanted is not None and answer.model.step < self._wanted and not self._came:
            if self._waited < PATIENCE_SECONDS:
                self._waited += RETRY_SECONDS
                return f"the model after step {self._wanted:,} is being made ready"
            self._say(f"this is not the newest model: that after step {self._wanted:,} is not ready; ask again later")
        out = (self._out or Path(_default_name(answer.model))).absolute()
        _check_free(out)
        download = await asyncio.to_thread(ModelDownload, out, answer.model)
        self._begin(download, out)
        with _Shown(download, self._say) as shown:

            def came(count: int) -> None:
                self._came += count
                shown.came(count)

            await download.run(visit, came)
        model = answer.model
        self._say(
            f"the model of {model.job} after step {model.step:,} is in {out}; all files have the hashes that the "
            "coordinator gave. README.md there says who has trained it, and how to use it."
        )
        return ""

    def _begin(self, download: ModelDownload, out: Path) -> None:
        model, done = download.model, download.done
        goes_on = f", of which {bytes_in_words(done)} are here already" if done else ""
        self._say(
            f"fetching the model of {model.job} after step {model.step:,}: {bytes_in_words(download.total)} in "
            f"{len(model.files)} files{goes_on} (Ctrl+C stops, the same command goes on)"
        )


class _Shown:
    """Progress of a download: a bar in a terminal, else a line now and then."""

    def __init__(self, download: ModelDownload, say: Callable[[str], None]) -> None:
        self._total, self._done, self._say = max(1, download.total), download.done, say
        self._bar = None
        if sys.stderr.isatty():
            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(TextColumn("model"), *columns)
            self._task = self._bar.add_task("model", total=download.total, completed=download.done)

    def __enter__(self) -> "_Shown":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def came(self, count: int) -> None:
        """Show that so many bytes more have come."""
        before, self._done = self._done, self._done + count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif LINES * before // self._total < LINES * self._done // self._total and self._done < self._total:
            self._say(f"{bytes_in_words(self._done)} of {bytes_in_words(self._total)}")


def _default_name(model: OfferedModel) -> str:
    """Return a folder's name for a model, whatever the coordinator calls its job."""
    job = re.sub(r"[^A-Za-z0-9._-]", "-", model.job).lstrip(".-")[:64] or "model"
    return f"{job}-step-{model.step}"


def _check_free(out: Path) -> None:
    try:
        if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
            raise UserError(f"{out} is there already: choose another folder with --out")
        if partial_folder(out.absolute()).is_symlink():
            raise UserError(f"{partial_folder(out)} is a link: choose another folder with --out")
    except OSError as error:
        raise UserError(f"cannot read {out}: {error.strerror}") from None


def _away(error: Exception) -> UserError:
    return UserError(
        f"no coordinator of the swarm answers ({printable(str(error))}): the model is on its disk, so it must be "
        "running; ask the swarm's owner, and try again later"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
