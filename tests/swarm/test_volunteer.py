"""A volunteer's whole stay with no option but the invite: join, status, pause, leave, remove, and nothing is left."""

import json
import os
from pathlib import Path

import psutil
import pytest

from dtfm_protocol.control.contribution_record import ContributionRecord
from tests.harness.daemon import Daemon
from tests.harness.swarm import Swarm

pytestmark = pytest.mark.process


async def test_a_node_joins_leaves_and_is_removed_without_being_told_where_its_folder_is(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the model home, and has kept text and parts of it when it leaves; `remove` knows every file of it.

    In between it pauses, and another node goes on without it; in the end it is alone, and need not wait for others to
    take what it holds.
    """
    data = swarm.folder / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    job = swarm.job(steps=40_000, checkpoint=2)
    with job.open("a", encoding="utf-8") as file:
        file.write('[sharing]\nmodel = "members"\n')
    await swarm.serve(job, "--min-nodes", "1")
    invite = f"@{swarm.folder / 'coordinator' / 'invite'}"
    swarm.slow_down()
    node = await swarm.start(
        "dtfm-node", "join", "--yes", invite, "--device", "cpu", "--threads", "1", "--nice", "3",
        "--pace", swarm.size.slow,
    )  # fmt: skip
    await swarm.until(lambda: list(data.rglob("*.safetensors")), "the node keeps a snapshot")
    await swarm.until(lambda: _shows_a_step(data), "the node shows a step")

    assert {thread_priority(thread.id) for thread in psutil.Process(node.pid).threads()} == {3}

    code, said = await swarm.run("dtfm-node", "remove", "--yes")
    assert code == 2
    assert "have it leave first, with `dtfm-node leave`" in said
    code, said = await swarm.run("dtfm-node", "status")
    assert code == 0
    assert "The node is running.\nYou compute the whole model.\nStep " in said
    assert "\nYou allow: computes on cpu, 1 thread.\n" in said
    assert 'this swarm trains "' in node.said()

    await pauses_while_another_goes_on(swarm, node)
    code, said = await swarm.run("dtfm-node", "fetch-model", "--out", swarm.folder / "home")
    assert code == 0, said
    kept_here = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert kept(swarm.folder / "home") >= kept_here, said

    code, said = await swarm.run("dtfm-node", "leave", "--timeout", "40")  # shorter than what it waits for others
    assert code == 0, said
    assert await node.exit_code() == 143

    (folder,) = (data / "dtfm" / "nodes").iterdir()
    assert kept(folder) >= {"key", "consent.json", "credential.json", "tokens", "snapshots", "contribution.json"}
    assert {"threads = 1", 'device = "cpu"', "nice = 3"} <= set((folder / "dtfm-node.toml").read_text().splitlines())
    assert "`dtfm-node join` comes back" in node.said()
    assert "The coordinator has signed that: `dtfm-node contribution` shows it." in node.said()
    code, said = await swarm.run("dtfm-node", "remove", "--yes")
    assert code == 0, said
    assert "B freed" in said
    assert list((data / "dtfm" / "nodes").iterdir()) == [], "a file of the node's that `remove` does not know"
    (record,) = (data / "dtfm" / "contributions").iterdir()
    assert ContributionRecord.parsed(record.read_bytes()).said_by(swarm.layout()["author"]).steps > 0
    assert str(record) in said


async def pauses_while_another_goes_on(swarm: Swarm, node: Daemon) -> None:
    """The node pauses when it is alone, is found paused by a node that comes, trains beside that, and alone when it has
    gone."""
    code, said = await swarm.run("dtfm-node", "pause", "--for", "2h")
    assert code == 0, said
    assert "paused until" in said
    await swarm.until(lambda: list(swarm.statuses().values()) == ["paused"], "the coordinator knows that it pauses")
    step = swarm.step
    other = await swarm.join()
    await swarm.until(lambda: swarm.step > step + 3, "another node goes on from where it stopped")
    assert swarm.layout()["routes"][0][0] == swarm.peer_of(other)
    code, said = await swarm.run("dtfm-node", "resume")
    assert (code, said.strip()) == (0, "it goes on")
    await swarm.until(lambda: len({peer for route in swarm.layout()["routes"] for peer in route}) == 2, "both train")
    await swarm.until(lambda: _has_come_ahead(swarm, node), "it has had its part when the plan began")
    code, said = await swarm.run("dtfm-node", "leave", "--state-dir", other.folder)
    assert code == 0, said
    step = swarm.step
    await swarm.until(lambda: swarm.step > step + 3, "it has taken over")


def _has_come_ahead(swarm: Swarm, node: Daemon) -> bool:
    """Whether a node has had all that it needed when one of the plans began."""
    words = "all that is needed of the model after step {} has come ahead"
    return any(words.format(event.step) in node.said() for event in swarm.events())


def _shows_a_step(data: Path) -> bool:
    """Whether the status file of the one node below a folder has a step."""
    return any(json.loads(path.read_text(encoding="utf-8"))["last"] for path in data.rglob("status.json"))


def thread_priority(thread: int) -> int:
    """The nice value of a thread, of which each has one of its own."""
    return os.getpriority(os.PRIO_PROCESS, thread)


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
