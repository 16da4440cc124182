"""Child processes that do not outlive their parent."""

import ctypes
import signal
import sys
from collections.abc import Callable


def end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a `preexec_fn` by which the kernel sends the child `number` when its parent dies, even by kill -9.

    Linux only; elsewhere None.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded here: after the fork nothing may import or allocate much
    set_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>

    def ask() -> None:
        libc.prctl(set_death_signal, int(number))

    return ask
