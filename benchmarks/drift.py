"""What it saves that orders of compute follow durations that drift: steps that are played at a pace, by plans as the
allocator makes them.

A gpt2 of 1.2 billion parameters as in `benchmarks.orders`, on members of the paper's networks and of volunteers at
home, searched with `in_flight = "auto"`. Then each machine, with a chance of one in four, takes 1.3 to 3 times as long
as the plan says, and all vote that. The arbiter's own rule decides whether orders follow. Both orders are played at the
durations that have come of it: compute and messages, without the all-reduce.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.orders import NETWORKS, words, work
from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.allocate import allocate, compile_now
from dtfm_lab.networks.catalogue import network
from dtfm_node.engine.drifted_pace import SMOOTHED_STEPS, DriftedPace
from dtfm_node.engine.orders_in_force import OrdersInForce
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import NewDurations, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_orders import step_microseconds

CHANCE, SLOWER = 0.25, (1.3, 3.0)
"""How likely a machine drifts, and by which factors."""
HEADINGS = ("network", "members", "plan", "drifts", "followed", "saved then", "at most", "new orders worse")


def drifted(plan: Plan, draw: random.Random) -> NewDurations:
    """What the actions of all peers take after a drift."""
    assert plan.pacing is not None
    found = []
    for place in range(len(plan.peers)):
        factor = draw.uniform(*SLOWER) if draw.random() < CHANCE else 1.0
        found.append((place, tuple(round(factor * each) for each in plan.pacing.durations_of(place))))
    return tuple(found)


def followed(plan: Plan, now: NewDurations) -> bool:
    """Whether the arbiter's commits bring new durations when all have voted these."""
    pace = DriftedPace(plan)
    votes = {plan.peers[place]: Vote(durations=durations) for place, durations in now}
    return any(pace.on(votes) for _ in range(SMOOTHED_STEPS))


def saving(plan: Plan, now: NewDurations) -> float | None:
    """Part of the step that new orders save, less than 0 where they cost; None: they would take more memory."""
    own = OrdersInForce.of(plan)
    try:
        after = own.after(now)
    except Refused:
        return None
    return 1.0 - step_microseconds(after.paced, after.orders) / step_microseconds(after.paced, own.orders)


def rows(evaluations: int, members: list[int], micro_batches: int, drifts: int) -> Iterator[tuple[str, ...]]:
    """A row for each network and number of members."""
    for name in NETWORKS:
        for count in members:
            view = network(name, count, 0)
            plan = allocate(view, work(micro_batches, open_pace=True), 0, None, evaluations)
            if not plan.follows_durations:
                yield (name, str(count), f"{words(plan)}; it has no pace", *("" for _ in HEADINGS[3:]))
                continue
            draw = random.Random(0)
            drawn = [drifted(plan, draw) for _ in range(drifts)]
            every = [saving(plan, now) for now in drawn]
            saved = [one or 0.0 for one, now in zip(every, drawn, strict=True) if followed(plan, now)]
            yield (
                name,
                str(count),
                words(plan),
                str(drifts),
                str(len(saved)),
                f"{sum(saved) / len(saved):.1%}" if saved else "",
                f"{max(saved):.1%}" if saved else "",
                str(sum(one is not None and one < -0.001 for one in every)),
            )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=8000, help="layouts that each search may look at")
    parser.add_argument("--members", type=int, nargs="+", default=[8, 16, 24])
    parser.add_argument("--micro-batches", type=int, default=64)
    parser.add_argument("--drifts", type=int, default=100, help="drifts that are drawn for each plan")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    compile_now(print)
    found = list(rows(options.evaluations, options.members, options.micro_batches, options.drifts))
    title = f"Played steps of {options.micro_batches} micro-batches, {options.evaluations} evaluations a search"
    show(title, HEADINGS, found)
    command = f"python -m benchmarks.drift --evaluations {options.evaluations} --drifts {options.drifts} "
    command += f"--micro-batches {options.micro_batches} --members "
    keep(
        options.out,
        "Orders that follow durations",
        command + " ".join(map(str, options.members)),
        [
            f"Each machine, with a chance of {CHANCE:.0%}, takes {SLOWER[0]:g} to {SLOWER[1]:g} times as long as its "
            'plan says. "followed": new orders keep to the memory of the old ones and save at least 2 %; "new orders '
            'worse": drifts after which they would cost, and are not followed.\n',
            markdown(title, HEADINGS, found),
        ],
    )


if __name__ == "__main__":
    main()
