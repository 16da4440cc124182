"""Commands by which the owner steers a run: pause, resume, checkpoint, replan, finish, cancel.

They write a wish to the coordinator's state folder; a coordinator that runs takes it up at once and answers it there.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtfm_coordinator.commands.option_types import StateDir
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line

if TYPE_CHECKING:
    from dtfm_coordinator.owner.owner_wishes import Wish, WishAnswer
    from dtfm_coordinator.owner.wish_file import WishFile

LOOK_SECONDS = 0.1
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait until it is done; 0: do not wait.")]


def pause(state_dir: StateDir, wait: Wait = 120.0) -> None:
    """Have the run stand still, with its state kept. It stops after the step under way, until `resume`."""
    from dtfm_coordinator.owner.owner_wishes import Paused
    from dtfm_coordinator.owner.wish_file import WishFile

    with command_line.guarded():
        wishes = WishFile(_served(state_dir)).wishes
        is_paused = wishes.is_paused and not wishes.open(Paused)
        now = "pausing: the step under way is finished and its state kept here; then the nodes wait, or may leave"
        ask(
            state_dir,
            Paused(at=time.time()),
            wait,
            now="the run is paused already" if is_paused else now,
            later="the run stands still when it is served again, until `dtfm-coordinator resume`",
        )


def resume(state_dir: StateDir, wait: Wait = 120.0) -> None:
    """Have a run go on that was paused, or ended with `finish`."""
    from dtfm_coordinator.owner.owner_wishes import Resumed
    from dtfm_coordinator.owner.wish_file import WishFile
    from dtfm_protocol.process.state_dir import is_live

    with command_line.guarded():
        wishes = WishFile(_served(state_dir)).wishes
        is_stopped = wishes.is_paused or wishes.is_finished
        if not (is_stopped or is_live(state_dir)):
            raise UserError("the run is not paused: there is nothing to resume; `dtfm-coordinator serve` trains on")
        ask(
            state_dir,
            Resumed(at=time.time()),
            wait,
            now="resuming: a plan is made for the nodes that are here" if is_stopped else "the run is not paused",
            later="the run goes on when it is served again",
        )


def checkpoint(state_dir: StateDir, wait: Wait = 120.0) -> None:
    """Keep the state of now for good. Training stops for a moment after the step under way, and goes on."""
    from dtfm_coordinator.owner.owner_wishes import CheckpointWanted

    with command_line.guarded():
        ask(
            state_dir,
            CheckpointWanted(at=time.time()),
            wait,
            now="keeping a checkpoint: training stops for a moment after the step under way, and goes on",
            later="a checkpoint is kept as soon as it is served again",
        )


def replan(state_dir: StateDir, wait: Wait = 120.0) -> None:
    """Look for a better plan while training goes on. It is for the nodes that are here."""
    from dtfm_coordinator.owner.owner_wishes import PlanWanted

    with command_line.guarded():
        ask(
            state_dir,
            PlanWanted(at=time.time()),
            wait,
            now="planning anew: links that nobody knows are measured, and a better plan is looked for meanwhile",
            later="a plan is made when it is served again",
        )


def finish(
    state_dir: StateDir,
    wait: Wait = 120.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether to.")] = False,
) -> None:
    """End the run after the step under way. Its state is kept as the last one, and the nodes leave."""
    from dtfm_coordinator.owner.owner_wishes import FinishWanted

    with command_line.guarded():
        _served(state_dir)
        if not yes:
            typer.confirm("End the run after the step under way? All nodes leave then.", abort=True)
        ask(
            state_dir,
            FinishWanted(at=time.time()),
            wait,
            now="ending the run: the step under way is the last one, and its state is kept",
            later="the run ends with the state that is kept when it is served again",
        )


def cancel(state_dir: StateDir, wait: Wait = 120.0) -> None:
    """Take back what was asked for and is not done yet. By whichever of these commands, or by `set`."""
    from dtfm_coordinator.owner.owner_wishes import Cancelled

    with command_line.guarded():
        ask(
            state_dir,
            Cancelled(at=time.time()),
            wait,
            now="taking back what is not done yet",
            later="what was asked for and is not done yet is taken back",
        )


def ask(state_dir: Path, wish: "Wish", wait: float, *, now: str, later: str) -> None:
    """Write a wish down, say what that brings about, and wait until the coordinator has answered.

    Args:
        wait: seconds.
        now: what happens where a coordinator runs, in words for people.
        later: what happens once one does.

    Raises:
        UserError: the folder is no coordinator's, the wish cannot be written, or it was not carried out.
    """
    from dtfm_coordinator.owner.wish_file import WishFile
    from dtfm_protocol.process.state_dir import is_live

    file = WishFile(_served(state_dir))
    number = file.add(wish).number
    if not is_live(state_dir):
        typer.echo(f"no coordinator runs on {state_dir}: {later}")
        return
    typer.echo(now, err=wait > 0)
    if not wait:
        return
    answer = _answer(state_dir, file, number, wait)
    if answer is None:
        raise SystemExit(_say_unanswered(state_dir, wait))
    if not answer.done:
        raise UserError(answer.text)
    typer.echo(answer.text)


def _answer(state_dir: Path, file: "WishFile", number: int, wait: float) -> "WishAnswer | None":
    """Return what the coordinator answers to a wish within `wait` seconds, showing meanwhile what it does; None: it
    has not answered."""
    from dtfm_protocol.process.state_dir import is_live

    end, shown = time.monotonic() + wait, _doing(state_dir)
    while True:
        runs = is_live(state_dir)
        file.take_up()
        if number in file.wishes.answers:
            return file.wishes.answers[number]
        if not runs or time.monotonic() > end:
            return None
        if (doing := _doing(state_dir)) != shown:
            shown = doing
            typer.echo(f"  {doing}", err=True)
        time.sleep(LOOK_SECONDS)


def _say_unanswered(state_dir: Path, wait: float) -> int:
    """Say that a wish was not carried out yet, and that it will be; return the exit code."""
    from dtfm_protocol.process.state_dir import is_live

    if is_live(state_dir):
        typer.echo(
            f"not done after {wait:.0f} s, and still wished for; the run says: {_doing(state_dir)}; "
            "`dtfm-coordinator status` tells how it goes on, `dtfm-coordinator cancel` takes the wish back",
            err=True,
        )
    else:
        typer.echo("the coordinator has ended before it was done; it is done when the run is served again", err=True)
    return 1


def _doing(state_dir: Path) -> str:
    """Return what the coordinator says that it does, in one line."""
    from dtfm_protocol.bounds import printable

    try:
        status = json.loads((state_dir / "status.json").read_text(encoding="utf-8"))
        plain = status.get("overview", {}).get("health", {}).get("sentence", "")
        return printable(str(plain or status["text"]))
    except (OSError, ValueError, KeyError, AttributeError):
        return ""


def _served(folder: Path) -> Path:
    """Return a state folder in which a coordinator has served.

    Raises:
        UserError: none has.
    """
    if not (folder / "invite").exists():
        raise UserError(f"{folder} is no coordinator's that has served: `dtfm-coordinator serve` makes the swarm")
    return folder
