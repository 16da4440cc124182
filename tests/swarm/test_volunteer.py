"""A volunteer's whole stay with no option but the invite: join, status, leave, remove, and nothing is left."""

import signal
from pathlib import Path

import pytest

from tests.harness.swarm import Swarm

pytestmark = pytest.mark.process


async def test_a_node_joins_leaves_and_is_removed_without_being_told_where_its_folder_is(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has kept text and parts of the model when it leaves; `remove` knows every file of it."""
    data = swarm.folder / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    coordinator = await swarm.serve(swarm.job(steps=4000, checkpoint=2), "--min-nodes", "1")
    invite = f"@{swarm.folder / 'coordinator' / 'invite'}"
    node = await swarm.start("dtfm-node", "join", "--yes", invite, "--device", "cpu", "--threads", "1")
    await swarm.until(lambda: list(data.rglob("*.safetensors")), "the node keeps a snapshot")

    code, said = await swarm.run("dtfm-node", "remove", "--yes")
    assert code == 2
    assert "have it leave first, with `dtfm-node leave`" in said
    code, said = await swarm.run("dtfm-node", "status")
    assert code == 0
    assert "The node is running.\nYou compute the whole model.\nStep " in said
    coordinator.signal(signal.SIGINT)  # a node alone would wait for others to take what it holds
    assert await coordinator.exit_code() == 130
    code, said = await swarm.run("dtfm-node", "leave")
    assert code == 0, said
    assert await node.exit_code() == 143

    (folder,) = (data / "dtfm" / "nodes").iterdir()
    assert kept(folder) >= {"key", "consent.json", "credential.json", "tokens", "snapshots"}
    code, said = await swarm.run("dtfm-node", "remove", "--yes")
    assert code == 0, said
    assert "B freed" in said
    assert list((data / "dtfm" / "nodes").iterdir()) == [], "a file of the node's that `remove` does not know"


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
