"""Work apart from the rest of a program: a thread that nobody waits for when the program is to end, as compiled code
cannot be broken off.

What such work writes, it writes whole or not at all (`state_dir.write_atomically`).
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_threads: list[threading.Thread] = []


async def run_apart(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own and return its result. Whoever is cancelled meanwhile goes on at once; the
    thread does until the process ends (`end_process`)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if done.done() else setter(value))

    def body() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            settle(done.set_exception, error)
        else:
            settle(done.set_result, result)

    _start(body)
    return await done


def wait_apart(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own and return its result; Ctrl+C ends the process at once, with 130."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    try:
        _start(body).join()
    except KeyboardInterrupt:
        end_process(130)
    if errors:
        raise errors[0]
    return results[0]


def is_under_way() -> bool:
    """Whether work still goes on for which nobody waits any more."""
    _threads[:] = [thread for thread in _threads if thread.is_alive()]
    return bool(_threads)


def end_process(code: int) -> NoReturn:
    """End the process at once, with all its threads: compiled code that came back into an interpreter that is shutting
    down would crash it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _start(body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)
    _threads.append(thread)
    thread.start()
    return thread
