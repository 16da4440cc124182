"""Programs of two installed versions, a minor one apart, train together.

The other way round, upgrades under a running swarm, and versions further apart: `python -m benchmarks.versions`.
"""

import json

import pytest

from dtfm_protocol.process.product_version import product_version
from tests.harness.later_version import ADDITIONS, install, later
from tests.harness.swarm import Swarm
from tests.swarm.reference import alone, same_curve

pytestmark = pytest.mark.process


async def test_a_node_of_the_next_minor_version_trains_with_this_one_s_coordinator_and_nodes(swarm: Swarm) -> None:
    """It adds a field to its profile and its metrics, and a state to its reports; each side names both versions."""
    newer = await install(swarm.folder / "later", later(), ADDITIONS)
    job = swarm.job(steps=10)
    plan = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(job, "--plan", plan, "--min-nodes", "2", "--exit-when-done")
    node = await swarm.join()
    upgraded = await swarm.join(program=newer.program("dtfm-node"), environment=newer.environment)
    assert await coordinator.exit_code() == 0, coordinator.said()
    assert [await one.exit_code() for one in (node, upgraded)] == [0, 0]
    same_curve(swarm.rows(), await alone(job))
    assert swarm.layout()["version"] == 1
    members = swarm.status()["overview"]["members"]
    versions = {peer: one["version"] for peer, one in members.items()}
    assert versions == {swarm.peer_of(node): product_version(), swarm.peer_of(upgraded): newer.version}
    told = f"this machine has dtfm {newer.version} and the swarm's coordinator {product_version()}: they work together"
    assert upgraded.said().count(told) == 1
    assert f"has dtfm {newer.version} and this coordinator {product_version()}: they work" in coordinator.said()
    assert "work together" not in node.said()
    status = json.loads((upgraded.folder / "status.json").read_text())
    assert (status["version"], status["coordinator_version"]) == (newer.version, product_version())
