"""The chat template of a job: from the messages of a conversation to its text, and to what of it is learned."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtfm_protocol.data.contents import Content, Span
from dtfm_protocol.data.tokenizer import END_OF_TEXT, load
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.document_template import Unfillable

ASSISTANT = "assistant"
"""Role of the messages that are learned."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""What stands in a template before what the assistant says."""
_WHY_LONGEST = 200
"""Characters of a template's own words that are repeated."""

Message = Mapping[str, Any]


class ChatTemplate:
    """A chat template, and the special tokens that it writes.

    A template with `{% generation %}` says itself what is learned. Of any other it is found by its own renderings: a
    turn of the assistant is what is there with it, behind what is there before it, with the prompt for it; what is
    blank after the last special token of it is no part of it, as nobody waits for it.
    """

    def __init__(self, template: str, special: Mapping[str, Any], ends: Sequence[str]) -> None:
        """Take a template.

        Args:
            template: text in Jinja.
            special: what it may ask for by name, as "eos_token".
            ends: special tokens that may end a turn.
        """
        self._template, self._special, self._ends = template, dict(special), tuple(ends)
        self._marks_itself = bool(_GENERATION.search(template))

    @classmethod
    def of_job(cls, data: Data) -> "ChatTemplate | None":
        """Return the one of a job; None where it has no messages.

        Raises:
            UserError: there is none, or its file cannot be read, or is no template.
        """
        place = next((at for at, one in enumerate(data.sources or ()) if one.kind == "messages"), None)
        if place is None:
            return None
        folder = data.tokenizer_folder
        tokenizer = load(folder) if folder is not None else None
        template = template_text(data)
        if template is None and tokenizer is not None:
            template = _own_template(tokenizer)
        if template is None:
            whose = f'"{data.tokenizer}"' if folder is None else f"the one in {folder}"
            raise UserError(
                f'data.sources.{place}: kind = "messages" needs a chat template, and the tokenizer, {whose}, has none: '
                'give one, as chat_template = "FILE" in [data]'
            )
        template = _checked(template, data)
        if tokenizer is None:
            return cls(template, {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}, [END_OF_TEXT])
        check_offsets(tokenizer, f"data.sources.{place}")
        return cls(template, tokenizer.special_tokens_map, special_tokens(tokenizer))

    def content(self, messages: Sequence[Message]) -> Content:
        """Return what a conversation says.

        Raises:
            Unfillable: the template refuses its messages, or leaves its turns out, or writes them in another way once
                others come after them.
        """
        if not any(message.get("role") == ASSISTANT for message in messages):
            raise Unfillable(f'has no message of the role "{ASSISTANT}", so that nothing of it is learned')
        if self._marks_itself:
            text, spans = self._rendered(messages, marks=True)
            learned = tuple((first, end) for first, end in spans if first < end)
        else:
            text, _ = self._rendered(messages)
            learned = tuple(span for span in self._turns(messages, text) if span[0] < span[1])
        if not learned:
            raise Unfillable("has nothing that is learned: the chat template leaves the assistant's messages out")
        return Content(text, learned, is_rendered=True)

    def _turns(self, messages: Sequence[Message], text: str) -> list[Span]:
        """Return where the assistant's turns are in the text of a whole conversation."""
        found = []
        for place, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before = self._rendered(messages[:place], prompted=True)[0]
            after = self._rendered(messages[: place + 1])[0]
            if not (after.startswith(before) and text.startswith(after)):
                raise Unfillable(
                    f"has a message {place + 1} that the chat template writes in another way when other messages come "
                    "before or after it, so that its place is not known: put {% generation %} around what the "
                    "assistant says in the template, and give that as chat_template"
                )
            found.append((len(before), len(before) + self._spoken(after[len(before) :])))
        return found

    def _spoken(self, turn: str) -> int:
        """Return how many characters of a turn there are up to the special token that ends it."""
        bare = turn.rstrip()
        return len(bare) if bare.endswith(self._ends) else len(turn)

    def _rendered(
        self, messages: Sequence[Message], *, marks: bool = False, prompted: bool = False
    ) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                [list(messages)],
                chat_template=self._template,
                return_assistant_tokens_mask=marks,
                add_generation_prompt=prompted,
                **self._special,
            )
        except Exception as error:  # noqa: BLE001 - a template fails in as many ways as a program
            why = " ".join(str(error).split())[:_WHY_LONGEST]
            raise Unfillable(f"is refused by the chat template ({why or type(error).__name__})") from None
        return texts[0], spans[0] if marks else []


def template_text(data: Data) -> str | None:
    """Return the chat template that a job names; None: it names none.

    Raises:
        UserError: its file cannot be read.
    """
    if data.chat_template is None:
        return None
    try:
        return Path(data.chat_template).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"data.chat_template: cannot read {data.chat_template}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"data.chat_template: {data.chat_template} is not UTF-8") from None


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the special tokens of a tokenizer, also those that have no name such as "eos_token"."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return list(dict.fromkeys([*tokenizer.all_special_tokens, *added]))


def check_offsets(tokenizer: Any, key: str) -> None:
    """Check that a tokenizer tells which characters its tokens are of.

    Raises:
        UserError: it does not.
    """
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(
            f"{key}: the tokenizer does not tell which characters a token is of, so that what is learned cannot be "
            "told from the rest: save it with a tokenizer.json"
        )


def _own_template(tokenizer: Any) -> str | None:
    """Return the chat template of a tokenizer; of several the one for plain conversations."""
    found = tokenizer.chat_template
    if isinstance(found, dict):
        found = found.get("default")
    return str(found) if found else None


def _checked(template: str, data: Data) -> str:
    """Return a template that Jinja can read.

    Raises:
        UserError: it cannot.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        render_jinja_template([], chat_template=template)
    except Exception as error:  # noqa: BLE001 - whatever Jinja makes of it
        whose, line = data.chat_template or f"that of {data.tokenizer}", getattr(error, "lineno", None)
        where = f"line {line}: " if line is not None else ""
        why = " ".join(str(error).split())[:_WHY_LONGEST]
        raise UserError(f"data.chat_template: {whose} is no template of Jinja ({where}{why})") from None
    return template
