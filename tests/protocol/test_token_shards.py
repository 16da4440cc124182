"""Tokens on disk."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.token_shards import ShardFolder, ShardMap, TokenReader
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.resolved_job import Corpus, Shard

TOKENS = np.arange(1000) % 257


def written(folder: Path, vocab_size: int = 257, shard_bytes: int = 200) -> Corpus:
    pieces = np.split(TOKENS, [1, 50, 50, 700])
    return write_shards(folder, pieces, vocab_size, shard_bytes)


@pytest.mark.parametrize(("vocab_size", "dtype", "size"), [(65_536, "<u2", 2), (65_537, "<u4", 4)])
def test_shards_hold_the_tokens_in_order_under_the_names_of_their_hashes(
    tmp_path: Path, vocab_size: int, dtype: str, size: int
) -> None:
    corpus = written(tmp_path, vocab_size)
    assert corpus.tokens == 1000
    assert {shard.tokens for shard in corpus.shards} == {200 // size}
    data = b"".join((tmp_path / f"{shard.sha256}.tokens").read_bytes() for shard in corpus.shards)
    assert np.array_equal(np.frombuffer(data, dtype), TOKENS)
    for shard in corpus.shards:
        assert sha256((tmp_path / f"{shard.sha256}.tokens").read_bytes()).hexdigest() == shard.sha256


def test_the_cut_does_not_depend_on_the_pieces(tmp_path: Path) -> None:
    assert write_shards(tmp_path, [TOKENS], 257, 200) == written(tmp_path)


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it gives token 256, but has 200 tokens"):
        written(tmp_path, vocab_size=200)


def test_tokens_that_must_be_others_are_refused_at_the_first_shard_that_differs(tmp_path: Path) -> None:
    first = written(tmp_path)
    assert write_shards(tmp_path, [TOKENS], 257, 200, first) == first
    drawn = []

    def pieces() -> Iterator[np.ndarray]:
        for number in range(10):
            drawn.append(number)
            yield np.zeros(100, dtype=np.int64) if number == 1 else TOKENS[100 * number : 100 * number + 100]

    with pytest.raises(UserError, match=r"another job \(the text, or its tokenizer, differs\)"):
        write_shards(tmp_path, pieces(), 257, 200, first)
    assert max(drawn) <= 2
    with pytest.raises(UserError, match="another job"):
        write_shards(tmp_path, [TOKENS, TOKENS], 257, 200, first)


@given(start=st.integers(0, 1000), count=st.integers(0, 1000))
def test_spans_cover_what_was_asked_for_across_borders(start: int, count: int) -> None:
    sizes = [100, 1, 399, 500]
    corpus = Corpus(dtype="uint16", vocab_size=257, shards=tuple(Shard(sha256="0" * 64, tokens=n) for n in sizes))
    if start + count > 1000:
        with pytest.raises(IndexError):
            list(ShardMap(corpus).spans(start, count))
        return
    parts = np.split(TOKENS, np.cumsum(sizes)[:-1])
    found = [parts[shard][where] for shard, where in ShardMap(corpus).spans(start, count)]
    assert all(len(part) for part in found)
    assert np.array_equal(np.concatenate([[], *found]), TOKENS[start : start + count])


def test_a_reader_crosses_borders(tmp_path: Path) -> None:
    reader = TokenReader(written(tmp_path), ShardFolder(tmp_path))
    for start, count in [(0, 1000), (99, 2), (100, 100), (150, 333), (999, 1), (5, 0)]:
        assert np.array_equal(reader.read(start, count), TOKENS[start : start + count])


def test_a_reader_says_which_shard_is_missing_or_cut_off(tmp_path: Path) -> None:
    corpus = written(tmp_path)
    folder = ShardFolder(tmp_path)
    path = folder.path(corpus.shards[0].sha256)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(Refused, match="198 bytes on disk, not 100 tokens"):
        TokenReader(corpus, folder).read(0, 1)
    path.unlink()
    with pytest.raises(Refused, match="is not here"):
        TokenReader(corpus, folder).read(0, 1)


def test_a_shard_with_another_hash_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path / "shards")
    digest = sha256(b"right").hexdigest()
    with pytest.raises(Refused, match="another hash"):
        folder.add(digest, b"wrong")
    assert not (tmp_path / "shards").exists()
    assert not folder.has(digest)
    folder.add(digest, b"right")
    assert folder.has(digest)
    assert [path.name for path in (tmp_path / "shards").iterdir()] == [f"{digest}.tokens"]


def test_a_damaged_shard_is_taken_away_so_that_it_is_fetched_again(tmp_path: Path) -> None:
    digest = written(tmp_path).shards[0].sha256
    path = ShardFolder(tmp_path).path(digest)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert not ShardFolder(tmp_path).has(digest)
    assert not path.exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_hash_names_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="is no SHA-256"):
        ShardFolder(tmp_path).has(name)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write the shard .*: Not a directory") as caught:
        ShardFolder(tmp_path / "file" / "shards").add(sha256(b"x").hexdigest(), b"x")
    assert "\n" not in str(caught.value)


def test_text_becomes_shards_with_the_end_of_text_between_documents(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 3)
    said: list[str] = []
    corpus, tokenizer, repeated = tokenize(Data(text=[str(tmp_path / "*.txt")]), tmp_path / "shards", said.append)
    tokens = TokenReader(corpus, ShardFolder(tmp_path / "shards")).read(0, corpus.tokens)
    assert tokens.tolist() == [97, 97, 97, 256, 98, 98, 98]
    assert corpus.vocab_size == len(tokenizer) == 257
    assert repeated == 0
    assert said[0] == "Reading the text."
