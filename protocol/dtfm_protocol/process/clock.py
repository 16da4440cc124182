"""Time as waits see it: passed in, so that tests need not wait."""

import asyncio
import time


class MonotonicClock:
    """The seconds of `time.monotonic()`, and sleeps and limits that take as long."""

    def now(self) -> float:
        """Seconds since some time in the past."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """A block that may last so long, and then ends with a TimeoutError; None: as long as it likes."""
        return asyncio.timeout(seconds)
