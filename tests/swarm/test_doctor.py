"""`dtfm-node doctor` on a served swarm, after the coordinator's death, and cut short."""

import json
import signal
import socket

import pytest

from dtfm_protocol.identity.keys import Identity
from tests.harness.invites import invite_to
from tests.harness.swarm import Swarm

pytestmark = pytest.mark.process
HOST = "127.0.0.1"


def verdicts(said: str) -> dict[str, str]:
    """Of the JSON object in what doctor said."""
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    return {finding["group"] + ": " + finding["name"].split()[0]: finding["verdict"] for finding in found["findings"]}


async def test_a_served_swarm_is_well_until_its_coordinator_dies(swarm: Swarm) -> None:
    """A stranger sees that there is a coordinator, a node that has been there sees all; nothing of doctor's stays."""
    coordinator = await swarm.serve(swarm.job(), "--min-nodes", "2")
    invite = f"@{swarm.folder}/coordinator/invite"
    code, said = await swarm.run("dtfm-node", "doctor", invite, "--json", "--state-dir", swarm.folder / "new")
    found = verdicts(said)
    assert code == 0, said
    assert found["coordinator: broker"] == found["coordinator: TLS"] == found["coordinator: entry"] == "good"
    assert not (swarm.folder / "new").exists()

    node = await swarm.join(name="node")
    await swarm.until(lambda: "idle" in swarm.statuses().values(), "a node is there")
    node.signal(signal.SIGINT)
    await node.exit_code()
    code, said = await swarm.run("dtfm-node", "doctor", "--json", "--state-dir", node.folder)  # it has the invite
    found = verdicts(said)
    assert code == 0, said
    assert found["coordinator: alive"] == found["swarm: coordinator"] == found["swarm: DHT"] == "good"

    coordinator.signal(signal.SIGKILL)
    await coordinator.exit_code()
    code, said = await swarm.run("dtfm-node", "doctor", invite, "--json")
    found = verdicts(said)
    assert code == 1, said
    assert found["coordinator: broker"] == found["swarm: coordinator"] == "bad"
    assert found["invite: invite"] == found["this machine: versions"] == "good"
    assert swarm.leftovers() == []


async def test_ctrl_c_ends_it_quietly_and_leaves_nothing(swarm: Swarm) -> None:
    """In the midst of what answers nobody."""
    with socket.create_server((HOST, 0)) as mute:
        invite = invite_to(Identity.generate(), mute.getsockname()[1])
        doctor = await swarm.start("dtfm-node", "doctor", invite.encode())
        await swarm.until(lambda: list(swarm.temporary.glob("dtfm-*/daemon.sock")), "its libp2p daemon runs")
        doctor.signal(signal.SIGINT)
        assert await doctor.exit_code() == 130
    assert doctor.said().splitlines() == ["looking, for half a minute at most"]
    assert swarm.leftovers() == []
