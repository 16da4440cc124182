"""The `[[evaluation.sets]]` of the job file: documents by a name, on which a model is evaluated and never trained."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.schema import Schema

MOST_SETS = 16
"""Sets that a job may have: a commit has the sums of each."""
SetName = Annotated[str, Field(max_length=32, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Name of a set: it stands in metrics and charts."""


class EvaluationSet(Schema):
    """A set of documents for evaluation alone: an entry of `sets`."""

    name: SetName
    """Its name in metrics, charts and tables: up to 32 letters, digits, dots, dashes and underscores."""
    text: list[str] | None = None
    """Text files and globs relative to the job file, each file a document."""
    sources: Annotated[list[DataSource], Field(min_length=1, max_length=1000)] | None = None
    """In place of `text`, a list of sources, as in `data.sources`."""

    @model_validator(mode="after")
    def _has_documents(self) -> Self:
        self.documents(Data(text="cpython"))
        return self

    def documents(self, data: Data) -> Data:
        """Return a `[data]` table that reads this set's documents, and makes tokens of them as `data` does."""
        has_chat = any(one.kind == "messages" for one in self.sources or ())
        chat = data.chat_template if has_chat else None
        shared = {"tokenizer": data.tokenizer, "chat_template": chat, "packing": data.packing}
        return Data.model_validate({"text": self.text, "sources": self.sources} | shared)

    def rooted(self, folder: Path) -> Self:
        """Return the same set with relative paths made absolute, seen from `folder`."""
        text = self.text and [str(folder / one) for one in self.text]
        sources = self.sources and [one.rooted(folder) for one in self.sources]
        return self.model_copy(update={"text": text, "sources": sources})

    def named(self, error: UserError, place: int) -> UserError:
        """Return an error about the documents of the set in `place`, from 0, by the keys that the job file has."""
        text = str(error)
        for key in ("text", "sources"):
            text = text.replace(f"data.{key}", f"evaluation.sets.{place}.{key}")
        return UserError(text.replace("data: ", f"evaluation.sets.{place}: "))
