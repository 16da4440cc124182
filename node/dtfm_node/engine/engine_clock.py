"""Time as the engine's waits see it: passed in, so that tests need not wait."""

import asyncio
import time


class MonotonicClock:
    """The seconds of `time.monotonic()`, and sleeps that take as long."""

    def now(self) -> float:
        """Seconds since some time in the past."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)
