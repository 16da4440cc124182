"""Compiler of the search's inner loops to machine code: decorators over numba's.

They are compiled once a machine. The machine code is kept in a folder named after the sources: numba itself would not
notice that a compiled function calls another one whose file has changed.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import numba

import dtfm_coordinator.allocator
from dtfm_protocol.model import memory_model
from dtfm_protocol.plan import reductions, schedule_rules
from dtfm_protocol.process.garbage_pause import without_collector
from dtfm_protocol.process.source_digest import sources_digest

SHARED = (schedule_rules, memory_model, reductions)
"""Modules of the protocol whose functions are compiled, too, or whose constants are compiled in."""
STALE_SECONDS = 7 * 86400.0

P = ParamSpec("P")
R = TypeVar("R")


def _keep_machine_code() -> bool:
    """Choose the folder in which machine code is kept; False if none can be written to."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return True
    here = Path(dtfm_coordinator.allocator.__path__[0])
    digest = sources_digest(here, *(Path(str(module.__file__)) for module in SHARED))
    for parent in (here / "__pycache__", _user_cache()):
        kept = parent / "machine-code"
        folder = kept / digest[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            for other in kept.iterdir():
                # Another version may still be running.
                if other != folder and time.time() - other.stat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
            numba.config.CACHE_DIR = str(folder)
            return True
    return False


def _user_cache() -> Path:
    home = Path("/nonexistent")
    with contextlib.suppress(RuntimeError):
        home = Path.home()
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "dtfm"


_KEPT = _keep_machine_code()
_used = set[str]()
"""Searches whose functions this process has used, and so has no more to compile."""


@contextlib.contextmanager
def compiling(search: str, say: Callable[[str], object]) -> Iterator[None]:
    """Surround the first use of a search's functions: `say` that they are compiled, unless machine code is kept.

    Args:
        search: what it looks for, in words for people.
    """
    done = Path(str(numba.config.CACHE_DIR)) / f"{search.replace(' ', '-')}.compiled"
    if search not in _used and not (_KEPT and done.exists()):
        say(f"Preparing the search for {search}, once on this machine: half a minute or more.")
    with without_collector():
        yield
    _used.add(search)
    if _KEPT:
        with contextlib.suppress(OSError):
            done.touch()


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` when it is first called; `NUMBA_DISABLE_JIT=1` leaves it plain Python, for a debugger.

    Floating-point arithmetic stays strict, so that the same seed gives the same plan on every machine.

    What a compiled function calls is compiled once more into it, and for every row of types of its arguments, of which
    a number that is written down is one of its own: so variables that begin with one and are handed on begin with
    `int(np.int64(0))`.
    """
    wrapped: Callable[P, R] = numba.njit(cache=_KEPT, nogil=True, _nrt=True)(function)
    return wrapped


def compiled_inside(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `compiled` does a function that compiled ones alone call.

    What would take its arguments out of Python's objects is left away: of a function that takes a `Problem` that is
    about as much to compile as its own code.
    """
    wrapped: Callable[P, R] = numba.njit(cache=_KEPT, nogil=True, no_cpython_wrapper=True, _nrt=True)(function)
    return wrapped


def compiled_in_place(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `compiled` does a function that makes no array and returns none: it works in those that it is given.

    So the references to arrays need not be counted, which takes as long as all else in functions of a microsecond. A
    function that makes one after all is not compiled ("NRT required"); what it calls must return none, either. The
    other decorators say that theirs count: unless told, a function does as the one that it is first compiled for.
    """
    wrapped: Callable[P, R] = numba.njit(cache=_KEPT, nogil=True, _nrt=False)(function)
    return wrapped


def compiled_in_place_inside(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `compiled_in_place` does a function that compiled ones alone call, as `compiled_inside`."""
    wrapped: Callable[P, R] = numba.njit(cache=_KEPT, nogil=True, no_cpython_wrapper=True, _nrt=False)(function)
    return wrapped


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Have compiled functions contain `function`, a few lines for an innermost loop, instead of calling it: each call
    hands over all arrays that it is given, and may count them, which takes longer than such lines."""
    wrapped: Callable[P, R] = numba.njit(inline="always")(function)
    return wrapped
