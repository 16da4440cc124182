"""The clock of waits, which is passed in, so that tests need not wait."""

import asyncio
import time


class MonotonicClock:
    """A clock of the seconds of `time.monotonic()`, with sleeps and limits that take as long."""

    def now(self) -> float:
        """Return the seconds since some time in the past."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """Limit a block to so many seconds, after which it ends with a TimeoutError; None: no limit."""
        return asyncio.timeout(seconds)
