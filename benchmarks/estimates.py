"""Links that nobody measured: how far off their estimates are, and whether they are as far off as is said.

    python -m benchmarks.estimates [--nodes 16 64] [--seeds 5] [--out benchmarks/results/estimates.md]

On made-up networks, whose every link is known, the pairs are measured that a coordinator would have measured before its
first plan: round trips of each node to eight others, and rates with two. Each measurement is off by some per cent. No
node says where it is, or what line it has. Nothing is timed: the table is the same on every machine.
"""

import argparse
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.links.chosen_pairs import echoes, next_partners
from dtfm_lab.networks.catalogue import NETWORKS, network
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.missing_links import FLOOR_MS
from dtfm_protocol.view.view import NodeView, View

NOISE = 0.03
"""Relative standard deviation of a measurement."""
HEADINGS = ("network", "nodes", "pairs measured", "delay off by (median, 95 %)", "stated, covers",
            "rate off by (median, 95 %)", "stated, covers")  # fmt: skip


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
    title = "Links that nobody measured"
    show(title, HEADINGS, rows)
    command = f"python -m benchmarks.estimates --nodes {' '.join(map(str, options.nodes))} --seeds {options.seeds}"
    words = (
        f"Medians over {options.seeds} seeds. A delay is off by a share of itself and {FLOOR_MS} ms; a rate by a "
        "factor of one more than the share that is given. Stated is what nine in ten are said to be within.\n"
    )
    keep(options.out, "Estimated links", command, [words, markdown(title, HEADINGS, rows)])


if __name__ == "__main__":
    main()
