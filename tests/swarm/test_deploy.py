"""What `deploy` holds works: the units and the compose file are valid, and a swarm trains over that very Mosquitto."""

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
import yaml

from dtfm_protocol.control.mqtt import split_broker_url
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from tests.harness.requirements import PATH, needs
from tests.harness.swarm import Swarm

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").iterdir())
MEMBERS = ["coordinator", "invite", "node-1", "node-2"]


# -- systemd ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a unit whose programs are those of this environment: systemd looks whether they exist."""
    text = (DEPLOY / "systemd" / request.param).read_text(encoding="utf-8")
    assert "ExecStart=/opt/dtfm/bin/dtfm-" in text
    copy = tmp_path / request.param
    copy.write_text(text.replace("/opt/dtfm/bin", str(Path(sys.executable).parent)), encoding="utf-8")
    return copy


@pytest.mark.process
@needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, indirect=True)
def test_systemd_accepts_the_unit_without_a_warning(unit: Path) -> None:
    done = run("systemd-analyze", "verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.process
@needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, indirect=True)
def test_systemd_finds_the_unit_hardened(unit: Path) -> None:
    """An exposure of at most 3.0; a unit without any hardening has 9.2."""
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=30", str(unit))
    assert done.returncode == 0, done.stdout + done.stderr


# -- containers -------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_compose_accepts_the_file(tmp_path: Path) -> None:
    done = compose(tmp_path, "config", "-q", DTFM_BROKER="mqtts://swarm:password@broker:8883")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.process
def test_compose_says_what_is_missing_without_credentials(tmp_path: Path) -> None:
    done = compose(tmp_path, "config", "-q")
    assert done.returncode != 0
    assert "make-credentials.sh" in done.stderr


def test_every_service_is_confined_and_watched() -> None:
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert "docker.sock" not in str(service), name
        assert ("test" in service["healthcheck"]) == (name != "invite"), name


def test_nodes_see_the_invite_read_only_and_nothing_else_of_the_coordinator() -> None:
    for name in ("node-1", "node-2"):
        assert services()[name]["volumes"] == ["invite:/invite:ro", f"{name}:/state"]


def test_everything_that_the_image_is_built_from_is_there() -> None:
    for name in MEMBERS:
        build = services()[name]["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
    lines = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    sources = [source for names in copied for source in names]
    admitted = (DEPLOY / "container" / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "protocol" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in admitted, source


def test_nodes_and_coordinator_run_in_images_with_the_packages_that_they_need() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
    for name in MEMBERS:
        program = "coordinator" if name == "coordinator" else "node"
        service = services()[name]
        assert (service["image"], service["build"]["target"]) == (f"dtfm-{program}", program)
        stage = text.split(f"\nFROM machine AS {program}\n")[1].split("\nFROM ")[0]
        assert stage.splitlines()[0] == f"COPY --from={program}-packages /opt/dtfm /opt/dtfm"
    made = text.split("AS coordinator-packages\n")[1].split("\nFROM ")[0]
    assert "pip install --constraint constraints.txt '.[coordinator]'" in made
    assert text.split("\nFROM ")[-1].startswith("machine AS node\n")  # what is built where nothing else is asked for


def services() -> dict[str, Any]:
    """The compose file's services."""
    values: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return values


def compose(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run Compose on the file; neither a `.env` nor the caller's own settings count."""
    programs = [["docker", "compose"], ["docker-compose"]]
    found = [each for each in programs if shutil.which(each[0]) and run(*each, "version").returncode == 0]
    if not found:
        pytest.skip("neither `docker compose` nor docker-compose works: apt-get install docker-compose")
    empty = folder / "env"
    empty.touch()
    file = str(DEPLOY / "compose.yaml")
    return run(*found[0], "--env-file", str(empty), "--file", file, *arguments, **settings)


def run(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends by itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DTFM_")}
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=kept | settings, check=False
    )


# -- Mosquitto --------------------------------------------------------------------------------------------------------


mosquitto = needs("mosquitto", "mosquitto_passwd", "openssl")


@dataclass
class Broker:
    """A running Mosquitto."""

    url: str
    ca: Path

    def client(self) -> aiomqtt.Client:
        """A member of the swarm."""
        host, port, _, user, password = split_broker_url(self.url)
        trust = ssl.create_default_context(cafile=str(self.ca))
        return aiomqtt.Client(host, port, username=user, password=password, tls_context=trust)


@pytest.fixture
async def broker(swarm: Swarm) -> AsyncIterator[Broker]:
    """Mosquitto under `deploy`'s own configuration, with another port and folder; it ends with its swarm."""
    swarm.folder.chmod(0o755)  # Mosquitto gives up root's rights and reads its files as a user of its own
    folder = swarm.folder / "credentials"
    made = run("bash", str(DEPLOY / "mosquitto" / "make-credentials.sh"), str(folder), "127.0.0.1")
    assert made.returncode == 0, made.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = (DEPLOY / "mosquitto" / "mosquitto.conf").read_text(encoding="utf-8")
    for line, replacement in (
        ("listener 8883", f"listener {port} 127.0.0.1"),
        ("certfile /etc/mosquitto/dtfm/server.crt", f"certfile {folder}/server.crt"),
        ("keyfile /etc/mosquitto/dtfm/server.key", f"keyfile {folder}/server.key"),
        ("password_file /etc/mosquitto/dtfm/passwords", f"password_file {folder}/passwords"),
        ("acl_file /etc/mosquitto/dtfm/acl", f"acl_file {folder}/acl"),
    ):
        assert text.count(f"\n{line}\n") == 1, line
        text = text.replace(f"\n{line}\n", f"\n{replacement}\n")
    config = swarm.folder / "mosquitto.conf"
    config.write_text(text, encoding="utf-8")
    program = shutil.which("mosquitto", path=PATH)
    assert program is not None
    process = await swarm.start(program, "-c", config)
    await swarm.until(lambda: not process.alive or _answers(port), "Mosquitto listens")
    assert process.alive, process.said()
    yield Broker(made.stdout.strip().replace(":8883", f":{port}"), folder / "ca.crt")
    assert process.alive, process.said()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.process
@mosquitto
async def test_a_swarm_trains_over_mosquitto_with_tls_and_password(swarm: Swarm, broker: Broker) -> None:
    plan = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(
        swarm.job(steps=4, checkpoint=2), "--broker", broker.url, "--broker-ca", broker.ca,
        "--plan", plan, "--min-nodes", "2", "--exit-when-done",
    )  # fmt: skip
    nodes = [await swarm.join(), await swarm.join()]
    for process in (coordinator, *nodes):
        assert await process.exit_code() == 0, process.said()
    rows = swarm.rows()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert swarm.checkpoints()[-1] == 4


@pytest.mark.process
@mosquitto
async def test_strangers_are_refused_in_one_line(swarm: Swarm, broker: Broker) -> None:
    """A wrong password, and a broker whose certificate nobody vouches for."""
    password = split_broker_url(broker.url)[4]
    assert password
    right = Invite(
        swarm="0" * 16,
        coordinator=Identity.generate().peer_id,
        dht=("/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBvRXsjQ9tC9Ghv2YbkMLwhRYmzqKjwpxS4MPCXZG5aoM",),
        broker=broker.url,
        secret="0" * 32,
        broker_ca=broker.ca.read_text(encoding="ascii"),
    )
    wrong = right.model_copy(update={"broker": broker.url.replace(password, "x" * len(password))})
    trusting_nobody = right.model_copy(update={"broker_ca": None})
    started = [
        await swarm.start("dtfm-node", "join", invite.encode(), "--state-dir", swarm.folder / name, "--timeout", "2")
        for name, invite in (("wrong", wrong), ("trusting", trusting_nobody))
    ]
    for process, reason in zip(started, ("uthori", "CERTIFICATE_VERIFY_FAILED"), strict=True):
        assert await process.exit_code() == 2, process.said()
        errors = [line for line in process.said().splitlines() if not line[:2].isdigit()]
        assert len(errors) == 1, process.said()
        assert errors[0].startswith("error: ")
        assert reason in errors[0]
        assert password not in process.said()


@pytest.mark.process
@mosquitto
async def test_the_broker_carries_messages_of_4_mib_on_the_swarms_topics_only(broker: Broker) -> None:
    payload = bytes(4 << 20)
    async with asyncio.timeout(60), broker.client() as client:
        await client.subscribe("#", qos=1)
        await client.publish("elsewhere", b"not heard", qos=1)
        await client.publish("dtfm/swarm/job", payload, qos=1)
        message = await anext(client.messages)
    assert str(message.topic) == "dtfm/swarm/job"
    assert message.payload == payload


@pytest.mark.process
@mosquitto
def test_credentials_are_made_for_the_names_given_and_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    script = str(DEPLOY / "mosquitto" / "make-credentials.sh")
    made = run("bash", script, str(folder), "train.example.org", "192.0.2.7", DTFM_BROKER_PASSWORD="correct-horse")
    assert made.stdout == "mqtts://swarm:correct-horse@train.example.org:8883\n"
    assert sorted(path.name for path in folder.iterdir()) == ["acl", "ca.crt", "passwords", "server.crt", "server.key"]
    for name in ("server.key", "passwords"):
        assert (folder / name).stat().st_mode & 0o007 == 0
    assert "correct-horse" not in (folder / "passwords").read_text(encoding="ascii")
    trust = ["openssl", "verify", "-x509_strict", "-CAfile", str(folder / "ca.crt")]
    server = str(folder / "server.crt")
    assert run(*trust, "-verify_hostname", "train.example.org", server).returncode == 0
    assert run(*trust, "-verify_ip", "192.0.2.7", server).returncode == 0
    assert run(*trust, "-verify_hostname", "example.org", server).returncode != 0
    again = run("bash", script, str(folder), "train.example.org")
    assert again.returncode == 2
    assert again.stderr.startswith("error: ")
