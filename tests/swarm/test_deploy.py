"""What `deploy` holds works: the units and the compose file are valid, and a swarm trains over that very Mosquitto."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtfm_coordinator.serve.mosquitto_files import ACL, AUTHORITIES, FOLDER
from tests.harness.daemon import Daemon
from tests.harness.entrances import free_port
from tests.harness.requirements import PATH, needs
from tests.harness.swarm import Swarm

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").iterdir())
MEMBERS = ["coordinator", "members", "invite", "node-1", "node-2"]


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
    done = compose(tmp_path, "config", "-q", DTFM_BROKER="mqtts://broker:8883")
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
        assert ("test" in service["healthcheck"]) == (name not in {"invite", "members"}), name


def test_nodes_see_the_invite_read_only_and_nothing_else_of_the_coordinator() -> None:
    for name in ("node-1", "node-2"):
        assert services()[name]["volumes"] == ["invite:/invite:ro", f"{name}:/state"]


def test_the_broker_sees_whom_to_let_in_and_nothing_else_of_the_coordinator() -> None:
    assert "members:/etc/mosquitto/dtfm/members:ro" in services()["broker"]["volumes"]
    assert not any("coordinator" in volume for volume in services()["broker"]["volumes"])
    assert services()["members"]["volumes"] == ["coordinator:/coordinator:ro", "members:/members"]
    assert f"/coordinator/{FOLDER}/{ACL}" in services()["members"]["command"][2]


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


mosquitto = needs("mosquitto", "openssl")


@dataclass
class Broker:
    """Mosquitto under `deploy`'s own configuration, with another port and folder; it ends with its swarm."""

    swarm: Swarm
    url: str
    folder: Path
    port: int
    process: Daemon | None = None

    async def start(self) -> None:
        """Start it, once the coordinator has said whom it is to let in."""
        await self.swarm.until((self._written / ACL).exists, "the coordinator has said whom to let in")
        self._take()
        text = (DEPLOY / "mosquitto" / "mosquitto.conf").read_text(encoding="utf-8")
        assert text.count("\nlistener 8883\n") == 1
        text = text.replace("\nlistener 8883\n", f"\nlistener {self.port} 127.0.0.1\n")
        config = self.swarm.folder / "mosquitto.conf"
        config.write_text(text.replace("/etc/mosquitto/dtfm", str(self.folder)), encoding="utf-8")
        program = shutil.which("mosquitto", path=PATH)
        assert program is not None
        self.process = await self.swarm.start(program, "-c", config)
        await self._listens()

    async def start_anew(self) -> None:
        """Take what the coordinator has written by now, and start once more."""
        self._take()
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        await self.process.exit_code()
        await self.process.start()
        await self._listens()

    @property
    def _written(self) -> Path:
        return self.swarm.coordinator.folder / FOLDER

    def _take(self) -> None:
        for name in (ACL, AUTHORITIES):
            shutil.copy(self._written / name, self.folder / "members" / name)

    async def _listens(self) -> None:
        process = self.process
        assert process is not None
        await self.swarm.until(lambda: not process.alive or _answers(self.port), "Mosquitto listens")
        assert process.alive, process.said()


@pytest.fixture
def broker(swarm: Swarm) -> Broker:
    """A Mosquitto that can be started."""
    swarm.folder.chmod(0o755)  # Mosquitto gives up root's rights and reads its files as a user of its own
    folder = swarm.folder / "credentials"
    made = run("bash", str(DEPLOY / "mosquitto" / "make-credentials.sh"), str(folder), "127.0.0.1")
    assert made.returncode == 0, made.stderr
    port = free_port()
    return Broker(swarm, made.stdout.strip().replace(":8883", f":{port}"), folder, port)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.process
@mosquitto
async def test_a_swarm_trains_over_mosquitto_with_certificates(swarm: Swarm, broker: Broker) -> None:
    plan = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    serving = asyncio.create_task(
        swarm.serve(
            swarm.job(steps=4, checkpoint=2), "--broker", broker.url, "--broker-ca", broker.folder / "ca.crt",
            "--plan", plan, "--min-nodes", "2", "--exit-when-done",
        )
    )  # fmt: skip
    await broker.start()
    coordinator = await serving
    nodes = [await swarm.join(), await swarm.join()]
    for process in (coordinator, *nodes):
        assert await process.exit_code() == 0, process.said()
    rows = swarm.rows()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert swarm.checkpoints()[-1] == 4


@pytest.mark.process
@mosquitto
async def test_a_key_is_replaced_over_mosquitto_which_is_given_the_new_one(swarm: Swarm, broker: Broker) -> None:
    """Training goes on meanwhile: the coordinator stops, as the broker lets nobody in whom it was not told of."""
    swarm.slow_down()
    plan = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    serving = asyncio.create_task(
        swarm.serve(
            swarm.job(steps=4000, checkpoint=2000), "--broker", broker.url, "--broker-ca", broker.folder / "ca.crt",
            "--plan", plan, "--min-nodes", "2",
        )
    )  # fmt: skip
    await broker.start()
    coordinator = await serving
    for _ in range(2):
        await swarm.join()
    await swarm.until(lambda: swarm.step >= 5, "they train")
    author, rotate = swarm.layout()["author"], ("dtfm-coordinator", "rotate", "--state-dir", coordinator.folder)
    code, said = await swarm.run(*rotate)
    assert (code, "stop the coordinator first" in said) == (2, True), said
    coordinator.signal(signal.SIGINT)
    await coordinator.exit_code()
    code, said = await swarm.run(*rotate)
    assert code == 0, said
    await broker.start_anew()
    await coordinator.start()
    await swarm.until(lambda: swarm.layout()["author"] != author, "a plan of the new key is in force")
    begun = swarm.events()[-1]
    assert begun.repeated == 0
    await swarm.until(lambda: swarm.step >= begun.step + 10, "they train under it")


@pytest.mark.process
@mosquitto
def test_a_certificate_is_made_for_the_names_given_and_its_key_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    script = str(DEPLOY / "mosquitto" / "make-credentials.sh")
    made = run("bash", script, str(folder), "train.example.org", "192.0.2.7")
    assert made.stdout == "mqtts://train.example.org:8883\n"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "members", "server.crt", "server.key"]
    assert (folder / "server.key").stat().st_mode & 0o007 == 0
    trust = ["openssl", "verify", "-x509_strict", "-CAfile", str(folder / "ca.crt")]
    server = str(folder / "server.crt")
    assert run(*trust, "-verify_hostname", "train.example.org", server).returncode == 0
    assert run(*trust, "-verify_ip", "192.0.2.7", server).returncode == 0
    assert run(*trust, "-verify_hostname", "example.org", server).returncode != 0
    again = run("bash", script, str(folder), "train.example.org")
    assert again.returncode == 2
    assert again.stderr.startswith("error: ")
