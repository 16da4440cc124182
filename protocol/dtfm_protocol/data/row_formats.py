"""The reader of each form of files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dtfm_protocol.data.arrow_tables import dataset_rows, parquet_rows
from dtfm_protocol.data.hub_dataset import hub_rows
from dtfm_protocol.data.json_lines import json_lines
from dtfm_protocol.data.rows import Fault, Row
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.data.text import text_file
from dtfm_protocol.job.data_table import FormName


class RowFormat(NamedTuple):
    """The reader of a form of files."""

    unit: str
    """What a row of it is called; "": a file is one row."""
    rows: Callable[[SourceFiles, Path, int], Iterator[Row | Fault]]
    """Reads the rows of a file, in order, a few at a time: from about a byte of it on, 0 for all."""


FORMATS: dict[FormName, RowFormat] = {
    "text": RowFormat("", text_file),
    "jsonl": RowFormat("line", json_lines),
    "parquet": RowFormat("row", parquet_rows),
    "dataset": RowFormat("row", dataset_rows),
    "hub": RowFormat("row", hub_rows),
}
