"""Compute at a stated speed takes the seconds that plans count with, for every schedule, and never fewer."""

import itertools
import logging
import time
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.problem.model_demand import layer_seconds, stage_seconds
from dtfm_node.engine.emulated_speed import least_seconds, paced_layer
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.job.job_file import ScheduleName, Training
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process import late_actions
from dtfm_protocol.view.view import LayerSeconds, NodeView

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
TRAINING = Training(steps=1, global_batch=4, micro_batch=2, sequence_length=8, learning_rate=1e-3)
FLOPS = 1e6
MEASURED = LayerSeconds(forward=1.0, backward=5.0, weight=4.0, optimizer=0.25)
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
RECOMPUTED = [(), (0,), (1,), (0, 1, 2)]


def plan(schedule: ScheduleName = "1f1b", recompute: tuple[int, ...] = ()) -> Plan:
    return Plan(stages=((0, 1), (1, 2), (2, 4)), routes=(("a", "b", "c"),) * 2, schedule=schedule, recompute=recompute)


def test_a_layer_takes_two_flop_for_a_parameter_and_token_and_twice_as_many_back() -> None:
    parameters = sum(model_sizes(CONFIG).layer_parameters) / 4
    layer = paced_layer(CONFIG, TRAINING, FLOPS, MEASURED)
    assert layer.forward == pytest.approx(2 * parameters * 16 / FLOPS)
    assert layer.backward == pytest.approx(2 * layer.forward)
    assert layer.weight == pytest.approx(layer.backward / 2)
    assert layer.optimizer == MEASURED.optimizer


def test_a_paced_layer_is_what_plans_take_from_flops_alone() -> None:
    node = NodeView(id="a", flops=FLOPS)
    found = layer_seconds([node], requirements(CONFIG, TRAINING))["a"]
    layer = paced_layer(CONFIG, TRAINING, FLOPS, MEASURED)
    assert (found.forward, found.backward) == pytest.approx((layer.forward, layer.backward))
    assert found.weight_part == pytest.approx(layer.weight_part)


@pytest.mark.parametrize(("schedule", "recompute"), list(itertools.product(SCHEDULES, RECOMPUTED)))
def test_actions_take_what_the_coordinator_plans_with(schedule: ScheduleName, recompute: tuple[int, ...]) -> None:
    chosen = plan(schedule, recompute)
    layer = paced_layer(CONFIG, TRAINING, FLOPS, MEASURED)
    planned = stage_seconds(chosen, requirements(CONFIG, TRAINING), dict.fromkeys("abc", layer))
    for stage, peer in enumerate("abc"):
        least = least_seconds(CONFIG, TRAINING, chosen, stage, FLOPS)
        own = planned[peer]
        assert least == pytest.approx({"forward": own.forward, "backward": own.backward, "weight": own.weight})
        assert (least["weight"] > 0) == (schedule == "zero-bubble")


def test_one_stage_alone_takes_all_layers_and_the_head() -> None:
    whole = Plan(stages=((0, 4),), routes=(("a",),) * 2)
    layer = paced_layer(CONFIG, TRAINING, FLOPS, MEASURED)
    least = least_seconds(CONFIG, TRAINING, whole, 0, FLOPS)
    assert least["forward"] == pytest.approx((4 + model_sizes(CONFIG).head_layers) * layer.forward)
    assert sum(least.values()) == pytest.approx(3 * least["forward"])


def test_a_device_twice_as_fast_takes_half_as_long() -> None:
    slow, fast = (least_seconds(CONFIG, TRAINING, plan(), 2, flops) for flops in (FLOPS, 2 * FLOPS))
    assert {kind: 2 * seconds for kind, seconds in fast.items()} == pytest.approx(slow)


def test_without_a_pace_nothing_takes_longer_than_it_does() -> None:
    assert least_seconds(CONFIG, TRAINING, plan(), 1, None) == {"forward": 0.0, "backward": 0.0, "weight": 0.0}


async def test_what_is_run_takes_at_least_as_long_as_it_is_to() -> None:
    with Runtime.running(torch.device("cpu"), pace=FLOPS) as machine:
        assert machine.pace == FLOPS
        begun = time.monotonic()
        assert await machine.run("compute", "quick", lambda: 3, least=0.05) == (3, None)
        assert time.monotonic() - begun >= 0.05
        assert machine.take_busy() >= 0.05
        begun = time.monotonic()
        await machine.run("compute", "long", time.sleep, 0.05, least=0.01)
        assert time.monotonic() - begun >= 0.05


async def test_actions_that_miss_the_pace_are_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(late_actions.FOLDER, str(tmp_path))
    with caplog.at_level(logging.INFO), Runtime.running(torch.device("cpu"), pace=FLOPS) as machine:
        await machine.run("compute", "long", time.sleep, 0.2, least=0.05)
        await machine.run("compute", "free", time.sleep, 0.05)
        assert (machine.late.total.actions, machine.late.total.late) == (1, 1)
    found = late_actions.kept_in(tmp_path)
    assert (found.actions, found.late) == (1, 1)
    assert 0.15 <= found.most < 10
    assert found.text in caplog.text


async def test_what_fails_comes_out_at_once_though_it_is_to_take_long() -> None:
    def fails() -> None:
        raise ArithmeticError("no")

    with Runtime.running(torch.device("cpu")) as machine:
        begun = time.monotonic()
        with pytest.raises(ArithmeticError):
            await machine.run("compute", "fails", fails, least=60.0)
        assert time.monotonic() - begun < 60.0
        assert machine.action_seconds() == 0.0
