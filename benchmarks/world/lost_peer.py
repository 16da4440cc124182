"""A peer at home is lost, without a word, while a swarm trains: state moved, and seconds, of all weights and of LoRA.

    python -m benchmarks.world.lost_peer [--peers 8] [--runs 3] [--only full | lora] [--out FILE]

The same model begins with the same weights, which are in pieces, and trains once whole, and once as adapters beside it.
The coordinator plans for itself. The peer that serves the most layers is killed (SIGKILL). What is moved is all that
the peers of the next plan fetch to begin: state, and of LoRA the pieces of the base which they lack, too. What the
allocator predicts is by what it counts when it plans, on the links as they are.
"""

import argparse
import asyncio
import dataclasses
import math
import signal
import statistics
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show, values_with
from benchmarks.world.paced import MODEL, Running, World
from benchmarks.world.worlds import home_world
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.tools.lifetimes.plans_in_time import PlansInTime
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.whole_model import build_whole
from dtfm_protocol.plan.plan import Plan

SHADOW, BEFORE_STEPS = 5, 12
"""Steps between copies of a lone stage, and steps after which a peer is lost."""
DEADLINE_SECONDS = 900.0
WAYS = {
    "full": "",
    "lora": 'method = "lora"\nlora = {r = 4, target_modules = ["q_proj", "k_proj", "v_proj", "o_proj"]}',
}
HEADINGS = [
    "trained",
    "plan before: layers x peers of each stage",
    "lost",
    "MB moved",
    "s of moving, as the allocator predicts",
    "s from the kill until the next plan is in force",
    "s until its peers hold their state",
    "s until its first step is done",
    "s a step before",
    "steps run again",
]


def world_of(way: str, peers: int, folder: Path) -> World:
    """The homes, where the model in `folder` is trained in one of `WAYS`."""
    return dataclasses.replace(home_world(peers), base=folder, training=WAYS[way], shadow=SHADOW)


def write_base(world: World, folder: Path) -> None:
    """Write the folder of the model that both begin with."""
    fields = tomllib.loads(MODEL.format(layers=world.layers))
    build_whole(resolve_config(Model.model_validate(fields), 257, 64), seed=4).save_pretrained(folder)


def layers_of(plan: Plan, peer: str) -> int:
    """Number of layers that a peer serves."""
    stage = plan.stage_of(peer)
    return 0 if stage is None else plan.stages[stage][1] - plan.stages[stage][0]


def shape_of(plan: Plan) -> str:
    """A plan's stages in words."""
    return " + ".join(f"{end - first} x {len(plan.replicas(stage))}" for stage, (first, end) in enumerate(plan.stages))


async def lose(world: World) -> dict[str, Any]:
    """Train, kill a peer, and wait for the first step of the plan without it."""
    async with Running.running(world) as running:
        swarm, names = running.swarm, {peer: node for node, peer in running.peers.items()}

        def steady() -> bool:
            """Whether enough steps are done, and the newest plan is in force."""
            return swarm.step >= BEFORE_STEPS and running.phase == "training"

        await swarm.until(steady, "some steps are done", DEADLINE_SECONDS)
        before = Plan.model_validate(swarm.layout())
        usual = statistics.median(row["seconds"] for row in swarm.rows()[-BEFORE_STEPS // 2 :])
        lost = max(before.peers, key=lambda peer: layers_of(before, peer))
        next(node for node in swarm.nodes if swarm.peer_of(node) == lost).signal(signal.SIGKILL)
        hit = time.time()

        def begun() -> tuple[PlanEvent, float] | None:
            """The plan without the peer, and when its first step was done."""
            for event in swarm.events():
                # The plan before may have been called off already, for a link that seemed to have changed.
                if event.in_force_at > hit and event.started_at:
                    later = (row["at"] for row in swarm.rows() if row["step"] > event.step)
                    done = next((at for at in later if at > event.started_at), math.nan)
                    return None if math.isnan(done) else (event, done)
            return None

        await swarm.until(begun, "the first step of the next plan is done", DEADLINE_SECONDS)
        found = begun()
        assert found is not None
        event, done = found
        after = Plan.model_validate(swarm.layout())
    beside = len(before.replicas(before.stage_of(lost) or 0))
    here = [node for node in world.view.ids if node != names[lost]]
    times = PlansInTime(world.small, world.work, 0, 0)
    return {
        "plan": shape_of(before),
        "lost": f"{names[lost]}, {layers_of(before, lost)} layers, 1 of {beside}",
        "moved": event.moved_bytes / 1e6,
        "predicted": times.moving_seconds(here, before.renamed(names), after.renamed(names)),
        "in force": event.in_force_at - hit,
        "held": event.started_at - hit,
        "done": done - hit,
        "usual": usual,
        "repeated": event.repeated,
    }


def row(way: str, found: list[dict[str, Any]]) -> list[str]:
    """The runs of a way as a row under `HEADINGS`: medians, and in words what each was."""

    def said(key: str) -> str:
        return "; ".join(dict.fromkeys(one[key] for one in found))

    def median(key: str, digits: int = 1) -> str:
        return f"{statistics.median(one[key] for one in found):.{digits}f}"

    figures = [median(key) for key in ("predicted", "in force", "held", "done", "usual")]
    return [way, said("plan"), said("lost"), median("moved", 2), *figures, median("repeated", 0)]


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=sorted(WAYS))
    parser.add_argument("--out", type=Path, help="the other part that it has stays")
    options = parser.parse_args()
    command = f"python -m benchmarks.world.lost_peer --peers {options.peers} --runs {options.runs}"
    with tempfile.TemporaryDirectory(prefix="lost-peer-") as name:
        folder, facts, lines = Path(name), machine(), list[list[str]]()
        write_base(home_world(options.peers), folder)
        for way in WAYS:
            if options.only not in (None, way):
                continue
            world = world_of(way, options.peers, folder)
            found = [asyncio.run(lose(world)) for _ in range(options.runs)]
            kept = values_with(options.out, way, found)
            lines = [row(one, kept[one]) for one in WAYS if one in kept]
            said = f"{world.said}. Medians of {options.runs}; lone stages leave copies every {SHADOW} steps.\n"
            keep(
                options.out,
                "A lost peer",
                command,
                [said, f"Machine: {facts}.\n", markdown("A peer is killed", HEADINGS, lines)],
            )
        show("A peer is killed", HEADINGS, lines)


if __name__ == "__main__":
    main()
