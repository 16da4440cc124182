"""Doctor's look at brokers, over real sockets: whose they are, who is let in, and what it leaves there."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dtfm_node.doctor.checks import broker
from dtfm_node.doctor.findings import Verdict, worst
from dtfm_protocol.control.messages import PHASE, PRESENCE, Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.transport.shown_credential import show_credential
from tests.harness.entrances import open_entrance
from tests.harness.membership import SWARM, coordinator_of, member_of
from tests.node.doctor_hosts import HOST, INVITE, OTHER, OWNER, host


@pytest.fixture
async def coordinator() -> AsyncIterator[tuple[Invite, ControlPlane]]:
    """A broker and, connected to it, what stands for a coordinator."""
    async with open_entrance(OWNER) as (door, _):
        swarm = INVITE.model_copy(update={"entrance": f"{HOST}:{door.port}"})
        control = ControlPlane(
            BrokerAddress.of(swarm),
            SWARM,
            swarm.coordinators,
            Post(SWARM, OWNER),
            "s",
            identity=OWNER,
            admission=coordinator_of(OWNER),
        )
        running = asyncio.create_task(control.run())
        await control.connected.wait()
        yield swarm, control
        running.cancel()
        await asyncio.wait([running])


async def test_a_live_coordinator_is_seen_and_its_phase(coordinator: tuple[Invite, ControlPlane]) -> None:
    swarm, control = coordinator
    await control.publish(PRESENCE, Presence(online=True, session="s"))
    await control.publish(PHASE, Phase(name="waiting", text="waiting for 2 more nodes"))
    # There is no job to come.
    seen = await broker.look(swarm, BrokerAddress.of(swarm), member_of(OWNER), retained=0.5)
    assert seen.coordinators == (OWNER.peer_id,)
    assert {one.name: one.verdict for one in broker.judge([seen])} == {
        "broker": Verdict.good,
        "TLS": Verdict.good,
        "entry": Verdict.good,
        "alive": Verdict.good,
        "phase": Verdict.good,
        "job": Verdict.bad,
    }


async def test_who_has_not_been_there_sees_whose_broker_it_is_and_does_not_ask_to_be_let_in(
    coordinator: tuple[Invite, ControlPlane],
) -> None:
    swarm, _ = coordinator
    seen = await broker.look(swarm, BrokerAddress.of(swarm))
    said = broker.judge([seen])
    assert {one.name: one.verdict for one in said} == dict.fromkeys(["broker", "TLS", "entry"], Verdict.good)
    assert "when it joins" in said[-1].seen


async def test_a_look_leaves_no_word_that_the_node_is_gone(coordinator: tuple[Invite, ControlPlane]) -> None:
    """It has the node's own key, and the node may be there."""
    swarm, _ = coordinator
    member, admission = member_of(OWNER)
    heard: asyncio.Queue[Presence] = asyncio.Queue()
    node = ControlPlane(
        BrokerAddress.of(swarm),
        SWARM,
        swarm.coordinators,
        Post(SWARM, member),
        "s",
        identity=member,
        admission=admission,
    )
    node.on(PRESENCE, lambda _, presence: heard.put_nowait(presence), member.peer_id)
    running = asyncio.create_task(node.run())
    await node.connected.wait()
    await node.publish(PRESENCE, Presence(online=True, session="s"))
    assert (await heard.get()).online
    seen = await broker.look(swarm, BrokerAddress.of(swarm), (member, admission), retained=0.1)
    assert (seen.entered, seen.members) == (True, 1)
    await node.publish(PRESENCE, Presence(online=True, session="again"))
    assert await heard.get() == Presence(online=True, session="again")
    running.cancel()
    await asyncio.wait([running])


async def test_a_credential_that_does_not_count_is_told_from_a_broker_that_is_none(
    coordinator: tuple[Invite, ControlPlane],
) -> None:
    swarm, _ = coordinator
    said = broker.judge([await broker.look(swarm, BrokerAddress.of(swarm), member_of(OWNER, expires=1e9))])[-1]
    assert (said.name, said.verdict) == ("entry", Verdict.bad)
    assert "new invite" in said.todo

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show_credential(context, OWNER, authority_certificate(OWNER))

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()

    async with await asyncio.start_server(say_nothing, HOST, 0, ssl=context) as mute:
        swarm = INVITE.model_copy(update={"entrance": f"{HOST}:{mute.sockets[0].getsockname()[1]}"})
        said = broker.judge([await broker.look(swarm, BrokerAddress.of(swarm), member_of(OWNER), login=0.2)])[-1]
        assert "does not answer as an MQTT broker" in said.seen


async def test_a_member_in_the_coordinators_place_is_named() -> None:
    member, admission = member_of(OWNER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show_credential(context, member, admission.certificate)
    async with await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0, ssl=context) as server:
        swarm = INVITE.model_copy(update={"entrance": f"{HOST}:{server.sockets[0].getsockname()[1]}"})
        said = broker.judge([await broker.look(swarm, BrokerAddress.of(swarm))])[-1]
    assert (said.name, said.verdict) == ("TLS", Verdict.bad)
    assert f"not of the coordinator {OWNER.peer_id[-6:]}" in said.seen


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed one of localhost, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now() - timedelta(days=2))
        .not_valid_after(datetime.now() + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + private)
    return path


async def test_a_certificate_that_nobody_vouches_for_is_named(certificate: Path) -> None:
    """And one that the invite vouches for is accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        swarm = INVITE.model_copy(update={"broker": f"mqtts://localhost:{port}"})
        said = broker.judge([await broker.look(swarm, BrokerAddress.of(swarm))])[-1]
        assert (said.name, said.verdict) == ("TLS", Verdict.bad)
        assert "self-signed" in said.seen or "self signed" in said.seen
        swarm = swarm.model_copy(update={"broker_ca": certificate.read_text().partition("-----BEGIN PRIVATE")[0]})
        seen = await broker.look(swarm, BrokerAddress.of(swarm))
        assert seen.tls == ""


def test_one_broker_that_serves_is_enough() -> None:
    dead = broker.BrokerObservation(host("refused"))
    assert worst(broker.judge([dead])) is Verdict.bad
    job = object()
    alive = broker.BrokerObservation(
        host("open"),
        tried=True,
        entered=True,
        job=job,
        coordinators=(OTHER.peer_id,),  # type: ignore[arg-type]
    )
    assert worst(broker.judge([dead, alive])) is Verdict.warn


@pytest.mark.parametrize(("name", "verdict"), [("failed", Verdict.bad), ("done", Verdict.warn)])
def test_a_swarm_that_is_over_is_said(name: str, verdict: Verdict) -> None:
    phase = Phase.model_validate({"name": name, "text": "it is over"})
    seen = broker.BrokerObservation(host("open"), tried=True, entered=True, phase=phase)
    assert next(one.verdict for one in broker.judge([seen]) if one.name == "phase") is verdict
