"""What a device is measured by: the job's own layer, as the engine runs it."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dtfm_node.engine import device_profile
from dtfm_node.engine import device_speed as measuring
from dtfm_node.engine.device_speed import layer_seconds, measure, measuring_flop, product_flops
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.weight_gradients import Pending, accumulate
from dtfm_protocol.job.job_file import Model, OptimizerName, Precision, Training
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.single_layer import build_layer
from dtfm_protocol.view.view import LayerSeconds

CPU = torch.device("cpu")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    name: resolve_config(Model.model_validate({"architecture": name} | SMALL | fields), 61, 16)
    for name, fields in {"llama": {"num_key_value_heads": 2, "intermediate_size": 48}, "gpt2": {}}.items()
}


def training(micro_batch: int, sequence_length: int, **keys: object) -> Training:
    values = {"steps": 1, "global_batch": micro_batch, "micro_batch": micro_batch, "learning_rate": 1e-3}
    return Training.model_validate(values | {"sequence_length": sequence_length} | keys)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_part_of_a_layers_work_is_measured(architecture: str, precision: Precision) -> None:
    found = layer_seconds(CONFIGS[architecture], training(2, 16, precision=precision), CPU)
    assert found.forward > 0
    assert found.weight is not None
    assert 0 < found.weight < found.backward
    assert found.optimizer is not None
    assert found.optimizer > 0


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit", "sgd"])
def test_a_layer_is_measured_as_the_job_keeps_it(optimizer: OptimizerName) -> None:
    found = layer_seconds(CONFIGS["llama"], training(2, 16, optimizer=optimizer, weights="bf16"), CPU)
    assert found.weight is not None
    assert 0 < found.weight < found.backward
    assert found.optimizer is not None


def test_the_warm_up_is_left_out_and_of_the_rest_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of forward, gradients of inputs, gradients of weights, update."""
    rounds = [(99.0, 99.0, 99.0, 99.0), (1.0, 20.0, 300.0, 4000.0), (3.0, 10.0, 100.0, 2000.0), (2.0, 60.0, 500.0, 0.5)]
    clock = iter([seconds for one in rounds for seconds in one])

    def timed(action: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
        return next(clock), action()

    monkeypatch.setattr(measuring, "_timed", timed)
    found = layer_seconds(CONFIGS["llama"], training(1, 8), CPU)
    assert (found.forward, found.backward, found.weight, found.optimizer) == (2.0, 20.0 + 300.0, 300.0, 2000.0)
    assert next(clock, None) is None


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_weight_part_is_that_of_all_matrices(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()

    def noted(pending: Pending) -> None:
        taken.add(pending[0].numel())
        accumulate(pending)

    monkeypatch.setattr(measuring, "accumulate", noted)
    layer_seconds(CONFIGS[architecture], training(1, 8), CPU)
    layer = build_layer(CONFIGS[architecture], CPU)
    matrices = {p.numel() for p in layer.parameters() if p.ndim == 2}
    assert taken == matrices
    assert len(matrices) > 1


def test_of_a_job_that_trains_adapters_no_other_gradients_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[int, ...]] = set()

    def noted(pending: Pending) -> None:
        taken.add(tuple(pending[0].shape))
        accumulate(pending)

    monkeypatch.setattr(measuring, "accumulate", noted)
    lora = training(1, 8, method="lora", lora={"r": 3, "target_modules": ["q_proj", "down_proj"]})
    found = layer_seconds(CONFIGS["llama"], lora, CPU)
    assert taken == {(3, 32), (32, 3), (3, 48)}
    assert found.weight is not None
    assert 0 < found.weight < found.backward


def test_a_compiled_layer_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))
    monkeypatch.setattr(measuring, "accumulate", lambda pending: pytest.fail("a product was taken apart"))
    layer_seconds(CONFIGS["llama"], training(1, 8), CPU, compiled=True)
    assert len(compiled) == 1


def test_a_device_is_measured_in_every_precision() -> None:
    found = measure(CONFIGS["llama"], training(1, 8), CPU)
    assert found.flops.keys() == {"fp32", "bf16"}
    assert min(found.flops.values()) > 1e6
    assert found.memory_bytes > 1 << 20


def test_flops_are_those_of_the_products_over_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 10.0, 10.25, 10.5, 10.75, 11.0])
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert product_flops(torch.float32, CPU, seconds=1.0) == pytest.approx(2 * 512**3 * 4)


def test_what_measuring_takes_grows_with_the_tokens_and_their_square() -> None:
    """Four rounds of three products for each weight and token, and of attention of all tokens to all."""
    parameters = sum(parameter.numel() for parameter in build_layer(CONFIGS["llama"], CPU).parameters())
    for batch, length in ((1, 16), (3, 16), (1, 4096)):
        attention = 4 * batch * length**2 * 32
        assert measuring_flop(CONFIGS["llama"], batch, length) == 4 * 3 * (2 * parameters * batch * length + attention)


async def test_a_device_with_half_of_the_time_says_that_it_is_half_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the coordinator plans with it."""
    layer = LayerSeconds(forward=1.0, backward=2.0, weight=1.0, optimizer=0.5)
    speed = measuring.DeviceSpeed({"fp32": 1e12, "bf16": 4e12}, layer, 10**9)
    monkeypatch.setattr(device_profile, "_speed", lambda *_: speed)
    job, survey = SimpleNamespace(training=None, config={}), SimpleNamespace(measuring=0.0)
    with Runtime.running(CPU, share=0.5) as machine:
        profile = await device_profile.measure_profile(job, survey, machine, 1.0, "s")  # type: ignore[arg-type]
    assert profile.flops == {"fp32": 5e11, "bf16": 2e12}
    assert profile.layer_seconds == layer.times(2.0)
    assert profile.device.endswith(", for 50% of the time")
