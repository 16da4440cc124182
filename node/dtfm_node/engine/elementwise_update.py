"""Updates of parameters as elementwise IEEE arithmetic in a stated order: the same bits on every device.

Replicas of a stage take the same reduced bytes, and must stay bit-identical where one is a CPU and another a GPU. A
library's own optimizer may fuse a product and a sum into one rounding, or divide by multiplying, and which of it is
chosen depends on the device, on the vector unit, and on where a tensor ends. So an update is written as single
operations, each of which IEEE 754 defines to the last bit: products, sums, differences, quotients and square roots of
fp32 tensors, without a reduction, and without a quotient by a scalar.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch

from dtfm_protocol.checkpoint.state_slots import StateTable
from dtfm_protocol.job.job_file import Training

_CPU_CHUNK = 1 << 17
"""Values that a thread updates at a time where it is alone: so few that four tensors' share and the scratch, 2.5 MiB,
stay in a cache between operations; so many that calls do not count. Another thread is worth its start for as many."""
_THREAD_CHUNK = (1 << 15) - 16
"""Values that each of several threads updates at a time: on more, torch would start threads of its own, which wait for
each other after every operation."""
_GPU_CHUNK = 1 << 21
"""Values that a GPU updates at a time: enough to keep it busy, and little beside the model."""

Tensors = Sequence[torch.Tensor]
"""Weight, gradient, and the tensors of the optimizer's own slots, of a parameter or of some of its values; fp32
[elements] each."""


class UpdateSettings(NamedTuple):
    """The settings of an update beside its learning rate, as the job's `[training]` has them."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.9
    decays_all: bool = False
    """Whether vectors decay as matrices do."""

    @classmethod
    def of(cls, training: Training) -> Self:
        """Return those of a job."""
        return cls(
            training.weight_decay, training.betas, training.eps, training.momentum, training.weight_decay_on == "all"
        )


class ElementwiseUpdate(ABC):
    """The update of named fp32 parameters by one rule, and what the rule keeps for each of them."""

    table: ClassVar[StateTable]
    """What training keeps for each parameter under this update."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: UpdateSettings) -> None:
        self._parameters, self._settings = parameters, settings
        self.moments: dict[str, torch.Tensor] = {}
        """Tensors of the rule's own slots by key, "SLOT/NAME", each of its parameter's shape and on its device; none
        before the first step."""

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
            (self._tensors(name, parameter.grad), settings.decays_all or parameter.ndim >= 2)
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        ]
        if not work:
            return
        device, elements = work[0][0][0].device, sum(len(tensors[0]) for tensors, _ in work)
        if device.type != "cpu":
            self._update(work, _Share(0, 1, _GPU_CHUNK), scalars)
        elif (threads := min(torch.get_num_threads(), elements // _CPU_CHUNK)) > 1:
            with ThreadPoolExecutor(threads, "update") as pool:
                shares = [_Share(index, threads, _THREAD_CHUNK) for index in range(threads)]
                for future in [pool.submit(self._update, work, share, scalars) for share in shares]:
                    future.result()
        else:
            self._update(work, _Share(0, 1, _CPU_CHUNK), scalars)

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

    def _tensors(self, name: str, gradient: torch.Tensor) -> Tensors:
        parameter = self._parameters[name].detach()
        keys = [f"{slot.name}/{name}" for slot in self.table.moments]
        for key in keys:
            if key not in self.moments:
                self.moments[key] = torch.zeros_like(parameter)
        moments = [self.moments[key].view(-1) for key in keys]
        return parameter.view(-1), gradient.reshape(-1), *moments

    def _update(self, work: Sequence[tuple[Tensors, bool]], share: "_Share", scalars: Any) -> None:
        """Update a share of `work`, which holds each parameter's tensors and whether it decays: every so-manieth of the
        small parameters, and a run of values of each large one."""
        scratch = torch.empty(share.most, device=work[0][0][0].device)
        for number, (tensors, decays) in enumerate(work):
            elements = len(tensors[0])
            if elements <= share.most:
                if number % share.count == share.index:
                    self.advance(tensors, scratch[:elements], scalars, decays=decays)
                continue
            first, end = (elements * index // share.count for index in (share.index, share.index + 1))
            for pieces in zip(*(tensor[first:end].split(share.most) for tensor in tensors), strict=True):
                self.advance(pieces, scratch[: len(pieces[0])], scalars, decays=decays)


@dataclass(frozen=True)
class _Share:
    """What one thread does of an update."""

    index: int
    count: int
    """Number of shares."""
    most: int
    """Values that it updates at a time."""


def fp32(value: float) -> torch.Tensor:
    """Return a factor, fp32 [] on the CPU, where torch takes it for a number."""
    return torch.tensor(value, dtype=torch.float32)
