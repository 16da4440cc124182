"""A real Mosquitto under `deploy`'s configuration keeps to the swarm's rules, by files that a coordinator writes."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiomqtt
import pytest

from dtfm_coordinator.serve.mosquitto_files import access_list, write_mosquitto_files
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.messages import PLAN, PRESENCE, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.envelope import LIMIT, Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.plan import Plan
from tests.harness.entrances import HOST, free_port
from tests.harness.membership import SWARM, coordinator_of, member_of
from tests.harness.requirements import PATH, needs

DEPLOY = Path(__file__).parents[2] / "deploy" / "mosquitto"
OWNER, STANDBY = Identity.generate(), Identity.generate()
RULES = TopicRules(SWARM, (OWNER.peer_id, STANDBY.peer_id))
PATIENCE = 30.0
PLACE = "/etc/mosquitto/dtfm"


def test_the_access_list_says_what_the_embedded_broker_says() -> None:
    lines = access_list(RULES).splitlines()
    assert f"pattern read dtfm/{SWARM}/plan" in lines
    assert f"pattern write dtfm/{SWARM}/presence/%u" in lines
    assert f"pattern read dtfm/{SWARM}/presence/+" in lines
    assert f"pattern write dtfm/{SWARM}/report/%u" in lines
    assert f"pattern read dtfm/{SWARM}/challenge/%u" in lines
    assert not [line for line in lines if line.startswith("pattern write") and not line.endswith("/%u")]
    assert not [line for line in lines if line.startswith("pattern read") and "/report" in line]
    ours = lines[lines.index(f"user {OWNER.peer_id}") : lines.index(f"user {STANDBY.peer_id}")]
    assert f"topic write dtfm/{SWARM}/plan" in ours
    assert f"topic read dtfm/{SWARM}/#" in ours
    assert lines.index(f"user {OWNER.peer_id}") > max(at for at, line in enumerate(lines) if line.startswith("pattern"))


def configured(folder: Path, port: int) -> Path:
    """`deploy`'s configuration, with another port and place."""
    text = (DEPLOY / "mosquitto.conf").read_text(encoding="utf-8")
    assert text.count("\nlistener 8883\n") == 1
    assert text.count(PLACE) == 4
    text = text.replace("\nlistener 8883\n", f"\nlistener {port} {HOST}\n").replace(PLACE, str(folder))
    path = folder / "mosquitto.conf"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def files() -> Iterator[Path]:
    """A folder with all that Mosquitto needs of `OWNER`, who has a standby; `url` is its address, at another port."""
    folder = Path(tempfile.mkdtemp(prefix="mosquitto-")) / "files"
    try:
        folder.parent.chmod(0o755)  # Mosquitto gives up root's rights and reads its files as a user of its own
        made = subprocess.run(
            ["bash", str(DEPLOY / "make-credentials.sh"), str(folder), HOST], capture_output=True, text=True, check=True
        )
        folder.joinpath("url").write_text(made.stdout.strip(), encoding="ascii")
        write_mosquitto_files(folder / "members", RULES, [authority_certificate(one) for one in (OWNER, STANDBY)])
        folder.joinpath("members").chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder.parent)


@pytest.fixture
async def broker(files: Path) -> AsyncIterator[BrokerAddress]:
    """Mosquitto, and where it is."""
    port = free_port()
    program = shutil.which("mosquitto", path=PATH)
    assert program is not None
    with (files.parent / "log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program, "-c", str(configured(files, port)), stdout=output, stderr=output
        )
    try:
        await _listens(port, process)
        url = files.joinpath("url").read_text(encoding="ascii").replace(":8883", f":{port}")
        yield BrokerAddress.external(url, (files / "ca.crt").read_text(encoding="ascii"))
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        print((files.parent / "log").read_text())


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(PATIENCE):
        while process.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                return
            await asyncio.sleep(0.02)
    raise AssertionError("Mosquitto has ended")


def client(broker: BrokerAddress, identity: Identity, admission: Admission) -> aiomqtt.Client:
    context = broker.context(identity, admission.certificate)
    return aiomqtt.Client(HOST, broker.port, tls_context=context, identifier=f"{identity.peer_id}.raw", timeout=2)


def topic(name: str, peer: str = "") -> str:
    return f"dtfm/{SWARM}/{name}" + (f"/{peer}" if peer else "")


@pytest.mark.process
@needs("mosquitto", "openssl")
async def test_members_and_coordinators_talk_over_it(broker: BrokerAddress) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    both = RULES.coordinators
    alice, alices = member_of(OWNER)
    bob, bobs = member_of(STANDBY)
    planes = [
        ControlPlane(broker, SWARM, both, Post(SWARM, who), "s", identity=who, admission=admission)
        for who, admission in (
            (OWNER, coordinator_of(OWNER)), (STANDBY, coordinator_of(STANDBY)), (alice, alices), (bob, bobs),
        )
    ]  # fmt: skip
    planes[0].on(PRESENCE, lambda sender, body: heard.put_nowait((sender, body)))
    for plane in planes[2:]:
        plane.on(PLAN, lambda sender, body: heard.put_nowait((sender, body.version)))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(plane.run()) for plane in planes]
        for plane in planes:
            await plane.connected.wait()
        await planes[2].publish(PRESENCE, Presence(online=True, session="s"))
        assert await heard.get() == (alice.peer_id, Presence(online=True, session="s"))
        for leader, version in ((0, 1), (1, 2)):
            await planes[leader].publish(PLAN, Plan(version=version, stages=((0, 1),), routes=(("a",),)))
            assert [await heard.get(), await heard.get()] == 2 * [((OWNER, STANDBY)[leader].peer_id, version)]
        assert not any(plane.dropped for plane in planes)
        for task in running:
            task.cancel()


@pytest.mark.process
@needs("mosquitto", "openssl")
async def test_a_stranger_is_refused(broker: BrokerAddress) -> None:
    """Without a certificate, and with one of another authority."""
    mallory, admission = member_of(Identity.generate())
    bare = ssl.create_default_context(cadata=broker.ca)
    for context in (bare, broker.context(mallory, admission.certificate)):
        with pytest.raises(aiomqtt.MqttError):
            async with aiomqtt.Client(HOST, broker.port, tls_context=context, identifier="x", timeout=1):
                pass


@pytest.mark.process
@needs("mosquitto", "openssl")
async def test_a_member_may_neither_write_nor_clear_nor_read_what_is_not_its_own(broker: BrokerAddress) -> None:
    alice, alices = member_of(OWNER)
    mallory, mallorys = member_of(OWNER)
    async with (
        asyncio.timeout(PATIENCE),
        client(broker, OWNER, coordinator_of(OWNER)) as owner,
        client(broker, alice, alices) as victim,
        client(broker, mallory, mallorys) as liar,
    ):
        await owner.publish(topic("plan"), b"plan", qos=1, retain=True)
        await victim.publish(topic("presence", alice.peer_id), b"here", qos=1, retain=True)
        for where in (topic("plan"), topic("presence", alice.peer_id), topic("report", alice.peer_id), "elsewhere"):
            for payload in (b"lies", b""):
                await liar.publish(where, payload, qos=1, retain=True)
        await liar.publish(topic("report", mallory.peer_id), b"well", qos=1)
        await owner.subscribe(f"dtfm/{SWARM}/#", qos=1)
        await liar.subscribe("#", qos=1)
        await liar.publish(topic("report", mallory.peer_id), b"last", qos=1)
        kept = {}
        async for message in owner.messages:
            kept[str(message.topic)] = message.payload
            if message.payload == b"last":
                break
        assert kept == {
            topic("plan"): b"plan",
            topic("presence", alice.peer_id): b"here",
            topic("report", mallory.peer_id): b"last",
        }
        await victim.publish(topic("challenge", alice.peer_id), b"hers", qos=1)
        await owner.publish(topic("plan"), b"end", qos=1)
        read = set()
        async for message in liar.messages:
            read.add(str(message.topic))
            if message.payload == b"end":
                break
        assert read == {topic("plan"), topic("presence", alice.peer_id)}


@pytest.mark.process
@needs("mosquitto", "openssl")
async def test_it_carries_what_may_be_as_large_and_nothing_larger(broker: BrokerAddress) -> None:
    alice, alices = member_of(OWNER)
    where = topic("report", alice.peer_id)
    async with asyncio.timeout(PATIENCE), client(broker, OWNER, coordinator_of(OWNER)) as owner:
        await owner.subscribe(where, qos=1)
        async with client(broker, alice, alices) as reporting:
            await reporting.publish(where, bytes(LIMIT), qos=1)
        message = await anext(owner.messages)
        assert message.payload == bytes(LIMIT)
        with pytest.raises(aiomqtt.MqttError):
            async with client(broker, alice, alices) as reporting:
                await reporting.publish(where, bytes(5 << 20), qos=1)
