"""Whoever has a swarm's invite, and computes nothing, stops no run of real processes."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import Field

from dtfm_protocol.control.messages import Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.message_counter import MessageCounter
from dtfm_protocol.schema import Schema
from tests.harness.swarm import Swarm
from tests.swarm.reference import alone, same_curve

pytestmark = pytest.mark.process
DISGUISE = "[/] \x1b[2J\x1b]0;owned\x07"


class Lie(Schema):
    """A report, in whose place anything may stand."""

    session: str = "s"
    state: str
    text: str = DISGUISE
    plan_version: int = 1
    step: int = 1 << 31
    standing: dict[str, Any] = Field(default_factory=dict)
    lost: list[str] = Field(default_factory=list)


class Attacker:
    """A member of the broker that writes what it likes."""

    def __init__(self, invite: Invite) -> None:
        self._swarm = invite.swarm
        self._post = Post(invite.swarm, Identity.generate())
        self._control = ControlPlane(
            BrokerAddress.of(invite), invite.swarm, invite.coordinators, self._post, "s", BrokerAddress.others(invite)
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Attacker"]:
        task = asyncio.create_task(self._control.run())
        await asyncio.wait_for(self._control.connected.wait(), 30)
        yield self
        task.cancel()
        await asyncio.wait([task])

    async def say(self, topic: str, data: bytes) -> None:
        assert self._control._client is not None
        await self._control._client.publish(f"dtfm/{self._swarm}/{topic}", data, qos=1, retain=True)

    async def report(self, **values: Any) -> None:
        me = self._post.peer_id
        await self.say(f"presence/{me}", self._post.seal("presence", Presence(online=True, session="s")))
        await self.say(f"report/{me}", self._post.seal("report", Lie(**values)))


async def test_replayed_ends_impossible_promises_and_words_in_disguise_cost_a_run_nothing(swarm: Swarm) -> None:
    """A node is killed afterwards, so that plans must still be possible, and another one joins what was replayed."""
    job = swarm.job(steps=150, checkpoint=5)
    layout = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--plan", layout, "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(3)]
    await swarm.until(lambda: len(swarm.rows()) >= 5, "some steps are done")
    invite = Invite.decode(f"@{coordinator.folder / 'invite'}")
    # What the coordinator could have said, and signed, in an earlier run.
    owner = Post(
        invite.swarm, Identity.load_or_create(coordinator.folder / "key"), counter=MessageCounter(clock=lambda: 1.0)
    )
    async with Attacker(invite).running() as attacker:
        await attacker.say(
            "phase", owner.seal("phase", Phase(name="failed", text="it broke", session="an earlier run"))
        )
        peers = swarm.layout()["pipelines"][0]
        for version in (1 << 33, (1 << 32) - 1):
            await attacker.report(
                state="idle", lost=peers, standing={"promise": {"version": version, "to": invite.coordinator}}
            )
        await attacker.report(state="diverged", lost=peers)
        await swarm.until(
            lambda: any(node["text"] and "[/]" in node["text"] for node in swarm.status()["nodes"]), "it is heard"
        )
        code, said = await swarm.run("dtfm-coordinator", "status", "--state-dir", coordinator.folder)
        assert code == 0, said
        assert all(line.isprintable() for line in said.split("\n"))
        nodes.append(await swarm.join(name="node-3"))
        victim = swarm.serving(0)[0]
        victim.signal(signal.SIGKILL)
        assert await coordinator.exit_code() == 0
    assert swarm.layout()["version"] < 10
    assert [await node.exit_code() for node in nodes if node is not victim] == [0, 0, 0]
    assert "alone says" not in coordinator.said()
    same_curve(swarm.rows(), await alone(job))
    dropped = json.loads((coordinator.folder / "status.json").read_text())["dropped"]["messages"]
    assert set(dropped) <= {"with contents that cannot be used"}
