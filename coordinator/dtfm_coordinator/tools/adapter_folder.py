"""Folder of a job's adapters as `peft` loads them, beside a model that is left as it was."""

import json
from pathlib import Path

from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.job_file import Job, Model
from dtfm_protocol.job.resolved_job import ResolvedJob

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Names of the files that `PeftModel.from_pretrained` reads."""


def write_adapters(job: ResolvedJob, base: str, store: CheckpointStore, manifest: Manifest, folder: Path) -> None:
    """Write the adapters of a checkpoint to a folder.

    Args:
        base: where the model lies beside which they were trained; "": not known.

    Raises:
        UserError: the checkpoint cannot be read.
    """
    from safetensors.torch import save_file

    from dtfm_protocol.model.lora import is_transposed

    try:
        weights = dict(store.tensors(manifest))
    except Refused as error:
        raise UserError(f"cannot load the adapters: {error}: try again") from None
    lora = job.training.lora
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.r,
        "lora_alpha": lora.lora_alpha,
        "target_modules": list(lora.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": is_transposed(job.config, lora),
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(values, indent=1), encoding="utf-8")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def base_of(served: Path) -> str:
    """Return where the model lies with which a job begins, or its name on a hub, by the job file that was served last;
    "": it is not known."""
    model = _model_of(served)
    return "" if model is None else model.hub or str(model.path or "")


def given_model(served: Path) -> Path | None:
    """Return the folder of the model with which a job begins, by the job file that was served last; None: it is not
    known.

    Raises:
        UserError: the hub's model cannot be had.
    """
    model = _model_of(served)
    return None if model is None else model.folder


def _model_of(served: Path) -> Model | None:
    try:
        return Job.model_validate_json(served.read_bytes()).model
    except (OSError, ValueError):
        return None
