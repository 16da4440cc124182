"""What preparing a corpus takes: seconds, and the memory of its process, which is to stay as it is for a longer one.

`python -m benchmarks.preparing --out FILE` keeps the table. Each corpus is made up, of documents of 2 kB, as lines of
JSON and as one Parquet file, and becomes tokens in a process of its own. The peak is the kernel's (VmHWM).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.loaded import peak_bytes
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.job.data_table import Data

SIZES_MB = (15, 60)
DOCUMENT_BYTES = 2000
CASES = (("jsonl", "bytes"), ("parquet", "bytes"), ("jsonl", "bpe:8192"))
"""Kind of source, and tokenizer."""
HEADINGS = ("source", "tokenizer", "text", "seconds", "MB of text a second", "peak memory")


def documents(megabytes: int) -> Iterator[str]:
    """Texts of made-up words, no two alike, so many that they have these megabytes."""
    draw = random.Random(5)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(20_000)]
    pool = [" ".join(draw.choices(words, k=DOCUMENT_BYTES // 5)) for _ in range(500)]
    for number in range(megabytes * 1_000_000 // DOCUMENT_BYTES):
        yield f"{number} {pool[number % len(pool)]}"[:DOCUMENT_BYTES]


def write(path: Path, kind: str, megabytes: int) -> None:
    """Write a corpus."""
    if kind == "jsonl":
        with path.open("w", encoding="utf-8") as file:
            for text in documents(megabytes):
                file.write(json.dumps({"text": text}) + "\n")
        return
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with ParquetWriter(path, pa.schema([("text", pa.string())])) as table:
        held: list[str] = []
        for text in documents(megabytes):
            held.append(text)
            if len(held) == 10_000:
                table.write_table(pa.table({"text": held}))
                held.clear()
        table.write_table(pa.table({"text": held}, schema=table.schema))


def prepare(path: Path, kind: str, tokenizer: str) -> None:
    """Turn a corpus into tokens; print the seconds that it took, and the peak of this process in bytes."""
    from dtfm_protocol.data.tokenization import tokenize

    data = Data.model_validate({"sources": [{"path": str(path), "kind": kind}], "tokenizer": tokenizer})
    begun = time.monotonic()
    tokenize(data, path.parent / "tokens")
    print(time.monotonic() - begun, peak_bytes(os.getpid()))


def measured(kind: str, tokenizer: str, megabytes: int) -> tuple[str, ...]:
    """Prepare a corpus in a process of its own; the row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus"
        write(path, kind, megabytes)
        command = [sys.executable, "-m", "benchmarks.preparing", "--of", str(path), kind, tokenizer]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    seconds, peak = float(said[0]), float(said[1])
    return kind, tokenizer, f"{megabytes} MB", f"{seconds:.1f}", f"{megabytes / seconds:.1f}", f"{peak / 1e6:,.0f} MB"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_MB, help="megabytes of text")
    parser.add_argument("--out", type=Path, help="write the table there")
    parser.add_argument("--of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        prepare(Path(arguments.of[0]), arguments.of[1], arguments.of[2])
        return
    about = f"Machine: {machine()}.\n"
    rows = [measured(kind, one, size) for kind, one in CASES for size in arguments.sizes]
    title = "Preparing a corpus of made-up words, in documents of 2 kB"
    show(title, HEADINGS, rows)
    keep(arguments.out, "Preparing", "python -m benchmarks.preparing", (about, markdown(title, HEADINGS, rows)))


if __name__ == "__main__":
    main()
