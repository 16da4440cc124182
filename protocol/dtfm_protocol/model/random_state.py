"""The state of torch's global random generator, put back after model code that may draw from it."""

import contextlib
import threading
from collections.abc import Iterator

import torch

_lock = threading.RLock()
"""Held while the state is read, used or put back: there is one state for all threads.

Besides, torch 2.13 reads it under a lock of its own while it makes a tensor. Where that starts Python's garbage
collection, the reader may hand the interpreter to another thread, and both wait for ever if that one reads it, too."""


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Have the generator after the block as it was before; blocks of several threads come one after the other."""
    with _lock, torch.random.fork_rng(devices=[]):
        yield
