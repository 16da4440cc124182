"""Doctor's judgement by value; what it looks at on real sockets; and that no finding is without one thing to do."""

import asyncio
import contextlib
import io
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hivemind.utils.multiaddr import Multiaddr
from rich.console import Console

from dtfm_node.doctor import examine, outside_view, report
from dtfm_node.doctor.checks import (
    broker,
    clock_offset,
    first_peers,
    invite_text,
    ipv6,
    leftovers,
    ports,
    reachability,
    resources,
    versions,
)
from dtfm_node.doctor.checks.first_peers import AddressObservation, DhtMember, FirstPeer
from dtfm_node.doctor.checks.reachability import Nat
from dtfm_node.doctor.doctor_options import DoctorOptions
from dtfm_node.doctor.examine import Examination, LookLimits
from dtfm_node.doctor.findings import Finding, Verdict, as_json, bad, clean, good, things_to_do, warn, worst
from dtfm_node.doctor.job_needs import Need
from dtfm_node.doctor.tcp_look import Host, closed_because, door_of, resolve, visit
from dtfm_protocol.control.messages import PHASE, PRESENCE, Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import PROTOCOL_VERSION, Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.state_dir import locked
from dtfm_protocol.transport.ip_addresses import Kind, kind_of
from dtfm_protocol.transport.libp2p_messages import packed, with_length
from dtfm_protocol.transport.shown_credential import show_credential
from dtfm_protocol.transport.tcp_knock import Knock, knock
from tests.harness.entrances import free_port, open_entrance
from tests.harness.membership import SWARM, coordinator_of, member_of

HOST = "127.0.0.1"
OWNER, OTHER = Identity.generate(), Identity.generate()
INVITE = Invite(
    swarm=SWARM,
    coordinator=OWNER.peer_id,
    dht=(f"/ip4/{HOST}/tcp/9/p2p/{OWNER.peer_id}",),
    entrance=f"{HOST}:9",
    token=EntryToken.issue(OWNER, SWARM, 1, 1 << 33),
)


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port at which connections are neither taken nor refused: its queue is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield int(full.getsockname()[1])


def host(answer: str, ip: str = "198.51.100.1", port: int = 7700, name: str = "") -> Host:
    return Host(name or ip, port, (Knock(ip, port, answer, 0.01),))  # type: ignore[arg-type]


# findings


@pytest.mark.parametrize(("verdict", "todo"), [(Verdict.good, "do it"), (Verdict.warn, ""), (Verdict.bad, "")])
def test_what_is_well_needs_nothing_done_and_all_else_one_thing(verdict: Verdict, todo: str) -> None:
    with pytest.raises(ValueError, match="one thing"):
        Finding("group", "name", verdict, "seen", todo)


def test_text_from_the_network_cannot_steer_a_terminal() -> None:
    assert clean("a\x1b[31mb\nc\u202ed") == "a [31mb c d"
    assert len(clean("x" * 10_000)) == 400
    said = Console(file=io.StringIO(), width=200)
    report._show(said, [good("g", "phase", "[bold]all\x1b[2J well[/bold]")])
    assert isinstance(said.file, io.StringIO)
    assert "[bold]all [2J well[/bold]" in said.file.getvalue()


def test_each_thing_to_do_is_told_once_and_what_is_bad_first() -> None:
    findings = [warn("g", "a", "", "later"), bad("g", "b", "", "now"), bad("g", "c", "", "now"), good("g", "d", "")]
    assert {what: [one.name for one in asking] for what, asking in things_to_do(findings).items()} == {
        "now": ["b", "c"],
        "later": ["a"],
    }
    assert worst(findings) is Verdict.bad
    assert worst([]) is Verdict.good
    said = json.loads(json.dumps(as_json(findings)))
    assert (said["verdict"], said["todo"]) == ("bad", ["now", "later"])
    assert said["findings"][0] == {"group": "g", "name": "a", "verdict": "warn", "seen": "", "todo": "later"}


def test_the_report_ends_in_what_there_is_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    report.show([good("g", "a", "fine")])
    assert capsys.readouterr().out.endswith("nothing to do: this machine can take part\n")
    report.show([good("g", "a", "fine"), bad("h", "b", "broken", "mend it")])
    assert capsys.readouterr().out.splitlines() == [
        "g", "  ok    a  fine", "h", "  BAD   b  broken", "",
        "this machine cannot take part yet; 1 thing to do:", "  1. b: mend it",
    ]  # fmt: skip


# the invite


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("hello", "copy the whole line"),
        (INVITE.encode()[:-4], "copy the whole line"),
        (INVITE.encode().replace(f"dtfm{PROTOCOL_VERSION}.", "dtfm7."), "install"),
        ("@/nowhere/invite", "after @"),
    ],
)
def test_an_invite_that_is_none_says_what_to_do(text: str, word: str) -> None:
    found, said = invite_text.look(text)
    assert found is None
    assert said.verdict is Verdict.bad
    assert word in said.todo


def test_an_invite_is_read() -> None:
    assert invite_text.look(INVITE.encode())[0] == INVITE


# names, connections, addresses


@pytest.mark.parametrize(
    ("address", "door"),
    [
        ("/ip4/192.0.2.1/tcp/7701/p2p/12D3KooW", ("192.0.2.1", 7701, "12D3KooW")),
        ("/ip6/2001:db8::1/tcp/7701", ("2001:db8::1", 7701, "")),
        ("/dns4/swarm.example.org/tcp/7701/p2p/a", ("swarm.example.org", 7701, "a")),
        ("/ip4/192.0.2.1/tcp/77010/p2p/a", None),
        ("/ip4/192.0.2.1/tcp/7701/p2p/a/p2p-circuit/p2p/b", None),
        ("/ip4/192.0.2.1/udp/7701/quic", None),
    ],
)
def test_a_door_is_a_straight_way(address: str, door: tuple[str, int, str] | None) -> None:
    """Not one over a relay."""
    assert door_of(address) == door


@pytest.mark.parametrize(
    ("ip", "kind"),
    [
        ("127.0.0.1", "loopback"), ("::1", "loopback"), ("fe80::1%eth0", "link-local"), ("169.254.1.1", "link-local"),
        ("192.168.1.2", "private"), ("fd00::2", "private"), ("100.64.0.1", "carrier"), ("100.127.255.254", "carrier"),
        ("100.128.0.1", "global"), ("8.8.8.8", "global"), ("2a00:1450::1", "global"),
    ],
)  # fmt: skip
def test_addresses_have_a_reach(ip: str, kind: Kind) -> None:
    assert kind_of(ip) == kind


async def test_open_refused_and_silent_are_three_things() -> None:
    with socket.create_server((HOST, 0)) as door:
        assert (await knock(HOST, door.getsockname()[1], 5.0)).answer == "open"
    assert (await knock(HOST, free_port(), 5.0)).answer == "refused"
    with deaf_port() as port:
        assert (await knock(HOST, port, 0.1)).answer == "silent"


async def test_a_name_is_resolved_and_one_that_is_none_says_so() -> None:
    assert HOST in await resolve("localhost")
    assert (await visit("no-such-host.invalid", 1)).fault
    assert (await visit("a" * 100 + ".example", 1)).fault  # a label that is too long for a name


@pytest.mark.parametrize(
    ("closed", "seen", "todo"),
    [
        (Host("x.example", 1, fault="Name or service not known"), "no address", "internet connection"),
        (host("refused", HOST), "this machine itself", "--announce"),
        (host("refused"), "refuses", "coordinator is running"),
        (host("silent", "192.168.1.5"), "private network", "--announce"),
        (host("silent", "8.8.8.8"), "firewall drops", "port 7700"),
        (host("unreachable", "8.8.8.8"), "no way", "internet connection"),
    ],
)
def test_why_a_host_is_closed_decides_what_to_do(closed: Host, seen: str, todo: str) -> None:
    said = closed_because(closed)
    assert seen in said[0]
    assert todo in said[1]


# the broker


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


# the doors


def swarm(*answers: str) -> first_peers.FirstPeersObservation:
    """Doors of the owner's peer, and behind them another one's."""
    peers = (OWNER.peer_id, OTHER.peer_id)
    return first_peers.FirstPeersObservation(
        [FirstPeer(f"/{peer}", peer, host(answer)) for peer, answer in zip(peers, answers, strict=False)]
    )


def test_doors_are_judged_by_whether_any_lets_in() -> None:
    seen = swarm("refused", "open")
    assert worst(first_peers.judge(seen, (OWNER.peer_id,))) is Verdict.bad
    seen.connected, seen.members = [OTHER.peer_id], []
    assert worst(first_peers.judge(seen, (OWNER.peer_id,))) is Verdict.warn


def test_another_peer_than_the_invites_is_named() -> None:
    seen = swarm("open")
    seen.others[OWNER.peer_id] = OTHER.peer_id
    (said,) = first_peers.judge(seen, (OWNER.peer_id,))
    assert said.verdict is Verdict.bad
    assert OTHER.peer_id[-6:] in said.seen
    assert "newest invite" in said.todo


def test_the_dht_says_who_is_there_and_how_old_their_records_are() -> None:
    seen = swarm("open")
    seen.connected = [OWNER.peer_id]
    seen.members = [DhtMember("a", 3.0, "1", ()), DhtMember("b", 19.0, "1", ())]
    assert "2 nodes, with records written 3 to 19 s ago" in first_peers.judge(seen, ())[-1].seen
    seen.members, seen.dht_fault = None, "no answer for 8 s"
    assert first_peers.judge(seen, ())[-1].verdict is Verdict.bad


def said_by(address: bytes) -> Any:
    """Stands for a data plane whose peer, asked to identify this machine, says `address`."""
    message = packed({4: address})

    async def call(*_: object) -> tuple[None, asyncio.StreamReader, Any]:
        reader = asyncio.StreamReader()
        reader.feed_data(with_length(message))
        return None, reader, SimpleNamespace(close=lambda: None)

    return SimpleNamespace(p2p=SimpleNamespace(call_binary_stream_handler=call))


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/ip4/8.8.8.8/tcp/7701", ("8.8.8.8", 7701)),
        ("/ip6/2001:db8::1/tcp/7701", ("2001:db8::1", 7701)),
        ("/dns4/x/tcp/1", None),
        ("/dns/8.8.8.8/tcp/1", None),
        ("/ip4/8.8.8.8/udp/7701/quic", None),
    ],
)
async def test_a_peer_sees_this_machine_at_an_ip_address_or_nowhere(
    address: str, place: tuple[str, int] | None
) -> None:
    """A peer may say anything: what is no address must not come to where kinds of addresses are told."""
    assert await outside_view.observed(said_by(Multiaddr(address).to_bytes()), OTHER.peer_id) == place


@pytest.mark.parametrize("address", [b"\x06\x01", b"\xef", bytes.fromhex("389eaea4b9bac1a7a1c265a2")])
async def test_an_address_that_is_none_is_a_fault_of_the_peer_that_says_it(address: bytes) -> None:
    with pytest.raises(outside_view.FAULTS):
        await outside_view.observed(said_by(address), OTHER.peer_id)


@pytest.mark.process
async def test_a_judgement_that_fails_is_told_and_the_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: object, **__: object) -> list[Finding]:
        raise ValueError("'x' does not appear to be an IPv4 or IPv6 address")

    async def nothing(*_: object) -> None:
        return None

    for check in (reachability, leftovers):
        monkeypatch.setattr(check, "judge", judge)
    monkeypatch.setattr(Examination, "_visit", nothing)
    examination = Examination(INVITE.encode(), DoctorOptions(), lambda what: None)
    await examination.run()
    found = {(one.group, one.name): one for one in examination.findings}
    assert "judging ways to this machine failed: ValueError: 'x'" in found["doctor", "ways to this machine"].seen
    assert "judging leftovers failed" in found["doctor", "leftovers"].seen
    assert {("coordinator", "broker"), ("this machine", "port"), ("this machine", "versions")} <= found.keys()


# the looks together


@pytest.mark.process
async def test_a_driver_that_hangs_is_given_up_and_all_else_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here it is torch itself that does; it holds what it likes, and does not listen."""
    (tmp_path / "torch.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    examination = Examination("no invite", DoctorOptions(), lambda what: None, LookLimits(device=1.0))
    async with asyncio.timeout(30):
        await examination.run()
    assert "looking at this machine was given up after 1 s" in [one.seen for one in examination.findings]
    assert {"invite", "port", "leftovers", "versions"} <= {one.name for one in examination.findings}
    assert not any("checks.resources" in " ".join(child.cmdline()) for child in psutil.Process().children())


@pytest.mark.process
async def test_this_machine_is_looked_at_in_a_process_of_its_own() -> None:
    seen = await resources.look(None, "cpu")
    assert seen.device.startswith("cpu")
    assert min(seen.memory, seen.disk) > 0
    with pytest.raises(UserError, match="--device abacus: choose"):
        await resources.look(None, "abacus")


async def test_this_machine_and_the_other_peers_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    async def wait(*_: object) -> resources.ResourcesObservation:
        await both.wait()
        return resources.ResourcesObservation("cpu", 1 << 40, 1 << 40, 1024)

    monkeypatch.setattr(resources, "look", wait)
    monkeypatch.setattr(Examination, "_visit", wait)
    examination = Examination(INVITE.encode(), DoctorOptions(), lambda what: None, LookLimits(device=10.0))
    await examination.run()
    assert "doctor" not in {one.group for one in examination.findings}


async def test_all_looks_end_within_half_a_minute_though_one_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = LookLimits()
    assert max(usual.broker, usual.swarm, usual.device) <= usual.total < 30

    async def nothing(*_: object) -> None:
        return None

    async def late(*_: object) -> broker.BrokerObservation:
        await asyncio.sleep(0.4)
        job: Any = object()
        return broker.BrokerObservation(host("open"), entered=True, job=job)

    async def never(*_: object) -> Need:
        await asyncio.Event().wait()
        return Need()

    monkeypatch.setattr(examine, "need_of", never)
    monkeypatch.setattr(broker, "look", late)
    monkeypatch.setattr(Examination, "_visit", nothing)
    monkeypatch.setattr(resources, "look", nothing)
    examination = Examination(INVITE.encode(), DoctorOptions(), lambda what: None, LookLimits(total=0.8))
    begun = time.monotonic()
    await examination.run()
    assert time.monotonic() - begun < 12.0 < usual.need
    assert any("looking at what the job needs was given up" in one.seen for one in examination.findings)


# clock, reach, IPv6


@pytest.mark.parametrize(
    ("ahead", "error", "verdict"),
    [
        (None, 0.0, Verdict.warn),
        (0.2, 0.1, Verdict.good),
        (-1.5, 0.1, Verdict.warn),
        (4.0, 0.1, Verdict.bad),
        (-3600.0, 0.1, Verdict.bad),
        (1.5, 1.0, Verdict.good),
    ],
)
def test_the_clocks_offset_is_judged_beyond_what_is_uncertain(
    ahead: float | None, error: float, verdict: Verdict
) -> None:
    (said,) = clock_offset.judge(ahead, error)
    assert said.verdict is verdict
    if ahead == -3600.0:
        assert "3,600.0 s ahead of" in said.seen


def seen_at(*places: tuple[str, int]) -> list[AddressObservation]:
    """Different peers see this machine at these places."""
    return [AddressObservation(f"peer{i}", f"203.0.113.{i}", ip, port) for i, (ip, port) in enumerate(places)]


@pytest.mark.parametrize(
    ("own", "observations", "nat"),
    [
        (["8.8.8.8"], seen_at(("8.8.8.8", 7701)), "none"),
        (["192.168.1.2"], seen_at(("192.168.1.2", 7701)), "same network"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 7701), ("8.8.8.8", 7701)), "preserving"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 40000), ("8.8.8.8", 40000)), "stable"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 40000), ("8.8.8.8", 40001)), "symmetric"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 7701), ("8.8.4.4", 7701)), "symmetric"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 7701), ("192.168.1.2", 7701)), "one preserving"),
        (["192.168.1.2"], seen_at(("8.8.8.8", 40000)), "one changing"),
        (["192.168.1.2"], seen_at((HOST, 7701)), "unknown"),
        (["192.168.1.2"], [], "unknown"),
    ],
)
def test_the_kind_of_nat_follows_from_what_peers_see(
    own: list[str], observations: list[AddressObservation], nat: Nat
) -> None:
    assert reachability.nat_of(own, 7701, observations) == nat


def judged(
    places: list[AddressObservation], own: str = "192.168.1.2", *, announced: bool = False
) -> dict[str, Finding]:
    found = reachability.judge((own,), 7701, places, (), [OTHER.peer_id], announced=announced)
    return {one.name: one for one in found}


def test_a_symmetric_nat_asks_for_a_forwarded_port_unless_one_is_announced() -> None:
    places = seen_at(("8.8.8.8", 40000), ("8.8.8.8", 40001))
    assert "forward a TCP port" in judged(places)["NAT"].todo
    assert judged(places, announced=True)["NAT"].verdict is Verdict.good


def test_of_a_machine_without_nat_it_is_said_that_a_firewall_was_not_tried() -> None:
    found = judged(seen_at(("8.8.8.8", 7701)), own="8.8.8.8")
    assert found["NAT"].verdict is Verdict.good
    assert "firewall" in found["NAT"].seen
    assert "relay" not in found


def test_who_is_behind_nat_needs_a_relay() -> None:
    places = seen_at(("8.8.8.8", 7701))
    assert OTHER.peer_id[-6:] in judged(places)["relay"].seen
    alone = reachability.judge(("192.168.1.2",), 7701, places, (), [], announced=False)
    assert (alone[-1].name, alone[-1].verdict) == ("relay", Verdict.warn)


def test_a_swarm_on_one_machine_needs_no_address() -> None:
    (said,) = reachability.judge(("192.168.1.2",), 7701, [], (), [], announced=False, local=True)
    assert said.verdict is Verdict.good


def test_a_router_behind_the_providers_nat_is_told() -> None:
    (said, *_) = reachability.judge(("192.168.1.2",), 7701, [], ("100.70.1.1",), [], announced=False)
    assert "provider" in said.todo


@pytest.mark.parametrize(
    ("at", "verdict", "word"),
    [
        (host("open", "8.8.8.8"), Verdict.good, "no proof"),
        (host("silent", "8.8.8.8"), Verdict.warn, "no proof"),
        (host("open", "192.168.1.2"), Verdict.warn, "no public address"),
        (Host("x.example", 7701, fault="Name or service not known"), Verdict.bad, "no address"),
        (None, Verdict.warn, "not tried"),
    ],
)
def test_announced_addresses_are_tried_from_here_which_proves_nothing_of_outside(
    at: Host | None, verdict: Verdict, word: str
) -> None:
    said = reachability.judge_announce("x.example:7701", at, "")
    assert said.verdict is verdict
    assert word in said.seen


def test_an_announced_address_of_another_form_is_refused() -> None:
    said = reachability.judge_announce("x.example", None, "--announce x.example: say the port too")
    assert (said.verdict, said.todo) == (Verdict.bad, "write it as HOST:PORT")


def test_ipv6_that_is_offered_and_does_not_answer_is_broken() -> None:
    new, old = "2a00:1450::1", "8.8.8.8"
    both = Host("x.example", 1, (Knock(old, 1, "open"), Knock(new, 1, "silent")))
    assert ipv6.judge(("2a00:1450::2",), [both])[0].verdict is Verdict.warn
    assert ipv6.judge(("192.168.1.2",), [both])[0].verdict is Verdict.good  # without an address nobody tries it
    fine = Host("x.example", 1, (Knock(old, 1, "open"), Knock(new, 1, "open")))
    assert "1 of the swarm's hosts" in ipv6.judge(("2a00:1450::2",), [fine])[0].seen


# this machine


def test_a_port_that_is_taken_is_told_and_the_one_beside_it_matters_less() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert "taken" in ports.judge(ports.look(HOST, port))[0].seen
    assert ports.judge([ports.Port(HOST, 7701), ports.Port(HOST, 7702, 98)])[1].verdict is Verdict.warn
    assert worst(ports.judge(ports.look(HOST, 0))) is Verdict.good
    assert "no address of this machine" in ports.judge(ports.look("192.0.2.77", 0))[0].seen


def test_a_state_dir_in_use_is_told(tmp_path: Path) -> None:
    state = tmp_path / "node"
    assert leftovers.judge(leftovers.look(state))[0].verdict is Verdict.good
    assert not state.exists()
    with locked(state):
        said = leftovers.judge(leftovers.look(state))[0]
    assert said.verdict is Verdict.warn
    assert f"process {os.getpid()}" in said.seen
    (state / "key").write_bytes(b"")
    (state / "key").chmod(0o644)
    assert any("chmod 600" in one.todo for one in leftovers.judge(leftovers.look(state)))
    assert leftovers.judge(leftovers.look(state / "key" / "node"))[0].verdict is Verdict.bad


def test_what_killed_nodes_left_is_told() -> None:
    assert "kill 17 18" in leftovers.judge(leftovers.LeftoversObservation(daemons=(17, 18)))[0].todo
    assert "3 folders" in leftovers.judge(leftovers.LeftoversObservation(folders=3))[0].seen


def test_memory_disk_and_open_files_are_compared_with_the_job() -> None:
    need = Need(smallest_stage=10 << 30, corpus=1 << 20)
    small = resources.ResourcesObservation("cpu", memory=1 << 30, disk=1 << 30, open_files=256)
    verdicts = {one.name: one.verdict for one in resources.judge(small, need)}
    assert verdicts == {"memory": Verdict.bad, "disk": Verdict.warn, "open files": Verdict.warn}
    large = resources.ResourcesObservation("cpu", memory=64 << 30, disk=64 << 30, open_files=1024)
    assert worst(resources.judge(large, need)) is Verdict.good
    assert worst(resources.judge(large, None)) is Verdict.good
    assert worst(resources.judge(large, Need(fault="no such architecture"))) is Verdict.bad


def test_libraries_of_other_versions_are_told() -> None:
    asked = ["numpy<2.4,>=1.26", "hivemind<1.2,>=1.1.11"]
    (said,) = versions.judge({"numpy": "2.4.1", "hivemind": "1.1.12"}, asked)
    assert said.todo.startswith("pip install 'numpy")
    assert worst(versions.judge({"numpy": "2.3.5"}, asked)) is Verdict.bad
    assert worst(versions.judge({"numpy": "2.3.5", "hivemind": "1.1.12"}, asked)) is Verdict.good
    assert worst(versions.judge({}, [], fault="libcudart.so is missing")) is Verdict.bad
    assert worst(versions.judge(*versions.look())) is Verdict.good
    assert versions.judge_others("1", ["1", "2"]) == []
    assert versions.judge_others("1", ["2"])[0].verdict is Verdict.warn
