"""Plans that are made in haste, as a link of the one in force has failed: climbing from that one first, and not.

    python -m benchmarks.hasty_moves [--members 8 16] [--seeds 12] [--horizon 60]
        [--out benchmarks/results/hasty_moves.md]

On the emulated worlds, with all rates and delays known as they are: of a plan in force the busiest link falls to a
tenth of its rate, both ways, and another plan must pay back its move within a minute. Both searches look at as many
layouts. Shown is what they go by: the exact simulator's seconds of a step, plus the move's spread over as many steps as
the plan in force would now do in that time; and those of the move alone. The plans in force are of four seeds, the
searches for another of as many as are asked for.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, median
from unittest import mock

from rich.progress import track

from benchmarks.tables import keep, markdown, show
from benchmarks.world.adaptation import busiest, worse_view
from benchmarks.world.paced import World, prediction
from benchmarks.world.worlds import home_world, paper_world
from dtfm_coordinator.allocator.allocate import allocate, compile_now
from dtfm_coordinator.allocator.plan_in_force import InForce
from dtfm_coordinator.allocator.search import layout_evolution
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import pose
from dtfm_protocol.plan.plan import Plan

WORLDS = "3", "4", "5", "home"
IN_FORCE = 4
"""Seeds of plans in force."""
EVALUATIONS_A_MEMBER = 750
HEADINGS = (
    "world", "members", "without: step and move, mean", "worst", "move, median",
    "climbing first: step and move, mean", "worst", "move, median", "with / without",
)  # fmt: skip


@cache
def world_of(name: str, members: int) -> World:
    """An emulated world."""
    return home_world(members) if name == "home" else paper_world(int(name), members)


@cache
def in_force(name: str, members: int, seed: int) -> Plan:
    """A plan of several stages before the fault."""
    world, seeds = world_of(name, members), range(seed, 1000, IN_FORCE)
    plans = (allocate(world.small, world.work, one, evaluations=200 * members) for one in seeds)
    return next(plan for plan in plans if len(plan.stages) > 1)


def hasty(name: str, members: int, seed: int, horizon: float, *, climbs: bool) -> tuple[float, float]:
    """Return the seconds of a step with its share of the move, and those of the move, of the plan that is found."""
    world, plan = world_of(name, members), in_force(name, members, seed % IN_FORCE)
    view = worse_view(world, busiest(plan))
    work = replace(world.work, planning=world.work.planning.model_copy(update={"horizon": horizon}))
    share = layout_evolution.CHANGES if climbs else 0.0
    with mock.patch.object(layout_evolution, "CHANGES", share):
        found = allocate(view, work, seed, evaluations=EVALUATIONS_A_MEMBER * members, in_force=plan)
    old = InForce.of(view, work, pose(view, work, view.ids, found.schedule), view.ids, plan)
    layout = Layout.of_plan(found, view.ids)
    assert layout is not None
    move = old.moving(layout)
    return prediction(world, view, found) + move / old.horizon, move


def rows(members: list[int], seeds: int, horizon: float) -> Iterator[tuple[str, ...]]:
    """A row for each world and number of members."""
    for name in WORLDS:
        for count in members:
            both = [
                [hasty(name, count, seed, horizon, climbs=climbs) for seed in range(seeds)] for climbs in (False, True)
            ]
            means = [mean(whole for whole, _ in runs) for runs in both]
            cells = (
                cell
                for average, runs in zip(means, both, strict=True)
                for cell in (
                    f"{average:.2f} s",
                    f"{max(whole for whole, _ in runs):.2f} s",
                    f"{median(move for _, move in runs):.1f} s",
                )
            )
            yield world_of(name, count).name, str(count), *cells, f"{means[1] / means[0]:.3f}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--seeds", type=int, default=12, help="of searches")
    parser.add_argument("--horizon", type=float, default=60.0, help="seconds within which a move must pay back")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    compile_now(print)
    total = len(WORLDS) * len(options.members)
    found = list(track(rows(options.members, options.seeds, options.horizon), "searching", total, transient=True))
    title = f"Simulated seconds, {options.seeds} searches each; moves pay back within {options.horizon:.0f} s"
    show(title, HEADINGS, found)
    members = " ".join(map(str, options.members))
    command = f"python -m benchmarks.hasty_moves --members {members} --seeds {options.seeds}"
    command += f" --horizon {options.horizon:g}"
    keep(options.out, "Plans that are made in haste", command, [markdown(title, HEADINGS, found)])


if __name__ == "__main__":
    main()
