"""A headless Chromium, driven through the pipe of its debugging protocol."""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

from dtfm_protocol.process.child_processes import end_with_parent

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""Program of the browser; None: there is none here."""
ANSWER_SECONDS = 60.0
LARGEST = 1 << 26


class Browser:
    """A browser with one page. Create it with `running`."""

    def __init__(self, reader: asyncio.StreamReader, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = count(1)
        self._session = ""
        self.complaints: list[str] = []
        """What the page's console has said, and what it could not load."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls) -> AsyncIterator["Browser"]:
        """A browser that is gone, with its folder, when the block ends."""
        assert CHROMIUM is not None
        folder = tempfile.mkdtemp(prefix="browser-")
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, "bash", *command, pass_fds=(theirs_in, theirs_out), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            preexec_fn=end_with_parent(signal.SIGKILL),
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        reader = asyncio.StreamReader(limit=LARGEST)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb")
        )
        try:
            browser = cls(reader, ours_out)
            await browser._begin()
            yield browser
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            transport.close()
            os.close(ours_out)
            shutil.rmtree(folder, ignore_errors=True)

    async def _begin(self) -> None:
        targets = await self.call("Target.getTargets")
        page = next(one for one in targets["targetInfos"] if one["type"] == "page")
        found = await self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol, and return its result.

        Raises:
            AssertionError: it failed.
        """
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(ANSWER_SECONDS):
            while (answer := await self._message()).get("id") != number:
                self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    async def _message(self) -> dict[str, Any]:
        return dict(json.loads((await self._reader.readuntil(b"\0"))[:-1]))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.complaints.append(str([one.get("value") for one in params["args"]]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"].get("exception", params)))
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(str(params["entry"]["text"]))

    async def open(self, url: str) -> None:
        """Go to a page."""
        await self.call("Page.navigate", url=url)

    async def look_like(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Take the size and the colours of a device."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def run(self, script: str) -> Any:
        """Run a script in the page, and return its value.

        Raises:
            AssertionError: it failed.
        """
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str, seconds: float = 60.0) -> Any:
        """Wait until a script's value is true in the page, and return it.

        Raises:
            AssertionError: it never was; with what the page shows.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not (value := await self.run(script)):
            assert loop.time() < end, f"never: {script}\n{await self.run('document.body.innerText')}\n{self.complaints}"
            await asyncio.sleep(0.05)
        return value

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        """Take a picture of the page, all of its length."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
