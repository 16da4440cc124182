"""Text to tokens and back."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dtfm_protocol.data.tokenizer import encode, load, make_tokenizer, save
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data

BYTES = Data(text="cpython")
SAMPLE = [
    "the cat sat on the mat; the cat.\r\n",
    "a naïve façade — 漢字 🎉, isn't it?",
    "the end<|endoftext|>of it",
]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Bytes as made and as `AutoTokenizer` loads them again, and a BPE likewise."""
    made = [make_tokenizer(BYTES, []), make_tokenizer(Data(text="cpython", tokenizer="bpe:290"), SAMPLE)]
    folders = [tmp_path_factory.mktemp("tokenizer") for _ in made]
    for tokenizer, folder in zip(made, folders, strict=True):
        save(tokenizer, folder)
    return [*made, *(AutoTokenizer.from_pretrained(str(folder), local_files_only=True) for folder in folders)]


@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back_exactly(tokenizers: list, text: str) -> None:
    for tokenizer in tokenizers:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_the_ids_of_the_bytes_tokenizer_are_the_bytes_of_utf8(tokenizers: list, text: str) -> None:
    for tokenizer in (tokenizers[0], tokenizers[2]):
        assert tokenizer.encode(text, add_special_tokens=False) == list(text.encode())


def test_every_byte_has_an_id_and_the_end_of_text_comes_after_them(tokenizers: list) -> None:
    for tokenizer in (tokenizers[0], tokenizers[2]):
        assert len(tokenizer) == 257
        assert tokenizer.eos_token_id == 256
        assert tokenizer.convert_ids_to_tokens([0, 65, 255, 256]) == ["Ā", "A", "ÿ", "<|endoftext|>"]


def test_the_same_text_trains_the_same_bpe(tokenizers: list) -> None:
    again = make_tokenizer(Data(text="cpython", tokenizer="bpe:290"), SAMPLE)
    assert len(again) == 290
    for tokenizer in (tokenizers[1], tokenizers[3]):
        assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("name", ["bytes", "bpe:290"])
def test_documents_are_joined_by_the_end_of_text_which_no_document_can_fake(name: str) -> None:
    data = Data(text="cpython", tokenizer=name)
    tokenizer = make_tokenizer(data, SAMPLE)
    tokens = np.concatenate(list(encode(data, tokenizer, iter(SAMPLE))))
    ends = np.flatnonzero(tokens == tokenizer.eos_token_id)
    assert len(ends) == 2
    parts = [part[part != tokenizer.eos_token_id] for part in np.split(tokens, ends)]
    assert [tokenizer.decode(part.tolist()) for part in parts] == SAMPLE
    assert len(tokenizer.encode("<|endoftext|>")) == 1  # in a prompt, though, it means what it says


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bpe:", "is no size"),
        ("bpe:many", "is no size"),
        ("bpe:-5", "is no size"),
        ("bpe:²", "is no size"),
        ("bpe:256", 'give at least "bpe:257"'),
        ("bpe:99999", 'is more than the text yields: give at most "bpe:'),
    ],
)
def test_a_bad_size_is_refused_on_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_tokenizer(Data(text="cpython", tokenizer=name), SAMPLE)
    assert "\n" not in str(caught.value)


def test_the_most_that_a_text_yields_can_be_had() -> None:
    with pytest.raises(UserError) as caught:
        make_tokenizer(Data(text="cpython", tokenizer="bpe:99999"), SAMPLE)
    size = int(str(caught.value).rsplit(":", 1)[1].rstrip('"'))
    assert len(make_tokenizer(Data(text="cpython", tokenizer=f"bpe:{size}"), SAMPLE)) == size


def test_a_folder_gives_its_tokenizer(tmp_path: Path) -> None:
    save(make_tokenizer(BYTES, []), tmp_path)
    assert len(make_tokenizer(Data(text="cpython", tokenizer=str(tmp_path)), [])) == 257


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer folder"):
        load(tmp_path / "none")
    with pytest.raises(UserError, match="cannot load a tokenizer from") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3", "gemma3_text", "no-such-architecture"])
@pytest.mark.parametrize("config", [False, True])
def test_a_models_folder_without_a_tokenizer_is_no_tokenizer_of_another_kind(
    tmp_path: Path, architecture: str, config: bool
) -> None:
    """`transformers` may make an empty one up, by the name of the architecture."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture}))
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(
        UserError, match=r"folder .* has no tokenizer: put the files .* or name another in \[data\]"
    ) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(BYTES, [])
    tokenizer.eos_token = None
    save(tokenizer, tmp_path)
    with pytest.raises(UserError, match="has no eos_token"):
        make_tokenizer(Data(text="cpython", tokenizer=str(tmp_path)), [])
