"""Demand of a job on its peers: its model's sizes, for the allocator."""

import hashlib
import json
from importlib.metadata import version
from operator import add
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import dtfm_coordinator
import dtfm_protocol
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.data.tokenizer import vocabulary_size
from dtfm_protocol.job.job_file import Job, Training
from dtfm_protocol.model.memory_model import has_fp32_base
from dtfm_protocol.process.source_digest import sources_digest
from dtfm_protocol.process.state_dir import write_atomically

_DEMAND = TypeAdapter(ModelDemand)


def requirements(config: dict[str, Any], training: Training) -> ModelDemand:
    """Return what a model of `config` and one micro-batch of `training` ask of peers.

    Raises:
        UserError: no model can be built by the config.
    """
    from dtfm_protocol.model.frozen_parameters import frozen_sizes
    from dtfm_protocol.model.model_sizes import kept_activations, model_sizes

    sizes, frozen = model_sizes(config), frozen_sizes(config, training)
    shape = training.micro_batch, training.sequence_length, training.precision
    tokens = training.micro_batch * training.sequence_length
    per_layer = (sum(sizes.layer_parameters) + sum(frozen.adapters)) / sizes.layers
    return ModelDemand(
        layer_parameters=tuple(map(add, sizes.layer_parameters, frozen.adapters)),
        embedding_parameters=sizes.embedding_parameters,
        head_parameters=sizes.head_parameters,
        tied_parameters=sizes.tied_parameters,
        frozen_layer_parameters=frozen.layers,
        frozen_embedding_parameters=frozen.embedding,
        frozen_head_parameters=frozen.head,
        frozen_layer_bytes=frozen.layer_bytes,
        frozen_embedding_bytes=frozen.embedding_bytes,
        frozen_head_bytes=frozen.head_bytes,
        frozen_tied_bytes=frozen.tied_bytes,
        has_fp32_base=has_fp32_base(training),
        message_values=tokens * sizes.hidden_size,
        layer_activation_bytes=kept_activations(config, training),
        head_bytes=sizes.logits_bytes(*shape),
        logits_gradient_bytes=sizes.logits_gradient_bytes(*shape),
        head_layers=sizes.head_layers,
        precision=training.precision,
        table=state_table(training.optimizer, training.weights, training.offload),
        layer_flops=2 * per_layer * tokens,
    )


def kept_requirements(config: dict[str, Any], training: Training, folder: Path) -> ModelDemand:
    """Return the same as `requirements`, worked out once for a state dir (`folder`) and then kept there.

    That takes seconds, most of them to import torch and transformers; a coordinator that comes back into a run that
    goes
    on is awaited.
    """
    programs = [sources_digest(*map(Path, (*dtfm_protocol.__path__, *dtfm_coordinator.__path__)))]
    programs += map(version, ("torch", "transformers"))
    made_from = [config, training.model_dump(mode="json"), programs]
    path, stamp = folder / "demand.json", hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        if before["stamp"] == stamp:
            return _DEMAND.validate_python(before["demand"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    demand = requirements(config, training)
    write_atomically(path, json.dumps({"stamp": stamp, "demand": _DEMAND.dump_python(demand, mode="json")}, indent=1))
    return demand


def workload(job: Job) -> Workload:
    """Return a job file as the allocator sees it, without reading its text.

    Raises:
        UserError: the model or the tokenizer cannot be made.
    """
    from dtfm_protocol.model.model_config import resolve_config

    config = resolve_config(job.model, vocabulary_size(job.data), job.training.sequence_length)
    return Workload(requirements(config, job.training), job.training.micro_batches, job.plan)
