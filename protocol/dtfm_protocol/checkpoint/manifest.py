"""The manifest of a checkpoint: its files by hash, its tensors by the parameter's name in the whole model."""

from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dtfm_protocol.bounds import MOST_PEERS, MOST_STAGES, MOST_TENSORS, Count, Label, Loss, PeerName, Step, Version
from dtfm_protocol.checkpoint.state_slots import ITEM_BYTES, DType
from dtfm_protocol.job.resolved_job import Sha256
from dtfm_protocol.plan.peer_state import LayerRange
from dtfm_protocol.schema import Schema

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors$", max_length=200)]
"""A plain file name that cannot lead out of the checkpoint's folder, nor stand in the manifest's place."""
Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}/\S+$", max_length=512)]
"""Name of a tensor: its slot (`weight/`, `exp_avg/`, ...), and the parameter's name in the whole model. Which slots
there are is the optimizer's (`state_slots`)."""


class File(Schema):
    """A safetensors file of a checkpoint: its name, hash and size."""

    name: FileName
    sha256: Sha256
    bytes: Count
    layers: LayerRange | None = None
    """Decoder layers `[first, end)` of the stage that the file holds; None: of no one stage."""


class TensorEntry(Schema):
    """A tensor of a checkpoint, and where its bytes lie."""

    file: FileName
    sha256: Sha256
    """SHA-256 of the tensor's own bytes, so that one tensor can be fetched and checked without the rest."""
    dtype: DType
    shape: Annotated[tuple[Count, ...], Field(max_length=8)]
    offset: Count
    """Bytes from the start of the file to the tensor."""
    bytes: Count

    @model_validator(mode="after")
    def _size_fits(self) -> Self:
        if self.bytes != prod(self.shape) * ITEM_BYTES[self.dtype]:
            raise ValueError(f"{self.bytes} bytes for a {self.dtype} tensor of shape {self.shape}")
        return self


class Manifest(Schema):
    """The table of contents of a checkpoint."""

    version: Literal[1] = 1
    job: Label
    """The job's name."""
    config: dict[str, Any]
    """The whole `transformers` config as JSON."""
    step: Step
    """The last step that the state includes; 0 is the initial weights."""
    plan_version: Version
    files: Annotated[tuple[File, ...], Field(min_length=1, max_length=MOST_STAGES)]
    tensors: Annotated[dict[Key, TensorEntry], Field(max_length=MOST_TENSORS)]
    replicas: Annotated[
        tuple[Annotated[dict[PeerName, Sha256], Field(max_length=MOST_PEERS)], ...], Field(max_length=MOST_STAGES)
    ] = ()
    """The digest of the weights on each peer of each stage, by stage and peer; equal digests are equal weights."""
    eval_loss: Loss | None = None
    """Mean loss a token on the evaluation windows after this step, in nats."""

    @model_validator(mode="after")
    def _tensors_lie_in_files(self) -> Self:
        sizes = {file.name: file.bytes for file in self.files}
        if len(sizes) != len(self.files):
            raise ValueError("files: two have one name")
        for key, entry in self.tensors.items():
            if entry.file not in sizes:
                raise ValueError(f"tensors: {key} lies in {entry.file}, which is not among the files")
            if entry.offset + entry.bytes > sizes[entry.file]:
                raise ValueError(f"tensors: {key} ends after the end of {entry.file}")
        return self
