"""What preparing a corpus takes: seconds, and memory, which is to stay as it is for a longer one.

`python -m benchmarks.preparing --out FILE` keeps the tables; `--large 2000` adds one corpus of as many megabytes, which
is prepared once without a break, and once killed in its middle and gone on with. Each corpus is made up, of documents
of 2 kB, as lines of JSON and as one Parquet file, and becomes tokens in a process of its own, which has a worker for
each core. Peaks are the kernel's: of the process (VmHWM), and of its largest worker (ru_maxrss).

Beside it stands what one would write with `datasets` and the same tokenizer, in as many processes: `load_dataset`, and
`map` with the tokenizer over batches. Both write the tokens; they take turns, and the medians are compared.

Conversations, and text that is packed, are laid out in sequences of 512 tokens: by one process, whose tokenizer has a
thread for each core, and by one a core, in turns.
"""

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.harness.chat_templates import CHATML

from benchmarks.loaded import peak_bytes
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.job.data_table import Data

SIZES_MB = (15, 60)
DOCUMENT_BYTES = 2000
CASES = (("jsonl", "bytes"), ("parquet", "bytes"), ("jsonl", "bpe:8192"))
"""Kind of source, and tokenizer."""
HEADINGS = ("source", "tokenizer", "text", "seconds", "MB of text a second", "peak memory", "of a worker")
BESIDE_HEADINGS = ("what", "text", "seconds, each time", "median", "MB of text a second")
LARGE_HEADINGS = ("run", "seconds", "MB of text a second", "peak memory", "of a worker")
LAID_OUT_HEADINGS = ("what", "text", "one process: s", "one a core: s", "MB of text a second", "times as fast")
LAID_OUT: dict[str, dict[str, object]] = {
    "conversations": {"kind": "messages"},
    "conversations, packed": {"kind": "messages", "packing": True},
    "text, packed": {"kind": "jsonl", "packing": True},
}
SEQUENCE_LENGTH = 512
VOCABULARY, TRAINED_MB = 8192, 10
"""Size of the tokenizer in a folder, and the megabytes that it is trained on."""


def documents(megabytes: int) -> Iterator[str]:
    """Texts of made-up words, no two alike, so many that they have these megabytes."""
    draw = random.Random(5)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(20_000)]
    pool = [" ".join(draw.choices(words, k=DOCUMENT_BYTES // 5)) for _ in range(500)]
    for number in range(megabytes * 1_000_000 // DOCUMENT_BYTES):
        yield f"{number} {pool[number % len(pool)]}"[:DOCUMENT_BYTES]


def conversation(text: str) -> list[dict[str, str]]:
    """A text in four messages."""
    length = -(-len(text) // 4)
    parts = (text[first : first + length] for first in range(0, len(text), length))
    return [{"role": ("user", "assistant")[place % 2], "content": part} for place, part in enumerate(parts)]


def write(path: Path, kind: str, megabytes: int) -> None:
    """Write a corpus."""
    if kind != "parquet":
        with path.open("w", encoding="utf-8") as file:
            for text in documents(megabytes):
                file.write(json.dumps({"text": text} if kind == "jsonl" else {"messages": conversation(text)}) + "\n")
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


def tokenizer_folder(home: Path) -> str:
    """Train a tokenizer on a short corpus, and return its folder."""
    from dtfm_protocol.data.tokenizer import make_tokenizer, save

    save(make_tokenizer(Data(text="cpython", tokenizer=f"bpe:{VOCABULARY}"), documents(TRAINED_MB)), home / "bpe")
    return str(home / "bpe")


def prepare(home: Path, keys: dict[str, object], tokenizer: str, workers: int | None) -> None:
    """Turn a corpus into tokens, or go on with that; print the seconds that it took, the peaks of this process and of
    its largest worker in bytes, and what names the corpus."""
    from dtfm_protocol.data.preparing_journal import PreparingJournal
    from dtfm_protocol.data.tokenization import tokenize

    source, packing = {"path": str(home / "corpus"), "kind": keys["kind"]}, keys.get("packing", False)
    table: dict[str, object] = {"sources": [source], "tokenizer": tokenizer, "packing": packing}
    if keys["kind"] == "messages":
        source["format"] = "jsonl"
        (home / "chat.jinja").write_text(CHATML)
        table["chat_template"] = str(home / "chat.jinja")
    data = Data.model_validate(table)
    begun = time.monotonic()
    journal = PreparingJournal(home / "journal", "")
    made = tokenize(data, home / "tokens", journal=journal, workers=workers, sequence_length=SEQUENCE_LENGTH)
    corpus = made.corpus
    seconds = time.monotonic() - begun
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(seconds, peak_bytes(os.getpid()), worker, hash(corpus.model_dump_json()))


def with_datasets(home: Path, tokenizer: str) -> None:
    """Do the same with `datasets` and the tokenizer alone; print the seconds that it took."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    begun = time.monotonic()
    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    rows = load_dataset("json", data_files=str(home / "corpus"), split="train", cache_dir=str(home / "cache"))
    rows.map(
        lambda batch: {"ids": loaded(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        remove_columns=rows.column_names,
        num_proc=os.cpu_count(),
        new_fingerprint="tokens",
    )
    print(time.monotonic() - begun)


def run(way: str, *arguments: object) -> list[str]:
    """Run this program in a process of its own, and return what it says."""
    command = [sys.executable, "-m", "benchmarks.preparing", way, *map(str, arguments)]
    environment = os.environ | {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.split()


def pace(megabytes: int, seconds: float) -> tuple[str, str]:
    """Seconds and megabytes a second, in words."""
    return f"{seconds:.1f}", f"{megabytes / seconds:.1f}"


def peaks(said: list[str]) -> tuple[str, str]:
    """The peaks of a process and of its largest worker; it has none where the text is short."""
    return f"{float(said[1]) / 1e6:,.0f} MB", f"{float(said[2]) / 1e6:,.0f} MB" if float(said[2]) else "none"


def measured(kind: str, tokenizer: str, megabytes: int) -> tuple[str, ...]:
    """Prepare a corpus in a process of its own; the row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write(home / "corpus", kind, megabytes)
        said = run("--of", home, json.dumps({"kind": kind}), tokenizer)
    return kind, tokenizer, f"{megabytes} MB", *pace(megabytes, float(said[0])), *peaks(said)


def beside(megabytes: int, rounds: int) -> list[tuple[str, ...]]:
    """Prepare a corpus in both ways, in turns; the rows of the table."""
    seconds: dict[str, list[float]] = {"dtfm": [], "datasets, map with the tokenizer": []}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tokenizer = tokenizer_folder(home)
        write(home / "corpus", "jsonl", megabytes)
        for _ in range(rounds):
            for (name, found), way in zip(seconds.items(), ("--of", "--datasets"), strict=True):
                found.append(float(run(way, home, '{"kind": "jsonl"}', tokenizer)[0]))
                subprocess.run(["rm", "-rf", home / "tokens", home / "journal", home / "cache"], check=True)
                show(name, ("seconds",), [(f"{found[-1]:.1f}",)])
    return [
        (name, f"{megabytes} MB", ", ".join(f"{one:.1f}" for one in found), *pace(megabytes, statistics.median(found)))
        for name, found in seconds.items()
    ]


def laid_out(megabytes: int, rounds: int) -> list[tuple[str, ...]]:
    """Lay documents out with one process and with one a core, in turns; the rows of the table."""
    rows: list[tuple[str, ...]] = []
    for name, keys in LAID_OUT.items():
        seconds: dict[int, list[float]] = {1: [], len(os.sched_getaffinity(0)): []}
        with tempfile.TemporaryDirectory() as folder:
            home, made = Path(folder), set[str]()
            tokenizer = tokenizer_folder(home)
            write(home / "corpus", str(keys["kind"]), megabytes)
            for _ in range(rounds):
                for workers, found in seconds.items():
                    said = run("--of", home, json.dumps(keys), tokenizer, "--workers", workers)
                    found.append(float(said[0]))
                    made.add(said[3])
                    subprocess.run(["rm", "-rf", home / "tokens", home / "journal"], check=True)
                    show(name, ("processes", "seconds"), [(str(workers), f"{found[-1]:.1f}")])
        assert len(made) == 1, "another corpus"
        one, many = map(statistics.median, seconds.values())
        rows.append((name, f"{megabytes} MB", f"{one:.1f}", *pace(megabytes, many), f"{one / many:.2f}"))
    return rows


def large(megabytes: int, tokenizer: str = "bytes") -> tuple[list[tuple[str, ...]], str]:
    """Prepare a large corpus without a break, and anew, killed in the middle and gone on with; the rows of the table,
    and what that has cost."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write(home / "corpus", "jsonl", megabytes)
        keys = json.dumps({"kind": "jsonl"})
        whole = run("--of", home, keys, tokenizer)
        seconds = float(whole[0])
        subprocess.run(["rm", "-rf", home / "tokens", home / "journal"], check=True)
        command = [sys.executable, "-m", "benchmarks.preparing", "--of", str(home), keys, tokenizer]
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            process.wait(seconds / 2)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        before, kept = time.monotonic() - begun, len(list(home.glob("tokens/*.tokens")))
        rest = run("--of", home, keys, tokenizer)
        assert rest[3] == whole[3], "another corpus"
    rows: list[tuple[str, ...]] = [
        ("without a break", *pace(megabytes, seconds), *peaks(whole)),
        ("gone on with", f"{float(rest[0]):.1f}", "", *peaks(rest)),
    ]
    lost = before + float(rest[0]) - seconds
    return rows, (
        f"Killed (SIGKILL) after {before:.1f} s, the start of the program among them, with {kept} shards written: "
        f"{lost:.1f} s more in all than without a break. The corpus is the same, by its hash.\n"
    )


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_MB, help="megabytes of text")
    parser.add_argument("--beside", type=int, default=60, help="megabytes for the comparison with `datasets`")
    parser.add_argument("--rounds", type=int, default=3, help="times that what takes turns is measured")
    parser.add_argument("--large", type=int, help="megabytes of one large corpus")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the tables there")
    parser.add_argument("--of", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--datasets", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        prepare(Path(arguments.of[0]), json.loads(arguments.of[1]), arguments.of[2], arguments.workers)
        return
    if arguments.datasets:
        with_datasets(Path(arguments.datasets[0]), arguments.datasets[2])
        return
    parts = [f"Machine: {machine()}.\n"]
    rows: list[tuple[str, ...]] = [measured(kind, one, size) for kind, one in CASES for size in arguments.sizes]
    title = "Preparing a corpus of made-up words, in documents of 2 kB"
    show(title, HEADINGS, rows)
    parts.append(markdown(title, HEADINGS, rows))
    rows = beside(arguments.beside, arguments.rounds)
    title = f"Lines of JSON with a tokenizer of {VOCABULARY} tokens out of a folder, beside the field's own tool"
    show(title, BESIDE_HEADINGS, rows)
    parts.append(markdown(title, BESIDE_HEADINGS, rows))
    rows = laid_out(arguments.sizes[-1], arguments.rounds)
    title = (
        f"Documents laid out in sequences of {SEQUENCE_LENGTH} tokens, the same corpus each time; the one process has "
        "a tokenizer of as many threads as there are cores"
    )
    show(title, LAID_OUT_HEADINGS, rows)
    parts.append(markdown(title, LAID_OUT_HEADINGS, rows))
    command = (
        f"python -m benchmarks.preparing --sizes {' '.join(map(str, arguments.sizes))} --beside {arguments.beside}"
    )
    if arguments.large is not None:
        rows, words = large(arguments.large)
        title = f'{arguments.large} MB of lines of JSON with the tokenizer "bytes"'
        show(title, LARGE_HEADINGS, rows)
        parts += [markdown(title, LARGE_HEADINGS, rows), words]
        command += f" --large {arguments.large}"
    keep(arguments.out, "Preparing", command, parts)


if __name__ == "__main__":
    main()
