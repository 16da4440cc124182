"""The owner of a run pauses it, lets it go on, has a checkpoint kept, and ends it."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from dtfm_coordinator.plan_change.plan_record import VERSIONS_AHEAD
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


async def test_a_backup_of_a_pause_is_put_back_while_nodes_train_on_and_no_step_is_lost(swarm: Swarm) -> None:
    """The backup knows nothing of the plan under which they train; they show it to the coordinator."""
    swarm.slow_down()
    job, state = swarm.job(steps=60, checkpoint=50), swarm.folder / "coordinator"
    layout = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(job, "--plan", layout)
    nodes = [await swarm.join() for _ in range(2)]
    await swarm.until(lambda: swarm.step >= 3, "some steps are done")
    assert (await swarm.run("dtfm-coordinator", "pause", "--state-dir", state))[0] == 0
    shutil.copytree(state, backup := swarm.folder / "backup")
    paused_at = swarm.step
    assert (await swarm.run("dtfm-coordinator", "resume", "--state-dir", state))[0] == 0
    await swarm.until(lambda: swarm.step >= paused_at + 4, "the run goes on")
    coordinator.signal(signal.SIGKILL)
    await coordinator.exit_code()
    trained_to = swarm.step

    shutil.rmtree(state)
    shutil.copytree(backup, state)
    record = json.loads((state / "epoch.json").read_text())
    (state / "epoch.json").write_text(json.dumps(record | {"written_at": record["written_at"] - 3600}))  # an hour ago
    coordinator = await swarm.serve(job, "--plan", layout, "--exit-when-done")
    assert (await swarm.run("dtfm-coordinator", "resume", "--state-dir", state))[0] == 0
    assert [await process.exit_code() for process in (coordinator, *nodes)] == [0, 0, 0]
    assert "This state folder is a copy of an earlier one" in coordinator.said()
    went_on = swarm.events()[-1]
    assert went_on.step >= trained_to > paused_at
    assert went_on.source == "replicas"
    assert went_on.plan > VERSIONS_AHEAD, "no version of then is used again"
    rows = swarm.rows()
    there = {row["step"] for row in rows}
    assert {*range(1, 61)} - there <= {*range(paused_at + 1, went_on.step + 1)}, "no more is missing than was confirmed"
    same_curve(rows, [row for row in await alone(job) if row["step"] in there])
