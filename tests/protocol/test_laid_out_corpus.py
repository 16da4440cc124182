"""Documents that stand apart become the same corpus however often that was broken off."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.data import corpus_writer, json_lines, laid_out_corpus, piece_encoder
from dtfm_protocol.data.layout_state import LayoutState
from dtfm_protocol.data.packing import Bin, Packer
from dtfm_protocol.data.preparing_journal import PreparingJournal
from dtfm_protocol.data.sample_encoding import Sample
from dtfm_protocol.data.tokenization import Tokenized, tokenize
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from tests.harness.chat_templates import CHATML

SIZES: dict[str, Any] = {"seed": 3, "sequence_length": 128, "shard_bytes": 600, "chapter_shards": 5}
STAMP = "s"


class Killed(BaseException):
    """What a test does to the work."""


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "CUT_BYTES", 700)
    monkeypatch.setattr(laid_out_corpus, "STATE_BYTES", 1500)


def data_of(home: Path, packing: bool = True) -> Data:
    """Conversations, completions and plain text, some of them with a weight, and a row that is passed over."""
    (home / "chat.jinja").write_text(CHATML)
    for name, row in {
        "chat": lambda number: {
            "messages": [
                {"role": "user", "content": f"question {number}"},
                {"role": "assistant", "content": "an answer " * (number % 4)},
            ]
        },
        "qa": lambda number: {"q": f"what is {number}?", "a": f"it is {number}" * (number % 3)},
        "text": lambda number: {"text": f"line {number} " * (1 + number % 11)},
    }.items():
        lines = [json.dumps(row(number)) for number in range(60)]
        (home / f"{name}.jsonl").write_text("\n".join([*lines[:7], "{", *lines[7:]]))
    sources = [
        {"path": "text.jsonl", "kind": "jsonl", "weight": 0.75},
        {"path": "chat.jsonl", "kind": "messages", "weight": 1.5},
        {"path": "qa.jsonl", "kind": "completions", "template": "Q: {q}\nA: ", "column": "a"},
    ]
    found = [
        DataSource.model_validate(one | {"path": str(home / one["path"]), "on_error": "skip"})  # type: ignore[operator]
        for one in sources
    ]
    return Data(sources=found, packing=packing, chat_template=str(home / "chat.jinja"))


def made(data: Data, home: Path, said: list[str] | None = None, workers: int = 1) -> Tokenized:
    say = said.append if said is not None else lambda line: None
    journal = PreparingJournal(home / "journal", STAMP)
    return tokenize(data, home / "tokens", say, journal=journal, workers=workers, **SIZES)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def broken_off(data: Data, home: Path, of: type, verb: str, after: int, workers: int = 1) -> bool:
    """Make the corpus, but die before the verb is done for so many times; whether that came."""
    done, do = 0, getattr(of, verb)

    def count(*arguments: Any, **named: Any) -> Any:
        nonlocal done
        if done == after:
            raise Killed
        done += 1
        return do(*arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(of, verb, count)
        try:
            made(data, home, workers=workers)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(
    ("of", "verb", "after"),
    [
        (corpus_writer.CorpusWriter, "_keep", 0),
        (corpus_writer.CorpusWriter, "_keep", 33),
        (PreparingJournal, "add_piece", 5),
        (PreparingJournal, "add_shard", 8),
        (PreparingJournal, "add_state", 1),
        (PreparingJournal, "add_state", 3),
        (PreparingJournal, "_write", 20),
    ],
)
def test_who_is_broken_off_again_and_again_goes_on_and_makes_the_same_corpus(
    tmp_path: Path, packing: bool, of: type, verb: str, after: int
) -> None:
    data, times = data_of(tmp_path, packing), 0
    said: dict[str, list[str]] = {"whole": [], "broken": []}
    whole = made(data, tmp_path / "whole", said["whole"])
    assert len(whole.corpus.chapters) > 2
    assert 0 < whole.repeated < whole.corpus.tokens
    while broken_off(data, tmp_path, of, verb, after) and times < 3:
        times += 1
    assert times
    found = made(data, tmp_path, said["broken"])
    assert found.corpus == whole.corpus
    assert found.repeated == whole.repeated
    assert files(tmp_path / "tokens") == files(tmp_path / "whole" / "tokens")
    told = {
        name: [line for line in lines if not line.startswith(("Going on", "Turning the text"))]
        for name, lines in said.items()
    }
    assert told["broken"] == told["whole"]
    assert told["broken"][-1].startswith("Passed over 3 rows of the text: ")


@pytest.mark.process
@pytest.mark.parametrize(
    ("packing", "tokenizer", "workers"), [(True, "bytes", 2), (False, "bytes", 3), (True, "bpe:290", 3)]
)
def test_any_number_of_workers_makes_the_same_corpus_also_after_a_break(
    tmp_path: Path, packing: bool, tokenizer: str, workers: int
) -> None:
    data = data_of(tmp_path, packing).model_copy(update={"tokenizer": tokenizer})
    said: dict[str, list[str]] = {"one": [], "many": []}
    one = made(data, tmp_path / "one", said["one"])
    many = made(data, tmp_path / "many", said["many"], workers)
    assert (many.corpus, many.repeated) == (one.corpus, one.repeated)
    assert broken_off(data, tmp_path, PreparingJournal, "add_state", 5, workers)
    again: list[str] = []
    assert made(data, tmp_path, again, workers).corpus == one.corpus
    assert any(line.startswith("Going on where preparing was broken off, after ") for line in again)
    expected = files(tmp_path / "one" / "tokens")
    assert files(tmp_path / "many" / "tokens") == files(tmp_path / "tokens") == expected
    told = [[line for line in lines if not line.startswith("Turning the text")] for lines in said.values()]
    assert told[0] == told[1]


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 3])
def test_of_several_damaged_rows_the_first_is_named_by_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    data = data_of(tmp_path)
    chat = next(one for one in data.sources or () if one.kind == "messages")
    assert chat.path is not None
    rows = Path(chat.path).read_text().split("\n")
    rows[40], rows[52] = '{"messages": []}', '{"messages": 3}'
    Path(chat.path).write_text("\n".join(rows))
    strict = data.model_copy(update={"sources": [chat.model_copy(update={"on_error": "stop"})]})
    with pytest.raises(UserError, match=r"chat\.jsonl, line 8, is not JSON"):
        made(strict, tmp_path / "first", workers=workers)
    Path(chat.path).write_text("\n".join(rows[:7] + rows[8:]))
    with pytest.raises(UserError, match=r"chat\.jsonl, line 40, has no list of messages"):
        made(strict, tmp_path / "second", workers=workers)


def test_what_was_done_is_not_read_or_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(tmp_path)
    assert broken_off(data, tmp_path, PreparingJournal, "add_state", 8)
    encoded, encode = [0], piece_encoder.encode_samples

    def counted(*arguments: Any) -> Any:
        for sample in encode(*arguments):
            encoded[0] += 1
            yield sample

    monkeypatch.setattr(piece_encoder, "encode_samples", counted)
    said: list[str] = []
    made(data, tmp_path, said)
    assert any(line.startswith("Going on where preparing was broken off, after ") for line in said)
    rest = encoded[0]
    made(data, tmp_path / "whole")
    assert rest < (encoded[0] - rest) / 2


@pytest.mark.parametrize("damaged", ["newest state", "all states", "first shard", "newest marks", "journal"])
def test_what_was_damaged_meanwhile_is_made_anew(tmp_path: Path, damaged: str) -> None:
    data = data_of(tmp_path)
    whole = made(data, tmp_path / "whole")
    assert broken_off(data, tmp_path, PreparingJournal, "add_state", 6)
    journal = PreparingJournal(tmp_path / "journal", STAMP)
    shard = {"first shard": journal.shards[0].tokens, "newest marks": journal.shards[-1].marks}.get(damaged)
    states = sorted((tmp_path / "journal").glob("state-*"), key=lambda path: path.stat().st_mtime_ns)
    assert len(states) == 2
    if shard is not None:
        (tmp_path / "tokens" / f"{shard.sha256}.tokens").write_bytes(b"\0" * 7)
    elif damaged == "journal":
        path = tmp_path / "journal" / "preparing.jsonl"
        path.write_bytes(path.read_bytes()[:-300])
    for path in states[-1:] if damaged == "newest state" else states if damaged == "all states" else []:
        path.write_bytes(path.read_bytes()[:-1] + b"\7")
    assert made(data, tmp_path).corpus == whole.corpus
    assert files(tmp_path / "tokens") == files(tmp_path / "whole" / "tokens")


KILLED = """
import os, signal, sys
from pathlib import Path
from dtfm_protocol.data.preparing_journal import PreparingJournal
from tests.protocol import test_laid_out_corpus as test
test.json_lines.CUT_BYTES, test.laid_out_corpus.STATE_BYTES = 700, 1500
home, add, states = Path(sys.argv[1]), PreparingJournal.add_state, []
def killed(journal, data):
    add(journal, data)
    states.append(data)
    if len(states) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
PreparingJournal.add_state = killed
test.made(test.data_of(home), home)
"""


@pytest.mark.process
def test_a_process_that_is_killed_leaves_what_can_be_gone_on_with(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=os.environ, check=False)
    assert died.returncode == -signal.SIGKILL
    said: list[str] = []
    data = data_of(tmp_path)
    assert len(PreparingJournal(tmp_path / "journal", STAMP).states) == 4
    found, whole = made(data, tmp_path, said), made(data, tmp_path / "whole")
    assert any(line.startswith("Going on where preparing was broken off, after ") for line in said)
    assert found.corpus == whole.corpus
    assert files(tmp_path / "tokens") == files(tmp_path / "whole" / "tokens")


@given(st.lists(st.integers(1, 20), max_size=80), st.integers(0, 80), st.booleans())
def test_a_packer_that_goes_on_lays_out_as_if_it_had_never_stopped(sizes: list[int], at: int, shared: bool) -> None:
    samples = [Sample(np.arange(size, dtype=np.int64), np.arange(size) % 3 > 0, size % 2 > 0) for size in sizes]
    whole, first, second = (Packer(8, 99, shared=shared) for _ in range(3))
    expected = list(whole.bins(samples))
    found: list[Bin] = list(first.filled(samples[:at]))
    left = (np.arange(5), np.ones(5, dtype=np.uint8))
    state = LayoutState.of_bytes(LayoutState(first.counts, first.open_bins(), left, 7).to_bytes())
    second.go_on(state.bins, state.counts)
    found += second.bins(samples[at:])
    assert [(one.tokens.tolist(), one.marks.tolist()) for one in found] == [
        (one.tokens.tolist(), one.marks.tolist()) for one in expected
    ]
    assert second.counts == whole.counts
    assert (state.left[0].tolist(), state.left[1].tolist(), state.repeated) == ([0, 1, 2, 3, 4], [1] * 5, 7)
