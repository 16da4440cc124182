"""A link loses nine tenths of its rate while a swarm trains: when it is noticed, what is done, what is left.

    python -m benchmarks.world.adaptation [--only degrade | flap] [--runs 3] [--out benchmarks/results/adaptation.md]

The coordinator plans for itself here. The link is the busiest of the plan in force. Of several runs the one of the
median is shown. Then the same with a link that flaps, where the plan must not go to and fro; of that each run is shown.
"""

import argparse
import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import keep, markdown, show, values_with
from benchmarks.world.paced import Running, World, prediction
from benchmarks.world.placements import searched
from benchmarks.world.worlds import paper_world
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

LOST = 0.1
"""What is left of the link's rate."""
BEFORE_SECONDS, AFTER_SECONDS = 40.0, 150.0
HAND_OVER_SECONDS = 15.0
"""From the call of a new plan until its steps run at their own pace."""
FAST_AGAIN = 1.25
"""Multiple of the usual step up to which one counts as fast again."""
NEVER = "never"
FLAP_SECONDS, FLAPS = 20.0, 6
HEADINGS = ["what", "value"]
OF_A_FLAP = ("link", "new plans", "steps a minute before / while it flaps")
FULL_SPEED = "s until full speed is back: the first step begins that is no slower than those after"
TITLES = {"degrade": "A link loses nine tenths of its rate", "flap": "A link flaps"}


@dataclass(frozen=True)
class Sample:
    """A step."""

    at: float
    """Seconds since the beginning."""
    step: int
    seconds: float
    plan: int


def worse(world: World, wiring: Wiring, pair: tuple[str, str]) -> Wiring:
    """The world's links with one pair slowed down, both ways."""
    here, there = (world.view.ids.index(peer) for peer in pair)
    rate = [list(row) for row in wiring.rate]
    for i, j in ((here, there), (there, here)):
        before = rate[i][j]
        assert before is not None
        rate[i][j] = before * LOST
    return wiring.model_copy(update={"rate": rate})


def worse_view(world: World, pair: tuple[str, str]) -> View:
    """What the allocator would plan on if it knew."""
    small = world.small
    here, there = (small.ids.index(peer) for peer in pair)
    bandwidth = np.array(small.bandwidth_gbps)
    bandwidth[here, there] *= LOST
    bandwidth[there, here] *= LOST
    return View(nodes=small.nodes, latency_ms=small.latency_ms, bandwidth_gbps=bandwidth)


def busiest(plan: Plan) -> tuple[str, str]:
    """The pair of neighbours in most routes; of those the one in the middle of the pipeline."""
    counts: dict[tuple[str, str], int] = {}
    for route in plan.routes:
        for pair in itertools.pairwise(route):
            counts[pair] = counts.get(pair, 0) + 1
    most = max(counts.values())
    pairs = [pair for pair, count in counts.items() if count == most]
    return pairs[len(pairs) // 2]


class Watch:
    """Notes steps and plans as they come."""

    def __init__(self, running: Running) -> None:
        self._running, self.begun = running, time.time()
        self._first = running.swarm.step
        self.samples: list[Sample] = []
        self.plans: list[tuple[float, int, str]] = []
        self.noticed = 0.0
        """When links were first looked into."""

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.time() - self.begun

    async def run(self, until: float) -> None:
        """Watch until so many seconds since the beginning."""
        swarm = self._running.swarm
        while self.now() < until:
            if not self.noticed and self._running.phase in ("probing", "planning"):
                self.noticed = self.now()
            known = self.samples[-1].step if self.samples else self._first
            version = swarm.layout()["version"]
            for row in swarm.rows():
                if row["step"] > known:
                    self.samples.append(Sample(self.now(), row["step"], row["seconds"], version))
            for event in swarm.events()[len(self.plans) :]:
                self.plans.append((event.called_at - self.begun, event.plan, event.why))
            await asyncio.sleep(0.2)

    def throughput(self, start: float, end: float) -> float:
        """Steps a minute."""
        return 60 * sum(start <= one.at < end for one in self.samples) / (end - start)


async def degrade(world: World) -> dict[str, Any]:
    """One link becomes slow, and stays so; the table's rows, and what the figure shows."""
    async with Running.running(world) as running:
        names = {peer: node for node, peer in running.peers.items()}
        plan = Plan.model_validate(running.swarm.layout()).renamed(names)
        pair = busiest(plan)
        watch = Watch(running)
        await watch.run(BEFORE_SECONDS)
        wiring = worse(world, running.world.wiring(), pair)
        await running.lab.change(wiring)
        hit, watch.noticed = watch.now(), 0.0
        await watch.run(hit + AFTER_SECONDS)
        after = Plan.model_validate(running.swarm.layout()).renamed(names)
        parts = _parts(running, hit + watch.begun)
    changed = worse_view(world, pair)
    best = searched(world, changed)
    news = [one for one in watch.plans if one[0] > hit]
    under = hit + (news[0][0] - hit if news else AFTER_SECONDS)
    later = hit + AFTER_SECONDS / 2
    spans = ((0.0, hit), (hit, under + HAND_OVER_SECONDS), (later, hit + AFTER_SECONDS))
    rates = " / ".join(f"{watch.throughput(*span):.1f}" for span in spans)
    expected = {
        "before": prediction(world, world.small, plan),
        "undone": prediction(world, changed, plan),
        "after": prediction(world, changed, after),
        "best": prediction(world, changed, best),
    }
    rows = [
        ["link", f"{pair[0]} - {pair[1]}, to {LOST:.0%} of its rate, both ways"],
        ["s a step before, measured (predicted)", f"{_median(watch, 0, hit):.2f} ({expected['before']:.2f})"],
        ["s a step if nothing is done, predicted", f"{expected['undone']:.2f}"],
        [
            "s until it was noticed: the link is measured anew, or a plan without it is looked for",
            f"{watch.noticed - hit:.1f}" if watch.noticed else NEVER,
        ],
        ["s until a new plan is called", f"{news[0][0] - hit:.1f}" if news else NEVER],
        ["s until that plan is in force, with its state moved, its first step done", parts],
        [FULL_SPEED, _fast(watch, hit, later)],
        ["why", news[0][2] if news else ""],
        ["s a step after, measured (predicted)", f"{_median(watch, later, math.inf):.2f} ({expected['after']:.2f})"],
        ["s a step of the best plan for the new world, predicted", f"{expected['best']:.2f}"],
        ["steps a minute before / between / after", rates],
        ["new plans", str(len(news))],
    ]
    samples = [vars(one) for one in watch.samples]
    return {"rows": rows, "hit": hit, "pair": pair, "samples": samples, "plans": watch.plans, "expected": expected}


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs of `degrade`, the one of the median until full speed is back, with what all of them took."""

    def taken(one: dict[str, Any]) -> float:
        said: str = dict(one["rows"])[FULL_SPEED]
        return math.inf if said == NEVER else float(said)

    ordered = sorted(runs, key=taken)
    shown = ordered[(len(ordered) - 1) // 2]
    every = ", ".join(dict(one["rows"])[FULL_SPEED] for one in ordered)
    more = [[f"s until full speed is back, each of {len(runs)} runs", every]] if len(runs) > 1 else []
    return {**shown, "rows": [*shown["rows"], *more], "runs": len(runs)}


async def flap(world: World) -> tuple[str, ...]:
    """A link comes and goes: a value for each of `OF_A_FLAP`."""
    async with Running.running(world) as running:
        names = {peer: node for node, peer in running.peers.items()}
        pair = busiest(Plan.model_validate(running.swarm.layout()).renamed(names))
        watch = Watch(running)
        await watch.run(BEFORE_SECONDS / 2)
        plain = world.wiring()
        for _ in range(FLAPS):
            for wiring in (worse(world, plain, pair), plain):
                await running.lab.change(wiring)
                await watch.run(watch.now() + FLAP_SECONDS)
        end = watch.now()
    calm = BEFORE_SECONDS / 2
    rates = f"{watch.throughput(0, calm):.1f} / {watch.throughput(calm, end):.1f}"
    plans = len([one for one in watch.plans if one[0] > 0])
    link = f"{pair[0]} - {pair[1]}, to {LOST:.0%} and back every {FLAP_SECONDS:.0f} s, {FLAPS} times"
    return link, f"{plans} in {end:.0f} s", rates


def all_flaps(runs: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The rows of several runs of `flap`, each in a column."""
    return {"rows": [[what, *cells] for what, cells in zip(OF_A_FLAP, zip(*runs, strict=True), strict=True)]}


def _headings(found: dict[str, Any]) -> list[str]:
    """The headings above a part's rows, of as many runs as these hold."""
    count = len(found["rows"][0]) - 1
    return HEADINGS if count == 1 else [HEADINGS[0], *(f"run {number}" for number in range(1, count + 1))]


def _parts(running: Running, hit: float) -> str:
    """When the first plan after `hit` was in force, and when all its peers held their state and its first step was
    done."""
    event = next((one for one in running.swarm.events() if one.called_at > hit), None)
    if event is None or event.started_at is None:
        return NEVER
    row = next((row for row in running.swarm.rows() if row["step"] > event.step and row["at"] > event.started_at), None)
    done = "" if row is None else f", {row['at'] - hit:.1f}"
    return f"{event.in_force_at - hit:.1f}, {event.started_at - hit:.1f}{done}"


def _fast(watch: Watch, hit: float, later: float) -> str:
    """Seconds from `hit` to the beginning of the first step that is as fast as steps are `later`, within a quarter."""
    usual = FAST_AGAIN * _median(watch, later, math.inf)
    fast = (one.at - one.seconds for one in watch.samples if one.at - one.seconds > hit and one.seconds <= usual)
    return f"{begun - hit:.1f}" if (begun := next(fast, None)) is not None else NEVER


def _median(watch: Watch, start: float, end: float) -> float:
    return float(np.median([one.seconds for one in watch.samples if start <= one.at < end]))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(TITLES))
    parser.add_argument("--runs", type=int, default=1, help="of each part")
    parser.add_argument("--out", type=Path, help="the other part that it has stays")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs: 1 at least")
    world = paper_world(5)
    for name in TITLES:
        if arguments.only not in (None, name):
            continue
        if name == "flap":
            found = all_flaps([asyncio.run(flap(world)) for _ in range(arguments.runs)])
        else:
            found = middle([asyncio.run(degrade(world)) for _ in range(arguments.runs)])
        show(TITLES[name], _headings(found), found["rows"])
        kept = values_with(arguments.out, name, found)
        parts = [markdown(TITLES[one], _headings(kept[one]), kept[one]["rows"]) for one in TITLES if one in kept]
        command = f"python -m benchmarks.world.adaptation --runs {kept.get('degrade', {}).get('runs', 1)}"
        keep(arguments.out, "Adaptation", command, [f"{world.said}\n", *parts])


if __name__ == "__main__":
    main()
