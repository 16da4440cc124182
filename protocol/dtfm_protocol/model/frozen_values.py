"""The values of a job's frozen parameters: drawn from its seed, or its pretrained weights, the checkpoint of step 0."""

from collections.abc import Iterator

import torch

from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.checkpoint.state_slots import WEIGHT
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.whole_model import build_skeleton


def frozen_values(job: ResolvedJob, store: CheckpointStore) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and fp32 value, on the CPU, of each parameter that the job leaves as it begins, one at a time.

    Raises:
        Refused: the checkpoint of step 0, which has the pretrained ones, is not whole, or is of another model.
    """
    names = frozen_names(job.config, job.training)
    if not names:
        return
    manifest = store.whole(0) if job.pretrained else None
    for name, parameter in build_skeleton(job.config).named_parameters():
        if name not in names:
            continue
        if manifest is None:
            yield name, initial_value(job.config, job.training.seed, name, parameter.shape)
            continue
        key = f"{WEIGHT}/{name}"
        data = store.read(manifest, key)
        value = decode_tensor(manifest.tensors[key], data)
        if value.shape != parameter.shape:
            raise Refused(f"{name} of step 0 has shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
        yield name, value
