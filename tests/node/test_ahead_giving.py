"""What a node is to take over it is given while the others train, and follows them to the bit; it is believed by its
hash alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.runner.ahead_fetch import AheadFetch
from dtfm_node.state import ahead_giving
from dtfm_node.state.ahead_copy import AheadCopy
from dtfm_node.state.ahead_giving import (
    AheadGiver,
    GiveGradient,
    GiveState,
    GiveUp,
    GivingOrder,
    HasRoom,
    KeepGradients,
    Updated,
)
from dtfm_node.state.held_states import HeldStates
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import load_state
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.transfers import STATE, Parcel, WantCatalogue, serve_state
from dtfm_protocol.control.messages import ProbeRound
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Bytes, Stream, StreamClosed, write_message
from tests.coordinator.peers import until
from tests.node.engine_reference import LESS
from tests.node.finals import final
from tests.node.small_states import State, at, inline, job, now, reduce, same
from tests.node.test_training_stage import TRAINING, one_thread, plan_of, state_of

__all__ = ["one_thread"]  # a fixture

IN_FORCE = plan_of("middle")
COMING = plan_of("middle", version=0, routes=[("a", "b", "c"), ("a", "d", "c")] * 2)
"""Peer d is to be another replica of the stage in the middle."""
MUCH = 1e9


class Said:
    """What a node reports."""

    def __init__(self) -> None:
        self.coming, self.is_ahead = 0, asyncio.Event()

    def note(self, **values: Any) -> None:
        self.coming = values.get("coming", self.coming)
        if values.get("is_ahead"):
            self.is_ahead.set()
        elif "is_ahead" in values:
            self.is_ahead.clear()

    def hurry(self) -> None:
        """Nobody hears it."""


class Setting:
    """Peer b, which trains the stage in the middle, and peer d, which is to."""

    def __init__(self, folder: Path, training: Training) -> None:
        self.network, self.said = MemoryNetwork(), Said()
        self.job = job().model_copy(update={"training": training})
        self.stage = state_of("middle", training=training)
        self.held, self.holdings = (Inventory(Snapshots(folder / name), inline) for name in "bd")
        self.held.held = HeldStates(live=self.stage)
        self.files: list[tuple[Plan, int]] = []
        """Layouts, and steps, for which d has fetched files."""
        self.comings: asyncio.Queue[ProbeRound] = asyncio.Queue()
        self.spare = MUCH
        self.giver = AheadGiver(self.held, UplinkPacer(), inline, lambda: self.spare, layout_seconds=0.05)
        self.plane = MemoryDataPlane(self.network, "d")

    def step(self, *, learned: bool = True) -> None:
        """Have b make a step."""
        assert self.stage.mark is not None
        step = self.stage.mark.step + 1
        if learned:
            reduce(self.stage, step)
        self.stage.prepare(at(step), learned=learned)
        self.stage.apply(0.5 * step, final(at(step), 0.5 * step))

    async def _fetch_files(self, layout: Plan, plan: Plan, step: int) -> None:
        assert plan == IN_FORCE
        self.files.append((layout, step))

    @contextlib.asynccontextmanager
    async def fetching(self, coming: Plan = COMING) -> AsyncIterator[AheadFetch]:
        """Have d fetch ahead; until it says that it has all, or can have nothing."""
        source = MemoryDataPlane(self.network, "b")
        await source.serve(STATE, lambda stream: serve_state(stream, self.held, self.giver.give))
        fetch = AheadFetch(
            self.job, self.plane, self.holdings, self.said,  # type: ignore[arg-type]
            lambda: IN_FORCE, lambda: self.spare, self.giver.serve, self._fetch_files,
        )  # fmt: skip
        running = asyncio.create_task(fetch.run(self.comings))
        self.comings.put_nowait(ProbeRound(id=7, addresses={}, coming=coming))
        try:
            async with asyncio.timeout(30):
                await self.said.is_ahead.wait()
            assert self.said.coming == 7
            yield fetch
        finally:
            running.cancel()
            await asyncio.wait({running})

    @property
    def copy(self) -> AheadCopy:
        assert self.holdings.ahead is not None
        return self.holdings.ahead

    async def ahead(self, step: int) -> State:
        async with asyncio.timeout(30):
            return await self.copy.at(step)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, TRAINING)


@pytest.mark.parametrize("keys", [{}, *LESS.values()], ids=["fp32", *LESS])
async def test_who_is_given_a_state_ahead_has_the_bits_of_each_step_that_follows(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    setting = Setting(tmp_path, TRAINING.model_copy(update=keys))
    setting.step()
    async with setting.fetching():
        setting.step()
        setting.step(learned=False)
        setting.step()
        assert same(await setting.ahead(4), now(setting.stage))


async def test_a_state_before_its_first_step_is_followed_too(setting: Setting) -> None:
    async with setting.fetching():
        setting.step()
        assert same(await setting.ahead(1), now(setting.stage))


async def load(setting: Setting) -> tuple[TrainingStage, int]:
    """Have d load what a plan gives it that goes on from where b is; its stage, and how many bytes it has fetched."""
    assert setting.stage.mark is not None
    mark, commit = setting.stage.mark, setting.stage.commit
    resume = Resume(mark=mark, commit=commit, sources=(Source(peer="b", layers=((1, 4),)),))
    plan = COMING.model_copy(update={"version": 2, "resume": resume, "lineage": IN_FORCE.chain.plans})
    stage = TrainingStage(setting.job.config, plan, "d", TRAINING, torch.device("cpu"))
    setting.holdings.begin(stage, mark)
    fetched = await load_state(setting.plane, setting.job, plan, stage, setting.holdings, inline)
    return stage, fetched.bytes


async def test_nothing_of_what_has_come_ahead_is_fetched_once_more(setting: Setting) -> None:
    setting.step()
    async with setting.fetching():
        assert setting.files == [(COMING, 2)]
        setting.step()
        stage, fetched = await load(setting)
        assert same(now(stage), now(setting.stage))
        assert fetched == 0


async def test_what_was_given_falsely_ahead_is_fetched_from_the_plans_sources(setting: Setting) -> None:
    setting.step()
    async with setting.fetching():
        one = next(iter(setting.copy._followed.values()))
        (parameter,) = one.parameters.values()
        parameter.data[0] += 1
        stage, fetched = await load(setting)
        assert same(now(stage), now(setting.stage))
        assert fetched == parameter.nbytes


async def test_of_another_step_nothing_that_has_come_ahead_is_used(setting: Setting) -> None:
    setting.step()
    async with setting.fetching():
        pass  # it hears of no further step
    setting.step()
    stage, fetched = await load(setting)
    assert same(now(stage), now(setting.stage))
    assert fetched == sum(tensor.nbytes for tensor in now(stage).values())


async def test_who_lacks_nothing_for_the_coming_layout_fetches_nothing(setting: Setting) -> None:
    async with setting.fetching(IN_FORCE):
        assert setting.holdings.ahead is None


async def test_a_layout_of_more_micro_batches_than_a_step_has_is_not_fetched_for(setting: Setting) -> None:
    """There are no tokens for those: the node says at once that it has all, and goes on."""
    more = COMING.model_copy(update={"routes": (*COMING.routes, COMING.routes[0])})
    async with setting.fetching(more):
        assert setting.holdings.ahead is None


async def test_without_memory_for_it_nothing_is_fetched_ahead(setting: Setting) -> None:
    setting.step()
    setting.spare = 1000.0
    async with setting.fetching():
        assert setting.holdings.ahead is None


async def test_a_peer_that_gives_nothing_ahead_holds_nobody_up(setting: Setting) -> None:
    """As one of an older version does, which answers with a catalogue."""
    setting.step()
    setting.giver.give = None  # type: ignore[assignment, method-assign]
    async with setting.fetching():
        assert await setting.ahead(1) == {}


async def asked(setting: Setting, peer: str, *names: str) -> None:
    """Have a peer ask b for parameters by name."""
    await setting.giver.serve(COMING)
    streams: list[Stream] = []

    async def answer(stream: Stream) -> None:
        streams.append(stream)

    await MemoryDataPlane(setting.network, "b").serve(STATE, answer)
    asking = await MemoryDataPlane(setting.network, peer).open("b", STATE)
    await write_message(asking, WantCatalogue(mark=Mark(), ahead=names))
    await serve_state(streams[0], setting.held, setting.giver.give)


async def test_who_is_to_take_nothing_over_is_given_nothing_ahead(setting: Setting) -> None:
    with pytest.raises(Refused, match="no layout to come gives to its peer"):
        await asked(setting, "e", next(iter(setting.stage.parameters)))


async def test_who_has_heard_of_the_layout_first_is_given_it_when_its_source_hears(setting: Setting) -> None:
    """And not before."""
    setting.step()
    heard, serve, setting.giver._layout_seconds = asyncio.Event(), setting.giver.serve, 30.0

    async def later(layout: Plan) -> None:
        """It reaches d at once, and b only when the test says so."""
        hearing.append(asyncio.create_task(_after(heard, serve, layout)))

    hearing: list[asyncio.Task[None]] = []
    setting.giver.serve = later  # type: ignore[method-assign]
    asyncio.get_running_loop().call_later(0.05, heard.set)
    async with setting.fetching():
        assert heard.is_set()
        assert same(await setting.ahead(1), now(setting.stage))


async def _after(heard: asyncio.Event, serve: Callable[[Plan], Awaitable[None]], layout: Plan) -> None:
    await heard.wait()
    await serve(layout)


@pytest.mark.parametrize("times", [0, 2])
async def test_what_is_not_here_or_is_named_twice_is_not_given(setting: Setting, times: int) -> None:
    names = [next(iter(setting.stage.parameters))] * times or ["nothing"]
    with pytest.raises(Refused, match="that are not here"):
        await asked(setting, "d", *names)


async def test_without_memory_for_what_waits_nothing_is_given(setting: Setting) -> None:
    setting.spare = 1000.0
    with pytest.raises(Refused, match="no memory"):
        await asked(setting, "d", next(iter(setting.stage.parameters)))


async def test_a_peer_that_asks_again_and_again_and_reads_nothing_is_given_to_once(setting: Setting) -> None:
    """Else what waits for it would be kept once for each time."""
    setting.step()
    names = tuple(setting.stage.parameters)
    await setting.giver.serve(COMING)
    giving: list[asyncio.Task[None]] = []

    async def answer(stream: Stream) -> None:
        task = asyncio.current_task()
        assert task is not None
        giving.append(task)
        closed, close = asyncio.Event(), stream.close

        async def write(data: Bytes) -> None:
            await closed.wait()
            raise StreamClosed

        async def ends() -> None:
            closed.set()
            await close()

        stream.write, stream.close = write, ends  # type: ignore[method-assign]
        with pytest.raises(StreamClosed):
            await serve_state(stream, setting.held, setting.giver.give)

    await MemoryDataPlane(setting.network, "b").serve(STATE, answer)
    plane = MemoryDataPlane(setting.network, "d")
    for number in range(1, 4):
        asking = await plane.open("b", STATE)
        await write_message(asking, WantCatalogue(mark=Mark(), ahead=names))
        await until(lambda number=number: len(giving) == number and sum(not one.done() for one in giving) == 1)
        await until(lambda: len(setting.stage.after_update) == 1)
    giving[-1].cancel()
    await asyncio.wait(giving)
    assert setting.stage.after_update == []


SHAPES = {"w": (3, 2)}


@pytest.mark.parametrize(
    ("parcel", "why"),
    [
        (Parcel(name="v", step=3, size=72), "was not asked for"),
        (Parcel(name="w", step=3, size=24), "of 24 bytes, not 72"),
        (Parcel(name="w", step=0, size=72), "of 72 bytes, not 24"),
        (Parcel(name="w", step=4, size=25, grad_norm=1.0), "of 25 bytes, not 24"),
        (Parcel(name="w", step=5, size=24, grad_norm=1.0), "leads nowhere"),
        (Parcel(name="w", step=3, size=24, grad_norm=1.0), "leads nowhere"),
    ],
)
async def test_a_parcel_that_does_not_fit_is_refused_before_its_bytes_are_read(parcel: Parcel, why: str) -> None:
    copy = AheadCopy(SHAPES, lambda step: TRAINING)
    first = Parcel(name="w", step=3, size=72)
    copy.check(first)
    copy.take(first, bytes(72))
    with pytest.raises(Refused, match=why):
        copy.check(parcel)


# -- what is given next -------------------------------------------------------------------------------------------


def test_gradients_of_what_was_given_go_before_more_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_giving, "PIECE_LIMIT", 4 * 10)
    order = GivingOrder.of({"a": 8, "b": 8, "c": 8})
    order, actions = order.on(HasRoom())
    assert actions == (GiveState(("a", "b")),)
    order, actions = order.on(Updated(5))
    assert actions == (KeepGradients(("a", "b")),)
    assert order.left == 3
    given = []
    while actions:
        order, actions = order.on(HasRoom())
        given += actions
    assert given == [GiveGradient(5, "a"), GiveGradient(5, "b"), GiveState(("c",))]
    assert order.left == 0


def test_where_more_comes_than_goes_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_giving, "LEAST_WAITING", 0)
    order, _ = GivingOrder.of({"a": 8}).on(HasRoom())
    for step in (1, 2):
        order, actions = order.on(Updated(step))
        assert actions == (KeepGradients(("a",)),)
    order, actions = order.on(Updated(3))
    assert actions == (GiveUp(),)
    assert order.left == 0
    assert order.on(HasRoom()) == (order, ())
