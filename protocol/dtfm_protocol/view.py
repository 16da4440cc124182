"""The view: what is known of a swarm's devices and links. What the allocator plans on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dtfm_protocol.errors import UserError
from dtfm_protocol.schema import Schema

Matrix = npt.NDArray[np.float64]
GBIT = 1.25e8
"""Bytes a second of one Gbit/s."""

Amount = Annotated[float, Field(gt=0)]


class LayerSeconds(Schema):
    """Measured seconds of one decoder layer of the job, on one micro-batch, in the job's precision."""

    forward: Amount
    backward: Amount


class NodeView(Schema):
    """One peer as the allocator sees it."""

    id: Annotated[str, Field(min_length=1)]
    region: str | None = None
    flops: Amount | None = None
    """Effective FLOP/s."""
    layer_seconds: LayerSeconds | None = None
    memory_bytes: Amount | None = None
    up_gbps: Amount | None = None
    down_gbps: Amount | None = None


class View(Schema):
    """Devices and the links between them. Row sends to column; the diagonal means nothing.

    `latency_ms` is one-way milliseconds, `bandwidth_gbps` Gbit/s; 0 Gbit/s is a pair that cannot talk, and null one
    that was not measured.
    """

    nodes: tuple[NodeView, ...] = Field(min_length=1)
    latency_ms: tuple[tuple[float | None, ...], ...]
    bandwidth_gbps: tuple[tuple[float | None, ...], ...]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        count = len(self.nodes)
        seen: set[str] = set()
        for node in self.nodes:
            if node.id in seen:
                raise ValueError(f"nodes: the id {node.id!r} occurs twice")
            seen.add(node.id)
        for name in ("latency_ms", "bandwidth_gbps"):
            matrix = getattr(self, name)
            if len(matrix) != count or any(len(row) != count for row in matrix):
                raise ValueError(f"{name}: {count} nodes need {count} rows of {count} entries")
            for row, values in enumerate(matrix):
                for column, value in enumerate(values):
                    if value is not None and value < 0 and row != column:
                        raise ValueError(f"{name}: negative entry at row {row}, column {column}")
        return self

    @property
    def ids(self) -> tuple[str, ...]:
        """Peer ids, in the order of the matrices."""
        return tuple(node.id for node in self.nodes)

    def alpha(self) -> Matrix:
        """One-way delay in seconds, shape (N, N), zero diagonal. Unmeasured pairs take the largest measured delay."""
        return _filled(self.latency_ms, np.max, 0.0) * 1e-3

    def beta(self) -> Matrix:
        """Bandwidth in bytes/s, shape (N, N), infinite diagonal. Unmeasured pairs take the smallest measured one."""
        beta = _filled(self.bandwidth_gbps, np.min, 1.0) * GBIT
        np.fill_diagonal(beta, np.inf)
        return beta

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a view file.

        Raises:
            UserError: unreadable, not JSON, or not a view; the key is named.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the view {path}: {error}") from None
        except ValueError as error:
            raise UserError(f"{path} is not JSON: {error}") from None
        return cls.read(values, str(path))


def _filled(rows: tuple[tuple[float | None, ...], ...], worst: Callable[[Matrix], float], default: float) -> Matrix:
    """Rows as a matrix with a zero diagonal, unmeasured entries replaced by the worst measured one (or `default`)."""
    matrix: Matrix = np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)
    np.fill_diagonal(matrix, np.nan)
    measured = matrix[matrix > 0]  # a pair that cannot talk says nothing of one that nobody has tried
    matrix[np.isnan(matrix)] = worst(measured) if measured.size else default
    np.fill_diagonal(matrix, 0.0)
    return matrix
