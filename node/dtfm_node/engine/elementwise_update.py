"""Updates of parameters as elementwise IEEE arithmetic in a stated order: the same bits on every device.

Replicas of a stage take the same reduced bytes, and must stay bit-identical where one is a CPU and another a GPU. A
library's own optimizer may fuse a product and a sum into one rounding, or divide by multiplying, and which of it is
chosen depends on the device, on the vector unit, and on where a tensor ends. So an update is written as single
operations, each of which IEEE 754 defines to the last bit: products, sums, differences, quotients and square roots of
fp32 tensors, without a reduction, and without a quotient by a scalar. What is kept in less than fp32 is widened before
and narrowed after, by the same rule (`kept_forms`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from dtfm_node.engine.device import has_own_memory
from dtfm_node.engine.dynamic_quantisation import BlockwiseMoment, levels_of
from dtfm_node.engine.host_states import CudaLanes, Lanes, page_locked, update_runs
from dtfm_node.engine.kept_forms import AsFp32, FromPlace, KeptForm
from dtfm_node.engine.stochastic_rounding import StochasticBf16, rounding_key
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.checkpoint.state_slots import MOMENT_BLOCK, WEIGHT, StateTable
from dtfm_protocol.job.job_file import Training

_CPU_CHUNK = 1 << 17
"""Values that a thread updates at a time where it is alone: so few that four tensors' share and the scratch, 2.5 MiB,
stay in a cache between operations; so many that calls do not count. Another thread is worth its start for as many."""
_THREAD_CHUNK = (1 << 15) - MOMENT_BLOCK
"""Values that each of several threads updates at a time: on more, torch would start threads of its own, which wait for
each other after every operation. Like the others a multiple of a block, which no two threads share."""
_GPU_CHUNK = 1 << 21
"""Values that a GPU updates at a time: enough to keep it busy, and little beside the model."""
_RUN_CHUNK = 1 << 20
"""Values that it updates at a time whose moments come from the machine's memory: 8 MiB each way in fp32, so many that
copies are fast, and so few that the rooms take 24 MiB. A multiple of a block."""

Tensors = Sequence[torch.Tensor]
"""Weight, gradient, and the rule's moments, of some of a parameter's values; fp32 [elements] each."""


class UpdateSettings(NamedTuple):
    """The settings of an update beside its learning rate, as the job's `[training]` has them."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.9
    decays_all: bool = False
    """Whether vectors decay as matrices do."""
    seed: int = 0
    """The job's: of how weights are rounded that are kept in less than fp32."""

    @classmethod
    def of(cls, training: Training) -> Self:
        """Return those of a job."""
        return cls(
            training.weight_decay,
            training.betas,
            training.eps,
            training.momentum,
            training.weight_decay_on == "all",
            training.seed,
        )


class ElementwiseUpdate(ABC):
    """The update of named parameters by one rule, and what the rule keeps for each of them.

    Args:
        table: what training keeps for each parameter; None: everything in fp32.
        lanes: the ways between the machine's memory and the parameters', which are two then; None: those of CUDA, where
            parameters lie in a GPU's memory.
    """

    table: StateTable
    """What training keeps for each parameter; of the class, where everything is in fp32."""
    signed: ClassVar[Mapping[str, bool]]
    """The rule's moments, in the order in which `advance` takes them, and whether they have signs."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        settings: UpdateSettings,
        table: StateTable | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self._parameters, self._settings, self._lanes = parameters, settings, lanes
        if table is not None:
            self.table = table
        self.moments: dict[str, torch.Tensor] = {}
        """Tensors of the rule's own slots by key, "SLOT/NAME", each on its parameter's device or, as its slot says, in
        the machine's memory; none before the first step."""

    @torch.no_grad()
    def update(
        self, step: int, learning_rate: float, clip: float = 1.0, settings: UpdateSettings | None = None
    ) -> None:
        """Make weights and moments those after `step`, counted from 1, by gradients that count `clip` times.

        Gradients stay as they are. Parameters without one are left alone.

        Args:
            settings: those of this step; None: the ones given at first.
        """
        settings = self._settings if settings is None else settings
        scalars = self.scalars(step, learning_rate, clip, settings)
        work = [
            _Work(
                self._weight(name, step, settings.seed),
                {moment: self._kept(moment, name) for moment in self.signed},
                parameter.grad.reshape(-1),
                settings.decays_all or parameter.ndim >= 2,
            )
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        ]
        if not work:
            return
        device, elements = work[0].gradient.device, sum(len(one.gradient) for one in work)
        if (lanes := self._ways(device)) is not None:
            self._update_from_host(work, lanes, scalars)
        elif device.type != "cpu":
            self._update(work, _Share(0, 1, _GPU_CHUNK), scalars)
        elif (threads := min(torch.get_num_threads(), elements // _CPU_CHUNK)) > 1:
            with ThreadPoolExecutor(threads, "update") as pool:
                shares = [_Share(index, threads, _THREAD_CHUNK) for index in range(threads)]
                for future in [pool.submit(self._update, work, share, scalars) for share in shares]:
                    future.result()
        else:
            self._update(work, _Share(0, 1, _CPU_CHUNK), scalars)

    def put(self, key: str, value: torch.Tensor) -> None:
        """Have a copy of `value` as the tensor of one of the rule's own slots, where that slot's tensors lie."""
        device = self._parameters[key.partition("/")[2]].device
        self.moments[key] = self._in_place(value.to(self._place(key, device), copy=True), device)

    def begin(self) -> None:
        """Make what the first update begins with, where it is not there: a step that changes nothing leaves a whole
        state, too."""
        for name in self._parameters:
            for slot in self.table.moments:
                self._tensor(f"{slot.name}/{name}")

    @staticmethod
    @abstractmethod
    def scalars(step: int, learning_rate: float, clip: float, settings: UpdateSettings) -> Any:
        """Return the factors of one update, computed in fp64 and rounded once each (`fp32`)."""

    @staticmethod
    @abstractmethod
    def advance(tensors: Tensors, room: torch.Tensor, scalars: Any, *, decays: bool) -> None:
        """Update some values through `room`, fp32 [elements] as they are, whose contents do not matter.

        Each line is one rounding of each value, and their order is part of what replicas agree on.
        """

    def _weight(self, name: str, step: int, seed: int) -> KeptForm:
        values = self._parameters[name].detach().view(-1)
        if self.table.of_key(f"{WEIGHT}/{name}").dtype == "F32":
            return AsFp32(values)
        return StochasticBf16(values, rounding_key(seed, step, name))

    def _kept(self, moment: str, name: str) -> tuple["_Kept", ...]:
        """Return the tensors that are kept of one of the rule's moments."""
        fp32 = any(slot.name == moment for slot in self.table.moments)
        slots = (moment,) if fp32 else (f"{moment}_code", f"{moment}_scale")
        return tuple(_Kept(self._tensor(key := f"{slot}/{name}"), self.table.of_key(key).block) for slot in slots)

    def _form(self, moment: str, tensors: Tensors) -> KeptForm:
        """Return a moment whose tensors, or runs of them, these are."""
        if len(tensors) == 1:
            return AsFp32(tensors[0])
        codes, scales = tensors
        return BlockwiseMoment(codes, scales, levels_of(self.signed[moment], codes.device))

    def _forms(self, one: "_Work") -> tuple[KeptForm, ...]:
        """Return a parameter's weight and moments."""
        kept = ((moment, [tensor for tensor, _ in tensors]) for moment, tensors in one.moments.items())
        return one.weight, *(self._form(moment, tensors) for moment, tensors in kept)

    def _ways(self, device: torch.device) -> Lanes | None:
        """Return the ways to the machine's memory, if that has any of what is kept; None: it has not."""
        if not self.table.host_bytes:
            return None
        if self._lanes is None and has_own_memory(device):
            self._lanes = CudaLanes(device)
        return self._lanes

    def _place(self, key: str, device: torch.device) -> torch.device:
        """Return the device on which the tensor of a slot lies whose parameter is on `device`."""
        is_away = self.table.of_key(key).place == "host" and has_own_memory(device)
        return torch.device("cpu") if is_away else device

    def _in_place(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a slot's tensor, locked where it lies in another memory than its parameter's `device`."""
        return tensor if tensor.device.type == device.type else page_locked(tensor)

    def _tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of one of the rule's own slots, flat."""
        if key not in self.moments:
            slot, parameter = self.table.of_key(key), self._parameters[key.partition("/")[2]]
            shape, dtype = slot.shape(parameter.shape), torch_dtype(slot.dtype)
            made = torch.zeros(shape, dtype=dtype, device=self._place(key, parameter.device))
            self.moments[key] = self._in_place(made, parameter.device)
        return self.moments[key].view(-1)

    def _update(self, work: Sequence["_Work"], share: "_Share", scalars: Any) -> None:
        """Update a share of `work`: every so-manieth of the small parameters, and a run of values of each large one."""
        scratch = self._scratch(work, share.most)
        for number, one in enumerate(work):
            elements = len(one.gradient)
            if elements > share.most:
                first, end = share.bounds(elements)
            elif number % share.count == share.index:
                first, end = 0, elements
            else:
                continue
            forms = self._forms(one)
            for start in range(first, end, share.most):
                self._advance(one, forms, start, min(start + share.most, end), scratch, scalars)

    def _update_from_host(self, work: Sequence["_Work"], lanes: Lanes, scalars: Any) -> None:
        """Update what has moments in the machine's memory, run by run."""
        runs = [
            (one, first, min(first + _RUN_CHUNK, len(one.gradient)))
            for one in work
            for first in range(0, len(one.gradient), _RUN_CHUNK)
        ]
        scratch = self._scratch(work, _RUN_CHUNK)

        def update(number: int, there: Tensors) -> None:
            one, first, end = runs[number]
            come = iter(there)
            forms: list[KeptForm] = [one.weight]
            for moment, tensors in one.moments.items():
                forms.append(FromPlace(self._form(moment, [next(come) for _ in tensors]), first))
            self._advance(one, forms, first, end, scratch, scalars)

        update_runs([one.run(first, end) for one, first, end in runs], scratch.device, lanes, update)

    def _scratch(self, work: Sequence["_Work"], most: int) -> torch.Tensor:
        """Return room for an update of so many values at a time."""
        return torch.empty(2 + len(self.signed), most, device=work[0].gradient.device)

    def _advance(
        self, one: "_Work", forms: Sequence[KeptForm], first: int, end: int, scratch: torch.Tensor, scalars: Any
    ) -> None:
        """Update the values `[first, end)` of a parameter, whose weight and moments are `forms`."""
        room, *rooms = scratch[:, : end - first]
        weight, *moments = (form.widened(first, end, own) for form, own in zip(forms, rooms, strict=True))
        self.advance((weight, one.gradient[first:end], *moments), room, scalars, decays=one.decays)
        for form, values in zip(forms, (weight, *moments), strict=True):
            form.keep(first, end, values)


class _Kept(NamedTuple):
    """A tensor that is kept of a parameter."""

    tensor: torch.Tensor
    """Flat."""
    block: int
    """Values of the parameter for each of its own."""


class _Work(NamedTuple):
    """What is to be done with a parameter."""

    weight: KeptForm
    moments: Mapping[str, tuple[_Kept, ...]]
    """What is kept of each moment."""
    gradient: torch.Tensor
    """fp32 [elements]."""
    decays: bool

    def run(self, first: int, end: int) -> tuple[torch.Tensor, ...]:
        """Return the runs of the moments' tensors that belong to the values `[first, end)`, whole blocks but for the
        last one's rest."""
        kept = (one for tensors in self.moments.values() for one in tensors)
        return tuple(tensor[first // block : -(-end // block)] for tensor, block in kept)


@dataclass(frozen=True)
class _Share:
    """What one thread does of an update."""

    index: int
    count: int
    """Number of shares."""
    most: int
    """Values that it updates at a time."""

    def bounds(self, elements: int) -> tuple[int, int]:
        """Return the run `[first, end)` of so many values, whole blocks but for the last one's rest."""
        blocks = -(-elements // MOMENT_BLOCK)
        first, end = (blocks * index // self.count * MOMENT_BLOCK for index in (self.index, self.index + 1))
        return first, min(end, elements)


def fp32(value: float) -> torch.Tensor:
    """Return a factor, fp32 [] on the CPU, where torch takes it for a number."""
    return torch.tensor(value, dtype=torch.float32)
