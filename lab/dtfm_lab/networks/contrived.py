"""Networks made to be hard in one way each. Their figures are chosen; what is right for them can be said beforehand."""

import numpy as np

from dtfm_lab.networks.node_groups import V100_BYTES, V100_RATES, even, grouped, uniform
from dtfm_protocol.view.view import NodeView, View

SLOW_LINE_GBPS = 0.05
"""Gbit/s of the lines at the slow site."""
SITES = 4
HUBS = 4


def slow_site(nodes: int) -> View:
    """Make four sites with good links, but for the last, behind slow lines. Symmetric; nothing in it is drawn.

    Two nodes of one site: 10 Gbit/s, 0.5 ms. Two sites: 1 Gbit/s, 15 ms. With an end at the slow site: 0.05 Gbit/s,
    40 ms. A view has limits for nodes and none for sites, so the slow line is `up_gbps` and `down_gbps` of each node of
    that site; it counts what goes to a neighbour, too, and two of that site have 0.05 Gbit/s and 0.5 ms between them.
    """
    good = min(SITES, nodes) - 1
    sizes = even([*(f"site{number}" for number in range(good)), "slow"], nodes)
    latency, bandwidth = uniform(len(sizes), 0.5, 15), uniform(len(sizes), 10, 1)
    slow = [name == "slow" for name, _ in sizes]
    bandwidth[slow, :] = bandwidth[:, slow] = SLOW_LINE_GBPS
    ends = np.logical_xor.outer(slow, slow)
    latency[ends] = 40
    return grouped(sizes, latency, bandwidth, [SLOW_LINE_GBPS if is_slow else None for is_slow in slow])


def two_clusters(nodes: int) -> View:
    """Make two halves: 10 Gbit/s and 0.5 ms within, 0.2 Gbit/s and 40 ms between. Symmetric; nothing in it is drawn.

    The good placement by the paper's cost, for an even number of stages and of replicas, with a bytes of activations
    over a boundary and g bytes of a stage's gradients:

    - 2 a < g: the first half of the stages on one cluster, the others on the other. One boundary is slow, which costs
      2 (40 ms + a / 0.2 Gbit/s), and no gradient crosses.
    - 2 a > g: half of the pipelines on each. Each stage's all-reduce crosses, which costs replicas x 40 ms
      + g / 0.2 Gbit/s, and no activation does.

    (Delays move the border a little.) A placement that follows neither pays for both.
    """
    sizes = even(("left", "right"), nodes)
    return grouped(sizes, uniform(len(sizes), 0.5, 40), uniform(len(sizes), 10, 0.2))


def hub_and_spoke(nodes: int) -> View:
    """Make up to four hubs, each with its spokes. Symmetric; nothing in it is drawn.

    Between hubs: 10 Gbit/s, 10 ms. A spoke and its own hub: 1 Gbit/s, 2 ms. Any other pair, two spokes of one hub among
    them: 0.1 Gbit/s, 30 ms, as if the hub relayed for them on the side.
    """
    hubs = min(HUBS, nodes)
    spokes = even([f"spokes{hub}" for hub in range(hubs)], nodes - hubs)
    sizes = [(f"hub{hub}", 1) for hub in range(hubs)] + spokes
    latency, bandwidth = uniform(len(sizes), 30, 30), uniform(len(sizes), 0.1, 0.1)
    latency[:hubs, :hubs], bandwidth[:hubs, :hubs] = 10, 10
    hub, own = np.arange(len(spokes)), hubs + np.arange(len(spokes))
    latency[hub, own] = latency[own, hub] = 2
    bandwidth[hub, own] = bandwidth[own, hub] = 1
    return grouped(sizes, latency, bandwidth)


def irregular(nodes: int, seed: int) -> View:
    """Make links without structure: each ordered pair has its own delay, 1 to 200 ms, and bandwidth, 0.02 to 5 Gbit/s.

    Both are drawn log-uniformly and apart, so that links are asymmetric and a fast one may be a late one.
    """
    rng = np.random.default_rng(seed)
    latency = np.exp(rng.uniform(np.log(1), np.log(200), (nodes, nodes)))
    bandwidth = np.exp(rng.uniform(np.log(0.02), np.log(5), (nodes, nodes)))
    return View(
        nodes=tuple(
            NodeView(id=f"node-{number}", region="anywhere", flops=V100_RATES, memory_bytes=V100_BYTES)
            for number in range(nodes)
        ),
        latency_ms=latency.round(2),
        bandwidth_gbps=bandwidth.round(4),
    )
