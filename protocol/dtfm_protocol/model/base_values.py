"""The values that a job's parameters begin with: drawn from its seed, or those of its pieces."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.checkpoint.state_slots import WEIGHT
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.resolved_job import BasePiece, ResolvedJob
from dtfm_protocol.model.base_forms import SCALE, Form, KeptParameter, base_forms, kept
from dtfm_protocol.model.base_source import part_of, read_parts
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.whole_model import build_skeleton


class BaseValues:
    """The values of a job's parameters as it begins, each in its form, read or drawn when it is asked for."""

    def __init__(self, job: ResolvedJob, pieces: PieceFolder) -> None:
        self._job, self._pieces = job, pieces
        self._forms = base_forms(job.config, job.training)

    def piece(self, name: str) -> BasePiece | None:
        """Return the piece that has the parameter `name`; None: it is drawn.

        Raises:
            Refused: the job names other pieces than its model has parts.
        """
        if not self._job.pretrained or name not in self._forms:
            return None
        number = part_of(self._job.config, name)
        if number >= len(self._job.base):
            raise Refused(f"the job names {len(self._job.base)} pieces of weights, and none for {name}")
        return self._job.base[number]

    def value(self, name: str, shape: tuple[int, ...]) -> KeptParameter:
        """Return the value of the parameter that the whole model knows as `name`, or of one of an adapter, on the CPU.

        Raises:
            Refused: its piece is not here, or not as the job says, or of another model.
        """
        form = self._forms.get(name, Form("F32"))
        piece = self.piece(name)
        if piece is None:
            return kept(initial_value(self._job.config, self._job.training.seed, name, shape), form)
        value = self._pieces.tensor(piece.sha256, f"{WEIGHT}/{name}")
        scale = self._pieces.tensor(piece.sha256, f"{WEIGHT}/{name}{SCALE}") if form.dtype == "I8" else None
        fits = scale is None or (tuple(scale.shape) == _scales(shape, form.inner) and scale.dtype == torch.float32)
        if tuple(value.shape) != shape or value.dtype != torch_dtype(form.dtype) or not fits:
            raise Refused(f"{name} as the job begins is {value.dtype} {tuple(value.shape)}, not of the model's form")
        return KeptParameter(value, scale)


def frozen_values(job: ResolvedJob, pieces: PieceFolder) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and fp32 value, on the CPU, of each parameter that the job leaves as it begins, one at a time.

    Raises:
        Refused: the pieces that have pretrained ones are not whole, or of another model.
    """
    names = frozen_names(job.config, job.training)
    if not names:
        return
    values = BaseValues(job, pieces)
    for name, parameter in build_skeleton(job.config).named_parameters():
        if name in names:
            yield name, values.value(name, tuple(parameter.shape)).decoded()


def unrounded_values(job: ResolvedJob, pieces: PieceFolder, given: Path | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and fp32 value of each parameter that the job leaves as it begins, as it was before it was brought
    into its form.

    Args:
        given: folder of the model with which the job begins; None: it is not known.

    Raises:
        UserError: it is not there any more, or has other weights.
        Refused: the pieces are not whole.
    """
    values, forms = BaseValues(job, pieces), base_forms(job.config, job.training)
    if not job.pretrained:
        for name, parameter in build_skeleton(job.config).named_parameters():
            yield name, initial_value(job.config, job.training.seed, name, parameter.shape)
        return
    if given is None or not given.is_dir():
        raise UserError(
            f"adapters beside {job.training.lora.base} weights are merged into those of the model that was given, and "
            f"it is not there any more ({given or 'no job file names it'}): put it back, or export without --merge and "
            "merge with `peft`"
        )
    for part in read_parts(given, job.config):
        for name, value in part.items():
            if not torch.equal(kept(value, forms[name]).value, values.value(name, tuple(value.shape)).value):
                raise UserError(f"the weights in {given} are not those with which this run has begun: {name} differs")
            yield name, value


def piece_tensors(values: Mapping[str, torch.Tensor], forms: Mapping[str, Form]) -> dict[str, Any]:
    """Return the tensors of a piece with the fp32 `values`, by key."""
    found = dict[str, torch.Tensor]()
    for name, value in values.items():
        one = kept(value, forms[name])
        found[f"{WEIGHT}/{name}"] = one.value
        if one.scale is not None:
            found[f"{WEIGHT}/{name}{SCALE}"] = one.scale
    return found


def _scales(shape: tuple[int, ...], inner: int) -> tuple[int, ...]:
    return tuple(1 if number == inner else size for number, size in enumerate(shape))
