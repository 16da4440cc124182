"""The owner of a run pauses it, lets it go on, has a checkpoint kept, and ends it."""

import json
import signal
from pathlib import Path

import pytest

from tests.harness.swarm import Swarm
from tests.swarm.reference import alone, same_curve

pytestmark = pytest.mark.process


def newest_checkpoint(folder: Path) -> dict[str, object]:
    manifests = sorted((folder / "checkpoints").glob("step-*/manifest.json"))
    return dict(json.loads(manifests[-1].read_text()))


async def test_a_run_is_paused_over_a_restart_and_a_killed_node_and_ends_when_its_owner_wants(swarm: Swarm) -> None:
    """Nothing of the steps before is lost, and the curve does not notice."""
    swarm.slow_down()
    job, state = swarm.job(steps=60, checkpoint=50), swarm.folder / "coordinator"

    async def asked(command: str, *options: str) -> str:
        code, said = await swarm.run("dtfm-coordinator", command, "--state-dir", state, *options)
        assert code == 0, said
        return said

    layout = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(job, "--plan", layout)
    nodes = [await swarm.join() for _ in range(2)]
    await swarm.until(lambda: swarm.step >= 4, "some steps are done")
    said = await asked("pause")
    step = swarm.step
    assert f"paused after step {step} of 60; its state is kept" in said
    assert swarm.checkpoints() == [step]
    assert newest_checkpoint(state)["plan_version"] == 1
    await swarm.until(lambda: set(swarm.statuses().values()) == {"idle"}, "the nodes do nothing")

    coordinator.signal(signal.SIGTERM)
    await coordinator.exit_code()
    nodes[0].signal(signal.SIGKILL)
    coordinator = await swarm.serve(job, "--plan", layout, "--exit-when-done")
    await swarm.until(lambda: swarm.status().get("paused"), "the coordinator stays paused")
    await nodes[0].start()
    await swarm.until(lambda: len(swarm.statuses()) == 2 and all(swarm.statuses().values()), "both nodes are here")
    assert (swarm.step, swarm.layout()["version"]) == (step, 1)

    assert "from step" in await asked("resume")
    await swarm.until(lambda: swarm.step >= step + 3, "the run goes on")
    assert "the run goes on already: step" in await asked("resume")
    assert "is kept" in await asked("checkpoint")
    kept = swarm.checkpoints()[-1]
    assert step < kept < 50
    await swarm.until(lambda: swarm.step > kept, "the run goes on")
    assert "ended by the owner after step" in await asked("finish", "--yes")
    assert [await process.exit_code() for process in (coordinator, *nodes)] == [0, 0, 0]
    rows = swarm.rows()
    assert rows[-1]["step"] == swarm.checkpoints()[-1] < 60
    assert swarm.leftovers() == []
    assert sum(event.repeated for event in swarm.events()) == 0
    same_curve(rows, (await alone(job))[: len(rows)])
