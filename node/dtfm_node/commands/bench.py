"""`dtfm-node bench`: prints what this device would tell a swarm of its speed and memory."""

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dtfm_node.engine.device import choose, describe
from dtfm_node.engine.device_speed import measure
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.tokenizer import make_tokenizer
from dtfm_protocol.job.job_file import Job, Model, OptimizerName, Precision, WeightsName
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
"""Model config of the layer that is measured without a job: of a llama of about 0.4 billion parameters, on 1 x 512
tokens, fp32."""


def bench(device_name: str, job_file: Path | None, threads: int | None, as_json: bool) -> None:
    """Measure the device, and print a table or one JSON object.

    Raises:
        UserError: no such device, or a bad job file.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    device = choose(device_name)
    if job_file is None:
        config = resolve_config(Model(**STANDARD), 257, 512)
        precision: Precision = "fp32"
        optimizer: OptimizerName = "adamw"
        weights: WeightsName = "fp32"
        batch, length = 1, 512
    else:
        job = Job.load(job_file)
        documents = Documents(job.data, job.training.seed)
        tokenizer = make_tokenizer(job.data, (document.text for document in documents))
        config = resolve_config(job.model, len(tokenizer), job.training.sequence_length)
        precision, batch, length = job.training.precision, job.training.micro_batch, job.training.sequence_length
        optimizer, weights = job.training.optimizer, job.training.weights
    measured = measure(config, precision, batch, length, device, optimizer=optimizer, weights=weights)
    sizes = model_sizes(config)
    values = {
        "device": describe(device),
        "flops": measured.flops,
        "memory_bytes": measured.memory_bytes,
        "layer_seconds": measured.layer_seconds.model_dump(),
        "layer": {
            "architecture": config["model_type"],
            "parameters": sizes.layer_parameters[0],
            "hidden_size": sizes.hidden_size,
            "micro_batch": batch,
            "sequence_length": length,
            "precision": precision,
        },
    }
    if as_json:
        print(json.dumps(values))
        return
    table = Table(title=describe(device), show_header=False)
    for name, flops in measured.flops.items():
        table.add_row(f"matrix product, {name}", f"{flops / 1e9:.1f} GFLOP/s")
    table.add_row("memory free", bytes_in_words(measured.memory_bytes))
    size = f"{sizes.layer_parameters[0] / 1e6:.2f} M parameters, {batch} x {length} tokens, {precision}"
    seconds = measured.layer_seconds
    parts = {
        "forward": seconds.forward,
        "backward": seconds.backward,
        "of that weights": seconds.weight_part,
        "optimizer": seconds.optimizer or 0.0,
    }
    table.add_row(
        f"{config['model_type']} layer, {size}",
        ", ".join(f"{name} {part * 1e3:.1f} ms" for name, part in parts.items()),
    )
    Console().print(table)
