"""Data sets by name: streamed by `datasets`, from the hub or from a folder that it knows how to load."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtfm_protocol.data.hub_sizes import bytes_a_row, check_datasets, in_a_line, no_dataset
from dtfm_protocol.data.rows import Fault, Row
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.job.data_table import DataSource


def hub_rows(source: SourceFiles, file: Path, at: int = 0) -> Iterator[Row | Fault]:
    """Read the rows of a data set as they come, only the columns that are needed.

    Args:
        file: not looked at: the source's path is the data set's name.
        at: 0: what comes before a row must be read to get to it.

    Raises:
        UserError: there is no such data set, or `datasets` is not installed.
    """
    if at:
        raise ValueError(f"a stream is read from its beginning, not from byte {at}")
    check_datasets(source.key)
    one, number = source.source, 0
    stream = _opened(one, source.key)
    try:
        names = stream.column_names
        if names is None:  # of rows without a schema the first one tells
            names = list(next(iter(stream), {}))
        if missing := [name for name in one.columns if name not in names]:
            yield Fault(0, f'has no column "{missing[0]}", only {", ".join(names[:8])}', 0)
            return
        size = bytes_a_row(one)
        for values in stream if size is None else stream.select_columns(list(one.columns)):
            number += 1
            yield Row(number, values, size if size is not None else len(json.dumps(values, default=str)))
    except Exception as error:  # noqa: BLE001 - files of any form, over any network
        yield Fault(number + 1, f"cannot be read, nor what comes after it ({in_a_line(error)})", 0)


def _opened(source: DataSource, key: str) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(source.path, source.subset, split=source.split, revision=source.revision, streaming=True)
    except Exception as error:  # noqa: BLE001 - likewise
        raise no_dataset(source, key, error) from None
