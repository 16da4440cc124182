"""What all-reduces that are made for the links save: simulated steps of data parallel alone, and their bound.

The paper's model of 24 layers on the reduced worlds of `benchmarks.world.result` (8 and 16 peers worldwide; at 16 all
times are doubled), and on the regional network and volunteers at home at the same size: one stage, one micro-batch a
peer, all peers its replicas. Before: all sum equally much, and send straight to who sums. After: what
`[plan] parts = "auto"` chooses, parts sized to links, and then trees where these are worth it. All by the exact
simulator. The lower bound holds whoever sums how much, along which trees: compute of the peers at hand, and all
gradients once out of any of them, of eight also out of any group.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import keep, markdown, show
from benchmarks.world.paced import World
from benchmarks.world.placements import grid
from benchmarks.world.worlds import home_world, paper_world
from dtfm_coordinator.allocator.all_reduces.chosen_trees import with_trees
from dtfm_coordinator.allocator.all_reduces.sized_parts import by_links
from dtfm_coordinator.allocator.workload import pose, predict
from dtfm_lab.bounds.step_bound import data_parallel_bound
from dtfm_protocol.plan.reductions import reductions

PEERS = (8, 16)
HEADINGS = (
    "network",
    "peers",
    "bound",
    "before",
    "sized parts",
    "and trees",
    "after / before",
    "least and most, of an equal part",
    "none",
)


def worlds() -> Iterator[tuple[str, World]]:
    """Reduced worlds, each with its peers paced."""
    for peers in PEERS:
        yield "worldwide", paper_world(5, peers, stretch=peers / 8, micro_batches=peers)
        yield "regional", paper_world(4, peers, stretch=peers / 8, micro_batches=peers)
        yield "home", home_world(peers, stretch=peers / 8, micro_batches=peers)


def rows() -> Iterator[tuple[str, ...]]:
    """A row for each world."""
    for name, world in worlds():
        view, work = world.small, world.work
        plan = grid(view.ids, 1, world.layers, world.micro_batches)
        before = predict(view, work, plan).cost.total
        sized, parts = by_links(view, work, plan)
        laid, trees = with_trees(view, work, sized, parts)
        (one,) = reductions(laid, tied=False)
        times = [part * len(one.holders) for part in one.amounts(1.0)]
        yield (
            name,
            str(len(view.nodes)),
            f"{data_parallel_bound(pose(view, work, view.ids)):.2f} s",
            f"{before:.2f} s",
            f"{parts.total:.2f} s",
            f"{trees.total:.2f} s" if laid.trees is not None else "",
            f"{trees.total / before:.2f}",
            f"{min(times):.2f} to {max(times):.2f}",
            str(len(one.holders) - len(one.owners)),
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    found = list(rows())
    title = "Simulated seconds of a step, data parallel alone"
    show(title, HEADINGS, found)
    keep(
        options.out,
        "All-reduces made for the links",
        "python -m benchmarks.reductions",
        [
            '"Before": all sum equally much; "none": peers that sum nothing; no trees where they save less than 2 %. '
            "The bound holds whoever sums how much, along which trees.\n",
            markdown(title, HEADINGS, found),
        ],
    )


if __name__ == "__main__":
    main()
