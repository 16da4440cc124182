"""Runs that their owner changes while they train."""

import asyncio
import json
import signal

import pytest

from dtfm_protocol.job.amendments_file import read_amendments
from tests.harness.swarm import Swarm
from tests.swarm.reference import alone_amended, same_curve

pytestmark = pytest.mark.process


async def test_a_run_that_is_changed_by_command_and_by_its_file_has_the_curve_of_one_process(swarm: Swarm) -> None:
    """Rate, batch and steps are set while it trains; a node is killed in between; then the job file is edited, and the
    coordinator started anew while the nodes are connected. Edited steps used to jam a swarm with nodes for good."""
    swarm.slow_down()
    job = swarm.job(steps=44, checkpoint=5)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(3)]
    folder = swarm.coordinator.folder
    await swarm.until(lambda: swarm.step >= 3, "some steps are done")

    async def set_values(*changes: str) -> str:
        code, said = await swarm.run("dtfm-coordinator", "set", *changes, "--state-dir", str(folder))
        assert code == 0, said
        return said

    said = await set_values("training.learning_rate=5e-4", "training.steps=47")
    assert "training.steps 44 -> 47 from step" in said
    assert "in force from step" in said
    later = swarm.step + 10
    said = await set_values("training.global_batch=12", "--at", str(later))
    assert f"training.global_batch 8 -> 12 from step {later}" in said
    await swarm.until(lambda: swarm.step >= later + 1, "the batch has changed")
    plans = len(swarm.events())
    nodes[0].signal(signal.SIGKILL)
    reached = swarm.step
    await swarm.until(lambda: swarm.step >= reached + 2, "it goes on without a node")
    await swarm.until(lambda: len(swarm.events()) > plans, "the plan without it is known")
    broken = swarm.events()[plans].step
    code, said = await swarm.run("dtfm-coordinator", "set", "training.seed=2", "--state-dir", str(folder))
    assert code == 2
    assert "fork" in said

    coordinator.signal(signal.SIGKILL)
    await coordinator.exit_code()
    job.write_text(job.read_text().replace("steps = 44", "steps = 50").replace("every = 10", "every = 8"))
    coordinator = await swarm.serve(job, "--exit-when-done")
    assert [await process.exit_code() for process in (coordinator, *nodes[1:])] == [0, 0, 0]
    assert "training.steps 47 -> 50 from step" in coordinator.said()
    assert "job has changed" not in "".join(node.said() for node in nodes)

    changes = read_amendments(folder / "amendments.jsonl")
    assert [sorted(one.values) for one in changes] == [
        ["training.learning_rate", "training.steps"],
        ["training.global_batch"],
        ["evaluation.every", "training.steps"],
    ]
    assert changes[1].from_step == later
    assert json.loads((folder / "status.json").read_text())["steps"] == 50
    curve = await asyncio.to_thread(alone_amended, job, folder / "amendments.jsonl")
    same_curve(swarm.rows(), curve, stopped=broken)  # the node may have been killed in an evaluation
