"""The five networks of the paper's evaluation (arXiv 2206.01288, section 4), and its sizes.

The paper has 64 devices in each; other numbers keep the structure. Figures between AWS regions are in `aws_2022.json`
with their source.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np

from dtfm_lab.networks.node_groups import even, filled, grouped, uniform
from dtfm_protocol.view.view import View

STAGES = 8
"""Pipeline stages in the paper's evaluation."""
REPLICAS = 8
"""Devices in a stage in the paper's evaluation."""
GRADIENT_BYTES = 0.65e9
"""Bytes of gradients of one of eight stages of GPT-3 XL: 1.3e9 parameters x 4 bytes x 3 of 24 layers."""
ACTIVATION_BYTES = 2048 * 2048 * 2 * (125000 / 2048)
"""Bytes that a pipeline sends over one boundary: sequence 2048, hidden 2048, fp16, its share of the sequences."""
AUTHORS_ACTIVATION_BYTES = 471_249_223
"""Bytes that the authors' code takes instead: 2024 for one 2048, and GiB read as GB."""

Link = tuple[float, float]
"""A link's one-way delay in milliseconds, and its bandwidth in Gbit/s."""

_REGIONAL: dict[frozenset[str], Link] = {
    frozenset({"Virginia", "Oregon"}): (67, 1.15),
    frozenset({"Virginia", "California"}): (59, 1.05),
    frozenset({"Virginia", "Ohio"}): (11, 1.12),
    frozenset({"Oregon", "California"}): (12, 1.25),
    frozenset({"Oregon", "Ohio"}): (49, 1.10),
    frozenset({"California", "Ohio"}): (52, 1.02),
}
_WORLDWIDE = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")


def paper_network(case: int, nodes: int = STAGES * REPLICAS) -> View:
    """Make one of the five networks. Nothing in it is drawn.

    1: a data centre, hosts of eight. 2: a data centre's spot market, half of the devices on hosts of four, the others
    single. 3: two universities. 4: four regions of one country. 5: eight regions worldwide. Devices stand in the order
    of their groups; hosts are filled one after the other, regions get equal shares, the first ones what is left over.

    Raises:
        ValueError: there is no such case.
    """
    if case == 1:
        hosts = filled("host", 8, nodes)
        return grouped(hosts, uniform(len(hosts), 0, 0), uniform(len(hosts), 100, 3.125))
    if case == 2:
        shared = (nodes + 1) // 2
        hosts = filled("host", 4, shared) + filled("single", 1, nodes - shared)
        return grouped(hosts, uniform(len(hosts), 0, 0), uniform(len(hosts), 100, 1.25))
    if case == 3:
        places = even(("Ohio", "Virginia"), nodes)
        return grouped(places, uniform(len(places), 1, 11), uniform(len(places), 5, 1.12))
    if case == 4:
        return _regions(even(("Virginia", "Oregon", "California", "Ohio"), nodes), (5, 2), _REGIONAL)
    if case == 5:
        table = json.loads((files(__package__) / "aws_2022.json").read_text(encoding="utf-8"))
        within = table["within_region"]
        between = {
            frozenset(pair.split("-")): (link["latency_ms"], link["bandwidth_gbps"])
            for pair, link in table["pairs"].items()
        }
        return _regions(even(_WORLDWIDE, nodes), (within["latency_ms"], within["bandwidth_gbps"]), between)
    raise ValueError(f"the paper's networks are numbered 1 to 5, not {case}")


def _regions(sizes: Sequence[tuple[str, int]], same: Link, between: Mapping[frozenset[str], Link]) -> View:
    names = [name for name, _ in sizes]
    links = np.array(
        [[same if here == there else between[frozenset({here, there})] for there in names] for here in names],
        dtype=np.float64,
    )
    return grouped(sizes, links[:, :, 0], links[:, :, 1])
