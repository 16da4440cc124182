"""Folder of a job's adapters as `peft` loads them, beside a model that is left as it was."""

import json
from pathlib import Path

from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Names of the files that `PeftModel.from_pretrained` reads."""


def write_adapters(job: ResolvedJob, base: str, store: CheckpointStore, manifest: Manifest, folder: Path) -> None:
    """Write the adapters of a checkpoint to a folder.

    Args:
        base: where the model lies beside which they were trained; "": not known.

    Raises:
        UserError: the checkpoint cannot be read, or is the pretrained model's.
    """
    from safetensors.torch import save_file

    from dtfm_protocol.model.lora import is_transposed

    if not manifest.step:
        raise UserError(
            "there is no checkpoint of the adapters yet: train until the first one is kept, or take --merge"
        )

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
    """Return where the model lies with which a job begins, by the job file that was served last; "": it is not
    known."""
    try:
        path = Job.model_validate_json(served.read_bytes()).model.path
    except (OSError, ValueError):
        return ""
    return "" if path is None else str(path)
