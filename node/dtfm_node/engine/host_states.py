"""Tensors that lie in the machine's memory beside a GPU, and come to it run by run while it updates them.

A few rooms on the device take turns: while one run is updated, the next is on its way there, and the one before on its
way back. No room is filled again before what was in it has arrived. The machine's memory is page-locked, so that CUDA
copies beside compute.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

ROOMS = 3
"""Runs that are on the device at a time: one comes, one is updated, one goes."""
_ALIGNMENT = 16
"""Bytes to whose multiples tensors are placed in a room: those of the widest type, and of fast copies."""

Run = tuple[torch.Tensor, ...]
"""Tensors in the machine's memory of which the values are updated together; of one dimension."""


class Lanes(Protocol):
    """The ways between the machine's memory and a device's, on which copies are made beside compute, each way in order.

    Events are whatever the ways make of them; None is one that has happened.
    """

    def bring(self, copy: Callable[[], None], after: Any) -> Any:
        """Have something copied to the device once `after` has happened; return the event that it is there."""

    def take(self, copy: Callable[[], None], after: Any) -> Any:
        """Have something copied to the machine's memory once `after` has happened; return that event."""

    def asked(self) -> Any:
        """Return the event that compute has done all that it was asked so far."""

    def meet(self, event: Any) -> None:
        """Have what compute is asked from now on wait for `event`."""

    def finish(self) -> None:
        """Wait until everything is in the machine's memory."""


class CudaLanes:
    """Lanes of a CUDA device: a stream each way."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._there, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def bring(self, copy: Callable[[], None], after: Any) -> Any:
        """Copy to the device, as `Lanes.bring`."""
        return _on(self._there, copy, after)

    def take(self, copy: Callable[[], None], after: Any) -> Any:
        """Copy from the device, as `Lanes.take`."""
        return _on(self._back, copy, after)

    def asked(self) -> Any:
        """Return the event of compute's stream."""
        return torch.cuda.current_stream(self._device).record_event()

    def meet(self, event: Any) -> None:
        """Have compute's stream wait."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def finish(self) -> None:
        """Wait for the stream back."""
        self._back.synchronize()


def update_runs(runs: Sequence[Run], device: torch.device, lanes: Lanes, update: Callable[[int, Run], None]) -> None:
    """Call `update` with the number of each run and its tensors on the device, and keep what it leaves in them.

    Args:
        runs: tensors in the machine's memory.
    """
    rooms = [
        torch.empty(max(map(_room_bytes, runs), default=0), dtype=torch.uint8, device=device) for _ in runs[:ROOMS]
    ]
    begun = lanes.asked()  # the rooms may have been something else's until then
    there: list[Run] = []
    arrived: list[Any] = []
    gone: list[Any] = []

    def bring(number: int) -> None:
        place = _placed(rooms[number % ROOMS], runs[number])
        there.append(place)
        after = gone[number - ROOMS] if number >= ROOMS else begun
        arrived.append(lanes.bring(lambda: _copy(place, runs[number]), after))

    for number, run in enumerate(runs):
        while len(there) < min(number + 2, len(runs)):
            bring(len(there))
        place = there[number]
        lanes.meet(arrived[number])
        update(number, place)
        gone.append(lanes.take(lambda run=run, place=place: _copy(run, place), lanes.asked()))  # type: ignore[misc]
    lanes.finish()


def page_locked(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the machine's memory, locked there for CUDA as long as it lives. Where the system does not
    allow that, it is as it was, and copies are slower.

    Not as torch pins memory, which takes up to twice as much: the next power of two.
    """
    runtime = torch.cuda.cudart()
    if tensor.nbytes and int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)) == 0:
        weakref.finalize(tensor, runtime.cudaHostUnregister, tensor.data_ptr())
    return tensor


def _on(stream: Any, copy: Callable[[], None], after: Any) -> Any:
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        copy()
    return stream.record_event()


def _copy(into: Run, values: Run) -> None:
    for one, other in zip(into, values, strict=True):
        one.copy_(other, non_blocking=True)


def _room_bytes(run: Run) -> int:
    return sum(_aligned(one.nbytes) for one in run)


def _placed(room: torch.Tensor, run: Run) -> Run:
    """Return room for a run: tensors as its own, in the bytes of `room`."""
    found, start = [], 0
    for one in run:
        found.append(room[start : start + one.nbytes].view(one.dtype))
        start += _aligned(one.nbytes)
    return tuple(found)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
