"""The size of a text: what was counted is what tokenizing gives, what was estimated is near it and says so."""

import json
import random
from pathlib import Path

import pytest

from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.text_size import most_tokens, text_size
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.data.tokenizer import make_tokenizer, save
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource

pytestmark = pytest.mark.unit


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Five files of words with letters of one to four bytes; one is empty."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdeäöü€語😀", k=draw.randint(1, 7))) for _ in range(400)]
    for name, count in (("a", 3000), ("b", 0), ("c", 300), ("d", 7000), ("e", 1500)):
        text = " ".join(draw.choices(words, k=count))
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def data(folder: Path, tokenizer: str) -> Data:
    return Data(text=[str(folder / "*.txt")], tokenizer=tokenizer)


def folder_of(corpus: Path, size: str) -> str:
    """A tokenizer's folder."""
    made = corpus / "tokenizer"
    save(make_tokenizer(data(corpus, size), [file.read_text("utf-8") for file in corpus.glob("*.txt")]), made)
    return str(made)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:400", "folder"])
def test_a_short_text_is_counted_as_it_will_be_tokenized(corpus: Path, tokenizer: str) -> None:
    asked = data(corpus, folder_of(corpus, "bpe:300") if tokenizer == "folder" else tokenizer)
    found = text_size(asked)
    assert found.tokens == tokenize(asked, corpus / "tokens").corpus.tokens
    assert found.bytes == sum(file.stat().st_size for file in corpus.glob("*.txt"))
    assert (found.documents, found.how) == (4, "")


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:400"])
def test_the_bytes_alone_bound_the_tokens(corpus: Path, tokenizer: str) -> None:
    (corpus / "b.txt").write_text("no longer empty")
    asked = data(corpus, tokenizer)
    most, found = most_tokens(asked), text_size(asked).tokens
    assert most is not None
    assert (most == found) if tokenizer == "bytes" else (found < most)
    assert most_tokens(data(corpus, "folder")) is None
    for seed in range(5):  # a part of the files, whichever they are
        part = DataSource(path=str(corpus / "*.txt"), kind="text", weight=0.5)
        drawn = Data(sources=[part], tokenizer=tokenizer)
        assert text_size(drawn, seed=seed).tokens <= (most_tokens(drawn) or 0)


def test_bytes_are_counted_however_long_the_text_is(corpus: Path) -> None:
    assert text_size(data(corpus, "bytes"), whole=1000) == text_size(data(corpus, "bytes"))


@pytest.mark.parametrize("tokenizer", ["bpe:400", "bpe:1000000", "folder"])
def test_a_longer_text_is_estimated_from_a_sample_of_all_of_it(corpus: Path, tokenizer: str) -> None:
    """A BPE larger than the sample yields is no mistake yet: the whole may yield it."""
    asked = data(corpus, folder_of(corpus, "bpe:400") if tokenizer == "folder" else tokenizer)
    found = text_size(asked, whole=1000)
    assert "sample" in found.how
    if tokenizer != "bpe:1000000":
        assert found.tokens == pytest.approx(tokenize(asked, corpus / "tokens").corpus.tokens, rel=0.05)
    else:
        assert 0 < found.tokens < found.bytes


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:400"])
@pytest.mark.parametrize("whole", [1000, 1 << 30])
def test_sources_of_all_kinds_are_measured_with_their_weights(corpus: Path, tokenizer: str, whole: int) -> None:
    """What is counted is what tokenizing gives; what is estimated is near it, and says so."""
    texts = (corpus / "d.txt").read_text("utf-8").split("語")
    (corpus / "d.jsonl").write_text("\n".join(json.dumps({"text": text, "more": text[:9]}) for text in texts))
    sources = [("*.txt", "text", 1), ("d.jsonl", "jsonl", 1.5), ("d.jsonl", "jsonl", 0.5)]
    made = [DataSource(path=str(corpus / path), kind=kind, weight=weight) for path, kind, weight in sources]
    asked = Data(sources=made, tokenizer=tokenizer)
    found = text_size(asked, whole, seed=3)
    documents = [document.text for document in Documents(asked, 3)]
    exact = (len(documents), sum(len(text.encode()) for text in documents))
    tokens = tokenize(asked, corpus / "tokens", seed=3).corpus.tokens
    if whole > 1000:
        assert (found.documents, found.bytes, found.tokens, found.how) == (*exact, tokens, "")
    else:
        assert (found.documents, found.bytes) == pytest.approx(exact, rel=0.1)
        assert found.tokens == pytest.approx(tokens, rel=0.1)
        assert "sample" in found.how


def test_a_file_that_is_not_utf8_is_named_with_the_byte(corpus: Path) -> None:
    (corpus / "d.txt").write_bytes(b"x" * 5000 + b"\xff" + b"x" * 200_000)
    for whole in (1000, 1 << 30):
        with pytest.raises(UserError, match=r"d\.txt is not UTF-8 \(byte 5000\)"):
            text_size(data(corpus, "bytes"), whole)


def test_more_text_than_a_job_can_name_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for number in range(9):
        with (tmp_path / f"huge-{number}.txt").open("wb") as file:
            file.truncate(1 << 41)  # a hole: it takes no disk
    with pytest.raises(UserError, match="give less text"):
        text_size(data(tmp_path, "bytes"))
