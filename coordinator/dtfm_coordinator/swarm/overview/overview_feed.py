"""Feed of overviews to whoever looks: whole ones, and what has changed since the one before.

What is sent is made once, however many look. A change is a JSON merge patch (RFC 7386): keys with new values, and null
for those that are gone.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from dtfm_coordinator.records.step_history import StepHistory
from dtfm_coordinator.swarm.overview.overview import Overview

SHORTEST_SECONDS = 0.9
"""Pause between two overviews that are told: nobody reads faster."""
_GONE = object()


class OverviewFeed:
    """Feed of one run's overviews."""

    def __init__(self, history: StepHistory, clock: Callable[[], float] = time.monotonic) -> None:
        """Hold nothing before the first `put`.

        Args:
            history: of the run's steps, for its curves.
            clock: gives seconds.
        """
        self.history, self._clock = history, clock
        self.newest: Overview | None = None
        """The newest overview; None: there is none yet."""
        self.number = 0
        """Number of the newest overview that is told, from 1."""
        self._told_at = -SHORTEST_SECONDS
        self._values: dict[str, Any] = {}
        self._whole: bytes | None = None
        self._patch = b""
        self._news = asyncio.Event()
        self.viewers = 0
        """How many look: without any, nothing is prepared for them."""
        self._listeners: list[Callable[[Overview], None]] = []

    def begin(self, history: StepHistory) -> None:
        """Go on with the overviews of a run, with its curves: who had them told of another one hears nothing more."""
        self.history = history
        self._listeners.clear()

    def tell(self, listener: Callable[[Overview], None]) -> None:
        """Have `listener` called with every overview from now on."""
        self._listeners.append(listener)

    def put(self, overview: Overview, values: dict[str, Any], *, at_once: bool = False) -> None:
        """Take an overview, and the same as JSON values; it is told where the last one that was is not too new, or
        `at_once` where it is the last of all."""
        self.newest = overview
        for listener in self._listeners:
            listener(overview)
        if not at_once and self._clock() - self._told_at < SHORTEST_SECONDS:
            return
        self._told_at = self._clock()
        self.number += 1
        before, self._values, self._whole = self._values, values, None
        self._patch = _encoded(merge_patch(before, values)) if self.viewers and before else b""
        self._news.set()
        self._news = asyncio.Event()

    def since(self, number: int) -> tuple[bool, bytes]:
        """Return what to send to who has seen the overview of `number`, 0 for none: whether it is a whole one, and the
        JSON."""
        if number and number == self.number - 1 and self._patch:
            return False, self._patch
        if self._whole is None:
            self._whole = _encoded(self._values)
        return True, self._whole

    async def after(self, number: int) -> None:
        """Wait until there is an overview after that of `number`."""
        while self.number <= number:
            await self._news.wait()


def merge_patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch that makes `after` of `before`. A key with null counts as one that is not there."""
    patch: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key, _GONE)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif value != old and not (value is None and old is _GONE):
            patch[key] = value
    return patch | {key: None for key in before if key not in after}


def _encoded(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
