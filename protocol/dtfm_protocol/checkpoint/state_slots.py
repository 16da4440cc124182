"""Slots of a parameter: the tensors that training keeps for it, as a table.

The update, snapshots, checkpoints, fetching, the memory that a plan asks for and the bytes of moving a stage all go by
this table, so that another optimizer is other rows of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from dtfm_protocol.job.job_file import OffloadName, OptimizerName, WeightsName

DType = Literal["F64", "F32", "F16", "BF16", "I64", "U8", "I8"]
"""Name of a tensor's element type, as safetensors has it."""
ITEM_BYTES: dict[DType, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1, "I8": 1}
"""Bytes of one element of each type."""
MOMENT_BLOCK = 256
"""Values of a moment that share a scale where moments are kept in 8 bits. A scale every 256 values costs an eighth of a
bit each; among fewer values the largest is nearer to the rest (bitsandbytes has 256, too; the paper, 2048)."""

FILE_HEADER_BYTES = 1 << 24
"""Bytes of a state's file beside its tensors, at most."""


class Slot(NamedTuple):
    """A kind of tensor that training keeps for each parameter."""

    name: str
    dtype: DType
    is_state: bool
    """Whether the tensor is part of the state that a step leaves behind: kept, signed, and moved with its stage."""
    since: int = 0
    """The first step after which the state has it; 0: from the initial weights on."""
    block: int = 1
    """Values of the parameter for which there is one element, in row-major order; 1: the tensor has the parameter's
    shape, else one dimension. The last block may be short."""
    place: Literal["device", "host"] = "device"
    """Where the tensor lies: "host" is the machine's memory, where a GPU trains that has its own."""

    @property
    def bytes(self) -> float:
        """Bytes of a value of the parameter. What a short block takes more is left out."""
        return ITEM_BYTES[self.dtype] / self.block

    def shape(self, parameter: Sequence[int]) -> tuple[int, ...]:
        """Return the tensor's shape for a parameter of the shape `parameter`."""
        return tuple(parameter) if self.block == 1 else (-(-prod(parameter) // self.block),)


@dataclass(frozen=True)
class StateTable:
    """The slots of every parameter, in the order in which checkpoints name them."""

    slots: tuple[Slot, ...]

    @property
    def state(self) -> tuple[Slot, ...]:
        """The slots that are part of the state."""
        return tuple(slot for slot in self.slots if slot.is_state)

    @property
    def moments(self) -> tuple[Slot, ...]:
        """The optimizer's own slots: all of the state but the weights."""
        return tuple(slot for slot in self.state if slot.name != WEIGHT)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of memory that a parameter takes while it is trained."""
        return sum(slot.bytes for slot in self.slots)

    @property
    def host_bytes(self) -> float:
        """Those of the `parameter_bytes` that lie in the machine's memory, where the device has its own."""
        return sum(slot.bytes for slot in self.slots if slot.place == "host")

    @property
    def state_bytes(self) -> float:
        """Bytes of the state of a parameter."""
        return sum(slot.bytes for slot in self.state)

    def most_file_bytes(self, parameters: int) -> int:
        """Return the bytes that a file of a state, of no more than so many parameters, has at most."""
        return int(self.state_bytes * parameters) + FILE_HEADER_BYTES

    def keys(self, names: Iterable[str], step: int) -> tuple[str, ...]:
        """Return the keys "SLOT/NAME" of the state after `step` of the parameters `names`."""
        there = [slot.name for slot in self.state if slot.since <= step]
        return tuple(f"{slot}/{name}" for name in sorted(names) for slot in there)

    def of_key(self, key: str) -> Slot:
        """Return the slot of the tensor with a key "SLOT/NAME".

        Raises:
            KeyError: there is no such slot in the state.
        """
        return {slot.name: slot for slot in self.state}[key.partition("/")[0]]


WEIGHT = "weight"
"""Name of the slot of the weights themselves, which every table has."""
ADAMW = StateTable(
    (
        Slot(WEIGHT, "F32", is_state=True),
        Slot("gradient", "F32", is_state=False),
        Slot("exp_avg", "F32", is_state=True, since=1),
        Slot("exp_avg_sq", "F32", is_state=True, since=1),
    )
)
"""The table of AdamW in fp32: 16 bytes a parameter, of which 12 are its state."""
ADAMW_8BIT = StateTable(
    (
        Slot(WEIGHT, "F32", is_state=True),
        Slot("gradient", "F32", is_state=False),
        Slot("exp_avg_code", "U8", is_state=True, since=1),
        Slot("exp_avg_scale", "F32", is_state=True, since=1, block=MOMENT_BLOCK),
        Slot("exp_avg_sq_code", "U8", is_state=True, since=1),
        Slot("exp_avg_sq_scale", "F32", is_state=True, since=1, block=MOMENT_BLOCK),
    )
)
"""The table of AdamW whose moments are kept in 8 bits: 10 1/32 bytes a parameter, of which 6 1/32 are its state."""
SGD = StateTable(
    (
        Slot(WEIGHT, "F32", is_state=True),
        Slot("gradient", "F32", is_state=False),
        Slot("momentum_buffer", "F32", is_state=True, since=1),
    )
)
"""The table of SGD with momentum in fp32: 12 bytes a parameter, of which 8 are its state."""
TABLES: dict[OptimizerName, StateTable] = {"adamw": ADAMW, "adamw-8bit": ADAMW_8BIT, "sgd": SGD}
"""The table of each optimizer whose weights are kept in fp32."""


def state_table(
    optimizer: OptimizerName, weights: WeightsName = "fp32", offload: OffloadName = "nothing"
) -> StateTable:
    """Return the table of an optimizer whose weights are kept in `weights`.

    Args:
        offload: what lies in the machine's memory: "optimizer", all of the state but the weights.
    """
    slots = TABLES[optimizer].slots
    if weights == "bf16":
        slots = tuple(slot._replace(dtype="BF16") if slot.name == WEIGHT else slot for slot in slots)
    if offload == "optimizer":
        slots = tuple(slot._replace(place="host") if slot.is_state and slot.name != WEIGHT else slot for slot in slots)
    return StateTable(slots)
