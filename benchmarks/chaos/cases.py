"""What may happen to a swarm, by name: where in the protocol, and to whom."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.harness.daemon import BIN, Daemon
from tests.harness.swarm import Swarm

IN_A_STEP = ("before-send", "mid-frame", "after-send", "before-vote", "before-apply", "after-apply")
ARBITERS = ("before-commit", "mid-commit")
"""Points that only the peer comes to that makes steps final: the first one of the first stage."""
VOTERS = ("after-vote",)
"""Points that it does not come to."""
KEEPING = ("mid-checkpoint", "mid-hand-in")
CHANGING = ("after-promise", "after-accept", "mid-state-transfer", "before-start")
"""Points of a change of plan; something else has to cause one."""
FAULT_SECONDS = 60.0
"""For an armed fault to happen."""


@dataclass
class Hit:
    """What was done."""

    at: float
    """When, in Unix seconds."""
    victims: list[Daemon]
    lasting: Callable[[], Awaitable[None]] | None = None
    """Ends it, where it goes on."""


@dataclass(frozen=True)
class Case:
    """One thing that happens."""

    name: str
    victim: str
    """For people: who is hit."""
    strike: Callable[[Swarm], Awaitable[Hit]]
    breaks: bool = True
    """Whether a new plan has to follow."""


async def _fallen(victims: list[Daemon], point: str) -> float:
    """Wait until all are dead; when the first was."""
    first = 0.0
    for victim in victims:
        if await victim.ended(FAULT_SECONDS) is None:
            raise AssertionError(f"{victim.name} did not come to {point}")
        first = first or time.time()
    return first


def at_point(point: str, stage: int, who: str, count: int = 1) -> Case:
    """kill -9 of the first peer of a stage when it comes to a point; `count` of them, of different stages."""

    async def strike(swarm: Swarm) -> Hit:
        stages = [stage, -1 if stage == 0 else 0][:count]
        victims = [swarm.serving(index)[0] for index in stages]
        for victim in victims:
            victim.arm(f"{point}@{swarm.step + 1}:kill")
        return Hit(await _fallen(victims, point), victims)

    return Case(f"kill {point}", who, strike)


def while_changing(point: str) -> Case:
    """kill -9 of a last stage's peer, and of another one in the change of plan that follows."""

    async def strike(swarm: Swarm) -> Hit:
        first, second = swarm.serving(-1)[0], swarm.serving(0)[0]
        second.arm(f"{point}:kill")
        first.signal(signal.SIGKILL)
        at = await _fallen([first], point)
        await second.ended(FAULT_SECONDS / 6)  # nobody may want what it has: then it does not come to the point
        second.arm("")
        return Hit(at, [daemon for daemon in (first, second) if not daemon.alive])

    return Case(f"kill {point}", "last stage, then the first in the change that follows", strike)


def killed(stage: int, who: str, count: int = 1) -> Case:
    """kill -9 at any instant."""

    async def strike(swarm: Swarm) -> Hit:
        victims = swarm.serving(stage)[:count]
        at = time.time()
        for victim in victims:
            victim.signal(signal.SIGKILL)
        await _fallen(victims, "its end")
        return Hit(at, victims)

    return Case("kill -9", who, strike)


def stopped(seconds: float) -> Case:
    """SIGSTOP for a while."""

    async def strike(swarm: Swarm) -> Hit:
        victim = swarm.serving(0)[0]
        victim.signal(signal.SIGSTOP)
        at = time.time()

        async def wake() -> None:
            await asyncio.sleep(max(0.0, at + seconds - time.time()))
            victim.signal(signal.SIGCONT)

        return Hit(at, [], wake)

    return Case(f"SIGSTOP for {seconds:.0f} s", "first stage", strike)


def leaves(stage: int) -> Case:
    """`dtfm-node leave`, which is what Ctrl+C does, too."""

    async def strike(swarm: Swarm) -> Hit:
        victim, at = swarm.serving(stage)[0], time.time()
        command = (str(BIN / "dtfm-node"), "leave", "--state-dir", str(victim.folder))
        asking = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        if await asking.wait() or await victim.ended(FAULT_SECONDS) is None:
            raise AssertionError(f"{victim.name} does not leave")
        return Hit(at, [victim])

    return Case("leaves politely", "last stage" if stage else "first stage", strike)


def coordinator_dies(pause: float) -> Case:
    """kill -9 of the coordinator, and its broker with it; a while later it is started again."""

    async def strike(swarm: Swarm) -> Hit:
        at = time.time()
        swarm.coordinator.signal(signal.SIGKILL)
        await swarm.coordinator.ended(FAULT_SECONDS)
        await asyncio.sleep(pause)
        await swarm.coordinator.start()
        return Hit(at, [])

    return Case(f"coordinator and broker killed, back after {pause:.0f} s", "coordinator", strike, breaks=False)


def coordinator_dies_at(point: str) -> Case:
    """kill -9 of the coordinator in a change of plan that a peer's death causes."""

    async def strike(swarm: Swarm) -> Hit:
        victim = swarm.serving(0)[0]
        swarm.coordinator.arm(f"{point}:kill")
        at = time.time()
        victim.signal(signal.SIGKILL)
        await _fallen([victim, swarm.coordinator], point)
        await swarm.coordinator.start()
        return Hit(at, [victim])

    return Case(f"coordinator killed {point}", "first stage and the coordinator", strike)


def lone_stages() -> list[Case]:
    """For two stages of one peer each."""
    cases = [killed(0, "only replica, first stage"), killed(-1, "only replica, last stage")]
    for point in (*IN_A_STEP, *KEEPING):
        cases += [at_point(point, 0, "only replica, first stage"), at_point(point, -1, "only replica, last stage")]
    cases += [at_point(point, 0, "only replica, first stage") for point in ARBITERS]
    cases += [at_point(point, -1, "only replica, last stage") for point in VOTERS]
    cases += [leaves(0), leaves(-1), stopped(10.0), coordinator_dies(3.0)]
    return cases


def replicated_stages() -> list[Case]:
    """For two stages of two peers each."""
    cases = [
        killed(0, "one of two, first stage"),
        killed(-1, "one of two, last stage"),
        killed(0, "both of a stage", 2),
    ]
    for point in (*IN_A_STEP, "mid-all-reduce"):
        cases += [at_point(point, 0, "one of two, first stage"), at_point(point, -1, "one of two, last stage")]
    cases += [at_point(point, 0, "one of two, first stage") for point in ARBITERS]
    cases += [at_point(point, -1, "one of two, last stage") for point in VOTERS]
    cases += [
        at_point(point, 0, "one of each stage at once", 2) for point in ("before-send", "before-vote", "before-apply")
    ]
    cases += [while_changing(point) for point in CHANGING]
    cases += [coordinator_dies_at(point) for point in ("after-call", "after-plan", "before-in-force")]
    cases += [leaves(0), stopped(10.0), coordinator_dies(3.0)]
    return cases
