"""The five networks of the paper's evaluation (arXiv 2206.01288, section 4), 64 devices each, and its sizes.

Figures between AWS regions are in `aws_2022.json` with their source.
"""

import json
from collections.abc import Callable, Sequence
from importlib.resources import files

from dtfm_protocol.view import NodeView, View

STAGES = 8
REPLICAS = 8
GRADIENT_BYTES = 0.65e9
"""Of one of eight stages of GPT-3 XL: 1.3e9 parameters x 4 bytes x 3 of 24 layers."""
ACTIVATION_BYTES = 2048 * 2048 * 2 * (125000 / 2048)
"""Sequence 2048, hidden 2048, fp16, a pipeline's share of sequences."""
AUTHORS_ACTIVATION_BYTES = 471_249_223
"""What the authors' code takes instead: 2024 for one 2048, and GiB read as GB."""

Link = tuple[float, float]
"""One-way delay in milliseconds, bandwidth in Gbit/s."""

_REGIONAL: dict[frozenset[str], Link] = {
    frozenset({"Virginia", "Oregon"}): (67, 1.15),
    frozenset({"Virginia", "California"}): (59, 1.05),
    frozenset({"Virginia", "Ohio"}): (11, 1.12),
    frozenset({"Oregon", "California"}): (12, 1.25),
    frozenset({"Oregon", "Ohio"}): (49, 1.10),
    frozenset({"California", "Ohio"}): (52, 1.02),
}
_WORLDWIDE = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")


def paper_network(case: int) -> View:
    """One of the five networks.

    1: a data centre, eight hosts of eight. 2: a data centre's spot market, eight hosts of four and 32 single
    devices. 3: two universities. 4: four regions of one country. 5: eight regions worldwide. Devices stand in the
    order of their groups.

    Raises:
        ValueError: there is no such case.
    """
    if case == 1:
        hosts = [f"host{number}" for number in range(8) for _ in range(8)]
        return _network(hosts, (0, 100), lambda here, there: (0, 3.125))
    if case == 2:
        hosts = [f"host{number}" for number in range(8) for _ in range(4)] + [f"single{n}" for n in range(32)]
        return _network(hosts, (0, 100), lambda here, there: (0, 1.25))
    if case == 3:
        return _network(["Ohio"] * 32 + ["Virginia"] * 32, (1, 5), lambda here, there: (11, 1.12))
    if case == 4:
        regions = [region for region in ("Virginia", "Oregon", "California", "Ohio") for _ in range(16)]
        return _network(regions, (5, 2), lambda here, there: _REGIONAL[frozenset({here, there})])
    if case == 5:
        table = json.loads((files(__package__) / "aws_2022.json").read_text(encoding="utf-8"))
        within = table["within_region"]
        between = {
            frozenset(pair.split("-")): (link["latency_ms"], link["bandwidth_gbps"])
            for pair, link in table["pairs"].items()
        }
        regions = [region for region in _WORLDWIDE for _ in range(8)]
        same = (within["latency_ms"], within["bandwidth_gbps"])
        return _network(regions, same, lambda here, there: between[frozenset({here, there})])
    raise ValueError(f"the paper's networks are numbered 1 to 5, not {case}")


def _network(groups: Sequence[str], same: Link, between: Callable[[str, str], Link]) -> View:
    links = [[same if here == there else between(here, there) for there in groups] for here in groups]
    counts: dict[str, int] = {}
    nodes = []
    for group in groups:
        counts[group] = counts.get(group, -1) + 1
        nodes.append(NodeView(id=f"{group}-{counts[group]}", region=group))
    return View(
        nodes=tuple(nodes),
        latency_ms=tuple(tuple(delay for delay, _ in row) for row in links),
        bandwidth_gbps=tuple(tuple(bandwidth for _, bandwidth in row) for row in links),
    )
