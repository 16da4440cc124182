"""Loops over values that are compiled for a processor, and kept on the disk as machine code where that can be written.

Without numba's `fastmath` the compiler may neither fuse a product with a sum nor change their order, on any processor.
"""

from collections.abc import Callable
from typing import Any

import numba


def compiled_loop(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function of one `signature`, as numba writes them, which other threads run
    beside.

    Args:
        options: further ones of `numba.njit`.
    """

    def compile_(function: Callable[..., Any]) -> Any:
        # By numpy's rules a division by zero gives an infinity and raises nothing, so that a loop has no branches.
        own = {"nogil": True, "error_model": "numpy"} | options
        try:
            return numba.njit(signature, cache=True, **own)(function)
        except RuntimeError:  # there is no folder for machine code that may be written to
            return numba.njit(signature, cache=False, **own)(function)

    return compile_
