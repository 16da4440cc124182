"""The refusal of files that hold documents in another form than plain text, by their names and first bytes (pure)."""

import json
import re

HEAD_BYTES = 1 << 16
"""Bytes of a file's beginning that are enough to tell."""

_TABLES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Suffixes of files that are sources of another kind."""
_NO_TEXT = {
    "JSON, whose syntax would be learned": (".json", ".ipynb"),
    "a table": (".csv", ".tsv", ".xls", ".xlsx", ".ods"),
    "a table of Arrow": (".arrow", ".feather"),
    "a packed file": (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".tar", ".7z", ".rar", ".br"),
    "a document with its layout": (".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub", ".mobi", ".ppt", ".pptx"),
    "a picture, sound or film": (".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp3", ".wav", ".ogg", ".mp4", ".mkv"),
    "a file of weights or arrays": (".safetensors", ".gguf", ".pt", ".pth", ".bin", ".npy", ".npz", ".h5", ".pkl"),
    "a database": (".sqlite", ".sqlite3", ".db"),
}
_ADVICE = {
    "JSON, whose syntax would be learned": 'write its documents as JSON lines, an object each, for kind = "jsonl"',
    "a table": 'write it as JSON lines or Parquet, for kind = "jsonl" or "parquet" in data.sources',
    "a table of Arrow": 'name the folder that save_to_disk has written in data.sources, with kind = "dataset"',
    "a packed file": "unpack it",
}
"""What to do with them; with all others, `_CONVERT`."""
_CONVERT = "convert it to text, or leave it out"
_TEXT = (
    " txt text utf asc md markdown mdx rst org adoc tex bib srt vtt po log eml mbox html htm xhtml xml svg yaml yml "
    "toml ini cfg conf properties diff patch wiki py pyi pyx c h cc cpp cxx hpp hh cs java kt kts scala go rs swift m "
    "js mm mjs jsx ts tsx vue svelte css scss less php rb pl pm lua r jl f for hs ml mli fs fsx erl ex exs clj lisp "
    "el scm rkt sql sh bash zsh fish bat cmd awk sed vim cmake make mk gradle proto graphql tf nix zig nim d pas ada "
    "adb ads vb v sv vhd vhdl asm s dart groovy coffee jinja tmpl "
)
"""Suffixes of files that are text: prose, and what people program in."""
_SUFFIX = re.compile(r"\.[a-z]{1,12}")
"""What counts as a suffix: neither the number of a chapter or a version, nor what comes after "Mr. "."""
_BEGINNINGS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "a file packed by gzip",
    b"PK\x03\x04": "a zip archive or a document of an office program",
    b"\x28\xb5\x2f\xfd": "a file packed by zstd",
    b"\xfd7zXZ": "a file packed by xz",
    b"BZh91AY": "a file packed by bzip2",
    b"%PDF-": "a PDF",
    b"{\\rtf": "a document with its layout",
    b"PAR1": "a table in Parquet",
    b"ARROW1\x00": "a table of Arrow",
    b"SQLite format 3\x00": "a database",
}
"""What files are that begin so."""


def looks_like(head: bytes) -> str:
    """Return what a file is by its first bytes, in words; "": nothing that is known."""
    return next((kind for mark, kind in _BEGINNINGS.items() if head.startswith(mark)), "")


def other_suffix(path: str) -> str:
    """Return why a file that a job names as text is none by its name, and what to write instead; "": it may be."""
    suffix = _suffix(path)
    if (kind := _TABLES.get(suffix)) is not None:
        return _as_source(path, kind)
    what = next((what for what, suffixes in _NO_TEXT.items() if suffix in suffixes), "")
    if what:
        return f"is {what}, not text: {_ADVICE.get(what, _CONVERT)}"
    if _SUFFIX.fullmatch(suffix) and f" {suffix[1:]} " not in _TEXT:
        advice = f'sources = [{{ path = "{path}", kind = "text" }}]'
        return f"has a name that ends in {suffix}, which is no suffix of text that is known: if it is text, {advice}"
    return ""


def other_beginning(path: str, head: bytes) -> str:
    """Return the same by a file's first bytes, up to `HEAD_BYTES`, where these are a table's."""
    if head.startswith(b"PAR1"):
        return _as_source(path, "parquet")
    return _as_source(path, "jsonl") if _is_json_lines(head) else ""


def _as_source(path: str, kind: str) -> str:
    what = "lines of JSON" if kind == "jsonl" else "a table in Parquet"
    return f'is {what}, not text: name it in sources = [{{ path = "{path}", kind = "{kind}" }}]'


def _suffix(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return "." + name.rpartition(".")[2] if "." in name.lstrip(".") else ""


def _is_json_lines(head: bytes) -> bool:
    """Whether the first two lines are an object of JSON each, as no text begins."""
    lines = [line for line in head.split(b"\n") if line.strip()][:2]
    return len(lines) == 2 and all(_is_object(line) for line in lines)


def _is_object(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
