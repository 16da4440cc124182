"""What of a job fits here, and how long that takes: by the rules that plans are made and judged by."""

import json
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.problem.model_demand import optimizer_seconds, stage_seconds
from dtfm_node.commands import bench
from dtfm_node.engine.fitting_layers import fitting_stages
from dtfm_protocol.data import documents
from dtfm_protocol.job.job_file import Model, Training
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.stage_demand import layers_demand, stage_demand
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import LayerSeconds

CONFIG: dict[str, Any] = resolve_config(
    Model.model_validate(
        {
            "architecture": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2,
        }
    ),
    257, 16,
)  # fmt: skip
LAYER = LayerSeconds(forward=1.0, backward=3.0, weight=1.25, optimizer=0.5)
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "8-bit": {"optimizer": "adamw-8bit", "weights": "bf16"},
    "lora": {"method": "lora", "lora": {"r": 2, "target_modules": ["q_proj"]}},
    "frozen-layers": {"method": "frozen-layers", "layers": (0, 4)},
}


def training(**keys: Any) -> Training:
    values = {"steps": 1, "global_batch": 4, "micro_batch": 1, "sequence_length": 16, "learning_rate": 1e-3}
    return Training.model_validate(values | keys)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_stages_that_fit_are_counted_and_timed_as_a_plan_of_them(method: str, precision: str) -> None:
    """Half of the layers with the embedding, half with the head."""
    job = training(precision=precision, **METHODS[method])
    plan = Plan(stages=((0, 3), (3, 6)), routes=(("a", "b"),) * 4)
    demand = requirements(CONFIG, job)
    planned, updates = (
        stage_seconds(plan, demand, dict.fromkeys("ab", LAYER)),
        optimizer_seconds(plan, demand, dict.fromkeys("ab", LAYER)),
    )
    for peer, ends in (("a", (True, False)), ("b", (False, True))):
        need = stage_demand(CONFIG, job, plan, peer)
        for memory, layers in ((need, 3), (need - 1, 2)):
            found = {(one.has_embedding, one.has_head): one for one in fitting_stages(CONFIG, job, memory, LAYER)}
            stage = found[ends]
            assert stage.layers >= layers
            if stage.layers == 3 and not stage.recomputes:
                assert memory == need
                assert stage.demand.total == need
                own = planned[peer]
                assert (stage.forward_seconds, stage.backward_seconds) == pytest.approx((own.forward, own.backward))
                assert stage.optimizer_seconds == pytest.approx(updates[peer])
                step = 4 * (own.forward + own.backward) + updates[peer]
                assert stage.step_seconds == pytest.approx(step)


def test_more_memory_holds_no_fewer_layers_and_none_holds_nothing() -> None:
    job = training()
    assert fitting_stages(CONFIG, job, 1.0, LAYER) == ()
    everything = layers_demand(CONFIG, job, (0, 6), 1).total
    counts = [sum(one.layers for one in fitting_stages(CONFIG, job, everything * part / 8, LAYER)) for part in range(9)]
    assert counts == sorted(counts)
    assert [one.layers for one in fitting_stages(CONFIG, job, everything, LAYER)][-1] == 6


def test_frozen_layers_before_all_that_is_trained_have_no_backward() -> None:
    """Four layers and the embedding stay as they begin: of five layers, one has a backward."""
    job = training(**METHODS["frozen-layers"])
    room = layers_demand(CONFIG, job, (0, 5), 2).total
    (stage,) = (one for one in fitting_stages(CONFIG, job, room, LAYER) if one.has_embedding and not one.has_head)
    assert (stage.layers, stage.forward_seconds, stage.backward_seconds) == (5, 5.0, 3.0)


def test_bench_reads_no_text_and_says_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A BPE is taken to reach its size: nothing is tokenised for it."""
    monkeypatch.setattr(documents.Documents, "__iter__", lambda _: pytest.fail("the text was read"))
    path = tmp_path / "job.toml"
    path.write_text(
        """
        name = "small"
        [model]
        architecture = "llama"
        hidden_size = 64
        intermediate_size = 96
        num_hidden_layers = 6
        num_attention_heads = 4
        num_key_value_heads = 2
        [data]
        text = "cpython"
        tokenizer = "bpe:300"
        [training]
        steps = 1
        global_batch = 4
        micro_batch = 1
        sequence_length = 16
        learning_rate = 1e-3
        method = "lora"
        [lora]
        target_modules = ["q_proj"]
        """
    )
    bench.bench("cpu", path, 1.0, 1, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["layers"], said["layer"]["method"], said["memory_bytes"]) == (6, "lora", 1e9)
    assert said["program_bytes"] > 1e8
    whole = said["fits"][-1]
    assert (whole["has_embedding"], whole["has_head"], whole["layers"]) == (True, True, 6)
    assert whole["memory_bytes"] == sum(whole["demand"].values())
    bench.bench("cpu", path, 1e-6, 1, as_json=False)
    assert "none fits here, in 1 kB" in " ".join(capsys.readouterr().out.split())
