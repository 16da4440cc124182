"""A job that begins with weights of its own, in pieces, without a model's folder."""

from collections.abc import Mapping

import torch

from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.job.resolved_job import BasePiece, ResolvedJob
from dtfm_protocol.model.base_forms import base_forms
from dtfm_protocol.model.base_source import part_of
from dtfm_protocol.model.base_values import piece_tensors
from dtfm_protocol.model.initial_weights import standard_normal
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.whole_model import build_skeleton


def other_weights(job: ResolvedJob) -> dict[str, torch.Tensor]:
    """Weights that are not those of the job's seed."""
    return {
        name: standard_normal(99, name, parameter.shape) * 0.05
        for name, parameter in build_skeleton(job.config).named_parameters()
    }


def begun_with(job: ResolvedJob, weights: Mapping[str, torch.Tensor], pieces: PieceFolder) -> ResolvedJob:
    """The job as it begins with these weights, whose pieces are put into a folder."""
    forms, layers = base_forms(job.config, job.training), model_sizes(job.config).layers
    made = []
    for part in range(layers + 2):
        values = {name: value for name, value in weights.items() if part_of(job.config, name) == part}
        sha256, size = pieces.write(piece_tensors(values, forms))
        bounds = (max(part - 1, 0), min(part, layers))
        made.append(BasePiece(sha256=sha256, bytes=size, layers=bounds))
    return job.model_copy(update={"pretrained": True, "base": tuple(made)})
