"""Peers around a coordinator, without a network, for the tests of what it hears and gathers."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.records.metrics_recorder import MetricsRecorder
from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_coordinator.swarm.message_handlers import MessageHandlers
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.control.messages import (
    LEDGER,
    PHASE,
    PRESENCE,
    PROBE,
    REPORT,
    Ledger,
    Phase,
    Presence,
    ProbeResult,
    ProbeRound,
    Report,
    Topic,
)
from dtfm_protocol.control.mqtt import Reader
from dtfm_protocol.discovery.records import Limits, Link, LinkReport, Profile
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.amendment import Settings
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.view import LayerSeconds, View

JOB = ResolvedJob(
    name="tiny",
    config={},
    corpus=Corpus(dtype="uint16", vocab_size=61, shards=(Shard(sha256="0" * 64, tokens=1000),)),
    training=Training(steps=90, global_batch=8, micro_batch=2, sequence_length=8, learning_rate=1e-3),
    evaluation=Evaluation(),
    plan=Planning(),
    checkpoint=Checkpointing(),
)
ME = Identity.generate()
LAYERS = 4
GBPS, UP_GBPS = 4.0, 0.05


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a task of the test's own brings about."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def link_of(gbps: float) -> Link:
    """What a probe sees of a link of so many Gbit/s both ways."""
    return Link(round_trip_ms=20.0, sent_gbps=gbps, received_gbps=gbps)


class Control:
    """A control plane that keeps what is said, and hands on what a test has peers say."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.said: list[tuple[Topic, Schema]] = []
        self.readers: dict[str, Reader] = {}
        self.answer: Callable[[ProbeRound], Any] | None = None

    def on(self, topic: Topic, reader: Reader) -> None:
        self.readers[topic.name] = reader

    async def publish(self, topic: Topic, body: Schema) -> None:
        self.said.append((topic, body))
        if self.answer is not None and topic is PROBE and isinstance(body, ProbeRound):
            now = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 == now:  # noqa: ASYNC110 - rounds are numbered by milliseconds
                await asyncio.sleep(0)
            await self.answer(body)


class Records:
    """A registry and what peers have published in it."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.listed: dict[str, Profile] = {}
        self.measured: dict[str, LinkReport] = {}
        self.unread: dict[str, Exception | None] = {}
        """Whose links cannot be read, and why; None: the lookup takes forever."""
        self.lookups = 0
        """Of profiles."""
        self.links_looked_up: list[str] = []
        """Whose, time after time."""

    async def profiles(self, discovery: object, wanted: Collection[str]) -> dict[str, Profile]:
        self.lookups += 1
        return {peer: profile for peer, profile in self.listed.items() if peer in wanted}

    async def links(self, discovery: object, peer: str) -> LinkReport | None:
        self.links_looked_up.append(peer)
        if peer in self.unread:
            error = self.unread[peer]
            if error is not None:
                raise error
            await asyncio.Event().wait()
        return self.measured.get(peer)

    def measure(self, peer: str, other: str, gbps: float | None) -> None:
        """Have `peer` publish that the link to `other` has so many Gbit/s both ways, or that it has none."""
        links = {name: link for name, link in self._of(peer).links.items() if name != other}
        if gbps is not None:
            links[other] = link_of(gbps)
        self.measured[peer] = self._of(peer).model_copy(update={"links": links})

    def finish(self, peer: str, turn: int) -> None:
        """Have `peer` publish that a round is in its record."""
        self.measured[peer] = self._of(peer).model_copy(update={"probed": turn})

    def _of(self, peer: str) -> LinkReport:
        return self.measured.get(peer, LinkReport(links={}))


class Drawing:
    """A planner that gives everyone who is there the whole model."""

    layers = LAYERS
    is_tied = False
    settings = Settings.of(JOB)

    def __init__(self, fewest_nodes: int) -> None:
        self.fewest_nodes = self.fewest_in_run = self.needed = fewest_nodes
        """Of these, only the second refuses views."""
        self.as_missing = True
        """Whether it says how many are missing."""
        self.views: list[View] = []
        self.before: list[Plan | None] = []
        self.begun: list[Plan | None] = []
        self.horizons: list[float | None] = []
        self.standstills: list[float] = []
        self.chosen = ""
        """Who is given work; "": all."""
        self.seconds_of: Callable[[Plan, View], float] = lambda plan, view: math.inf

    def plan(
        self,
        view: View,
        in_force: Plan | None = None,
        horizon: float | None = None,
        standstill: float = 0.0,
        begun: Plan | None = None,
    ) -> Plan:
        self.views.append(view)
        self.begun.append(begun)
        self.before.append(in_force)
        self.horizons.append(horizon)
        self.standstills.append(standstill)
        missing = self.needed - len(view.ids)
        if missing > 0:
            raise NotEnoughNodes(f"{missing} more are needed", missing) if self.as_missing else UserError("none fits")
        return plan_of(*(self.chosen or view.ids), version=0)

    def priced(self, plan: Plan, view: View) -> Plan:
        return plan

    def seconds(self, plan: Plan, view: View) -> float:
        return self.seconds_of(plan, view)


class Handed:
    """An archive to which nothing was handed in."""

    fault = ""

    def subscribe(self, **readers: Any) -> None:
        """There is nothing to tell."""


def plan_of(*peers: str, version: int = 1) -> Plan:
    """Every peer serves the whole model."""
    return Plan(version=version, stages=((0, LAYERS),), routes=tuple((peer,) for peer in peers))


class Peers:
    """Those who are there, and the coordinator that hears them."""

    def __init__(self, folder: Path, fewest_nodes: int = 1, clock: MonotonicClock | None = None) -> None:
        self.control, self.records, self.planner = Control(), Records(), Drawing(fewest_nodes)
        self.control.answer = self._answer
        self.gbps: dict[frozenset[str], float | None] = {}
        """What links are measured at, where it is not `GBPS`; None: they cannot talk."""
        self.silent: set[str] = set()
        """Who never finishes a round."""
        self.answered = 0
        """Rounds that all who are not silent have finished."""
        fakes: dict[str, Any] = {
            "planner": self.planner,
            "archive": Handed(),
            "control": self.control,
            "discovery": object(),
            "registry": self.records,
        }
        self.context = LeadContext(
            job=JOB, folder=folder, identity=ME, swarm="0123456789abcdef", coordinators=(ME.peer_id,), **fakes
        )
        self.state = SwarmState(folder, LAYERS, clock)
        self.rows = MetricsFile(folder / "metrics.jsonl")
        self.announcer = Announcer(self.context.control, self.state, self.rows)
        self.recorder = MetricsRecorder(self.rows, lambda: self.state.plan, lambda: JOB.training.steps)
        self.stood: list[tuple[str, PeerState]] = []
        """What peers were heard to stand by."""
        self.begun: list[int] = []
        """The plans that all their peers were heard to train under, each time anew."""
        self.listen(lambda peer, standing, _: self.stood.append((peer, standing)), self._started)

    def listen(self, stood: Callable[[str, PeerState, Plan | None], None], started: Callable[[Plan], bool]) -> None:
        """Have what peers say noted, and told to these."""
        MessageHandlers(self.state, self.recorder, self.announcer, (ME.peer_id,), stood=stood, started=started).listen(
            self.context.control, self.context.archive
        )

    def _started(self, plan: Plan) -> bool:
        self.begun.append(plan.version)
        return self.begun.count(plan.version) == 1

    async def say(self, topic: Topic, peer: str, body: Schema) -> None:
        """`peer` says something, and the coordinator hears it without waiting for anything."""
        assert self.control.readers[topic.name](peer, body) is None

    async def ledgers(self) -> list[Ledger]:
        """The ledgers that the coordinator has told by now."""
        telling = asyncio.create_task(self.announcer.run())
        for _ in range(5):
            await asyncio.sleep(0)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        return [body for topic, body in self.control.said if topic is LEDGER and isinstance(body, Ledger)]

    async def hello(self, peer: str, online: bool = True, session: str = "one") -> None:
        await self.say(PRESENCE, peer, Presence(online=online, session=session))

    async def goodbye(self, peer: str) -> None:
        await self.hello(peer, online=False)

    async def report(self, peer: str, state: str = "idle", **fields: Any) -> None:
        values = {"session": "one", "state": state} | fields
        await self.say(REPORT, peer, Report.model_validate(values))

    async def join(self, *peers: str) -> None:
        """Those are there, listed, and ready for work."""
        for peer in peers:
            self.records.listed[peer] = Profile(
                device="cpu",
                flops={"fp32": 1e11},
                layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
                memory_bytes=1e9,
                addresses=(f"/p2p/{peer}",),
                port=1024 + ord(peer[0]) if peer < "c" else None,
                version="0.1.0",
                session="one",
            )
            self.state.members.listed(self.records.listed)
            await self.hello(peer)
            await self.report(peer)

    def ready(self) -> list[Member]:
        return self.state.members.ready()

    @property
    def rounds(self) -> list[ProbeRound]:
        """The rounds of probes that peers were asked for."""
        return [body for _, body in self.control.said if isinstance(body, ProbeRound)]

    @property
    def asked(self) -> list[str]:
        """The pairs of all rounds so far, each in order."""
        return sorted("".join(sorted(pair)) for turn in self.rounds for pair in turn.pairs)

    @property
    def phases(self) -> list[Phase]:
        """What the coordinator said it does, one after the other."""
        return [body for topic, body in self.control.said if topic is PHASE and isinstance(body, Phase)]

    def result(self, peer: str, turn: ProbeRound) -> ProbeResult:
        """What `peer` finds in a round."""
        for other in (other for actor, other in turn.pairs if actor == peer):
            gbps = self.gbps.get(frozenset((peer, other)), GBPS)
            return ProbeResult(round=turn.id, link=None if gbps is None else link_of(gbps))
        if peer in turn.echoes:
            return ProbeResult(round=turn.id, echoes=dict.fromkeys(turn.echoes[peer], 20.0))
        return ProbeResult(round=turn.id, limits=Limits(up_gbps=UP_GBPS))

    async def finish(self, peer: str, turn: ProbeRound) -> None:
        """`peer` has done its part of a round, and says what came of it."""
        await self.report(peer, probed=self.result(peer, turn))

    async def _answer(self, turn: ProbeRound) -> None:
        """All who act in a round measure and say what they found, but for those who are silent."""
        for peer in [peer for peer, _ in turn.pairs] + [one.centre for one in turn.fans] + list(turn.echoes):
            if peer not in self.silent:
                await self.finish(peer, turn)
        self.answered += 1


def linked(peers: Peers, *names: str) -> None:
    """Each of `names` has links of 1 Gbit/s to all others."""
    for name in names:
        links = {other: Link(round_trip_ms=2.0, sent_gbps=1.0, received_gbps=1.0) for other in names if other != name}
        peers.state.links.reported(name, LinkReport(links=links))


def row(step: int, plan_version: int = 1) -> StepMetrics:
    return StepMetrics(
        step=step, loss=1.0, tokens=8, seconds=0.1, plan_version=plan_version, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None,
    )  # fmt: skip
