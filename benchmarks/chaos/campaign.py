"""One thing after the other happens to one run; what each cost, and how far the curve is off at the end."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness.swarm import Swarm

from benchmarks.chaos.cases import Case

RECOVERED_SECONDS = 180.0
SLACK_STEPS = 3
"""Training that goes on between two cases."""


@dataclass(frozen=True)
class Outcome:
    """What a case did."""

    case: Case
    plans: int
    """How many new ones it took."""
    seconds: float
    """From the fault until the first new step was recorded."""
    repeated: int
    """Steps that had been final."""
    source: str
    moved_bytes: int


@dataclass(frozen=True)
class Layout:
    """A forced plan and its swarm."""

    name: str
    stages: list[list[int]]
    routes: list[str]
    nodes: int


LONE = Layout("2 stages x 1, 2 spares", [[0, 2], [2, 4]], ["ab"] * 8, 4)
REPLICATED = Layout("2 stages x 2, 2 spares", [[0, 2], [2, 4]], ["ac", "bd"] * 4, 6)


async def run(
    swarm: Swarm, layout: Layout, cases: Sequence[Case], steps: int, *, returning: bool = True
) -> list[Outcome]:
    """Let all cases happen, one after the other, and the run end.

    Args:
        returning: whether those who are hit are started again.
    """
    job = swarm.job(steps, checkpoint=20)
    arguments = ("--plan", swarm.plan(layout.stages, layout.routes), "--min-nodes", layout.nodes, "--exit-when-done")
    await swarm.serve(job, *arguments)
    for _ in range(layout.nodes):
        await swarm.join()
    await swarm.until(lambda: swarm.step >= 5, "the first steps are done", 180)
    outcomes = []
    for case in cases:
        outcomes.append(await _happen(swarm, case, returning=returning))
        print(_line(outcomes[-1]), flush=True)
        if returning and swarm.step > steps - 100:
            print(f"step {swarm.step} of {steps}: no steps are left for more", flush=True)
            break
    await swarm.until(lambda: not swarm.coordinator.alive, "the run ends", 600)
    assert swarm.step == steps
    return outcomes


async def _happen(swarm: Swarm, case: Case, *, returning: bool) -> Outcome:
    before, first = len(swarm.events()), swarm.step
    hit = await case.strike(swarm)
    if case.breaks:
        await swarm.until(lambda: len(swarm.events()) > before, f"a plan follows {case.name}", RECOVERED_SECONDS)

    def goes_on() -> bool:
        events = swarm.events()[before:]
        reached = max([first, *(event.step + event.repeated for event in events)])
        return swarm.step > reached

    await swarm.until(goes_on, f"there is a new step after {case.name}", RECOVERED_SECONDS)
    seconds = time.time() - hit.at
    if hit.lasting is not None:
        await hit.lasting()
    if returning:
        for victim in hit.victims:
            await victim.start()
        back = [swarm.peer_of(victim) for victim in hit.victims]
        await swarm.until(
            lambda: all(swarm.statuses().get(peer) in {"idle", "training"} for peer in back),
            "who was hit is back",
            RECOVERED_SECONDS,
        )
    here = swarm.step
    await swarm.until(lambda: swarm.step >= here + SLACK_STEPS, "training goes on", RECOVERED_SECONDS)
    events = swarm.events()[before:]
    await asyncio.sleep(0.1)
    return Outcome(
        case,
        len(events),
        seconds,
        sum(event.repeated for event in events),
        " ".join(dict.fromkeys(event.source for event in events)) or "-",
        sum(event.moved_bytes for event in events),
    )


def difference(rows: list[dict[str, Any]], reference: list[dict[str, Any]], first: int, end: int) -> float:
    """Largest relative difference of the loss over steps `first` to `end`, as far as both have recorded them."""
    losses = {row["step"]: row["loss"] for row in reference}
    pairs = [(row["loss"], losses[row["step"]]) for row in rows if first <= row["step"] <= end]
    return float(max(abs(loss - other) / abs(other) for loss, other in pairs))


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.case.name:45} {outcome.case.victim:40} {outcome.seconds:6.1f} s, {outcome.plans} plans, "
        f"{outcome.repeated} steps again, {outcome.source}, {outcome.moved_bytes / 1e6:.1f} MB"
    )
