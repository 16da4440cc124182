"""A visitor of the owner's page, who says what browsers say, or anything else."""

import asyncio
import json
import ssl
from dataclasses import dataclass
from typing import Any

LARGEST = 1 << 24
"""Bytes of the longest line."""


@dataclass(frozen=True)
class Answer:
    """What a server has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def values(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class PageVisitor:
    """A visitor at one port of this machine."""

    port: int
    headers: tuple[str, ...] = ()
    """What goes with each request."""
    tls: ssl.SSLContext | None = None

    async def get(self, path: str, *headers: str) -> Answer:
        """Ask for something."""
        return await self.say(f"GET {path} HTTP/1.1", *headers)

    async def post(self, path: str, values: Any, *headers: str) -> Answer:
        """Send JSON."""
        return await self.say(
            f"POST {path} HTTP/1.1", "Content-Type: application/json", *headers, body=json.dumps(values)
        )

    async def say(self, first: str, *headers: str, body: str = "") -> Answer:
        """Send a request, and return the answer; a header that is given here replaces that of the same name."""
        given = [*self.headers, *headers]
        if not any(line.lower().startswith("host:") for line in given):
            given.append(f"Host: 127.0.0.1:{self.port}")
        given += ["Connection: close", *([f"Content-Length: {len(body.encode())}"] if body else [])]
        reader, writer = await self.open()
        try:
            writer.write("\r\n".join([first, *given, "", body]).encode())
            async with asyncio.timeout(20):
                return await read_answer(reader)
        finally:
            writer.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and say nothing yet."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, limit=LARGEST)


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the head of an answer: status, and headers by their names in small letters."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(_header(line) for line in lines[1:] if line)
    return int(lines[0].split()[1]), headers


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read an answer to its end, which is that of the connection."""
    status, headers = await read_head(reader)
    return Answer(status, headers, await reader.read())
