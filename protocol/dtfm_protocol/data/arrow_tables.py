"""Tables of Arrow: Parquet files, and folders that `datasets` has written, read a few rows at a time."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dtfm_protocol.data.rows import Cut, Fault, Row, Rows
from dtfm_protocol.data.source_files import SourceFiles, tables_of
from dtfm_protocol.errors import UserError

CUT_BYTES = 8 << 20
"""Bytes of a part of a file that is read by itself, where row groups and batches are small enough."""
ROWS_AT_ONCE = 64
"""Rows that are turned into values of Python at a time."""
READ_BYTES = 1 << 20
"""Bytes that are read of a column at a time, rather than all of a row group."""

Columns = tuple[str, ...]
Batches = Iterator[tuple[int, Any, float]]
"""Record batches of a table: the number of the row before each, the batch, and the bytes of the file a row takes."""


class LacksColumn(Exception):
    """The report that a table lacks a column, and how many rows it has."""

    def __init__(self, name: str, there: list[str], rows: int) -> None:
        """Say which columns there are instead."""
        super().__init__(f'has no column "{name}", only {", ".join(there[:8])}')
        self.rows = rows


def cut_parquet(source: SourceFiles, file: Path) -> list[Cut]:
    """Cut a Parquet file between row groups; one that cannot be read, or lacks a column, not at all."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    size = source.bytes_of(file)
    try:
        with ParquetFile(file, pre_buffer=False) as table:
            about = table.metadata
            _check(source.source.columns, table.schema_arrow.names, about.num_rows)
            rows = [_count(about, group) for group in range(about.num_row_groups)]
    except (ArrowException, OSError, LacksColumn):
        return [Cut(0, None, size)]
    cuts, begin, total = list[Cut](), 0, max(1, sum(rows))
    for group in range(len(rows)):
        taken = size * sum(rows[begin : group + 1]) / total
        if taken >= CUT_BYTES or group == len(rows) - 1:
            cuts.append(Cut(begin, group + 1, taken))
            begin = group + 1
    return cuts


def cut_of_parquet(source: SourceFiles, file: Path, cut: Cut) -> Rows:
    """Read the rows of a cut, as `parquet_rows` does."""
    size = source.bytes_of(file)
    if cut.end is None:
        return parquet_rows(source, file)
    groups = range(cut.begin, cut.end)
    return _rows(source, lambda columns: _of_parquet(file, size, columns, 0, groups))


def cut_dataset(source: SourceFiles, file: Path) -> list[Cut]:
    """Cut the tables of a folder into runs of batches of rows that begin within some megabytes of them."""
    cuts, begin = list[Cut](), 0
    for table in tables_of(file, source.key):
        end = begin + table.stat().st_size
        cuts += [Cut(at, min(at + CUT_BYTES, end), min(CUT_BYTES, end - at)) for at in range(begin, end, CUT_BYTES)]
        begin = end
    return cuts


def cut_of_dataset(source: SourceFiles, file: Path, cut: Cut) -> Rows:
    """Read the rows of a cut, as `dataset_rows` does."""
    return _rows(source, lambda columns: _of_dataset(tables_of(file, source.key), columns, cut.begin, cut.end))


def parquet_rows(source: SourceFiles, file: Path, at: int = 0) -> Rows:
    """Read the rows of a Parquet file, only the columns that are needed.

    Args:
        at: the byte in whose row group it begins, if all rows are of one size.

    Raises:
        UserError: pyarrow is not installed, or the file is out of reach.
    """
    return _rows(source, lambda columns: _of_parquet(file, source.bytes_of(file), columns, at))


def dataset_rows(source: SourceFiles, file: Path, at: int = 0) -> Rows:
    """Read the rows of a folder that `save_to_disk` of `datasets` has written, all its tables as one.

    Args:
        file: the folder.
        at: the byte of its tables, one after the other, in whose batch of rows it begins.

    Raises:
        UserError: pyarrow is not installed, or the folder is out of reach.
    """
    return _rows(source, lambda columns: _of_dataset(tables_of(file, source.key), columns, at))


def check_pyarrow(key: str) -> None:
    """Check that tables can be read.

    Raises:
        UserError: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise UserError(f"{key}: Parquet and datasets need pyarrow: pip install 'dtfm[data]'")


def _rows(source: SourceFiles, batches: Callable[[Columns], Batches]) -> Rows:
    check_pyarrow(source.key)
    from pyarrow import ArrowException

    number = 0
    try:
        for before, batch, size in batches(source.source.columns):
            number = before
            for first in range(0, batch.num_rows, ROWS_AT_ONCE):
                for found in _values(batch.slice(first, ROWS_AT_ONCE)):
                    number += 1
                    yield Fault(number, found, size) if isinstance(found, str) else Row(number, found, size)
    except LacksColumn as error:
        yield Fault(0, str(error), 0, error.rows, is_end=True)
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        yield Fault(number + 1, f"cannot be read, nor what comes after it ({reason[:200]})", 0, is_end=True)
    return number


def _values(batch: Any) -> list[dict[str, Any] | str]:
    """Return the rows of a few, by column, or what is wrong with them."""
    try:
        return list(batch.to_pylist())
    except ValueError:  # one of them holds what is no text: which?
        return [_value(batch.slice(place, 1)) for place in range(batch.num_rows)]


def _value(batch: Any) -> dict[str, Any] | str:
    try:
        return dict(batch.to_pylist()[0])
    except ValueError:
        return "is not UTF-8"


def _of_parquet(file: Path, size: int, columns: Columns, at: int, groups: range | None = None) -> Batches:
    """Read the row groups `groups`, counted from the first of them; None: from that on in which byte `at` lies."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file, buffer_size=READ_BYTES, pre_buffer=False) as table:
        about = table.metadata
        _check(columns, table.schema_arrow.names, about.num_rows)
        before, group = 0, 0
        if groups is None:
            last = about.num_row_groups - 1
            while group < last and (before + _count(about, group)) * size <= at * about.num_rows:
                before += _count(about, group)
                group += 1
            groups = range(group, last + 1)
        for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, row_groups=groups, columns=list(columns)):
            yield before, batch, size / about.num_rows
            before += batch.num_rows


def _count(about: Any, group: int) -> int:
    return int(about.row_group(group).num_rows)


def _of_dataset(tables: list[Path], columns: Columns, at: int, end: int | None = None) -> Batches:
    """Read the batches of rows from that on in which byte `at` of all tables lies; where there is an `end`, those that
    begin from `at` on and before it, counted from the first of them."""
    import pyarrow as pa

    before = begin = 0
    for table in tables:
        if end is not None and (begin >= end or begin + table.stat().st_size <= at):
            begin += table.stat().st_size
            continue
        with pa.memory_map(str(table)) as stream:
            reader = pa.ipc.open_stream(stream)
            _check(columns, reader.schema.names, 0)
            past = 0
            for batch in reader:
                first, past = begin + past, stream.tell()
                if end is not None and first >= end:
                    break
                if end is not None and first < at:
                    continue
                if begin + past > at and batch.num_rows:
                    yield before, batch.select(list(columns)), (begin + past - first) / batch.num_rows
                before += batch.num_rows
        begin += table.stat().st_size


def _check(columns: Columns, there: list[str], rows: int) -> None:
    """Check that a table has the columns that are needed.

    Raises:
        LacksColumn: it has not.
    """
    if missing := next((name for name in columns if name not in there), None):
        raise LacksColumn(missing, there, rows)
