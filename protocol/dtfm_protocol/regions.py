"""Links given by region: the compact form of a view, and back.

`{"nodes": [{"id", "region", ...}], "regions": {"names": [..], "latency_ms": [[..]], "bandwidth_gbps": [[..]]},
"exceptions": [{"from", "to", "latency_ms"?, "bandwidth_gbps"?}]}`: an ordered pair of nodes has the link of its ordered
pair of regions, two nodes of one region that on the diagonal, and an exception overrides what it names. Null is a link
that was not measured.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtfm_protocol.matrix import MOST_NODES, Matrix, parsed, rows

NAMES = ("latency_ms", "bandwidth_gbps")
LARGEST = float(np.finfo(np.float64).max)
"""Also where JSON gives an integer of any length."""
COMPACT_FROM = 32
"""Nodes from which a view is written in this form if it can be."""


def expanded(values: dict[str, Any]) -> dict[str, Any]:
    """The dense form of a view's values: two matrices in place of `regions` and `exceptions`.

    Raises:
        ValueError: says what does not fit.
    """
    values = dict(values)
    regions, exceptions, nodes = values.pop("regions"), values.pop("exceptions", []), values.get("nodes")
    for name in NAMES:
        if name in values:
            raise ValueError(f"give either {name} or regions, not both")
    if not isinstance(nodes, list | tuple) or not all(isinstance(node, dict) for node in nodes):
        raise ValueError("nodes: write a list of nodes")
    if not isinstance(regions, dict) or set(regions) != {"names", *NAMES}:
        raise ValueError("regions: write names, latency_ms and bandwidth_gbps, and nothing else")
    if len(nodes) > MOST_NODES:
        raise ValueError(f"nodes: {len(nodes)} are more than the {MOST_NODES} that a view can hold")
    names = regions["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) != len(names):
        raise ValueError("regions.names: write a list of different names")
    known = {name: number for number, name in enumerate(names)}
    for number, node in enumerate(nodes):
        if not isinstance(node.get("region"), str) or node["region"] not in known:
            raise ValueError(f"nodes.{number}.region: {node.get('region')!r} is not one of regions.names")
    member = np.array([known[node["region"]] for node in nodes], dtype=np.intp)
    row = {str(node.get("id")): number for number, node in enumerate(nodes)}
    for name in NAMES:
        table = _table(regions[name], len(known), f"regions.{name}")
        values[name] = table[member[:, None], member[None, :]]
    if not isinstance(exceptions, list | tuple):
        raise ValueError("exceptions: write a list")
    for number, exception in enumerate(exceptions):
        _except(values, row, exception, f"exceptions.{number}")
    return values


def _table(values: Any, count: int, where: str) -> Matrix:
    try:
        table = parsed(values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if len(table) != count:
        raise ValueError(f"{where}: {count} regions need {count} rows of {count} entries, and there are {len(table)}")
    within = table.diagonal()
    if (within < 0).any() or np.isinf(within).any():
        raise ValueError(f"{where}: every entry is a number from 0, or null, on the diagonal as well")
    return table


def _except(values: dict[str, Any], row: dict[str, int], exception: Any, where: str) -> None:
    """Override the links that one exception names."""
    if not isinstance(exception, dict) or not {"from", "to"} <= set(exception) <= {"from", "to", *NAMES}:
        raise ValueError(f"{where}: write from, to, and latency_ms or bandwidth_gbps")
    for end in ("from", "to"):
        if not isinstance(exception[end], str) or exception[end] not in row:
            raise ValueError(f"{where}.{end}: there is no node {exception[end]!r}")
    for name in NAMES:
        if name in exception:
            value = exception[name]
            number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
            if not number or (value is not None and not 0 <= value <= LARGEST):
                raise ValueError(f"{where}.{name}: write a number from 0, or null")
            values[name][row[exception["from"]], row[exception["to"]]] = np.nan if value is None else value


def compact(
    nodes: list[dict[str, Any]], regions: Sequence[str | None], latency_ms: Matrix, bandwidth_gbps: Matrix
) -> dict[str, Any] | None:
    """The view's values by region, or None where a node has no region or the exceptions would be no shorter."""
    if any(region is None for region in regions):
        return None
    names = list(dict.fromkeys(str(region) for region in regions))
    number = {name: index for index, name in enumerate(names)}
    member = np.array([number[str(region)] for region in regions], dtype=np.intp)
    first = np.unique(member, return_index=True)[1]
    last = len(member) - 1 - np.unique(member[::-1], return_index=True)[1]
    values: dict[str, Any] = {"nodes": nodes, "regions": {"names": names}, "exceptions": []}
    odd = np.zeros(latency_ms.shape, dtype=bool)
    for name, matrix in zip(NAMES, (latency_ms, bandwidth_gbps), strict=True):
        table = matrix[np.ix_(first, last)]
        # A region of one node has no link within; any figure does.
        table[np.arange(len(names)), np.arange(len(names))] = [
            matrix[here, there] if here != there else 0.0 for here, there in zip(first, last, strict=True)
        ]
        values["regions"][name] = rows(table)
        spread = table[member[:, None], member[None, :]]
        odd |= (spread != matrix) & ~(np.isnan(spread) & np.isnan(matrix))
    np.fill_diagonal(odd, False)
    # An exception takes about as much room as ten entries of the matrices.
    if 10 * odd.sum() + len(names) ** 2 > odd.size:
        return None
    values["exceptions"] = [
        {"from": nodes[here]["id"], "to": nodes[there]["id"]}
        | {
            name: None if np.isnan(matrix[here, there]) else float(matrix[here, there])
            for name, matrix in zip(NAMES, (latency_ms, bandwidth_gbps), strict=True)
        }
        for here, there in np.argwhere(odd).tolist()
    ]
    return values
