"""Things that happen to a machine rather than to a protocol: each to a small swarm of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tests.harness.daemon import Daemon
from tests.harness.requirements import PATH
from tests.harness.shifted_clock import shifted, shim
from tests.harness.swarm import Swarm

STEPS = 60
LAYOUT = ([[0, 2], [2, 4]], ["ab"] * 8)
Single = Callable[[Swarm], Awaitable[str]]


async def _begin(swarm: Swarm, nodes: int, steps: int = STEPS, *arguments: object, wait: int = 5) -> None:
    await swarm.serve(swarm.job(steps, checkpoint=10), "--plan", swarm.plan(*LAYOUT), "--min-nodes", nodes,
                      "--exit-when-done", *arguments)  # fmt: skip
    for _ in range(nodes):
        await swarm.join()
    await swarm.until(lambda: swarm.step >= wait, "the first steps are done", 180)


async def _finish(swarm: Swarm) -> None:
    await swarm.until(lambda: not swarm.coordinator.alive, "the run ends", 400)
    assert swarm.coordinator.process is not None
    assert swarm.coordinator.process.returncode == 0, swarm.coordinator.tail()


async def slow_peer(swarm: Swarm) -> str:
    """A peer becomes ten times slower, and stays so; the allocator may choose freely."""
    await swarm.serve(swarm.job(150, checkpoint=50), "--min-nodes", 3, "--exit-when-done")
    for _ in range(3):
        await swarm.join()
    await swarm.until(lambda: swarm.step >= 40, "the first steps are done", 240)
    victim, begun = swarm.serving(0)[0], time.time()

    async def slow() -> None:
        while victim.alive:  # a tenth of the time is its own
            victim.signal(signal.SIGSTOP)
            await asyncio.sleep(0.09)
            victim.signal(signal.SIGCONT)
            await asyncio.sleep(0.01)

    slowing = asyncio.create_task(slow())
    await swarm.until(lambda: len(swarm.events()) > 1 or not swarm.coordinator.alive, "it is noticed", 120)
    seconds = time.time() - begun
    await _finish(swarm)
    slowing.cancel()
    victim.signal(signal.SIGCONT)
    events = swarm.events()[1:]
    if not events:
        return "no plan was better without it"
    return f"re-planned after {seconds:.1f} s ({events[0].why}); {sum(event.repeated for event in events)} steps again"


async def broker_dies(swarm: Swarm) -> str:
    """A broker of its own is killed, and started again after five seconds."""
    port = 20000 + os.getpid() % 20000
    configuration = swarm.folder / "broker.conf"
    configuration.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n", encoding="ascii")
    program = shutil.which("mosquitto", path=PATH)
    assert program is not None, "mosquitto is not installed"
    command = [program, "-c", str(configuration)]

    def broker() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    running = broker()
    try:
        swarm.slow_down()
        await _begin(swarm, 2, 60, "--broker", f"mqtt://127.0.0.1:{port}")
        running.kill()
        running.wait()
        step, status = swarm.step, swarm.nodes[0].folder / "status.json"
        await asyncio.sleep(5)
        trained = _step(status) - step
        running = broker()
        await _finish(swarm)
    finally:
        running.kill()
        running.wait()
    assert len(swarm.events()) == 1, "training did not notice"
    return f"{trained} steps while it was away, none again, no new plan"


def _step(status: Path) -> int:
    return int(json.loads(status.read_text())["step"])


async def full_disk(swarm: Swarm) -> str:
    """A node's disk is full from the start of training to its end; the coordinator's for a while."""
    small, coordinators = swarm.folder / "node-0", swarm.folder / "coordinator"
    _mount(small, "6m")
    _mount(coordinators, "40m")
    try:
        await _begin(swarm, 2, 120)
        _fill(small)
        filler = _fill(coordinators)
        stuck = swarm.step
        await swarm.until(lambda: _step(swarm.nodes[1].folder / "status.json") > stuck + 30, "training goes on", 120)
        filler.unlink()
        (small / "filler").unlink()
        await _finish(swarm)
        plans = len(swarm.events()) - 1
    finally:
        for node in swarm.nodes:
            node.signal(signal.SIGKILL)
        await asyncio.sleep(0.5)
        _unmount(small)
        _unmount(coordinators)
    return f"trained on for more than 30 steps, and kept all when there was room; {plans} new plans"


def _mount(folder: Path, size: str) -> None:
    """A small disk."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False)


def _fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
    return path


async def torn_checkpoint(swarm: Swarm) -> str:
    """Everything is killed; the newest checkpoint and all snapshots are cut short; all start again."""
    await _begin(swarm, 2, 40, wait=25)
    for daemon in [swarm.coordinator, *swarm.nodes]:
        daemon.signal(signal.SIGKILL)
        await daemon.ended(30)
    checkpoints = sorted((swarm.coordinator.folder / "checkpoints").glob("step-*"))
    for file in checkpoints[-1].glob("*.safetensors"):
        os.truncate(file, file.stat().st_size // 2)
    for node in swarm.nodes:
        for file in (node.folder / "snapshots").glob("*.safetensors"):
            os.truncate(file, file.stat().st_size // 2)
    await swarm.coordinator.start()
    for node in swarm.nodes:
        await node.start()
    await _finish(swarm)
    event = swarm.events()[-1]
    assert event.step == int(checkpoints[-2].name[5:]), (event, checkpoints)
    return (
        f"the one of step {int(checkpoints[-1].name[5:])} was refused by its hash, that of step {event.step} was used"
    )


async def clock_off(swarm: Swarm) -> str:
    """A node's clock is an hour ahead, another one's an hour behind."""
    if shutil.which("cc") is None:
        return "not run: there is no C compiler"
    library = shim(swarm.folder)
    await swarm.serve(swarm.job(20, checkpoint=10), "--plan", swarm.plan(*LAYOUT), "--min-nodes", 2, "--exit-when-done")
    for shift in (3600, -3600):
        await swarm.join(environment=shifted(library, shift))
    await _finish(swarm)
    said = [line for node in swarm.nodes for line in _whole_log(node) if "clock is" in line]
    assert len(said) == 2, said
    return "; ".join(line.split(" ", 1)[1].split(":")[0] for line in said)


def _whole_log(node: Daemon) -> list[str]:
    return node.folder.with_name(f"{node.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()


async def standby_takes_over(swarm: Swarm) -> str:
    """The coordinator is killed for good; the second one takes over; then a node is killed, too."""
    second = Daemon("second", (), swarm.folder / "second")
    local = ("--listen", "127.0.0.1", "--port", "0")
    code, card = await swarm.run("dtfm-coordinator", "card", "--state-dir", second.folder, *local)
    assert code == 0, card
    swarm.slow_down()
    job, plan = swarm.job(130, checkpoint=20), swarm.plan(*LAYOUT)
    await swarm.serve(job, "--plan", plan, "--min-nodes", 3, "--card", card.strip())
    second.arguments = (
        "dtfm-coordinator", "serve", str(job), "--state-dir", str(second.folder), *local, "--plan", str(plan),
        "--exit-when-done", "--standby", f"@{swarm.coordinator.folder / 'invite'}",
    )  # fmt: skip
    await second.start()
    try:
        for _ in range(3):
            await swarm.join()
        await swarm.until(lambda: swarm.step >= 20, "the first steps are done", 240)
        await swarm.until(lambda: "leads" in second.said(), "the second one stands by", 180)
        swarm.coordinator.signal(signal.SIGKILL)
        begun = time.time()
        swarm.coordinator = second
        await swarm.until(lambda: swarm.layout().get("version", 0) > 1, "it takes over", 180)
        seconds = time.time() - begun
        await swarm.until(lambda: swarm.events(), "its plan begins", 180)
        victim = swarm.serving(0)[0]
        victim.signal(signal.SIGKILL)
        await swarm.until(lambda: len(swarm.events()) > 1, "it plans anew", 180)
        events = swarm.events()
        await _finish(swarm)
    finally:
        second.signal(signal.SIGKILL)
        if second.process is not None:
            await second.process.wait()
    return (
        f"took over after {seconds:.0f} s, {events[0].repeated} steps again; "
        f"then replaced a killed node, {events[1].repeated} steps again"
    )


class TwoSites:
    """Two hosts and the cable between them, as network namespaces. Needs root. Use it in a `with` block."""

    def __init__(self) -> None:
        self._names = [f"chaos-{os.getpid()}-{side}" for side in "ab"]

    def within(self, side: int) -> tuple[str, ...]:
        """What runs a command on one of the hosts."""
        return ("ip", "netns", "exec", self._names[side])

    def address(self, side: int) -> str:
        """Of one of the hosts."""
        return f"10.213.77.{side + 1}"

    def plug(self, state: str) -> None:
        """Pull the cable ("down"), or put it back ("up")."""
        self._ip("-n", self._names[0], "link", "set", "cable0", state)

    def __enter__(self) -> "TwoSites":
        for name in self._names:
            self._ip("netns", "add", name)
        ends = ("netns", self._names[0], "type", "veth", "peer", "name", "cable1", "netns", self._names[1])
        self._ip("link", "add", "cable0", *ends)
        for side, name in enumerate(self._names):
            self._ip("-n", name, "address", "add", f"{self.address(side)}/24", "dev", f"cable{side}")
            self._ip("-n", name, "link", "set", f"cable{side}", "up")
            self._ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)


async def _split(swarm: Swarm, sites: TwoSites, sides: tuple[int, ...]) -> None:
    """A swarm whose coordinator is at the first site, and whose nodes are at `sides`; the first two nodes train."""
    swarm.coordinator.within = sites.within(0)
    arguments = ("--announce", sites.address(0), "--plan", swarm.plan(*LAYOUT), "--min-nodes", len(sides))
    await swarm.serve(swarm.job(4000, checkpoint=20), *arguments, listen="0.0.0.0")
    for number, side in enumerate(sides):
        await swarm.join(within=sites.within(side))
        await swarm.until(partial(_are_idle, swarm, number + 1), "the node is ready", 120)
    await swarm.until(lambda: swarm.step >= 20, "the first steps are done", 120)


def _are_idle(swarm: Swarm, nodes: int) -> bool:
    return sum(state not in {"", "measuring"} for state in swarm.statuses().values()) >= nodes


async def split_without_a_trainer(swarm: Swarm) -> str:
    """The cable is pulled between one training node, and the coordinator with the other one and a spare."""
    with TwoSites() as sites:
        await _split(swarm, sites, (0, 1, 0))
        lost = next(node for node in swarm.nodes[:2] if "netns" in node.within and node.within == sites.within(1))
        begun = time.time()
        sites.plug("down")
        await swarm.until(lambda: len(swarm.events()) > 1, "the larger side goes on", 90)
        event = swarm.events()[-1]
        await swarm.until(lambda: swarm.step > event.step + 30, "it trains", 60)
        here = _step(lost.folder / "status.json")
        await asyncio.sleep(3)
        assert _step(lost.folder / "status.json") == here, "both sides advance"
        state = json.loads((lost.folder / "status.json").read_text())["state"]
        sites.plug("up")
        peer = swarm.peer_of(lost)
        await swarm.until(lambda: swarm.statuses().get(peer) == "idle", "who was cut off is a spare", 120)
    return (
        f"the side with most electors went on after {event.started_at - begun:.1f} s ({event.repeated} steps again); "
        f"the other one {state}, and is a spare since it is back"
    )


async def split_from_all_trainers(swarm: Swarm) -> str:
    """The cable is pulled between all training nodes, and the coordinator with as many spares."""
    with TwoSites() as sites:
        await _split(swarm, sites, (1, 1, 0, 0))
        at = swarm.step
        sites.plug("down")
        status = swarm.nodes[0].folder / "status.json"
        await swarm.until(
            lambda: "that decide on what follows" in swarm.coordinator.said(), "it waits for electors", 90
        )
        alone = _step(status) - at
        assert len(swarm.events()) == 1, "both sides advance"
        sites.plug("up")
        await swarm.until(lambda: len(swarm.events()) > 1, "all go on", 120)
        event = swarm.events()[-1]
        await swarm.until(lambda: swarm.step > event.step + 10, "it trains", 60)
    assert alone > 0
    return (
        f"peers trained on ({alone} steps until the coordinator had noticed), it made no plan and said that it waits; "
        f"joined again, {event.repeated} steps were run again"
    )


SINGLES: dict[str, Single] = {
    "a peer becomes ten times slower": slow_peer,
    "an outside broker is killed for 5 s": broker_dies,
    "full disks": full_disk,
    "a truncated checkpoint": torn_checkpoint,
    "clocks an hour off": clock_off,
    "the coordinator is gone for good": standby_takes_over,
    "the network splits, one trainer is cut off": split_without_a_trainer,
    "the network splits, all trainers are cut off": split_from_all_trainers,
}
