"""Matrices of links, and the rows of numbers and nulls by which JSON gives them. NaN stands for null: not measured."""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
"""A matrix of figures of links, shape (N, N): row sends to column."""
LEAST, MOST = 1e-9, 1e12
"""Bounds of an entry that is not 0, in milliseconds or Gbit/s: far beyond what there is."""
MOST_NODES = 20_000
"""Nodes that a view may have: two matrices of this size take 6.4 GB."""
_NUMBERS = frozenset({int, float, type(None)})


def parsed(value: Any) -> Matrix:
    """Read rows of numbers and nulls, or an array with NaN, as a square matrix of numbers from 0.

    The diagonal is held to nothing but being numbers: most matrices have no use for it.

    Raises:
        ValueError: says what does not fit, and at which row and column.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiu" or value.ndim != 2:
            raise ValueError(f"an array of {value.ndim} dimensions of {value.dtype} is no matrix of numbers")
        matrix = value.astype(np.float64)
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"{matrix.shape[0]} rows of {matrix.shape[1]} entries are not a square")
    else:
        matrix = _from_rows(value)
    wrong = (matrix < 0) | (matrix > MOST) | ((matrix > 0) & (matrix < LEAST))
    np.fill_diagonal(wrong, False)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        value = matrix[row, column]
        kind = "negative" if value < 0 else "infinite" if np.isinf(value) else f"implausible ({value:.3g})"
        raise ValueError(f"{kind} entry at row {row}, column {column}")
    return matrix


def _from_rows(rows: Any) -> Matrix:
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise ValueError("write a list of rows, each a list of numbers")
    for number, row in enumerate(rows):
        if len(row) != len(rows):
            raise ValueError(f"{len(rows)} rows need {len(rows)} entries each, and row {number} has {len(row)}")
        # Not left to numpy, which would take "1" and true for numbers; by types, to be quick on millions of entries.
        if not _NUMBERS.issuperset(map(type, row)):
            for column, entry in enumerate(row):
                if entry is not None and (isinstance(entry, bool) or not isinstance(entry, int | float)):
                    raise ValueError(f"row {number}, column {column} is not a number (got {str(entry)[:40]!r})")
    try:
        matrix = np.array(rows, dtype=np.float64).reshape(len(rows), len(rows))
    except OverflowError:
        raise ValueError("an entry is too large for a double") from None
    if np.isnan(matrix).sum() != sum(entry is None for entry in chain.from_iterable(rows)):
        raise ValueError("an entry is not a number; write null for what is unmeasured")
    return matrix


def rows(matrix: Matrix) -> list[list[float | None]]:
    """Return the rows that JSON holds: null for NaN."""
    values: list[list[float | None]] = matrix.tolist()
    for row, column in np.argwhere(np.isnan(matrix)).tolist():
        values[row][column] = None
    return values
