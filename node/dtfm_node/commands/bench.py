"""`dtfm-node bench`: prints what this device would tell a swarm of its speed and memory, and what of a job fits."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dtfm_node.engine.device import choose, describe, program_bytes
from dtfm_node.engine.device_profile import offered_bytes, offered_host_bytes
from dtfm_node.engine.device_speed import DeviceSpeed, measure
from dtfm_node.engine.fitting_layers import FittingStage, fitting_stages
from dtfm_protocol.data.tokenizer import vocabulary_size
from dtfm_protocol.job.job_file import Job, Model, Training
from dtfm_protocol.model.frozen_parameters import check_frozen
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.process.quantities import bytes_in_words

STANDARD: dict[str, Any] = {
    "architecture": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
"""Model config of the layer that is measured without a job: of a llama of about 0.4 billion parameters."""
STANDARD_TRAINING = Training(steps=1, global_batch=1, micro_batch=1, sequence_length=512, learning_rate=1e-3)
"""Training of it: on 1 x 512 tokens, all of it in fp32 with AdamW."""


def bench(device_name: str, job_file: Path | None, memory_gb: float | None, threads: int | None, as_json: bool) -> None:
    """Measure the device, and print tables or one JSON object.

    Args:
        memory_gb: most memory that a node here would offer; None: all that is free.

    Raises:
        UserError: no such device, or a bad job file.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    device = choose(device_name)
    if job_file is None:
        config, training = resolve_config(Model(**STANDARD), 257, 512), STANDARD_TRAINING
    else:
        job = Job.load(job_file)
        training = job.training
        config = resolve_config(job.model, vocabulary_size(job.data), training.sequence_length)
        check_frozen(config, training)
    sizes = model_sizes(config)
    itself, offered = program_bytes(device), offered_bytes(device, memory_gb)
    host = offered_host_bytes(device, memory_gb)
    measured = measure(config, training, device)
    fits = () if job_file is None else fitting_stages(config, training, offered, measured.layer_seconds, host)
    if as_json:
        print(
            json.dumps(
                {
                    "device": describe(device),
                    "flops": measured.flops,
                    "memory_bytes": offered,
                    "host_bytes": host,
                    "program_bytes": itself,
                    "layer_seconds": measured.layer_seconds.model_dump(),
                    "layer": {
                        "architecture": config["model_type"],
                        "parameters": sizes.layer_parameters[0],
                        "hidden_size": sizes.hidden_size,
                        "micro_batch": training.micro_batch,
                        "sequence_length": training.sequence_length,
                        "precision": training.precision,
                        "method": training.method,
                        "optimizer": training.optimizer,
                        "weights": training.weights,
                    },
                }
                | ({} if job_file is None else {"layers": sizes.layers, "fits": [_values(stage) for stage in fits]})
            )
        )
        return
    out = Console()
    out.print(_device_table(describe(device), measured, (offered, host), itself, _layer_words(config, training)))
    if job_file is not None:
        out.print(_fitting_table(fits, offered, sizes.layers, training))


def _values(stage: FittingStage) -> dict[str, Any]:
    return asdict(stage) | {"memory_bytes": stage.demand.total}


def _layer_words(config: dict[str, Any], training: Training) -> str:
    parameters = model_sizes(config).layer_parameters[0]
    kept = "" if training.weights == "fp32" else f", weights in {training.weights}"
    how = f"{training.precision}{kept}, {training.method}, {training.optimizer}"
    return (
        f"{config['model_type']} layer, {parameters / 1e6:.2f} M parameters, "
        f"{training.micro_batch} x {training.sequence_length} tokens, {how}"
    )


def _device_table(
    title: str, measured: DeviceSpeed, offers: tuple[float, float | None], itself: int, layer: str
) -> Table:
    table = Table(title=title, show_header=False)
    for name, flops in measured.flops.items():
        table.add_row(f"matrix product, {name}", f"{flops / 1e9:.1f} GFLOP/s")
    offered, host = offers
    table.add_row("memory to offer", bytes_in_words(offered))
    if host is not None:
        table.add_row("and the machine's", bytes_in_words(host))
    if itself:
        table.add_row("beside it the program takes", bytes_in_words(itself))
    seconds = measured.layer_seconds
    parts = {
        "forward": seconds.forward,
        "backward": seconds.backward,
        "of that weights": seconds.weight_part,
        "optimizer": seconds.optimizer or 0.0,
    }
    table.add_row(layer, ", ".join(f"{name} {part * 1e3:.1f} ms" for name, part in parts.items()))
    return table


def _fitting_table(fits: tuple[FittingStage, ...], offered: float, layers: int, training: Training) -> Table:
    """Return the table of what fits, and below it what is meant."""
    title = f"Of the job's {layers} layers fit here, in {bytes_in_words(offered)}"
    table = Table(title=title if fits else f"Of the job's {layers} layers none fits here, in {bytes_in_words(offered)}")
    table.add_column("stage")
    for name in ("layers", "memory", "in flight", "forward", "backward", "optimizer", "a step"):
        table.add_column(name, justify="right")
    for stage in fits:
        table.add_row(
            _stage_words(stage),
            str(stage.layers),
            _memory_words(stage),
            str(stage.in_flight),
            *(
                f"{seconds:.3g} s"
                for seconds in (
                    stage.forward_seconds,
                    stage.backward_seconds,
                    stage.optimizer_seconds,
                    stage.step_seconds,
                )
            ),
        )
    count = training.micro_batches
    batches = "1 micro-batch" if count == 1 else f"{count} micro-batches"
    table.caption = f"Forward and backward are of one micro-batch; a step has {batches}."
    if any(stage.demand.host for stage in fits):
        table.caption += " Beside the GPU's memory, the machine's has states."
    if any(stage.recomputes for stage in fits):
        table.caption += " * Activations are computed anew."
    return table


def _memory_words(stage: FittingStage) -> str:
    beside = f" + {bytes_in_words(stage.demand.host)} beside" if stage.demand.host else ""
    return bytes_in_words(stage.demand.total) + beside + (" *" if stage.recomputes else "")


def _stage_words(stage: FittingStage) -> str:
    if stage.has_embedding and stage.has_head:
        return "the whole model"
    if stage.has_embedding:
        return "with the embedding"
    return "with the head" if stage.has_head else "layers alone"
