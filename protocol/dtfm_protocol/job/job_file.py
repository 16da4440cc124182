"""The job file: what the owner wants trained, and how. TOML, checked key by key."""

import tomllib
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from dtfm_protocol.bounds import MOST_AMOUNT, MOST_UINT32
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.evaluation_set import MOST_SETS, EvaluationSet
from dtfm_protocol.job.hub_folder import hub_folder
from dtfm_protocol.job.learning_rate import RateSchedule, learning_rate_of
from dtfm_protocol.schema import NEEDED, Schema
from dtfm_protocol.wire.codec_sizes import CodecName as CodecName
from dtfm_protocol.wire.codec_sizes import coarser

Positive = Annotated[int, Field(gt=0, le=MOST_UINT32, strict=True)]
NotNegative = Annotated[int, Field(ge=0, le=MOST_UINT32, strict=True)]
OptimizerName = Literal["adamw", "adamw-8bit", "sgd"]
"""Name of an optimizer (`checkpoint.state_slots` has what each keeps of a parameter)."""
Share = Annotated[float, Field(ge=0, lt=1)]
MethodName = Literal["full", "frozen-layers", "lora"]
"""Name of a choice of what is trained (`model.frozen_parameters`)."""
Precision = Literal["fp32", "bf16"]
"""Arithmetic of forward and backward."""
WeightsName = Literal["fp32", "bf16"]
"""Name of the type in which weights are kept."""
OffloadName = Literal["nothing", "optimizer"]
"""Name of what lies in the machine's memory beside a GPU (`checkpoint.state_slots`)."""
BaseName = Literal["fp32", "bf16", "int8"]
"""Name of a form in which matrices that are not trained are kept (`model.base_forms`)."""
ScheduleName = Literal["1f1b", "gpipe", "zero-bubble"]
"""Name of a pipeline schedule (`plan.schedule`)."""


class Model(Schema):
    """The `[model]` table: `architecture` of `transformers` with its config's fields, or a model that there is, by its
    `path` or as a `hub` has it."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    architecture: str | None = None
    """A `model_type` of `transformers`, e.g. "llama", "qwen3", "gpt2"."""
    path: Path | None = None
    """A folder with `config.json` and, where training starts from pretrained weights, safetensors."""
    hub: Annotated[str, Field(max_length=200)] | None = None
    """Name of a model on a hub, as "organisation/name": `huggingface_hub` finds it in its cache, or downloads it."""
    revision: Annotated[str, Field(max_length=200)] | None = None
    """Branch, tag or commit of `hub`; without it, the newest."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(one is not None for one in (self.architecture, self.path, self.hub)) != 1:
            raise ValueError('give one of architecture = "...", path = "..." and hub = "..."')
        if self.architecture is None and self.fields:
            given = "path" if self.hub is None else "hub"
            raise ValueError(f"{given} brings its own config: remove {', '.join(self.fields)}")
        if self.hub is None and self.revision is not None:
            raise ValueError("revision: it is one of a hub's model: give hub, or remove it")
        if "vocab_size" in self.fields:
            raise ValueError("vocab_size comes from the tokenizer: remove it")
        return self

    @property
    def folder(self) -> Path | None:
        """The folder of a model that there is; None: it is made by its architecture.

        Raises:
            UserError: the hub's model cannot be had.
        """
        return self.path if self.hub is None else hub_folder(self.hub, self.revision)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the `transformers` config that the job sets."""
        return dict(self.model_extra or {})


class Lora(Schema):
    """The `[lora]` table: small matrices that are trained beside those of the model (arXiv 2106.09685), with
    the names that `peft` has for its values."""

    r: Annotated[Positive, NEEDED] = 8
    """Rank of what "lora" adds to a matrix."""
    lora_alpha: Annotated[float, Field(gt=0, le=1e9), NEEDED] = 8.0
    """Weight, times 1/r, with which it is added."""
    target_modules: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...], Field(max_length=64), NEEDED
    ] = ()
    """Matrices of the decoder layers beside which "lora" trains, by the ends of their names: ["q_proj", "v_proj"]."""
    base: Annotated[BaseName, NEEDED] = Field(default="fp32", exclude_if=lambda base: base == "fp32")
    """What the matrices that stay as they begin are kept in: "bf16" takes two bytes a value, "int8" one, for the
    matrices of decoder layers, and two for the others. They are rounded once, before the first step."""

    @property
    def scaling(self) -> float:
        """What the product of the two small matrices counts."""
        return self.lora_alpha / self.r


class Training(Schema):
    """The `[training]` table: the mathematics of a step."""

    steps: Positive
    """Steps of the whole run."""
    global_batch: Positive
    """Sequences in a step, over the whole swarm."""
    micro_batch: Positive
    """Sequences in a micro-batch; it divides `global_batch`."""
    sequence_length: Positive
    """Target tokens in a sequence; one token more is read."""
    learning_rate: Annotated[float, Field(gt=0, le=1e38)]
    """The peak learning rate, reached at step `warmup_steps`."""
    method: Annotated[MethodName, NEEDED] = "full"
    """What is trained: "full", all weights; "frozen-layers", all but those of `layers`, which stay as they begin;
    "lora", matrices of low rank that are added to those of the model, which stay as they begin."""
    layers: Annotated[tuple[NotNegative, Positive] | None, NEEDED] = Field(
        default=None, exclude_if=lambda layers: layers is None
    )
    """Decoder layers that stay as they begin under "frozen-layers", counted from 0: [0, 8] are the first eight. From 0
    on, what comes before the layers (embeddings) stays, too, but for a matrix that the head shares."""
    lora: Lora = Field(default=Lora(), exclude_if=lambda lora: lora == Lora())
    schedule: Annotated[RateSchedule, NEEDED] = "cosine"
    """How the learning rate falls from its peak to `schedule_floor` at step `schedule_end`: "cosine" or "linear", over
    all steps after warm-up; "warmup-stable-decay", along a line in the last `schedule_decay` steps; "constant" does not
    fall."""
    schedule_end: Positive | None = Field(default=None, exclude_if=lambda step: step is None)
    """Step at which the learning rate has come down to its floor, where it stays; without it, the last step. Messages
    have it only where the job sets it, so that programs that do not know it read the rest."""
    schedule_floor: Annotated[float, Field(ge=0, le=1), NEEDED] = 0.1
    """The learning rate at `schedule_end`, as a share of its peak."""
    schedule_decay: Annotated[NotNegative, NEEDED] = 0
    """Steps in which the learning rate falls under "warmup-stable-decay"; other schedules have none."""
    weight_decay: Annotated[float, Field(ge=0, le=1e38)] = 0.1
    """Share of a weight, times the learning rate, by which it is pulled to zero at each step: apart from the gradient
    with "adamw" (arXiv 1711.05101), as a part of it with "sgd"."""
    weight_decay_on: Annotated[Literal["matrices", "all"], NEEDED] = "matrices"
    """Which weights decay: "matrices" leaves biases and norms alone."""
    optimizer: Annotated[OptimizerName, NEEDED] = "adamw"
    """What makes weights of gradients: "adamw" keeps two values beside each weight, "adamw-8bit" the
    same in a quarter of their memory, roughly rounded, "sgd" one, its momentum."""
    betas: Annotated[tuple[Share, Share], NEEDED] = (0.9, 0.95)
    """AdamW's: shares of the first and second moment that are kept at a step."""
    eps: Annotated[float, Field(gt=0, le=1), NEEDED] = 1e-8
    """AdamW's: what is added to the root of the second moment."""
    momentum: Annotated[Share, NEEDED] = 0.9
    """SGD's: share of the momentum that is kept at a step."""
    warmup_steps: NotNegative = 0
    """Steps in which the learning rate rises from 0 to its peak."""
    clip_norm: Annotated[float, Field(ge=0, le=MOST_AMOUNT)] = 1.0
    """Largest global gradient norm; 0 turns clipping off."""
    precision: Precision = "fp32"
    """The arithmetic of forward and backward; weights are kept in what `weights` says in either."""
    weights: Annotated[WeightsName, NEEDED] = "fp32"
    """What weights are kept in between steps. "bf16" takes two bytes each, not four; an update, made in fp32, is then
    rounded up or down at random, so that on average nothing of it is lost."""
    offload: OffloadName = Field(default="nothing", exclude_if=lambda what: what == "nothing")
    """What a node with a GPU keeps in the machine's memory in place of the GPU's: "optimizer", what the optimizer keeps
    beside each weight, copied to and fro at each update. Nothing else changes, and a processor has one memory anyway.
    Older nodes keep it on the GPU."""
    seed: NotNegative = 0
    """Seed of the initial weights and of the order of the data."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"micro_batch: global_batch ({self.global_batch}) is not a multiple of micro_batch ({self.micro_batch})"
            )
        if (self.method == "frozen-layers") != (self.layers is not None):
            raise ValueError(
                f"layers: {'not given' if self.layers is None else 'given'}, but method = {self.method!r}: "
                'say which layers stay as they are, as [0, 8], with "frozen-layers", and with no other'
            )
        if self.method != "full" and self.weights != "fp32":
            raise ValueError(f'weights: "{self.weights}" goes with method = "full" alone: remove it')
        if (self.method == "lora") != bool(self.lora.target_modules):
            raise ValueError(
                f"lora.target_modules: {'given' if self.lora.target_modules else 'not given'}, but method = "
                f'{self.method!r}: name matrices, as ["q_proj", "v_proj"], with "lora", and with no other'
            )
        if self.method != "lora" and self.lora.base != "fp32":
            raise ValueError(f'lora.base: "{self.lora.base}" goes with method = "lora" alone: remove it')
        if self.layers is not None and self.layers[0] >= self.layers[1]:
            raise ValueError(
                f"layers: {list(self.layers)} is no run of layers: give the first, and the one after the last"
            )
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps: {self.warmup_steps} is more than steps ({self.steps})")
        if self.warmup_steps > self.last_decay:
            raise ValueError(f"schedule_end: {self.last_decay} is less than warmup_steps ({self.warmup_steps})")
        if (self.schedule == "warmup-stable-decay") != (self.schedule_decay > 0):
            raise ValueError(
                f"schedule_decay: {self.schedule_decay}, but schedule = {self.schedule!r}: "
                'give the steps of the fall with "warmup-stable-decay", and with no other'
            )
        if self.schedule_decay > self.last_decay - self.warmup_steps:
            raise ValueError(
                f"schedule_decay: {self.schedule_decay} is more than the {self.last_decay - self.warmup_steps} steps "
                "after warmup_steps"
            )
        return self

    @property
    def last_decay(self) -> int:
        """The step at which the learning rate has come down to its floor."""
        return self.steps if self.schedule_end is None else self.schedule_end

    @property
    def micro_batches(self) -> int:
        """Micro-batches in a step, over the whole swarm."""
        return self.global_batch // self.micro_batch

    @property
    def tokens(self) -> int:
        """Target tokens in a step, over the whole swarm: what the summed loss and gradients are divided by."""
        return self.global_batch * self.sequence_length

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of `step`, from 1."""
        return learning_rate_of(
            step,
            self.learning_rate,
            self.schedule,
            warmup=self.warmup_steps,
            end=self.last_decay,
            floor=self.schedule_floor,
            decay=self.schedule_decay,
        )


class Evaluation(Schema):
    """The `[evaluation]` table: the loss on a tail of the data that training never reads."""

    every: NotNegative = 0
    """Steps between evaluations; 0 is never. The job's last step is always evaluated unless this is 0; a run that
    `finish` ends before it has the evaluations that were due until then."""
    sequences: Positive = 64
    """Sequences in an evaluation; where it has sets, in each of them, or as many as the set has."""

    @property
    def takes_tail(self) -> bool:
        """Whether what is held out is the end of the text that is trained on."""
        return self.every > 0


class EvaluationTable(Evaluation):
    """The `[evaluation]` table: the loss on documents that training never reads: the end of the text, or `sets`."""

    sets: Annotated[list[EvaluationSet], Field(max_length=MOST_SETS)] = Field(default=[], exclude_if=not_)
    """Sets of documents for evaluation alone, in place of the end of the text; each has a loss, a perplexity and an
    accuracy of its own."""

    @model_validator(mode="after")
    def _are_told_apart(self) -> Self:
        names = [one.name for one in self.sets]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"sets: two have the name {twice[0]}: give each its own")
        if self.sets and not self.every:
            raise ValueError("sets: every is 0, so that they are never evaluated: give every, or remove them")
        return self

    @property
    def takes_tail(self) -> bool:
        """Whether what is held out is the end of the text that is trained on."""
        return self.every > 0 and not self.sets

    @property
    def told(self) -> Evaluation:
        """The table as peers see it, without paths."""
        return Evaluation(every=self.every, sequences=self.sequences)


class Wire(Schema):
    """The `[plan.wire]` table: codecs of tensors between peers; all but "fp32" are lossy. One name stands for both."""

    activations: CodecName = "fp32"
    """Codec of the tensors that flow forward through the pipeline."""
    gradients: CodecName = "fp32"
    """Codec of the tensors that flow back through the pipeline, and of those that the replicas of a stage reduce.
    "int8" in the all-reduce has error feedback: what the coding leaves out of one step's gradient is added to the
    next one's."""

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_both(cls, value: object) -> object:
        return {"activations": value, "gradients": value} if isinstance(value, str) else value

    def __str__(self) -> str:
        both = self.activations == self.gradients
        return self.activations if both else f"{self.activations} activations, {self.gradients} gradients"


class Planning(Schema):
    """The `[plan]` table: what the owner fixes of the layout; "auto" leaves it to the allocator."""

    stages: Positive | Literal["auto"] = "auto"
    """Pieces that the model's layers are cut into, one behind the other; "auto": the allocator decides."""
    replicas: Positive | Literal["auto"] = "auto"
    """Peers in a stage, which share its work; "auto": the allocator decides, and stages may have unlike numbers."""
    strict: bool = False
    """Whether a run that has lost nodes waits until `stages` and `replicas` are possible again; else it goes on with
    the nodes that are left, in another layout, and says so."""
    schedule: ScheduleName | Literal["auto"] = "auto"
    """Order of forwards and backwards on each peer; "auto": whichever is predicted to be the fastest within memory."""
    in_flight: Literal["auto", "least"] = Field(default="least", exclude_if=lambda chosen: chosen == "least")
    """Micro-batches that peers keep between forward and backward under 1F1B and zero-bubble, and so the order of
    compute: "least": no more than keep equally fast peers busy; "auto": as many as hide the links' delays within
    memory, in an order made for the peers' speeds and links, where that makes a shorter step. Older nodes refuse such
    plans."""
    parts: Literal["auto", "equal"] = Field(default="equal", exclude_if=lambda chosen: chosen == "equal")
    """How much of its stage's gradients each replica sums, and which way they go: "equal": all the same, straight to
    who sums it; "auto": by what links carry, where that makes a shorter step, so that a peer with a slow line sums
    little or nothing, and a slow link carries little. Older nodes refuse such plans."""
    wire: Wire = Wire()
    slow_wire: Literal["none", "fp16", "bf16", "int8"] = Field(default="none", exclude_if=lambda name: name == "none")
    """Codec in which the allocator may have micro-batches cross slow boundaries between stages, both ways, in place of
    `wire` where it takes fewer bytes and makes a markedly shorter step; "none": all cross in `wire`. What replicas
    reduce stays in `wire.gradients`. Older nodes refuse such plans."""
    horizon: Annotated[float, Field(gt=0, le=1e9)] = 600.0
    """Seconds of training within which going over to another plan must pay back what moving state takes."""

    @model_validator(mode="after")
    def _slow_wire_is_coarser(self) -> Self:
        if self.slow_wire != "none" and self.coarse_wire == self.wire:
            raise ValueError(
                f'slow_wire: "{self.slow_wire}" takes no fewer bytes than the wire, {self.wire}: name a coarser codec, '
                "or remove it"
            )
        return self

    @property
    def coarse_wire(self) -> Wire:
        """Codecs of a boundary that is made coarse: `wire`, with `slow_wire` where that takes fewer bytes."""
        slow, wire = self.slow_wire, self.wire
        if slow == "none":
            return wire
        return Wire(activations=coarser(slow, wire.activations), gradients=coarser(slow, wire.gradients))


class Checkpointing(Schema):
    """The `[checkpoint]` table: how often the state is kept. The last step always is."""

    every: NotNegative = 50
    """Steps between checkpoints; 0: only the last step's."""
    shadow: Positive = 10
    """Steps between the snapshots that a stage with one peer alone leaves with another peer."""


class Sharing(Schema):
    """The `[sharing]` table: who may take the model home, and under which terms."""

    model: Literal["nobody", "members"] = "nobody"
    """Who may fetch the newest checkpoint as a model, with `dtfm-node fetch-model`, while and after it trains."""
    license: Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$|^$")] = ""
    """Licence that the model's card names, e.g. "apache-2.0"; "" names none."""


class Job(Schema):
    """The job file of an owner, whole."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """The job's name: up to 64 letters, digits, dots, dashes and underscores."""
    model: Model
    data: Data
    training: Training
    evaluation: EvaluationTable = EvaluationTable()
    plan: Planning = Planning()
    checkpoint: Checkpointing = Checkpointing()
    sharing: Sharing = Sharing()

    @model_validator(mode="before")
    @classmethod
    def _lora_in_training(cls, values: object) -> object:
        """Take the table `[lora]` into `[training]`: whoever computes needs both."""
        if not isinstance(values, dict) or "lora" not in values or not isinstance(values.get("training"), dict):
            return values
        rest = {key: value for key, value in values.items() if key != "lora"}
        return rest | {"training": values["training"] | {"lora": values["lora"]}}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a job file; relative paths in it become absolute, seen from the file's folder.

        Raises:
            UserError: the file is not there, is not TOML, or has a key that is unknown, missing or wrong; it
                names the key.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the job file {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a TOML file: {error}") from None
        try:
            job = cls.read(values, str(path))
        except UserError as error:
            # A table of its own in the file is called as it is there.
            raise (UserError(str(error).replace("training.lora.", "lora.")) if "lora" in values else error) from None
        return job.rooted(path.resolve().parent)

    def rooted(self, folder: Path) -> Self:
        """Return the same job with its relative paths made absolute, seen from `folder`."""
        model = self.model
        if model.path is not None:
            model = model.model_copy(update={"path": folder / model.path})
        sets = [one.rooted(folder) for one in self.evaluation.sets]
        return self.model_copy(
            update={
                "model": model,
                "data": self.data.rooted(folder, model.folder),
                "evaluation": self.evaluation.model_copy(update={"sets": sets}),
            }
        )
