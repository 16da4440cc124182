"""Copy of parameters of the state in training that this node is to take over, in memory, as of the newest step: it is
given them ahead of their plan, and follows by gradients. Nothing of it is believed: it serves where it has the hash of
what the plan's sources have."""

import asyncio
from collections.abc import Callable, Mapping
from math import prod

import torch

from dtfm_node.engine.elementwise_update import ElementwiseUpdate
from dtfm_node.engine.optimizers import optimizer_of, update_after
from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.checkpoint.state_slots import ITEM_BYTES, WEIGHT
from dtfm_protocol.checkpoint.transfers import Parcel
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import Bytes


class _Followed:
    """One parameter with its moments, as of a step."""

    def __init__(self, name: str, shape: tuple[int, ...], training: Training, step: int) -> None:
        empty: dict[str, torch.nn.Parameter] = {}
        dtype = torch_dtype(optimizer_of(training, empty).table.of_key(f"{WEIGHT}/{name}").dtype)
        parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        if dtype != torch.float32:
            parameter.grad_dtype = torch.float32
        self.parameters, self.step = {name: parameter}, step
        self.optimizer: ElementwiseUpdate = optimizer_of(training, self.parameters)


class AheadCopy:
    """Copy of the parameters of `shapes`, by name; none is here at first.

    Args:
        training_at: returns the values by which the update of a step goes.
        parcel_seconds: see `Timeouts.parcel`.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        training_at: Callable[[int], Training],
        parcel_seconds: float = TIMEOUTS.parcel,
    ) -> None:
        self._shapes, self._training_at, self._parcel_seconds = shapes, training_at, parcel_seconds
        self._table = optimizer_of(training_at(1), {}).table
        self._followed: dict[str, _Followed] = {}
        self._changed = asyncio.Event()
        self.sources = 0
        """Number of peers that may give more."""
        self.is_closed = False
        """Whether its tensors are used now, so that nothing more is taken."""

    @property
    def bytes(self) -> int:
        """Bytes of memory that all of it takes."""
        return round(self._table.state_bytes * sum(map(prod, self._shapes.values())))

    @property
    def step(self) -> int:
        """Newest step of what is here; 0: nothing is."""
        return max((one.step for one in self._followed.values()), default=0)

    def check(self, parcel: Parcel) -> None:
        """Check what a parcel says, before memory is taken for it.

        Raises:
            Refused: it is none that is due.
        """
        name, known = parcel.name, self._followed.get(parcel.name)
        if name not in self._shapes:
            raise Refused(f"a parcel of {name}, which was not asked for")
        if parcel.grad_norm is None:
            size = sum(
                prod(self._table.of_key(key).shape(self._shapes[name])) * ITEM_BYTES[self._table.of_key(key).dtype]
                for key in self._table.keys([name], parcel.step)
            )
        else:
            size = 4 * prod(self._shapes[name]) if parcel.size else 0
            if known is None or known.step + 1 != parcel.step:
                raise Refused(f"a parcel with the gradient of {name} in step {parcel.step}, which leads nowhere")
        if parcel.size != size:
            raise Refused(f"a parcel of {name} of {parcel.size} bytes, not {size}")

    def take(self, parcel: Parcel, data: Bytes) -> None:
        """Take the bytes of a parcel that was checked."""
        if self.is_closed:
            return
        name, step, shape = parcel.name, parcel.step, self._shapes[parcel.name]
        if parcel.grad_norm is None:
            one = _Followed(name, shape, self._training_at(max(1, step)), step)
            offset = 0
            for key in self._table.keys([name], step):
                slot = self._table.of_key(key)
                size = prod(slot.shape(shape)) * ITEM_BYTES[slot.dtype]
                raw = torch.frombuffer(bytearray(memoryview(data)[offset : offset + size]), dtype=torch.uint8)
                value = raw.view(torch_dtype(slot.dtype)).reshape(slot.shape(shape))
                load_tensor(one.parameters, one.optimizer, key, value)
                offset += size
            self._followed[name] = one
            return
        one = self._followed[name]
        if len(data):
            parameter = one.parameters[name]
            parameter.grad = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
            update_after(one.optimizer, self._training_at(step), step, parcel.grad_norm)
            parameter.grad = None
        else:
            one.optimizer.begin()
        one.step = step

    def came(self) -> None:
        """Take note that something has come, or a source has ended."""
        self._changed.set()

    async def at(self, step: int) -> dict[str, torch.Tensor]:
        """Return the tensors that are here as of `step`, by key; wait for what leads there, as long as it comes."""
        while self.sources and any(one.step < step for one in self._followed.values()):
            self._changed.clear()
            try:
                async with asyncio.timeout(self._parcel_seconds):
                    await self._changed.wait()
            except TimeoutError:
                break
        self.is_closed = True
        found: dict[str, torch.Tensor] = {}
        for one in self._followed.values():
            if one.step == step:
                found |= dict(state_tensors(one.parameters, one.optimizer))
        return found
