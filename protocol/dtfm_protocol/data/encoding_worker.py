"""A worker that turns pieces of text into tokens: a process of its own, and the other end of its pipes.

Run as a program, it reads the job's table and its tokenizer from standard input, then one piece after the other, and
writes the parts of each. It ends with the program that has started it.
"""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.piece_encoder import EncodedPart, PieceEncoder
from dtfm_protocol.data.rows import Cut, Fault
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.data.text_pieces import TextPiece
from dtfm_protocol.data.tokenizer import load
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.process.child_processes import end_with_parent

_SIZES = struct.Struct("<QQ")
"""Bytes of a message's JSON, and of the integers behind it."""


class EncodingWorker:
    """A process that encodes pieces."""

    def __init__(self, data: Data, tokenizer: Any) -> None:
        """Start it; it takes a second or two until it answers."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        written = backend.to_str() if backend is not None and data.tokenizer != "bytes" else None
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C is for the program that has started it
            preexec_fn=end_with_parent(signal.SIGKILL),
            # One thread each: there is a worker for each core.
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        self._ask({"data": data.model_dump(mode="json"), "tokenizer": written, "end": int(tokenizer.eos_token_id)})

    def parts(self, piece: TextPiece) -> Iterator[EncodedPart]:
        """Have a piece encoded, and yield its parts as they come.

        Raises:
            UserError: the file is out of reach, or the process has ended.
        """
        self._ask(
            {
                "key": piece.source.key,
                "source": piece.source.source.model_dump(mode="json"),
                "file": str(piece.file),
                "cut": list(piece.cut),
            }
        )
        while True:
            stream = self._process.stdout
            assert stream is not None
            found = _read(stream)
            if found is None:
                code = self._process.wait()
                raise UserError(
                    f"a process that turns text into tokens has ended with code {code}"
                    + (": there may be too little memory" if code == -signal.SIGKILL else "")
                )
            said, raw = found
            if "error" in said:
                raise UserError(said["error"])
            yield _part_of(said, raw)
            if said["rows"] is not None:
                return

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what it was not told any more
                    stream.close()

    def _ask(self, asked: dict[str, Any]) -> None:
        stream = self._process.stdin
        assert stream is not None
        try:
            _write(stream, asked)
        except BrokenPipeError:
            return  # it has ended, which is said where its answer is waited for


def _write(stream: IO[bytes], said: dict[str, Any], *raw: bytes) -> None:
    text = json.dumps(said).encode()
    stream.write(_SIZES.pack(len(text), sum(map(len, raw))) + text)
    for part in raw:
        stream.write(part)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read a message; None: there are no more."""
    head = stream.read(_SIZES.size)
    if len(head) < _SIZES.size:
        return None
    size, more = _SIZES.unpack(head)
    text, raw = stream.read(size), stream.read(more)
    return (json.loads(text), raw) if len(text) + len(raw) == size + more else None


def _written(part: EncodedPart) -> tuple[dict[str, Any], list[bytes]]:
    """Return the message that says a part."""
    arrays = (part.lengths, part.tokens, part.is_target, part.is_whole)  # the widest numbers first
    faults = [(one.number, one.why, one.size, one.rows, one.is_end) for one in part.faults]
    said = {"sizes": [len(array) for array in arrays], "faults": faults, "read": part.read, "rows": part.rows}
    return said, [array.tobytes() for array in arrays]


def _part_of(said: dict[str, Any], raw: bytes) -> EncodedPart:
    """Return the part that a message says."""
    found, at = list[npt.NDArray[Any]](), 0
    for kind, size in zip((np.int64, np.uint32, np.bool_, np.bool_), said["sizes"], strict=True):
        found.append(np.frombuffer(raw, kind, size, at))
        at += found[-1].nbytes
    lengths, tokens, is_target, is_whole = found
    faults = tuple(Fault(*fault) for fault in said["faults"])
    return EncodedPart(tokens, lengths, is_target, is_whole, faults, said["read"], said["rows"])


class _Fast:
    """What encoding wants of a tokenizer, without the seconds that importing `transformers` takes."""

    def __init__(self, written: str | None, end: int) -> None:
        """Take a tokenizer as `tokenizers` writes it, None for that of bytes, and its end of text."""
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_str(written) if written is not None else None
        self.eos_token_id = end


def _work() -> None:
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    begun = _read(asked)
    if begun is None:
        return
    data, written = Data.model_validate(begun[0]["data"]), begun[0]["tokenizer"]
    folder = data.tokenizer_folder if written is None else None
    tokenizer = load(folder) if folder is not None else _Fast(written, begun[0]["end"])
    encoder = PieceEncoder(data, tokenizer)
    while (found := _read(asked)) is not None:
        piece, _ = found
        file = Path(piece["file"])
        source = SourceFiles(piece["key"], DataSource.model_validate(piece["source"]), (file,))
        try:
            for part in encoder.parts(source, file, Cut(*piece["cut"])):
                said, raw = _written(part)
                _write(answers, said, *raw)
        except UserError as error:
            _write(answers, {"error": str(error)})


if __name__ == "__main__":
    _work()
