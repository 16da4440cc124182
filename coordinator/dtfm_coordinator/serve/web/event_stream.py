"""Event stream of overviews to one viewer, who gets the newest one however slowly it reads."""

import asyncio
import contextlib

from starlette.types import Message, Receive, Scope, Send

from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed

BREATH_SECONDS = 15.0
"""Silence after which a line is sent that says nothing: what lies between may close a connection that is quiet."""
SEND_SECONDS = 30.0
"""Limit of a viewer's taking one overview; one that takes longer is let go, and may come again."""
RETRY_MS = 2000
"""After how many milliseconds a browser comes again when the stream has ended."""


class EventStream:
    """Server-sent events with overviews (an ASGI answer): "whole" ones, and "patch"es of the one before."""

    def __init__(
        self,
        feed: OverviewFeed,
        headers: list[tuple[bytes, bytes]],
        *,
        breath: float = BREATH_SECONDS,
        send_limit: float = SEND_SECONDS,
    ) -> None:
        self._feed, self._headers, self._breath, self._send_limit = feed, headers, breath, send_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send overviews until the viewer has gone, or takes too long."""
        self._feed.viewers += 1
        gone = asyncio.create_task(_until_gone(receive))
        try:
            with contextlib.suppress(TimeoutError):
                await self._stream(send, gone)
        finally:
            self._feed.viewers -= 1
            gone.cancel()

    async def _stream(self, send: Send, gone: "asyncio.Task[None]") -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *self._headers]
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await self._say(send, f"retry: {RETRY_MS}\n\n".encode())
        seen = 0
        while not gone.done():
            if not self._feed.number > seen:
                news = asyncio.create_task(self._feed.after(seen))
                try:
                    await asyncio.wait({news, gone}, timeout=self._breath, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                if self._feed.number <= seen:
                    await self._say(send, b":\n\n")
                continue
            is_whole, data = self._feed.since(seen)
            seen = self._feed.number
            await self._say(send, b"event: " + (b"whole" if is_whole else b"patch") + b"\ndata: " + data + b"\n\n")

    async def _say(self, send: Send, data: bytes) -> None:
        await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._send_limit):
            await send(message)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
