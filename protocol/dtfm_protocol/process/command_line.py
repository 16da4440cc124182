"""The run of a command: one event loop, signals that end it cleanly, errors as one line and an exit code."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.compat.wait_for import mend_wait_for
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.supported_platform import platform_fault
from dtfm_protocol.process.work_apart import end_process, is_under_way
from dtfm_protocol.validation_words import plain

T = TypeVar("T")

EXIT_USER = 2
"""Exit code where the user's input or environment is at fault."""
EXIT_INTERRUPT = 130
"""Exit code after Ctrl+C."""
QUIET_SECONDS = 0.3
"""Time that the clean-up after a signal takes before the person who waits is told of it."""


def run(
    main: Coroutine[Any, Any, None], leave: Callable[[], bool] = lambda: False, waits_for: str = "what is under way"
) -> None:
    """Run `main` to its end. Exits with 2 on a `UserError`, with 130 after Ctrl+C, 143 after SIGTERM and 129 after the
    end of its terminal.

    A signal has everything clean up. Where that takes a moment, it is said; Ctrl+C ends the process at once after that,
    and its child processes end with it.

    Args:
        leave: a function that is called at the first signal; where it returns True, `main` ends by itself, and a second
            signal has it clean up and end.
        waits_for: what the clean-up waits for, in words for people.
    """
    try:
        from uvloop import run as run_loop
    except ImportError:  # it is not for every system
        from asyncio import run as run_loop
    mend_wait_for()
    received: list[signal.Signals] = []
    try:
        with guarded():
            run_loop(_until_signal(main, received, leave, waits_for))
        if received:
            raise SystemExit(128 + received[0])
    except SystemExit as ended:
        if isinstance(ended.code, int) and is_under_way():
            end_process(ended.code)
        raise


async def _until_signal(
    main: Coroutine[Any, Any, None], received: list[signal.Signals], leave: Callable[[], bool], waits_for: str
) -> None:
    """Await `main`; a signal cancels it, so that every context manager in it gets to clean up."""
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note)
    terminals = [number for number in (1, 2) if os.isatty(number)]
    is_said = False

    def say() -> None:
        nonlocal is_said
        is_said = True  # and the loop has not ended yet
        log.info("Stopping: waiting for %s. Ctrl+C ends it at once now.", waits_for)

    def stop(number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            _silence(terminals)
            if number in received:
                return  # a shell sends it on, and so does the kernel: both mean the same end
        received.append(number)
        if len(received) == 1 and leave():
            return
        if not task.cancelling():
            task.cancel()
            loop.call_later(QUIET_SECONDS, say)
        elif is_said and number == signal.SIGINT:  # else it is the same Ctrl+C once more, as a shell hands it on
            end_process(128 + received[0])

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` has it ignored
            loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _silence(terminals: Iterable[int]) -> None:
    """Let what is written to these file descriptors vanish: a terminal that is gone makes each write fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nothing, number)
    os.close(nothing)


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what failed inside the event loop, but for connections that broke in libraries' own tasks.

    The MQTT client watches closed sockets a moment too long; hivemind leaves its daemon's end to nobody. Whoever needs
    the connection hears of its end otherwise: this program's own tasks all live in task groups.
    """
    error = context.get("exception")
    if isinstance(error, ConnectionError) or (isinstance(error, OSError) and error.errno == errno.EBADF):
        log.debug("event loop: %s", error)
        return
    loop.default_exception_handler(context)


@contextlib.contextmanager
def guarded() -> Any:
    """Turn a `UserError`, also one inside exception groups, into its one line on standard error and exit code 2."""
    try:
        yield
    except UserError as error:
        fail(error)
    except BaseExceptionGroup as group:
        found = find_user_error(group)
        if found is None:
            raise
        fail(found)
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPT) from None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End at once with 130 on Ctrl+C, for work that holds nothing: an exception inside compiled code ends nothing."""

    before = signal.signal(signal.SIGINT, lambda number, frame: _end_interrupted())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_interrupted() -> NoReturn:
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")  # a progress bar had hidden the cursor
        sys.stderr.flush()
    os._exit(EXIT_INTERRUPT)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl+C was pressed, for work that then ends with what it has so far.

    A second Ctrl+C ends at once, with 130. Whoever has shown what there was exits with `EXIT_INTERRUPT`, too.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            _end_interrupted()
        pressed = True
        # Not print: this may come in the middle of one.
        os.write(2, b"\nending with what there is so far; Ctrl+C again ends at once\n")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def find_user_error(group: BaseExceptionGroup[BaseException]) -> UserError | None:
    """Return the first `UserError` of a group, if every failure in it is one."""
    users, others = group.split(UserError)
    if users is None or others is not None:
        return None
    return first_leaf(users)


def first_leaf(group: BaseExceptionGroup[UserError]) -> UserError:
    """Return the first exception of nested groups."""
    first = group.exceptions[0]
    return first_leaf(first) if isinstance(first, BaseExceptionGroup) else first


def fail(error: UserError) -> NoReturn:
    """Print the error's line on standard error and exit with 2."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(EXIT_USER)


def command_line(app: Callable[..., Any]) -> None:
    """Run a typer application; a wrong option, or a system for which this is not, is one line and exit code 2."""
    if fault := platform_fault(sys.platform):
        fail(UserError(fault))
    import typer

    usage_error: Any = typer.BadParameter.__mro__[1]  # typer exports this class's children only
    try:
        code = app(standalone_mode=False)
    except usage_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            raise SystemExit(EXIT_USER) from None
        command = error.ctx.command_path if error.ctx is not None else "this command"
        fail(UserError(f"{plain(error.format_message()).rstrip('.')}; see {command} --help"))
    except typer.Abort:
        raise SystemExit(EXIT_INTERRUPT) from None
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > 128:  # by a signal
            end_process(ended.code)  # all is cleaned up; to take apart what was imported would take seconds
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the buffer cannot be written at exit either
        fail(UserError(f"cannot write the output: {error.strerror}; make room, or write elsewhere"))
    if isinstance(code, int) and code:
        raise SystemExit(code)
