"""What a row says: the text of its document, and which of it is learned."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dtfm_protocol.job.data_table import DataSource
from dtfm_protocol.job.document_template import Unfillable

Span = tuple[int, int]
"""A run of characters of a text: the first, and the one after the last."""


class Content(NamedTuple):
    """What a row says."""

    text: str
    """Its document; of a conversation as its chat template writes it."""
    learned: tuple[Span, ...] | None = None
    """The parts of it that are learned, in order; None: all of it."""
    is_rendered: bool = False
    """Whether the names of special tokens in it stand for these; else they are text like any other."""


class Chat(Protocol):
    """What knows how a conversation is written down."""

    def content(self, messages: Sequence[Mapping[str, Any]]) -> Content:
        """Return what a conversation says; raises `Unfillable` where it cannot be written down."""


class ContentReader:
    """The way from the values of a source's rows to what they say."""

    def __init__(self, source: DataSource, chat: Chat | None = None) -> None:
        """Take what the source says of its rows; `chat` writes down the messages of a source that has such."""
        self._source, self._chat = source, chat
        self._prompt = source.prompt
        self._document = source.document if source.kind != "messages" else None

    def of(self, values: Mapping[str, Any]) -> Content:
        """Return what a row says; its text is empty where nothing of it can be learned, as the row is empty.

        Raises:
            Unfillable: the row lacks a column, or has something else there.
        """
        if self._document is None:
            assert self._chat is not None
            found = self._chat.content(_messages(values, self._source.messages_column))
        elif self._prompt is not None:
            prompt, completion = self._prompt.fill(values), self._document.fill(values)
            text = prompt + completion
            found = Content(text, ((len(prompt), len(text)),)) if completion else Content("")
        else:
            found = Content(self._document.fill(values))
        try:
            found.text.encode()
        except UnicodeEncodeError:
            raise Unfillable("has half a character (a lone surrogate)") from None
        return found


def _messages(values: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    """Return the messages of a row, as objects with a role and a content.

    Raises:
        Unfillable: there are none of that form.
    """
    if column not in values:
        there = ", ".join(list(map(str, values))[:8])
        raise Unfillable(f'has no "{column}"' + (f", only {there}" if there else ""))
    found = values[column]
    if not isinstance(found, list) or not found:
        raise Unfillable(f'has no list of messages in "{column}"')
    return [_message(one, f'message {place} in "{column}"') for place, one in enumerate(found, start=1)]


def _message(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfillable(f"has a {name} that is no object with a role and a content")
    held = {key: part for key, part in value.items() if part is not None}  # tables have all keys in all rows
    if not isinstance(held.get("role"), str):
        raise Unfillable(f'has a {name} without a "role"')
    if not isinstance(held.get("content", "" if "tool_calls" in held else None), str):
        raise Unfillable(f'has a {name} without text in "content"')
    return held
