"""Plans from few measurements beside plans from all: what a step costs under each, on links that are all known.

    python -m benchmarks.few_measurements [--nodes 16 64] [--homes 20] [--out benchmarks/results/few_measurements.md]
        [--missing]
    python -m benchmarks.few_measurements --grown --nodes --homes 20 [--out benchmarks/results/grown_homes.md]

On made-up networks the pairs are measured that a coordinator would have measured before its first plan, as in
`benchmarks.estimates`, and what lines carry in all, where that is less than what links do. The plan is then made as a
coordinator makes it: on estimates, its links measured, and made anew where they are others than was thought. Beside it
stands a plan from all links, by the same search with the same limit. Both are judged by the simulator on the true
links. Searches differ by chance: a plan from all links by another seed says by how much. Then training goes on, and in
spare moments links are measured that a better plan might use: the last plan is the one in force after some looks.

Where a swarm has grown, four nodes have begun it and the others have come one by one: what their lines carry in all is
then measured of some, and taken from their links of the others, as `PeerLimits` decides.
"""

import argparse
import multiprocessing
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from rich.progress import track

from benchmarks.estimates import grown, measured_few
from benchmarks.tables import keep, markdown, show, values, values_with
from benchmarks.world.paced import World
from dtfm_coordinator.allocator.allocate import ANEW, allocate
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_coordinator.leader.measured_plans import WORTH
from dtfm_coordinator.links.chosen_pairs import in_rounds
from dtfm_coordinator.links.filled_rounds import filled
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_coordinator.links.plan_revision import PlanRevision
from dtfm_coordinator.links.probe_rounds import Pair
from dtfm_coordinator.links.view_bounds import at_best
from dtfm_lab.networks.catalogue import NETWORKS, network
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

NOISE = 0.03
"""Relative standard deviation of a measurement."""
LOOKS = 6
LAYOUTS = 960_000
"""Layouts that a search looks at, over the number of nodes: about as many as a coordinator's has time for on two cores.
So the table is the same on every machine."""
MORE = {"irregular": 3, "home": 10}
"""Times as many where steps are long: there a coordinator searches for longer, up to ten seconds. The others with long
steps have one best plan that every search finds."""
HEADINGS = (
    "network", "nodes", "pairs measured", "of the plan, too", "step, all pairs known", "another seed",
    "few pairs", f"after {LOOKS} looks", "pairs of these",
)  # fmt: skip


class FewLinks:
    """What is known of a network's links, and more and more of it, as `LinkTable` has it for `PlanRevision`."""

    def __init__(self, truth: View, known: View, seed: int) -> None:
        self._truth, self._draw = truth, np.random.default_rng(seed)
        self._row = {peer: place for place, peer in enumerate(truth.ids)}
        self._latency, self._gbps = known.latency_ms.copy(), known.bandwidth_gbps.copy()
        self._nodes = known.nodes
        self.count = 0
        """Pairs that were measured."""

    @property
    def view(self) -> View:
        """What is known."""
        return View(nodes=self._nodes, latency_ms=self._latency, bandwidth_gbps=self._gbps)

    def unmeasured(self, pairs: Collection[frozenset[str]]) -> list[frozenset[str]]:
        """Those of `pairs` that were not measured."""
        return [pair for pair in pairs if np.isnan(self._gbps[self._place(tuple(pair))])]

    def doubtful(self, pairs: Collection[frozenset[str]]) -> list[Pair]:
        """Nobody lies."""
        return []

    def figures(self, sender: str, receiver: str) -> tuple[float, float, str]:
        """Gbit/s, milliseconds, and the way, of a measured link."""
        place = self._place((sender, receiver))
        return float(self._gbps[place]), float(self._latency[place]), "direct"

    def delay(self, one: str, other: str) -> float | None:
        """Milliseconds one way; None where it was not measured."""
        found = float(self._latency[self._place((one, other))])
        return None if np.isnan(found) else found

    def measure(self, rounds: list[list[Pair]]) -> None:
        """Measure pairs, each way."""
        for pair in (pair for turn in rounds for pair in turn):
            self.count += 1
            self.take_round_trip(pair)
            for link in (pair, pair[::-1]):
                place = self._place(link)
                self._gbps[place] = self._truth.bandwidth_gbps[place] * self._off()

    def take_round_trip(self, pair: Pair) -> None:
        """Measure a pair's round trip alone; all can talk."""
        places = [self._place(link) for link in (pair, pair[::-1])]
        delay = sum(float(self._truth.latency_ms[place]) for place in places) / 2 * self._off()
        for place in places:
            self._latency[place] = delay

    def _place(self, link: tuple[str, ...]) -> tuple[int, int]:
        one, other = link
        return self._row[one], self._row[other]

    def _off(self) -> float:
        return float(np.exp(NOISE * self._draw.standard_normal()))


@dataclass(frozen=True)
class Search:
    """Search for plans of one job."""

    work: Workload
    layouts: int
    """Layouts that it looks at."""

    def found(self, view: View, seed: int = 0, begun: Plan | None = None, in_force: Plan | None = None) -> Plan:
        """Return the plan that it finds; where it begins with another, it looks at fewer layouts: as many as a
        coordinator's for a plan made anew, and fewer than one in a spare moment, which takes its time."""
        layouts = self.layouts if begun is None else round(ANEW * self.layouts)
        return allocate(view, self.work, seed, evaluations=layouts, begun=begun, in_force=in_force)

    def predicted(self, view: View, plan: Plan) -> float:
        """Return the seconds of a plan's step on a view."""
        return predict(view, self.work, plan).cost.total


def with_lines(known: View, truth: View, seed: int) -> View:
    """Return what is known, with what each node can send and receive in all, as it was measured."""
    draw = np.random.default_rng(seed)

    def line(gbps: float | None) -> float | None:
        return None if gbps is None else gbps * float(np.exp(NOISE * draw.standard_normal()))

    both = zip(known.nodes, truth.nodes, strict=True)
    lines = [(node, {"up_gbps": line(true.up_gbps), "down_gbps": line(true.down_gbps)}) for node, true in both]
    return known.model_copy(update={"nodes": tuple(node.model_copy(update=update) for node, update in lines)})


def planned(links: FewLinks, search: Search, in_force: Plan | None = None) -> Plan:
    """Return the plan that a coordinator makes of what is known, measuring what the plan uses."""
    carried = pairs_of(in_force) if in_force is not None else ()
    tied = search.work.demand.trained_tied_parameters > 0
    revision = PlanRevision(links, tied=tied, carried=carried, first=in_force is None)  # type: ignore[arg-type]
    plan, made = None, list[Plan]()
    while True:
        view = links.view
        plan = search.found(revision.seen(view), begun=plan or in_force, in_force=in_force)
        if made and not in_force:
            best = min(made, key=partial(search.predicted, view))
            if search.predicted(view, plan) >= WORTH * search.predicted(view, best):
                return best
        made.append(plan)
        rounds = revision.planned(plan, view)
        links.measure(rounds)
        for peer, others in revision.doors().items():
            for other in others:
                links.take_round_trip((peer, other))
        if not rounds or revision.stands():
            return plan if in_force else min(made, key=partial(search.predicted, links.view))


def looked(links: FewLinks, search: Search, plan: Plan) -> Plan:
    """Return the plan in force after some looks in spare moments, as `SpareMeasuring` makes them."""
    for _ in range(LOOKS):
        if not _is_other(hoped := search.found(at_best(links.view), begun=plan, in_force=plan), plan):
            return plan
        pairs = links.unmeasured(pairs_of(hoped) - pairs_of(plan))
        links.measure(filled(in_rounds(pairs)[:1], links.view))
        if _is_other(search.found(links.view, begun=plan, in_force=plan), plan):
            plan = planned(links, search, plan)
        elif not pairs:
            return plan
    return plan


def _is_other(found: Plan, plan: Plan) -> bool:
    return found.routes != plan.routes or found.stages != plan.stages


def run(name: str, nodes: int, seed: int, has_grown: bool = False) -> tuple[float, ...]:
    """Return pairs measured before the plan, and for it; seconds of a step from all pairs, from all by another seed,
    from few, and after looks; and the pairs that these have measured."""
    truth = World(name, network(name, nodes, seed), micro_batches=2 * nodes).small
    work = World(name, truth, micro_batches=2 * nodes).work
    search = Search(work, MORE.get(name, 1) * LAYOUTS // nodes)
    seconds = partial(search.predicted, truth)
    full, other = (seconds(search.found(truth, chance)) for chance in (0, 1))
    known = grown(truth, seed) if has_grown else with_lines(measured_few(truth, seed), truth, seed)
    before = int((~np.isnan(known.bandwidth_gbps)).sum() - nodes) // 2
    links = FewLinks(truth, known, seed)
    plan = planned(links, search)
    of_plan, few = links.count, seconds(plan)
    after = looked(links, search, plan)
    return before, of_plan, full, other, few, seconds(after), links.count - of_plan


def row(name: str, nodes: int, runs: list[tuple[float, ...]]) -> tuple[str, ...]:
    """Return a row under `HEADINGS`: medians, and the worst where there are several."""
    before, of_plan, full, other, few, after, pairs = (list(column) for column in zip(*runs, strict=True))

    def ratio(found: list[float]) -> str:
        ratios = sorted(one / best for one, best in zip(found, full, strict=True))
        return f"{median(ratios):.3f}" + (f" (worst {ratios[-1]:.3f})" if len(ratios) > 1 else "")

    return (
        name, str(nodes), f"{median(before):.0f} of {nodes * (nodes - 1) // 2}", f"{median(of_plan):.0f}",
        f"{median(full):.2f} s", ratio(other), ratio(few), ratio(after), f"{median(pairs):.0f}",
    )  # fmt: skip


def key(name: str, nodes: int, seed: int) -> str:
    """Return the name under which a run is kept."""
    return f"{name} {nodes} {seed}"


def kept(out: Path | None, cases: list[tuple[str, int, int]]) -> dict[tuple[str, int, int], tuple[float, ...]]:
    """Return the runs that are kept beside a table."""
    found = values(out)
    return {case: tuple(found[key(*case)]) for case in cases if key(*case) in found}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--homes", type=int, default=20, help="worlds of 64 volunteers at home")
    parser.add_argument("--networks", nargs="+", default=[name for name in NETWORKS if name != "home"])
    parser.add_argument("--out", type=Path, help="runs are kept beside it as they end")
    parser.add_argument("--missing", action="store_true", help="make only the runs that are not kept")
    parser.add_argument("--grown", action="store_true", help="the nodes come one by one")
    options = parser.parse_args()
    cases = [(name, nodes, 1) for name in options.networks for nodes in options.nodes]
    cases += [("home", 64, options.homes)] if options.homes else []
    every = [(name, nodes, seed) for name, nodes, seeds in cases for seed in range(seeds)]
    found = kept(options.out, every) if options.missing else {}
    left = [case for case in every if case not in found]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, *case, options.grown): case for case in left}
        for done in track(as_completed(running), total=len(left)):
            found[running[done]] = done.result()
            values_with(options.out, key(*running[done]), done.result())
    rows = [row(name, nodes, [found[name, nodes, seed] for seed in range(seeds)]) for name, nodes, seeds in cases]
    title = "Steps of plans from few measurements, over those of plans from all"
    title += ", of nodes that came one by one" if options.grown else ""
    show(title, HEADINGS, rows)
    nodes = " ".join(map(str, ("--nodes", *options.nodes)))
    command = f"python -m benchmarks.few_measurements {'--grown ' * options.grown}{nodes} --homes {options.homes}"
    words = (
        'Simulated on the true links. "Another seed" and what follows are shares of the step that the plan from all '
        f"links takes. Looks, in spare moments of training, are {LOOKS} at most.\n"
    )
    keep(options.out, "Plans from few measurements", command, [words, markdown(title, HEADINGS, rows)])


if __name__ == "__main__":
    main()
