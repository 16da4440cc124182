"""The journal of a corpus that is being made: what is on disk of it, so that who is broken off can go on there."""

import contextlib
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from dtfm_protocol.bounds import Count
from dtfm_protocol.data.corpus_writer import WrittenShard
from dtfm_protocol.data.text_tally import PieceTally
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.resolved_job import Sha256, Shard
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

FOLDER = "preparing"
"""Folder of a state dir in which it lies; it is taken away once the job is prepared."""
_JOURNAL, _TOKENIZER = "preparing.jsonl", "tokenizer.json"


class _Begun(Schema):
    """The first line."""

    stamp: str
    """Digest of all that the tokens are made from."""
    tokenizer: Sha256
    """Hash of the tokenizer's file."""
    shard_tokens: Count


class _Line(Schema):
    """A line: what has been done, and the digest of it with all lines before, so that no part can be damaged unseen."""

    begun: _Begun | None = None
    piece: PieceTally | None = None
    shard: Sha256 | None = None
    marks: Sha256 | None = None
    """Those of the shard, of a corpus with samples."""
    state: Sha256 | None = None
    digest: str = ""


class NotedState(NamedTuple):
    """A state of the work between two pieces, in a file of its own, where pieces and shards alone do not tell it."""

    pieces: int
    """Pieces that were taken before it."""
    shards: int
    """Shards that were written before it."""
    sha256: Sha256
    """Hash of its file."""


class PreparingJournal:
    """A journal, in a folder of its own.

    It has a line for each piece of the text whose tokens were all taken, one for each whole shard that was written, and
    one for each state that was noted.
    """

    def __init__(self, folder: Path, stamp: str) -> None:
        """Read what is there; a line that is torn or damaged, and what comes after it, does not count.

        Args:
            folder: the journal's own.
            stamp: digest of all that the tokens are made from.
        """
        self._folder, self._stamp, self._digest = folder, stamp, ""
        self.tokenizer = ""
        """The tokenizer, as `tokenizers` writes it; "": it is made anew, or lies elsewhere."""
        self.shard_tokens = 0
        self.pieces: list[PieceTally] = []
        """Those that were there; so with shards."""
        self.shards: list[WrittenShard] = []
        self.states: list[NotedState] = []
        self._last_state = ""
        self.is_outdated = False
        """Whether one was there that was begun from something else, or is damaged."""
        self._read()

    @property
    def is_begun(self) -> bool:
        """Whether there is something to go on with."""
        return bool(self._digest)

    def begin(self, tokenizer: str, shard_tokens: int) -> None:
        """Begin anew.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self.pieces, self.shards, self.states, self._last_state, self._digest = [], [], [], "", ""
        self.tokenizer, self.shard_tokens = tokenizer, shard_tokens
        try:
            self._folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise UserError(f"cannot write {self._folder}: {error.strerror}") from None
        write_atomically(self._folder / _TOKENIZER, tokenizer)
        self._write(self._first())

    def cut_back(self, pieces: int, shards: int, state: NotedState | None = None) -> None:
        """Keep no more than so many lines of each kind, and a state that comes after them, as the others are made anew.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        kept, self._digest = (self.pieces[:pieces], self.shards[:shards]), ""
        lines = [_Line(piece=one) for one in kept[0]] + [_of_shard(one) for one in kept[1]]
        self.states = [state] if state is not None else []
        self._last_state = state.sha256 if state is not None else ""
        lines += [_Line(state=one.sha256) for one in self.states]
        write_atomically(self._folder / _JOURNAL, self._text(self._first(), *lines))
        self.pieces, self.shards = kept

    def add_piece(self, tally: PieceTally) -> None:
        """Note that all tokens of a piece were taken."""
        self._write(_Line(piece=tally))

    def add_shard(self, shard: WrittenShard) -> None:
        """Note that a whole shard was written."""
        self._write(_of_shard(shard))

    def add_state(self, data: bytes) -> None:
        """Note the state of the work after all that was noted; it, and all lines so far, survive a power cut.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        name = _hash(data)
        write_atomically(self._state_path(name), data, lasting=True)
        self._write(_Line(state=name), lasting=True)
        # The one before is kept, too: this one's shards may turn out damaged.
        for path in set(self._folder.glob("state-*")) - {self._state_path(name), self._state_path(self._last_state)}:
            path.unlink(missing_ok=True)
        self._last_state = name

    def state(self, noted: NotedState) -> bytes | None:
        """Return a state that was noted; None: it is not there any more, or damaged."""
        try:
            data = self._state_path(noted.sha256).read_bytes()
        except OSError:
            return None
        return data if _hash(data) == noted.sha256 else None

    def end(self) -> None:
        """Take the journal away: the corpus is there."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        try:
            lines = (self._folder / _JOURNAL).read_bytes().splitlines()
            tokenizer = (self._folder / _TOKENIZER).read_bytes()
        except OSError:
            self.is_outdated = self._folder.exists()
            return
        for number, text in enumerate(lines):
            line = self._checked(text)
            if line is None:
                break
            if number == 0:
                begun = line.begun
                if begun is None or begun.stamp != self._stamp or begun.tokenizer != _hash(tokenizer):
                    break
                self.tokenizer, self.shard_tokens = tokenizer.decode(), begun.shard_tokens
            self.pieces += [line.piece] if line.piece is not None else []
            if line.shard is not None:
                marks = Shard(sha256=line.marks, tokens=self.shard_tokens) if line.marks is not None else None
                self.shards.append(WrittenShard(Shard(sha256=line.shard, tokens=self.shard_tokens), marks))
            if line.state is not None:
                self.states.append(NotedState(len(self.pieces), len(self.shards), line.state))
                self._last_state = line.state
            self._digest = line.digest
        self.is_outdated = not self._digest

    def _checked(self, text: bytes) -> _Line | None:
        with contextlib.suppress(ValidationError):
            line = _Line.model_validate_json(text)
            if line.digest == self._chained(line):
                return line
        return None

    def _chained(self, line: _Line) -> str:
        said = line.model_dump_json(exclude={"digest"}, exclude_none=True)
        return _hash(f"{self._digest}\n{said}".encode())[:16]

    def _first(self) -> _Line:
        tokenizer = _hash(self.tokenizer.encode())
        return _Line(begun=_Begun(stamp=self._stamp, tokenizer=tokenizer, shard_tokens=self.shard_tokens))

    def _text(self, *lines: _Line) -> str:
        text = ""
        for line in lines:
            self._digest = self._chained(line)
            text += line.model_copy(update={"digest": self._digest}).model_dump_json(exclude_none=True) + "\n"
        return text

    def _state_path(self, name: str) -> Path:
        return self._folder / f"state-{name[:16]}"

    def _write(self, line: _Line, *, lasting: bool = False) -> None:
        """Add a line. A machine that fails may lose some of the last ones: they are then done anew."""
        path = self._folder / _JOURNAL
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(self._text(line))
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}: free some space") from None


def _of_shard(shard: WrittenShard) -> _Line:
    return _Line(shard=shard.tokens.sha256, marks=shard.marks.sha256 if shard.marks is not None else None)


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()
