"""Copies between the device's memory and the bytes that are sent: on CUDA over pinned memory, on streams beside
compute's."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from dtfm_protocol.wire.codecs import Bytes, from_bytes, to_bytes


class HostCopies:
    """Mover of coded tensors between host and device. On the CPU nothing is moved or copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: tuple[Any, Any] | None = None
        self._threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        if device.type != "cpu":
            self._threads = ThreadPoolExecutor(1, "upload"), ThreadPoolExecutor(1, "download")
        if device.type == "cuda":
            self._streams = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def close(self) -> None:
        """End the threads; what they have under way is finished first."""
        for thread in self._threads or ():
            thread.shutdown()

    def mark(self) -> Any:
        """Return the event from which on the tensors made so far may be read (None: at once); call it on the compute
        thread."""
        return torch.cuda.current_stream(self._device).record_event() if self._streams else None

    async def to_device(self, data: Bytes) -> torch.Tensor:
        """Return received bytes as a uint8 tensor on the device."""
        if self._threads is None:
            return from_bytes(data)
        return await asyncio.get_running_loop().run_in_executor(self._threads[0], self._upload, data)

    async def to_host(self, coded: torch.Tensor, made: Any) -> memoryview:
        """Return the bytes of a uint8 tensor of the device, once the event `made` has happened."""
        if self._threads is None:
            return to_bytes(coded)
        return await asyncio.get_running_loop().run_in_executor(self._threads[1], self._download, coded, made)

    def _upload(self, data: Bytes) -> torch.Tensor:
        if self._streams is None:
            return from_bytes(data).to(self._device)
        stream = self._streams[0]
        with torch.cuda.stream(stream):
            pinned = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
            pinned.copy_(from_bytes(data))
            there = pinned.to(self._device, non_blocking=True)
            stream.synchronize()  # this thread waits, the compute stream does not
        # Its memory belongs to the copying stream; it may be given away again only after compute has read it.
        there.record_stream(torch.cuda.default_stream(self._device))
        return there

    def _download(self, coded: torch.Tensor, made: Any) -> memoryview:
        if self._streams is None:
            return to_bytes(coded.cpu())
        stream = self._streams[1]
        with torch.cuda.stream(stream):
            stream.wait_event(made)
            pinned = torch.empty(len(coded), dtype=torch.uint8, pin_memory=True)
            pinned.copy_(coded, non_blocking=True)
            coded.record_stream(stream)
            stream.synchronize()
        return to_bytes(pinned)
