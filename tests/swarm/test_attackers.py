"""Members that compute nothing, or lie about what they have computed, stop no run of real processes."""

import asyncio
import contextlib
import json
import re
import secrets
import signal
from pathlib import Path
from typing import Any, Self

import aiomqtt
import pytest
from pydantic import Field

from dtfm_node.control.enrolment_client import EnrolmentClient
from dtfm_protocol.control.messages import Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
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
    """A member that writes what it likes."""

    def __init__(self, invite: Invite, identity: Identity, admission: Admission) -> None:
        self._invite, self._identity, self._admission = invite, identity, admission
        self._post = Post(invite.swarm, identity)

    @classmethod
    async def entering(cls, invite: Invite, folder: Path) -> Self:
        """Enter as every node does."""
        folder.mkdir()
        identity = Identity.load_or_create(folder / "key")
        return cls(invite, identity, await EnrolmentClient(invite, identity, folder).obtain(30))

    async def report(self, **values: Any) -> None:
        """Be there, and report what no node does."""
        me, presence = self._post.peer_id, Presence(online=True, session="s")
        async with self._session() as session:
            await session.publish(self._topic(f"presence/{me}"), self._post.seal("presence", presence), 1, retain=True)
            await session.publish(self._topic(f"report/{me}"), self._post.seal("report", Lie(**values)), 1)

    async def oversteps(self, topic: str, data: bytes) -> None:
        """Write what is not a member's to write, and be thrown out for it.

        Raises:
            TimeoutError: it is not.
        """
        with contextlib.suppress(aiomqtt.MqttError):
            async with self._session() as session, asyncio.timeout(30):
                await session.publish(self._topic(topic), data, 0, retain=True)
                async for _ in session.messages:
                    pass

    def _session(self) -> aiomqtt.Client:
        address = BrokerAddress.of(self._invite)
        return aiomqtt.Client(
            address.host,
            address.port,
            identifier=f"{self._post.peer_id}.{secrets.token_hex(4)}",
            tls_context=address.context(self._identity, self._admission.certificate),
        )

    def _topic(self, name: str) -> str:
        return f"dtfm/{self._invite.swarm}/{name}"


async def test_replayed_ends_false_promises_a_made_up_model_and_words_in_disguise_cost_a_run_nothing(
    swarm: Swarm,
) -> None:
    """A node is killed afterwards, so that plans must still be possible, and another one joins what was replayed."""
    swarm.slow_down()
    job = swarm.job(steps=60, checkpoint=5)
    layout = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--plan", layout, "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(3)]
    await swarm.until(lambda: len(swarm.rows()) >= 5, "some steps are done")
    invite = Invite.decode(f"@{coordinator.folder / 'invite'}")
    # What the coordinator could have said, and signed, in an earlier run.
    owner = Post(
        invite.swarm, Identity.load_or_create(coordinator.folder / "key"), counter=MessageCounter(clock=lambda: 1.0)
    )
    attacker = await Attacker.entering(invite, swarm.folder / "attacker")
    phase = Phase(name="failed", text="it broke", session="an earlier run")
    await attacker.oversteps("phase", owner.seal("phase", phase))
    peers = swarm.layout()["pipelines"][0]
    for version in (1 << 33, (1 << 32) - 1):
        await attacker.report(
            state="idle", lost=peers, standing={"promise": {"version": version, "to": invite.coordinator}}
        )
    await attacker.report(state="diverged", lost=peers)
    newer = {"mark": {"step": 100_000, "plan": 1}, "layers": (0, 4), "live": True}
    promise = {"version": 2, "to": invite.coordinator}  # as the next plan will want it
    await attacker.report(state="idle", lost=peers, standing={"promise": promise, "holdings": (newer, newer)})
    await swarm.until(lambda: "which no plan gave it" in coordinator.said(), "it claims the whole model, and is named")
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


def all_have_a_part(job: Path) -> None:
    """Have the first plan of three nodes leave nobody out, whatever is measured of them."""
    with job.open("a", encoding="utf-8") as file:
        file.write("[plan]\nstages = 1\nreplicas = 3\n")


async def test_a_replica_that_signs_false_states_is_left_out_and_training_goes_on(swarm: Swarm) -> None:
    """Where its file tells, it is named alone; else it is kept apart from whom it contradicts, and nobody else is."""
    job = swarm.job(steps=20, checkpoint=5)
    all_have_a_part(job)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(2)]
    liar = await swarm.join(name="liar", program=("lying-node",))
    assert await coordinator.exit_code() == 0
    assert [await node.exit_code() for node in nodes] == [0, 0]
    said, name = coordinator.said(), short(swarm.peer_of(liar))
    assert "its replicas signed different states" in said
    told = [line for line in said.splitlines() if "it has signed another state" in line or "hands in a file" in line]
    assert told
    assert all(name in line for line in told)
    assert not any(swarm.peer_of(liar) in route for route in swarm.layout()["routes"])
    same_curve(swarm.rows(), await alone(job))


async def test_a_node_that_never_hands_in_is_left_out_and_the_run_ends(swarm: Swarm) -> None:
    """Under a coordinator that waits for seconds in place of minutes."""
    job = swarm.job(steps=20, checkpoint=10)
    all_have_a_part(job)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--exit-when-done", program=("impatient-coordinator",))
    nodes = [await swarm.join(name=f"node-{n}") for n in range(2)]
    silent = await swarm.join(name="silent", program=("lying-node",), environment={"LIE": "silence"})
    assert await coordinator.exit_code() == 0
    assert [await node.exit_code() for node in (*nodes, silent)] == [0, 0, 0]
    assert f"{short(swarm.peer_of(silent))} does not hand in its share of the checkpoint" in coordinator.said()
    assert not any(swarm.peer_of(silent) in route for route in swarm.layout()["routes"])
    assert 20 in swarm.checkpoints()
    same_curve(swarm.rows(), await alone(job))


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("gradients", "a part whose norm is"),
        ("sums", "different contents as REDUCED"),
    ],
)
async def test_a_replica_that_lies_about_gradients_is_named_and_no_step_is_taken_from_it(
    swarm: Swarm, lie: str, told: str
) -> None:
    """A million times its gradients, or sums that are not the same for all: the others go on without it."""
    job = swarm.job(steps=40, checkpoint=20)
    all_have_a_part(job)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(2)]
    liar = await swarm.join(name="liar", program=("lying-node",), environment={"LIE": lie})
    assert await coordinator.exit_code() == 0
    assert [await node.exit_code() for node in nodes] == [0, 0]
    name = short(swarm.peer_of(liar))
    found = [line for line in coordinator.said().splitlines() if told in line]
    assert found
    assert all(name in line for line in found)
    # Which of the two is faster is a close call where the machine is busy.
    assert re.search("plan [2-9].*1 stage x (1 peer|2 peers)", coordinator.said())
    same_curve(swarm.rows(), await alone(job))


async def test_an_arbiter_that_is_left_alone_goes_on_from_its_own_newest_state(swarm: Swarm) -> None:
    """It holds the whole model, and shows the signed votes of the steps that nobody else can tell of any more."""
    swarm.slow_down()
    job = swarm.job(steps=30, checkpoint=30)
    with job.open("a", encoding="utf-8") as file:
        file.write("[plan]\nstages = 1\nreplicas = 2\n")
    coordinator = await swarm.serve(job, "--min-nodes", "2", "--exit-when-done")
    for number in range(2):
        await swarm.join(name=f"node-{number}")
    await swarm.until(lambda: swarm.step >= 10, "some steps are done")
    arbiter, other = swarm.serving(0)
    other.signal(signal.SIGKILL)
    assert await coordinator.exit_code() == 0
    assert await arbiter.exit_code() == 0
    assert [(event.source, event.repeated <= 1) for event in swarm.events()[1:]] == [("replicas", True)]
    same_curve(swarm.rows(), await alone(job))
