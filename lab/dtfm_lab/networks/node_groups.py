"""Networks whose links depend on nothing but the groups that their two ends belong to."""

from collections.abc import Sequence

import numpy as np

from dtfm_protocol.job.job_file import Precision
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import NodeView, View

V100_FLOPS = 36.6e12
"""Effective FLOP/s of a V100 in mixed precision: 23.64 PFLOP a step on 64 of them in 10.08 s (arXiv 2206.01288, its
data centre). The paper has fp16; here it stands for bf16, which a V100's matrix units lack."""
V100_RATES: dict[Precision, float] = {"bf16": V100_FLOPS, "fp32": V100_FLOPS * 15.7 / 125}
"""Effective FLOP/s by precision; fp32 has the same part of its peak (NVIDIA's data sheet: 15.7 TFLOP/s, and 125 of the
matrix units)."""
V100_BYTES = 16e9
"""Bytes of memory of a V100, as the paper has it."""


def grouped(
    sizes: Sequence[tuple[str, int]],
    latency_ms: Matrix,
    bandwidth_gbps: Matrix,
    line_gbps: Sequence[float | None] | None = None,
) -> View:
    """Make a view of V100s, as the paper has them, that stand in the order of their groups.

    Args:
        sizes: name and number of nodes of each of G groups; the name is the region, and begins the ids.
        latency_ms: one-way milliseconds from group to group, shape (G, G), the diagonal for two nodes of one group.
        bandwidth_gbps: Gbit/s from group to group, shape (G, G), likewise.
        line_gbps: Gbit/s that each node of a group can send, and receive, in all; None where nothing limits it.
    """
    lines = [None] * len(sizes) if line_gbps is None else line_gbps
    member = np.repeat(np.arange(len(sizes)), [size for _, size in sizes])
    return View(
        nodes=tuple(
            NodeView(
                id=f"{name}-{number}",
                region=name,
                flops=V100_RATES,
                memory_bytes=V100_BYTES,
                up_gbps=line,
                down_gbps=line,
            )
            for (name, size), line in zip(sizes, lines, strict=True)
            for number in range(size)
        ),
        latency_ms=latency_ms[member[:, None], member[None, :]],
        bandwidth_gbps=bandwidth_gbps[member[:, None], member[None, :]],
    )


def uniform(groups: int, within: float, between: float) -> Matrix:
    """Return a table of shape (groups, groups) with one figure within groups and one between any two."""
    table = np.full((groups, groups), between, dtype=np.float64)
    np.fill_diagonal(table, within)
    return table


def even(names: Sequence[str], nodes: int) -> list[tuple[str, int]]:
    """Share `nodes` out evenly over groups; the first ones take what is left over, and none is empty."""
    share, left = divmod(nodes, len(names))
    sizes = [(name, share + (place < left)) for place, name in enumerate(names)]
    return [(name, size) for name, size in sizes if size]


def filled(name: str, size: int, nodes: int) -> list[tuple[str, int]]:
    """Form groups of `size` nodes, called `name0`, `name1` and so on; the last has what is left."""
    return [(f"{name}{start // size}", min(size, nodes - start)) for start in range(0, nodes, size)]
