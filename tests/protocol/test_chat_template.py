"""What of a conversation is learned: the assistant's turns, token by token as `transformers` marks them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtfm_protocol.data.chat_template import ChatTemplate
from dtfm_protocol.data.sample_encoding import Sample, encode_samples
from dtfm_protocol.data.tokenizer import make_tokenizer
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.job.document_template import Unfillable
from tests.harness.chat_templates import CHATML, TEMPLATES, chat_tokenizer, unmarked

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}],
    [
        {"role": "user", "content": "A question — with 漢字 and 🎉"},
        {"role": "assistant", "content": "the answer is an answer 🎉"},
        {"role": "user", "content": "  and\n\nthen? "},
        {"role": "assistant", "content": "what the assistant did.\n\n- one\n- two"},
    ],
    [
        {"role": "user", "content": "assistant"},
        {"role": "assistant", "content": "user <|im_end|> assistant"},
        {"role": "user", "content": "the last word is the user's"},
    ],
]
"""Conversations that each of the templates takes."""


def saved(folder: Path, template: str | None) -> Data:
    chat_tokenizer(template).save_pretrained(str(folder))
    (folder / "c.jsonl").touch()
    return Data(sources=[DataSource(path=str(folder / "c.jsonl"), kind="messages")], tokenizer=str(folder))


def encoded(data: Data, chat: list[dict[str, Any]]) -> Sample:
    template = ChatTemplate.of_job(data)
    assert template is not None
    (sample,) = encode_samples(data, make_tokenizer(data, ()), [template.content(chat)])
    return sample


@pytest.mark.parametrize("marks_itself", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_masks_are_those_of_transformers_token_by_token(tmp_path: Path, name: str, marks_itself: bool) -> None:
    """Without marks in the template, what its renderings tell is held to the marks of its twin that has them."""
    template = TEMPLATES[name]
    assert "{%- generation %}" in template
    assert "generation %}" not in unmarked(template)
    data = saved(tmp_path, template if marks_itself else unmarked(template))
    theirs = chat_tokenizer(template)
    for chat in CHATS:
        wanted = theirs.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        found = encoded(data, chat)
        assert found.tokens.tolist() == wanted["input_ids"]
        assert found.is_target.astype(int).tolist() == wanted["assistant_masks"]
        assert 0 < found.is_target.sum() < len(found.tokens)
        assert found.is_whole


def test_with_bytes_and_a_template_of_ones_own_the_names_of_special_tokens_are_these(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.role + ': ' + message.content + eos_token }}{% endfor %}"
    (tmp_path / "chat.jinja").write_text(
        template + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}", encoding="utf-8"
    )
    (tmp_path / "c.jsonl").touch()
    source = DataSource(path=str(tmp_path / "c.jsonl"), kind="messages")
    data = Data(sources=[source], chat_template=str(tmp_path / "chat.jinja"))
    found = encoded(data, [{"role": "user", "content": "é<|endoftext|>"}, {"role": "assistant", "content": "漢 a"}])
    says = "user: é".encode(), b"assistant: ", "漢 a".encode()
    assert found.tokens.tolist() == [*says[0], 256, 256, *says[1], *says[2], 256]
    assert np.flatnonzero(found.is_target).tolist() == list(
        range(len(found.tokens) - len(says[2]) - 1, len(found.tokens))
    )
    tokenizer = make_tokenizer(data, ())
    assert tokenizer.chat_template == (tmp_path / "chat.jinja").read_text(encoding="utf-8")
    text = "user: é<|endoftext|><|endoftext|>assistant: 漢 a<|endoftext|>"
    assert tokenizer(text)["input_ids"] == found.tokens.tolist()


@pytest.mark.parametrize("tokenizer", ["bytes", "folder"])
def test_of_a_completion_all_its_characters_and_the_end_are_learned(tmp_path: Path, tokenizer: str) -> None:
    data = saved(tmp_path, None)
    from dtfm_protocol.data.contents import ContentReader

    data = data.model_copy(update={"tokenizer": "bytes"} if tokenizer == "bytes" else {})
    source = DataSource(path="a.jsonl", kind="completions", template="Q: {question}\nA:", column="answer")
    content = ContentReader(source).of({"question": "why </s>?", "answer": " because 漢"})
    made = make_tokenizer(data, ())
    (found,) = encode_samples(data, made, [content])
    assert made.decode(found.tokens[found.is_target]) == " because 漢" + made.eos_token
    assert made.decode(found.tokens[~found.is_target]) == "Q: why </s>?\nA:"
    assert (found.tokens == made.eos_token_id).sum() == 1


THINKING = CHATML.replace(
    "{%- generation %}{{- message['content']",
    "{{- '<think></think>' if loop.last else '' }}{{- message['content']",
).replace("{%- endgeneration %}", "")


@pytest.mark.parametrize(
    ("template", "chat", "complaint"),
    [
        (unmarked(CHATML), [{"role": "user", "content": "x"}], 'has no message of the role "assistant"'),
        (
            TEMPLATES["gemma"],
            [{"role": "assistant", "content": "x"}],
            r"refused by the chat template \(Conversation roles",
        ),
        (unmarked(TEMPLATES["gemma"]), [{"role": "assistant", "content": "x"}], r"refused by the chat template \(Conv"),
        (THINKING, CHATS[1], "has a message 2 that the chat template writes in another way when other"),
        ("{{ messages[0]['content'] }}", CHATS[0], "has a message 2 .*|has nothing that is learned"),
        ("{% generation %}{% endgeneration %}{{ messages[0]['content'] }}", CHATS[0], "has nothing that is learned"),
        ("{{ messages[0]['content'] + 1 }}", CHATS[0], r"refused by the chat template \("),
    ],
)
def test_a_conversation_that_cannot_be_told_apart_is_refused_in_a_line(
    tmp_path: Path, template: str, chat: list[dict[str, Any]], complaint: str
) -> None:
    with pytest.raises(Unfillable, match=complaint) as caught:
        encoded(saved(tmp_path, template), chat)
    assert "\n" not in str(caught.value)


def test_messages_without_a_chat_template_are_refused_and_so_is_one_that_is_none(tmp_path: Path) -> None:
    data = saved(tmp_path / "a", None)
    with pytest.raises(
        UserError, match=r'^data.sources.0: kind = "messages" needs a chat template, and the tokenizer, the'
    ):
        ChatTemplate.of_job(data)
    with pytest.raises(UserError, match=r'and the tokenizer, "bytes", has none: give one, as chat_template = "FILE"'):
        ChatTemplate.of_job(data.model_copy(update={"tokenizer": "bytes"}))
    with pytest.raises(UserError, match=r"^data.chat_template: cannot read .*none: No such file"):
        ChatTemplate.of_job(data.model_copy(update={"chat_template": str(tmp_path / "none")}))
    (tmp_path / "bad").write_text("\n{% if %}")
    with pytest.raises(UserError, match=r"^data.chat_template: .*bad is no template of Jinja \(line 2: "):
        ChatTemplate.of_job(data.model_copy(update={"chat_template": str(tmp_path / "bad")}))
    (tmp_path / "bad").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8"):
        ChatTemplate.of_job(data.model_copy(update={"chat_template": str(tmp_path / "bad")}))
    assert ChatTemplate.of_job(Data(text="cpython")) is None


def test_a_tokenizer_that_does_not_know_its_places_in_the_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "a": 1}))
    data = Data(sources=[DataSource(path="c.jsonl", kind="messages")], tokenizer=str(tmp_path))
    from dtfm_protocol.data.chat_template import check_offsets

    with pytest.raises(UserError, match=r"^data: the tokenizer does not tell .*save it with a tokenizer.json$"):
        check_offsets(object(), "data")
    assert data.is_laid_out
