"""The job as peers see it: no paths, the model's config spelled out, the tokens named by hash."""

from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dtfm_protocol.bounds import MOST_UINT32, Index, Label
from dtfm_protocol.job.evaluation_set import MOST_SETS, SetName
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training
from dtfm_protocol.schema import NEEDED, Needs, Schema, check_needs, known_part

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal digits."""
MOST_SHARDS = 1 << 16
"""Token shards that a job may name itself."""
MOST_CHAPTERS = 1 << 12
"""Chapters that a job may name, in less than half a megabyte."""
CHAPTER_SHARDS = 1 << 12
"""Shards of the largest chapter. A job names its shards itself where they would make no more than one."""


class Shard(Schema):
    """A run of consecutive tokens of the corpus, in one file named by its hash."""

    sha256: Sha256
    tokens: Annotated[int, Field(gt=0, le=MOST_UINT32)]


class Samples(Schema):
    """What of the corpus is learned, and what stands apart in it, where that is not all of it as one text.

    The corpus is then laid out in bins of `sequence_length` tokens, and one token more, so that each window is a bin
    and the token after it.
    """

    marks: tuple[Shard, ...] = Field(default=(), min_length=1, max_length=MOST_SHARDS, exclude_if=not_)
    """A byte a token (`data.marks` says which bit means what), cut as the tokens are. None where chapters name them."""
    targets: Shard
    """The number of targets of each window of the corpus, as little-endian uint32."""


class Chapter(Schema):
    """A run of consecutive shards of the corpus, listed in a file named by its hash (`data.chapters`)."""

    sha256: Sha256
    shards: Annotated[int, Field(gt=0, le=CHAPTER_SHARDS)]
    tokens: Annotated[int, Field(gt=0, le=CHAPTER_SHARDS * MOST_UINT32)]


class HeldOutSet(Schema):
    """A set of documents for evaluation alone, as the corpus has it: windows that lie behind what is trained on."""

    name: SetName
    """Name that the job gives it."""
    start: Annotated[int, Field(ge=0, le=MOST_CHAPTERS * CHAPTER_SHARDS * MOST_UINT32)]
    """The first token of its first window."""
    windows: Annotated[int, Field(gt=0, le=MOST_UINT32)]
    """Number of its windows, each `sequence_length` tokens after the one before."""


class Corpus(Schema):
    """The tokenized text, in order, as shards of little-endian integers, which chapters name where they are many.

    Who goes through its shards does so by `data.token_shards.ShardMap`.
    """

    dtype: Literal["uint16", "uint32"]
    vocab_size: Annotated[int, Field(gt=0, le=MOST_UINT32)]
    shards: tuple[Shard, ...] = Field(default=(), min_length=1, max_length=MOST_SHARDS, exclude_if=not_)
    """None where there are chapters."""
    chapters: Annotated[tuple[Chapter, ...], Field(min_length=1, max_length=MOST_CHAPTERS), NEEDED] = Field(
        default=(), exclude_if=not_
    )
    """The lists of the shards, in order; none where these are named here."""
    samples: Annotated[Samples | None, NEEDED] = Field(default=None, exclude_if=lambda samples: samples is None)
    """None: each token but the first is a target, and all of it is one text."""
    held_out: Annotated[tuple[HeldOutSet, ...], Field(max_length=MOST_SETS), NEEDED] = Field(
        default=(), exclude_if=not_
    )
    """The sets on which the model is evaluated, in order, at the corpus's end; none: on the end of the text."""

    @model_validator(mode="after")
    def _is_named_once(self) -> Self:
        if bool(self.shards) == bool(self.chapters):
            raise ValueError("shards: a corpus names either its shards or their chapters")
        marks = self.samples.marks if self.samples is not None else self.shards
        if [shard.tokens for shard in marks] != [shard.tokens for shard in self.shards]:
            raise ValueError("samples.marks: they are cut in another way than the tokens")
        return self

    @property
    def tokens(self) -> int:
        """Number of tokens of the whole corpus."""
        return sum(part.tokens for part in self.shards or self.chapters)


MOST_PIECES = 1 << 11
"""Pieces of weights that a job may begin with: two more than the layers of the deepest model."""
MOST_PIECE_BYTES = 1 << 36
"""Bytes of the largest piece."""


class BasePiece(Schema):
    """A piece of the weights that a job begins with: a safetensors file, named by its hash, of one decoder layer, of
    what comes before the layers, or of what follows them."""

    sha256: Sha256
    bytes: Annotated[int, Field(gt=0, le=MOST_PIECE_BYTES)]
    layers: tuple[Index, Index]
    """Decoder layers `[first, end)`: one; none, as [0, 0], before the first, or, as [N, N], after the last of N."""


class ResolvedJob(Schema):
    """A job as the coordinator publishes it: all that a node needs to know of it.

    Keys that are not known here are dropped, unless it `needs` them.
    """

    name: Label
    config: dict[str, Any]
    """The whole `transformers` config as JSON, `model_type` and `vocab_size` included."""
    pretrained: bool = False
    """Whether the model's weights at step 0 are those in the pieces of `base`; else they are drawn from the seed."""
    base: Annotated[tuple[BasePiece, ...], Field(max_length=MOST_PIECES), NEEDED] = Field(default=(), exclude_if=not_)
    """Pieces of the weights that it begins with, in the model's order."""
    corpus: Corpus
    training: Training
    evaluation: Evaluation
    plan: Planning
    checkpoint: Checkpointing
    needs: Needs = Field(default=(), exclude_if=not_)
    """Keys that are set in it and that its readers must know, as `needs_of` finds them; else it is refused."""

    @property
    def is_drawn(self) -> bool:
        """Whether all that is trained begins as drawn from the seed."""
        return not self.pretrained or self.training.method == "lora"

    @property
    def keeps_base(self) -> bool:
        """Whether some pretrained weights are never trained: whoever comes takes them from the pieces."""
        return self.pretrained and self.training.method != "full"

    @model_validator(mode="after")
    def _windows_are_bins(self) -> Self:
        samples, length = self.corpus.samples, self.training.sequence_length
        if samples is not None and samples.targets.tokens * length + 1 != self.corpus.tokens:
            raise ValueError(
                f"corpus.samples: {self.corpus.tokens} tokens are not {samples.targets.tokens} windows of {length} and "
                "one more"
            )
        return self

    @model_validator(mode="after")
    def _sets_are_windows(self) -> Self:
        length, names, end = self.training.sequence_length, set[str](), 1
        for one in self.corpus.held_out:
            if one.name in names or one.start < end or (self.corpus.samples is not None and one.start % length):
                raise ValueError(f"corpus.held_out: the set {one.name} is not where a set can be")
            names.add(one.name)
            end = one.start + one.windows * length
        if self.corpus.held_out and end + 1 > self.corpus.tokens:
            raise ValueError(f"corpus.held_out: its sets need {end + 1} tokens, and there are {self.corpus.tokens}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown(cls, values: object) -> object:
        if isinstance(values, dict):
            check_needs(cls, values.get("needs", ()))
        return known_part(cls, values)
