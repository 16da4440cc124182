"""States in the machine's memory beside a device's: the same bits, however late copies come, and where they lie."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from dtfm_node.engine import elementwise_update, host_states
from dtfm_node.engine.elementwise_update import ElementwiseUpdate, UpdateSettings
from dtfm_node.engine.host_states import ROOMS, Lanes, update_runs
from dtfm_node.engine.optimizers import OPTIMIZERS
from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.checkpoint.state_slots import WEIGHT, state_table
from dtfm_protocol.job.job_file import OptimizerName, WeightsName
from tests.node.late_lanes import LateLanes

SHAPES = {"w": (70, 53), "bias": (4,), "norm": (300,), "none": (0, 3), "embed": (1, 2048)}
CHUNK = 512
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise_update, "_RUN_CHUNK", CHUNK)


def optimizer(name: OptimizerName, weights: WeightsName, lanes: Lanes | None) -> ElementwiseUpdate:
    generator = torch.Generator().manual_seed(1)
    table = state_table(name, weights, "optimizer")
    parameters = {}
    for key, shape in SHAPES.items():
        value = torch.randn(shape, generator=generator).to(torch_dtype(table.of_key(f"{WEIGHT}/").dtype))
        parameters[key] = nn.Parameter(value)
        parameters[key].grad_dtype = torch.float32
    return OPTIMIZERS[name](parameters, UpdateSettings(0.1), table, lanes)


def trained(one: ElementwiseUpdate, steps: range) -> dict[str, torch.Tensor]:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for name, parameter in one._parameters.items():
            parameter.grad = None if name == "bias" else torch.randn(parameter.shape, generator=generator)
        one.update(step, 0.01)
    return dict(state_tensors(dict(one._parameters), one))


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_of_states_that_come_and_go_has_the_bits_of_one_where_they_lie(
    name: OptimizerName, weights: WeightsName
) -> None:
    """However late copies are made, and with more runs than there is room for at a time."""
    lanes = LateLanes()
    beside, moved = optimizer(name, weights, None), optimizer(name, weights, lanes)
    wanted, found = trained(beside, range(1, 5)), trained(moved, range(1, 5))
    runs = sum(-(-parameter.numel() // CHUNK) for key, parameter in moved._parameters.items() if key != "bias")
    assert runs > 2 * ROOMS
    assert lanes.moved == 4 * 2 * runs
    assert wanted.keys() == found.keys()
    for key, value in wanted.items():
        assert torch.equal(value, found[key]), key


def test_a_state_that_was_loaded_goes_on_from_there() -> None:
    whole, other = optimizer("adamw-8bit", "fp32", LateLanes()), optimizer("adamw-8bit", "fp32", LateLanes())
    for key, value in trained(whole, range(1, 3)).items():
        load_tensor(dict(other._parameters), other, key, value)
    wanted, found = trained(whole, range(3, 5)), trained(other, range(3, 5))
    for key, value in wanted.items():
        assert torch.equal(value, found[key]), key


def test_the_lanes_that_are_late_find_out_what_does_not_wait() -> None:
    """What the tests above are worth: without a wait for what leaves a room the result is wrong."""

    class Hasty(LateLanes):
        def bring(self, copy: Callable[[], None], after: object) -> object:
            return super().bring(copy, None)

    wanted, found = (trained(optimizer("sgd", "fp32", lanes), range(1, 3)) for lanes in (LateLanes(), Hasty()))
    assert not torch.equal(wanted["momentum_buffer/w"], found["momentum_buffer/w"])


def test_states_lie_in_the_machines_memory_and_are_locked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device that has memory of its own; for one stands the one that has none."""
    monkeypatch.setattr(elementwise_update, "has_own_memory", lambda device: device.type == "meta")
    locked: list[torch.Tensor] = []
    monkeypatch.setattr(elementwise_update, "page_locked", lambda one: locked.append(one) or one)
    parameters = {"w": nn.Parameter(torch.empty(3, 300, device="meta"))}
    for place, device in (("optimizer", "cpu"), ("nothing", "meta")):
        locked.clear()
        one = OPTIMIZERS["adamw-8bit"](parameters, UpdateSettings(0.1), state_table("adamw-8bit", "fp32", place))  # type: ignore[arg-type]
        one.begin()
        assert {value.device.type for value in one.moments.values()} == {device}
        assert len(locked) == (4 if place == "optimizer" else 0)
    again = OPTIMIZERS["sgd"](parameters, UpdateSettings(0.1), state_table("sgd", "fp32", "optimizer"))
    again.put("momentum_buffer/w", torch.ones(3, 300))
    assert again.moments["momentum_buffer/w"].device == CPU
    assert len(locked) == 1


def test_memory_is_locked_as_long_as_it_lives_and_used_where_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, int] = {}

    class Runtime:
        refuses = False

        def cudaHostRegister(self, place: int, size: int, flags: int) -> int:
            known.update({} if self.refuses else {place: size})
            return int(self.refuses)

        def cudaHostUnregister(self, place: int) -> int:
            return known.pop(place) and 0

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    one = host_states.page_locked(torch.zeros(10))
    assert known == {one.data_ptr(): 40}
    del one
    assert not known
    runtime.refuses = True
    assert float(host_states.page_locked(torch.ones(10)).sum()) == 10
    assert float(host_states.page_locked(torch.ones(0)).sum()) == 0


@pytest.mark.parametrize("count", range(ROOMS + 3))
def test_runs_are_updated_in_order_whatever_types_they_have(count: int) -> None:
    runs = [
        (torch.full((size,), float(size)), torch.full((size + 1,), size, dtype=torch.uint8), torch.ones(1))
        for size in itertools.islice(itertools.cycle([5, 1, 3]), count)
    ]
    before, seen = [[one.clone() for one in run] for run in runs], []

    def update(number: int, run: tuple[torch.Tensor, ...]) -> None:
        seen.append(number)
        assert all(torch.equal(one, other) for one, other in zip(run, before[number], strict=True))
        for one in run:
            one += 1

    update_runs(runs, CPU, LateLanes(), update)
    assert seen == list(range(count))
    for run, old in zip(runs, before, strict=True):
        assert all(torch.equal(one, other + 1) for one, other in zip(run, old, strict=True))
