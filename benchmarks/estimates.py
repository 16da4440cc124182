"""Links that nobody measured: how far off their estimates are, and whether they are as far off as is said.

    python -m benchmarks.estimates [--nodes 16 64] [--seeds 5] [--out benchmarks/results/estimates.md]

On made-up networks, whose every link is known, the pairs are measured that a coordinator would have measured before its
first plan: round trips of each node to eight others, and rates with two. Each measurement is off by some per cent. No
node says where it is, or what line it has. Where nodes come one by one, the lines of some are measured, and those of
the others estimated. Nothing is timed: the tables are the same on every machine.
"""

import argparse
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.links.chosen_pairs import echoes, next_partners
from dtfm_coordinator.links.line_estimate import FAN
from dtfm_coordinator.links.peer_limits import PeerLimits
from dtfm_lab.networks.catalogue import NETWORKS, network
from dtfm_node.links.fan import SHARED
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.missing_links import FLOOR_MS
from dtfm_protocol.view.view import NodeView, View

NOISE = 0.03
"""Relative standard deviation of a measurement."""
HEADINGS = ("network", "nodes", "pairs measured", "delay off by (median, 95 %)", "stated, covers",
            "rate off by (median, 95 %)", "stated, covers")  # fmt: skip
LINE_HEADINGS = ("network", "nodes", "lines estimated", "off by (median, 95 %)", "stated, covers")
BEGINNERS = 4
"""Nodes that are there at once where a swarm grows."""


def measured_few(truth: View, seed: int) -> View:
    """Return what a coordinator knows of a network before its first plan, whose nodes have all come at once."""
    (view,) = growing(truth, seed, [range(len(truth.ids))])
    return view


def growing(truth: View, seed: int, arrivals: Iterable[Collection[int]]) -> Iterator[View]:
    """Yield what a coordinator knows of those nodes of a network that are there, each time that some have come."""
    count, rng = len(truth.ids), np.random.default_rng(seed)
    latency, gbps = np.full((2, count, count), np.nan)
    tried = np.zeros((count, count), dtype=bool)
    true_ms = (truth.latency_ms + truth.latency_ms.T) / 2  # one way is half a round trip

    def off() -> float:
        return float(np.exp(NOISE * rng.standard_normal()))

    def take_delay(one: int, other: int) -> None:
        latency[one, other] = latency[other, one] = true_ms[one, other] * off()

    there: list[int] = []
    for arrived in arrivals:
        there += arrived
        block, is_new = np.ix_(there, there), np.isin(there, [*arrived])
        nodes = tuple(truth.nodes[node] for node in there)
        for one, others in echoes(len(there), is_new, ~np.isnan(latency[block])).items():
            for other in others:
                take_delay(there[one], there[other])
        delays = known(nodes, latency[block], gbps[block]).alpha()
        while pairs := next_partners(tried[block], delays, gbps[block]):
            for one, other in ((there[one], there[other]) for one, other in pairs):
                tried[one, other] = tried[other, one] = True
                take_delay(one, other)
                for link in ((one, other), (other, one)):
                    gbps[link] = truth.bandwidth_gbps[link] * off()
        yield known(nodes, latency[block], gbps[block])


def grown(truth: View, seed: int) -> View:
    """Return what is known of nodes of which four have begun a swarm, and the others have come one by one."""
    limits, draw = PeerLimits(), np.random.default_rng(seed)
    line = {node.id: (node.up_gbps, node.down_gbps) for node in truth.nodes}
    view = None

    def together(peer: str, way: int, alone: list[float]) -> float | None:
        found = min(line[peer][way] or np.inf, sum(alone)) * float(np.exp(NOISE * draw.standard_normal()))
        return found if found < SHARED * sum(alone) else None

    for view in growing(truth, seed, [range(BEGINNERS), *([node] for node in range(BEGINNERS, len(truth.ids)))]):
        row = {peer: place for place, peer in enumerate(view.ids)}

        def told(table: Matrix, one: str, other: str, row: dict[str, int] = row) -> float | None:
            found = float(table[row[one], row[other]])
            return None if np.isnan(found) or one == other else found

        rates, delays = partial(told, view.bandwidth_gbps), partial(told, view.latency_ms)
        for fans in limits.fans(view.ids, rates, delay=delays):
            for fan in fans:
                up, down = (together(fan.centre, way, [one[way] for one in fan.gbps.values()]) for way in (0, 1))
                limits.reported(fan.centre, Limits(up_gbps=up, down_gbps=down))
    assert view is not None
    lines = [(node, limits.of(node.id)) for node in view.nodes]
    return view.model_copy(
        update={
            "nodes": tuple(
                node.model_copy(update=line.model_dump() | {"line_spread": limits.spread(node.id)})
                for node, line in lines
            )
        }
    )


def known(nodes: Collection[NodeView], latency: Matrix, gbps: Matrix) -> View:
    """Return a view of `nodes`, without what they do not know of themselves, and of these figures."""
    unknown = {"region": None, "up_gbps": None, "down_gbps": None}
    return View(nodes=tuple(node.model_copy(update=unknown) for node in nodes), latency_ms=latency, bandwidth_gbps=gbps)


def row(name: str, nodes: int, seeds: int) -> tuple[str, ...]:
    """Return a row under `HEADINGS`."""
    delays, rates, stated_delays, stated_rates, covered_delays, covered_rates = ([] for _ in range(6))
    pairs = 0
    for seed in range(seeds):
        truth = network(name, nodes, seed)
        view = measured_few(truth, seed)
        apart = ~np.eye(nodes, dtype=bool)
        true_ms = (truth.latency_ms + truth.latency_ms.T) / 2
        gaps = np.isnan(view.latency_ms) & apart
        found, spread = view.estimated_ms
        miss = np.abs(found - true_ms)[gaps] / (found[gaps] + FLOOR_MS)
        delays.append(np.abs(found - true_ms)[gaps] / (true_ms[gaps] + FLOOR_MS))
        covered_delays.append(miss <= spread)
        stated_delays.append(spread)
        gaps = np.isnan(view.bandwidth_gbps) & apart
        pairs += int((apart & ~gaps).sum()) // 2
        found, spread = view.estimated_gbps
        miss = np.abs(np.log(found[gaps] / truth.bandwidth_gbps[gaps]))
        rates.append(np.exp(miss) - 1)
        covered_rates.append(miss <= np.log(spread) + 1e-9)
        stated_rates.append(spread - 1)
    of_all = nodes * (nodes - 1) // 2
    return (
        name, str(nodes), f"{pairs / seeds:.0f} of {of_all}",
        _both(delays), f"{np.median(stated_delays):.0%}, {np.concatenate(covered_delays).mean():.0%}",
        _both(rates), f"{np.median(stated_rates):.0%}, {np.concatenate(covered_rates).mean():.0%}",
    )  # fmt: skip


def row_of_lines(name: str, nodes: int) -> tuple[str, ...]:
    """Return a row under `LINE_HEADINGS`, of one network."""
    misses, stated, covered = [], [], []
    truth = network(name, nodes, 0)
    view = grown(truth, 0)
    for place, node in enumerate(view.nodes):
        if node.line_spread is None:
            continue
        found = [_carries(node, view, place), _carries(truth.nodes[place], view, place)]
        misses.append(np.abs(np.log(found[0] / found[1])).max())
        stated.append(node.line_spread - 1)
        covered.append(misses[-1] <= np.log(node.line_spread) + 1e-9)
    if not misses:
        return name, str(nodes), "0", "", ""
    off = np.exp(np.array(misses)) - 1
    return (
        name, str(nodes), str(len(misses)), f"{np.median(off):.0%}, {np.quantile(off, 0.95):.0%}",
        f"{np.median(stated):.0%}, {np.mean(covered):.0%}",
    )  # fmt: skip


def _carries(node: NodeView, view: View, place: int) -> Matrix:
    """Return the Gbit/s that a node sends, and receives, over as many of its fastest links as lines are measured by."""
    ways = np.array([view.bandwidth_gbps[place], view.bandwidth_gbps[:, place]])
    ways = np.delete(ways, place, axis=1)
    ways = ways[:, ~np.isnan(ways).any(axis=0)]
    together = ways[:, np.argsort(-ways[0])[:FAN]].sum(axis=1)
    lines = [np.inf if line is None else line for line in (node.up_gbps, node.down_gbps)]
    carried: Matrix = np.minimum(together, lines)
    return carried


def _both(misses: list[Matrix]) -> str:
    together = np.concatenate(misses)
    return f"{np.median(together):.0%}, {np.quantile(together, 0.95):.0%}"


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = [(name, nodes) for name in NETWORKS for nodes in options.nodes]
    rows = [row(name, nodes, options.seeds) for name, nodes in track(cases, transient=True)]
    lines = [row_of_lines(name, nodes) for name, nodes in track(cases, transient=True)]
    titles = "Links that nobody measured", "Lines that nobody measured, where nodes came one by one"
    show(titles[0], HEADINGS, rows)
    show(titles[1], LINE_HEADINGS, lines)
    command = f"python -m benchmarks.estimates --nodes {' '.join(map(str, options.nodes))} --seeds {options.seeds}"
    words = (
        f"Medians over {options.seeds} seeds. A delay is off by a share of itself and {FLOOR_MS} ms; a rate by a "
        "factor of one more than the share that is given. Stated is what nine in ten are said to be within. A line is "
        f"what a node sends, or receives, over its {FAN} fastest links at once, in the network of the first seed.\n"
    )
    tables = [markdown(titles[0], HEADINGS, rows), markdown(titles[1], LINE_HEADINGS, lines)]
    keep(options.out, "Estimated links", command, [words, *tables])


if __name__ == "__main__":
    main()
