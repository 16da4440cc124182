"""What the simulated step sends, against the frames that the engine awaits: as many bytes from each peer to each."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_node.engine.buckets import flats_of
from dtfm_node.engine.expected_frames import step_frames
from dtfm_node.engine.frame_seals import SEAL_BYTES
from dtfm_protocol.job.job_file import Model, Planning, Training, Wire
from dtfm_protocol.model.frozen_parameters import trained_names
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.tied_embeddings import shared_names
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from dtfm_protocol.wire.frames import Kind

HIDDEN, VOCABULARY = 32, 64
MODEL = {
    "architecture": "llama", "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
TRAINING = Training(
    steps=1, global_batch=8, micro_batch=2, sequence_length=16, learning_rate=1e-3, warmup_steps=0, precision="fp32"
)
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "first layers": {"method": "frozen-layers", "layers": (0, 2)},
    "last layers": {"method": "frozen-layers", "layers": (1, 4)},
    "lora": {"method": "lora", "lora": {"r": 3, "target_modules": ("q_proj", "gate_proj")}},
}
"""What is trained."""


PARTS = SummedParts(stages=((0, WHOLE), (), (WHOLE // 4, 3 * WHOLE // 4)), shared=(WHOLE // 8, 0, 0, 7 * WHOLE // 8))


@pytest.mark.parametrize(
    ("parts", "boundaries"),
    [(None, ()), (PARTS, (Wire(activations="fp16", gradients="int8"), Wire(activations="int8", gradients="bf16")))],
    ids=["all alike", "unlike parts and boundaries"],
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_simulated_step_sends_the_bytes_of_the_frames(
    tied: bool, method: str, parts: SummedParts | None, boundaries: tuple[Wire, ...]
) -> None:
    """Also of what is not trained, of which there are no gradients to reduce."""
    training = Training.model_validate(TRAINING.model_dump() | METHODS[method])
    config = resolve_config(Model.model_validate(MODEL | {"tie_word_embeddings": tied}), VOCABULARY, 16)
    plan = Plan(
        stages=((0, 1), (1, 3), (3, 4)),
        routes=(("a", "m", "x"), ("b", "m", "x"), ("a", "m", "y"), ("b", "m", "y")),
        wire=Wire(activations="bf16", gradients="fp32"),
        boundaries=boundaries,
        parts=parts,
    )
    speed = LayerSeconds(forward=1.0, backward=2.0)
    view = View(
        nodes=tuple(NodeView(id=peer, layer_seconds=speed) for peer in plan.peers),
        latency_ms=np.zeros((5, 5)),
        bandwidth_gbps=np.ones((5, 5)),
    )
    played = predict(view, Workload(requirements(config, training), 4, Planning(wire=plan.wire)), plan)
    simulated: Counter[tuple[str, str]] = Counter()
    for transfer in played.transfers:
        simulated[transfer.sender, transfer.receiver] += transfer.bytes  # type: ignore[assignment]
    awaited: Counter[tuple[str, str]] = Counter()
    for stage, (first, end) in enumerate(plan.stages):
        module = build_stage(config, first, end, torch.device("meta"))
        if training.method == "lora":
            module.adapt(config, training.lora)
        trained = trained_names(config, training, module.named_state())
        sizes = {name: value.numel() for name, value in module.named_state().items() if name in trained}
        groups = [{name: sizes[name] for name in names if name in sizes} for names in module.backward_order()]
        buckets = [bucket for flat in flats_of(plan, stage, groups, shared_names(config)) for bucket in flat.buckets]
        for peer in plan.replicas(stage):
            for frame in step_frames(plan, peer, 1, TRAINING, HIDDEN, buckets):
                seal = SEAL_BYTES if frame.key.kind is Kind.REDUCED else 0
                awaited[frame.sender, peer] += frame.size - seal
    assert {pair: round(size) for pair, size in simulated.items()} == awaited
    assert (("x", "a") in awaited) == (tied and method != "lora")
