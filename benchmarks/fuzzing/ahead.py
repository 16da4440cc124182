"""Targets among what goes ahead of a plan: layouts to come, requests for a state in training, and what is sent then."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from tests.node.engine_reference import LESS
from tests.node.finals import final
from tests.node.small_states import at, inline, job, reduce
from tests.node.test_training_stage import plan_of, state_of

from benchmarks.fuzzing.messages import heard, used
from benchmarks.fuzzing.swarm_sides import SaidBefore, Sides, sized
from benchmarks.fuzzing.training import ENDS_EARLY
from benchmarks.fuzzing.trial import Target
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.runner.ahead_fetch import AheadFetch, Shapes
from dtfm_node.runner.token_source import TokenSource
from dtfm_node.state.ahead_copy import AheadCopy
from dtfm_node.state.ahead_giving import AheadGiver
from dtfm_node.state.held_states import HeldStates
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.shadowed_base import fetch_coming
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.transfers import WantCatalogue, serve_state
from dtfm_protocol.control.messages import PROBE, ProbeRound
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.wire.stream import Bytes, StreamClosed, Unreachable

MUCH = 1e9
LONGEST_SECONDS = 10.0
"""In which a node is done with a layout whose peers have said all."""
ROUND = 7
GIVEN = 3
"""Parameters of which a valid giver gives state, and gradients: all of them would be long inputs."""
LAST_STEP = 3
"""Newest step of what a valid giver gives."""
LAYOUT_COST, COST = 100, 10
"""The model is laid out anew for each layout; a node fetches in tasks, and computes in threads."""
ODD_NUMBERS = np.array([0.5, -0.0, 1e-45, 3e38, np.inf, np.nan], np.float32).tobytes()
MOST_BYTES = 1 << 20
"""That follow a parcel which says what it likes."""


def ahead_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    plain = _Ahead(sides, "fp32", {})
    turn = ProbeRound(id=ROUND, addresses={}, coming=plain.coming).model_dump_json().encode()
    yield Target("layout to come", plain.layout, (turn,), cost=LAYOUT_COST)
    asked = WantCatalogue(mark=Mark(), ahead=tuple(plain.stage.parameters)[:GIVEN]).model_dump_json().encode()
    yield Target("request for state ahead", plain.asked, (sized(asked),), ENDS_EARLY)
    given = sides.wait(plain.gives())
    yield Target("state given ahead", plain.given, (given,), cost=COST)
    yield Target("parcels", plain.told, (_parcels(given),), cost=COST)
    for name in ("both", "sgd of weights in bf16"):
        other = _Ahead(sides, name, LESS[name])
        yield Target(f"parcels, {name}", other.told, (_parcels(sides.wait(other.gives())),), cost=COST)


def _parcels(given: bytes) -> bytes:
    """Return the parcels of what is given, as one document."""
    found, at = list[Any](), 0
    while at < len(given):
        end = at + 4 + int.from_bytes(given[at : at + 4], "big")
        found.append(json.loads(given[at + 4 : end]))
        at = end + found[-1]["size"]
    return json.dumps(found).encode()


class _Ahead:
    """A peer that trains the middle of a model, and one that is to take that over: the one that lies is the other end.

    Args:
        keys: of the job's training.
    """

    def __init__(self, sides: Sides, name: str, keys: dict[str, Any]) -> None:
        self._sides, peers = sides, ("first", sides.liar.peer_id, "last")
        plain = job()
        training = Training.model_validate({**plain.training.model_dump(), **keys})
        self._job = plain.model_copy(update={"training": training})
        self._plan = plan_of("middle", routes=[peers] * 4)
        other = (peers[0], sides.node.peer_id, peers[2])
        self.coming = plan_of("middle", version=0, routes=[peers, other] * 2)
        self.stage: TrainingStage = state_of("middle", training=training)
        self._snapshots = Snapshots(sides.folder / f"ahead-{name}")

    # -- a layout ---------------------------------------------------------------------------------------------------

    def layout(self, data: bytes) -> None:
        """Hear of a layout, whose peers give nothing."""

        async def take(_: str, turn: ProbeRound) -> None:
            if turn.coming is not None:
                used(turn.coming)
                await self._fetched(turn, None)

        heard(self._sides, PROBE, self._sides.owner, take, data)

    # -- what is given ------------------------------------------------------------------------------------------------

    def told(self, data: bytes) -> None:
        """Be given a state ahead in parcels that say this, each followed by as many bytes as it says."""
        try:
            listed = json.loads(data)
        except (ValueError, RecursionError):
            raise Refused("not JSON") from None
        said = bytearray()
        for one in listed if isinstance(listed, list) else ():
            size = one.get("size") if isinstance(one, dict) else 0
            said += sized(json.dumps(one).encode())
            said += _bytes(size if isinstance(size, int) and 0 <= size <= MOST_BYTES else 0)
        self.given(bytes(said))

    def given(self, data: bytes) -> None:
        """Be given a state ahead by a peer that says this.

        Raises:
            Refused: not all of it was taken, which the node says to nobody.
        """
        turn = ProbeRound(id=ROUND, addresses={}, coming=self.coming)
        copy = self._sides.wait(self._fetched(turn, SaidBefore(self._sides.liar.peer_id, data)))
        if copy is None or copy.step != LAST_STEP:
            raise Refused("something else was given")

    async def _fetched(self, turn: ProbeRound, stream: SaidBefore | None) -> AheadCopy | None:
        """Fetch ahead for a layout, as `AheadFetch` does until the node says that it has all; use what has come, and
        return it."""
        holdings, comings = Inventory(self._snapshots, inline), asyncio.Queue[ProbeRound]()
        plane: Any = _Plane(self._sides.node.peer_id, stream)
        tokens = TokenSource(plane, self._job, _AllShards(), self._plan.author)  # type: ignore[arg-type]
        told: Any = _Told()

        async def files(layout: Plan, plan: Plan, step: int) -> None:
            """Do what `PlanWorker.fetch_files` does."""
            tokens._batches = Batches.of_plan(JobTimeline(self._job, plan.amendments), step)
            await tokens.ensure(layout, plane.peer_id, step)
            await fetch_coming(plane, self._job, layout, plan.author, holdings)

        giver = AheadGiver(holdings, UplinkPacer(), inline, lambda: MUCH)
        fetch = _Fetch(
            self._job, plane, holdings, told, lambda: self._plan, lambda: MUCH, giver.serve, files
        )  # fmt: skip
        comings.put_nowait(turn)
        running, ahead = asyncio.create_task(fetch.run(comings)), asyncio.create_task(told.is_ahead.wait())
        try:
            await asyncio.wait({running, ahead}, timeout=LONGEST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not told.is_ahead.is_set():
                raise AssertionError("the node never says that it has all, or can have nothing")
            if holdings.ahead is not None:
                await holdings.ahead.at(LAST_STEP)
        finally:
            await _ended(running, ahead)
        return holdings.ahead

    async def gives(self) -> bytes:
        """Return what an honest peer gives: state, and the gradients of a step, and of one without any."""
        holdings, stage = Inventory(self._snapshots, inline), self.stage
        holdings.held = HeldStates(live=stage)
        self._step(1)
        stream, giver = _Listener(self._sides.node.peer_id), AheadGiver(holdings, UplinkPacer(), inline, lambda: MUCH)
        await giver.serve(self.coming)
        giving = asyncio.create_task(giver.give(stream, tuple(stage.parameters)[:GIVEN]))
        for step, writes in ((2, 2 * GIVEN), (3, 4 * GIVEN), (None, 5 * GIVEN)):
            while stream.writes < writes and not giving.done():
                await stream.has_heard.wait()
                stream.has_heard.clear()
            if step is not None:
                self._step(step, learned=step == 2)
        await _ended(giving)
        return bytes(stream.said)

    def _step(self, step: int, *, learned: bool = True) -> None:
        if learned:
            reduce(self.stage, step)
        self.stage.prepare(at(step), learned=learned)
        self.stage.apply(0.5 * step, final(at(step), 0.5 * step))

    # -- what is asked for ------------------------------------------------------------------------------------------

    def asked(self, data: bytes) -> None:
        """Be asked for the state in training by the peer that is to take it over, which goes when it is given some."""
        self._sides.wait(self._served(data))

    async def _served(self, data: bytes) -> None:
        holdings = Inventory(self._snapshots, inline)
        holdings.held = HeldStates(live=self.stage)
        giver = AheadGiver(holdings, UplinkPacer(), inline, lambda: MUCH, layout_seconds=0.0)
        await giver.serve(self.coming)
        stream = _Leaver(self._sides.node.peer_id, data)
        try:
            await serve_state(stream, holdings, giver.give)
        except StreamClosed:
            if not stream.has_left:
                raise
        if self.stage.after_update:
            raise AssertionError("gradients are kept for a peer that has left")


class _Fetch(AheadFetch):
    """A fetcher that lays the model out once for each job and layout, as that takes long."""

    _known: ClassVar[dict[tuple[str, str], Any]] = {}

    def _shares(self, plan: Plan, layout: Plan) -> dict[str, Shapes]:
        key = self._job.model_dump_json(), layout.model_dump_json()
        if key not in self._known:
            self._known.clear()
            self._known[key] = super()._shares(plan, layout)
        return {peer: dict(share) for peer, share in self._known[key].items()}


def _bytes(size: int) -> bytes:
    return (ODD_NUMBERS * (size // len(ODD_NUMBERS) + 1))[:size]


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """End tasks, and raise what one of them has ended by."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


class _Plane:
    """A data plane on which the other peer says one thing, or cannot be reached."""

    def __init__(self, peer_id: str, stream: SaidBefore | None) -> None:
        self.peer_id, self._stream = peer_id, stream

    async def open(self, peer: str, service: str) -> SaidBefore:
        if self._stream is None:
            raise Unreachable("nobody is here")
        return self._stream


class _AllShards:
    """A folder that has every shard."""

    def has(self, sha256: str) -> bool:
        return True

    def used(self, sha256: str) -> None:
        """Note nothing."""


class _Told:
    """A reporter to nobody."""

    def __init__(self) -> None:
        self.is_ahead = asyncio.Event()

    def note(self, *, coming: int | None = None, is_ahead: bool) -> None:
        if is_ahead:
            self.is_ahead.set()

    def hurry(self) -> None:
        """Wait for nothing."""


class _Listener(SaidBefore):
    """A stream whose other end says nothing, and keeps what it hears."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer, b"")
        self.said, self.writes, self.has_heard = bytearray(), 0, asyncio.Event()

    async def write(self, *buffers: Bytes) -> None:
        """Keep it."""
        self.said += b"".join(buffers)
        self.writes += 1
        self.has_heard.set()


class _Leaver(SaidBefore):
    """A stream whose other end leaves when it is told something."""

    has_left = False

    async def write(self, *buffers: Bytes) -> None:
        """Leave."""
        self.has_left = True
        raise StreamClosed("the other end has what it wants")
