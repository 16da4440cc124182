"""Clock of the engine's waits: passed in, so that tests need not wait."""

import asyncio
import time


class MonotonicClock:
    """Clock that runs as `time.monotonic()`, with sleeps that really take their time."""

    def now(self) -> float:
        """Return the seconds since some fixed time in the past."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)
