"""The `[data]` table of the job file: which documents are read, and how they become tokens."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dtfm_protocol.job.document_template import DocumentTemplate
from dtfm_protocol.schema import Schema

FormName = Literal["text", "jsonl", "parquet", "dataset", "hub"]
"""Form in which a source's rows are kept (`data.row_formats` has the reader of each)."""
SourceKind = Literal["text", "jsonl", "parquet", "dataset", "hub", "messages", "completions"]
"""What a source is: the first are forms of plain documents, of the others it says what a row holds."""
TABLE_SUFFIXES: dict[str, FormName] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Forms that a file's name tells."""
MOST_WEIGHT = 1000.0
"""Times that a document may be in the corpus."""


class DataSource(Schema):
    """A source of documents: an entry of `sources`."""

    path: Annotated[str, Field(min_length=1)]
    """A file or glob relative to the job file; of the form "dataset", a folder or a glob of folders; of the form "hub",
    a data set's name, as "org/name", or a folder that `datasets` loads."""
    kind: SourceKind
    """What the rows are: documents, by the form of the files ("text", a document each; "jsonl", an object of JSON on
    each line; "parquet"; "dataset", a folder that `save_to_disk` of `datasets` has written; "hub", a data set by
    name, streamed); "messages", conversations,
    of which the assistant's turns are learned; "completions", prompts with what follows them, which alone is learned.
    """
    format: Literal["jsonl", "parquet", "dataset", "hub"] | None = None
    """The form of files of "messages" and "completions"; without it, the path's end says it: `.jsonl`, `.parquet`."""
    split: str = "train"
    """The part of a data set of the form "hub"."""
    subset: str | None = None
    """The configuration of a data set of the form "hub", where it has several."""
    revision: str | None = None
    """The commit, tag or branch of a data set of the form "hub". With a commit, its rows stay the same."""
    column: str | None = None
    """The column, or key of an object, whose text is the document; without it and without `template`, "text". With
    "messages", of the list of messages: "messages" without it; with "completions", of what is learned: "completion".
    """
    template: str | None = None
    """The document with names of columns in braces, as "{question}\\n{answer}", in place of `column`. With
    "completions", the prompt; without it, the column "prompt" is."""
    weight: Annotated[float, Field(gt=0, le=MOST_WEIGHT)] = 1.0
    """How many times a document is in the corpus: 2 has each twice, 0.25 a quarter of them, one of every four, drawn by
    `training.seed`; 1.5 has each once, and half of them once more."""
    on_error: Literal["stop", "skip"] = "stop"
    """What a row without its columns, or a damaged one, does: "stop" refuses the job and names the row; "skip" leaves
    such rows out, and says how many they were."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "text" and (self.column is not None or self.template is not None):
            raise ValueError('column: a file of the kind "text" is a document as it is: remove column and template')
        if self.kind == "messages" and self.template is not None:
            raise ValueError("template: messages are put together by the chat template: remove it")
        if self.kind != "completions" and self.column is not None and self.template is not None:
            raise ValueError("template: give either column or template")
        if not self.is_sample and self.format is not None:
            raise ValueError(f'format: the kind "{self.kind}" says it: remove it')
        if self.is_sample and self.format is None and Path(self.path).suffix.lower() not in TABLE_SUFFIXES:
            raise ValueError(
                f"format: {self.path} does not end as JSON lines (.jsonl) or Parquet (.parquet): say which it is, as "
                'format = "jsonl", "dataset" or "hub"'
            )
        if self.form != "hub" and (self.split != "train" or self.subset is not None or self.revision is not None):
            raise ValueError('split: with subset and revision, it goes with the form "hub" alone: remove them')
        _ = self.columns  # which says what is wrong with a template
        return self

    def rooted(self, folder: Path) -> Self:
        """Return the same source with its path made absolute, seen from `folder`; a data set's name stays."""
        if self.form == "hub" and not (folder / self.path).exists():
            return self
        return self.model_copy(update={"path": str(folder / self.path)})

    @property
    def is_sample(self) -> bool:
        """Whether only a part of what its rows say is learned."""
        return self.kind in ("messages", "completions")

    @property
    def form(self) -> FormName:
        """The form of its files."""
        if self.kind != "messages" and self.kind != "completions":
            return self.kind
        return self.format or TABLE_SUFFIXES[Path(self.path).suffix.lower()]

    @property
    def document(self) -> DocumentTemplate:
        """The way to its document, or to the completion, from a row; not of "messages"."""
        if self.kind == "completions":
            return DocumentTemplate(self.column or "completion", None)
        return DocumentTemplate(self.column, self.template)

    @property
    def prompt(self) -> DocumentTemplate | None:
        """The way to the prompt from a row; None but for "completions"."""
        if self.kind != "completions":
            return None
        return DocumentTemplate("prompt" if self.template is None else None, self.template)

    @property
    def messages_column(self) -> str:
        """The column of the list of messages."""
        return self.column or "messages"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read, each once."""
        if self.kind == "messages":
            return (self.messages_column,)
        prompt = self.prompt.columns if self.prompt is not None else ()
        return tuple(dict.fromkeys(prompt + self.document.columns))


class Data(Schema):
    """The `[data]` table: the text that is read, and how it becomes tokens."""

    text: list[str] | Literal["cpython"] | None = None
    """Text files and globs relative to the job file, each file a document, or "cpython": the prose of
    `pydoc_data.topics`."""
    sources: Annotated[list[DataSource], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, exclude_if=lambda sources: sources is None
    )
    """In place of `text`, a list of sources, in other forms than text files, too."""
    tokenizer: str = "bytes"
    """The tokenizer: "bytes", "bpe:SIZE" (trained on the text), or a tokenizer's folder relative to the job file.
    Without it, a model from `path` keeps its own."""
    chat_template: str | None = None
    """A file with the chat template by which messages become text, in place of the tokenizer's own."""
    packing: bool = False
    """Whether documents are laid side by side in sequences, each whole where it fits, and attend to themselves alone.
    Without it, plain text is one stream, and a conversation has a sequence of its own."""

    @property
    def tokenizer_folder(self) -> Path | None:
        """The folder in which the tokenizer lies; None where it is made here."""
        made = self.tokenizer == "bytes" or self.tokenizer.startswith("bpe:")
        return None if made else Path(self.tokenizer)

    @property
    def is_laid_out(self) -> bool:
        """Whether documents are apart from each other in sequences; else they are one stream."""
        return self.packing or any(source.is_sample for source in self.sources or ())

    @property
    def has_messages(self) -> bool:
        """Whether a chat template is asked for."""
        return any(source.kind == "messages" for source in self.sources or ())

    @field_validator("text", mode="before")
    @classmethod
    def _is_a_list(cls, value: object) -> object:
        if value is None or value == "cpython":
            return value
        if not (value and isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise ValueError(f'write a list of files and globs, as ["corpus/*.txt"], or "cpython" (got {value!r})')
        return value

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.text is None) == (self.sources is None):
            raise ValueError("give either text = [...], a list of text files, or sources = [...]")
        return self

    def rooted(self, folder: Path, model: Path | None) -> Self:
        """Return the same table with relative paths made absolute, seen from `folder`.

        Args:
            model: the model's folder, absolute, whose tokenizer is taken where none is named; None: it has none.
        """
        if "tokenizer" not in self.model_fields_set and model is not None:
            tokenizer = str(model)
        else:
            lies = self.tokenizer_folder
            tokenizer = str(folder / lies) if lies is not None else self.tokenizer
        text = [str(folder / one) for one in self.text] if isinstance(self.text, list) else self.text
        sources = self.sources and [one.rooted(folder) for one in self.sources]
        chat = self.chat_template and str(folder / self.chat_template)
        return self.model_copy(update={"text": text, "sources": sources, "tokenizer": tokenizer, "chat_template": chat})
