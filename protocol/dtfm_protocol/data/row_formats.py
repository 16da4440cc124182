"""The reader of each form of files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dtfm_protocol.data.arrow_tables import (
    cut_dataset,
    cut_of_dataset,
    cut_of_parquet,
    cut_parquet,
    dataset_rows,
    parquet_rows,
)
from dtfm_protocol.data.hub_dataset import hub_rows
from dtfm_protocol.data.json_lines import cut_lines, cut_of_lines, json_lines
from dtfm_protocol.data.rows import Cut, Fault, Row, Rows, counted
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.data.text import cut_of_text, text_file, uncut
from dtfm_protocol.job.data_table import FormName


class RowFormat(NamedTuple):
    """The reader of a form of files."""

    unit: str
    """What a row of it is called; "": a file is one row."""
    rows: Callable[[SourceFiles, Path, int], Iterator[Row | Fault]]
    """Reads the rows of a file, in order, a few at a time: from about a byte of it on, 0 for all."""
    cut: Callable[[SourceFiles, Path], list[Cut]]
    """Cuts a file into parts whose rows, one part after the other, are those of the file: the same for the same file.
    """
    part: Callable[[SourceFiles, Path, Cut], Rows]
    """Reads the rows of a part, which are counted from its first."""


FORMATS: dict[FormName, RowFormat] = {
    "text": RowFormat("", text_file, uncut, cut_of_text),
    "jsonl": RowFormat("line", json_lines, cut_lines, cut_of_lines),
    "parquet": RowFormat("row", parquet_rows, cut_parquet, cut_of_parquet),
    "dataset": RowFormat("row", dataset_rows, cut_dataset, cut_of_dataset),
    "hub": RowFormat("row", hub_rows, uncut, lambda source, file, _: counted(hub_rows(source, file))),
}
