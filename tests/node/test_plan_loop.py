"""What a node does as it follows plans, by what it writes, says and begins."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_node.control.display import Display
from dtfm_node.control.inbox import Inbox
from dtfm_node.runner import promise_store as on_disk
from dtfm_node.runner.plan_loop import PlanLoop
from dtfm_node.runner.promise_store import PromiseStore
from dtfm_protocol.control.messages import ANSWERS, EPOCH, PHASE, PLAN, Answers, Challenge, Epoch, Phase, Topic
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.peer_state import PeerState, Promise
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.schema import Schema
from tests.harness.membership import invite_of

C = Identity.generate()
"""The coordinator."""
ME, OTHER = "a", "b"
SWARM = "0123456789abcdef"
SESSION, RUN = "this node's run", "the coordinator's run"
INVITE = invite_of(C, SWARM)


def plan(version: int, *peers: str) -> Plan:
    made = Plan(version=version, stages=((0, 2),), routes=tuple((peer,) for peer in peers))
    return made.signed(C, SWARM)


class Broker:
    """Hands messages to who reads them."""

    def __init__(self) -> None:
        self._readers: dict[str, Callable[[str, Any], Awaitable[None] | None]] = {}
        self.challenges = 0

    def on(self, topic: Topic, reader: Any) -> None:
        self._readers[topic.name] = reader

    def say(self, topic: Topic, message: Schema) -> None:
        done = self._readers[topic.name](C.peer_id, message)
        if done is not None:
            with pytest.raises(StopIteration):
                done.send(None)  # type: ignore[attr-defined]  # it waits for nothing

    async def publish(self, topic: Topic, message: Schema) -> None:
        assert isinstance(message, Challenge)
        self.challenges += 1


class Worker:
    """Work under a plan that lasts until it is told to end."""

    def __init__(self, said: asyncio.Queue[str]) -> None:
        self._said = said
        self.under_way: asyncio.Future[None] | None = None

    @property
    def tasks(self) -> set[asyncio.Future[None]]:
        return {self.under_way} if self.under_way is not None else set()

    def begin(self, plan: Plan) -> None:
        assert self.under_way is None
        self._said.put_nowait(f"begins {plan.version}")
        self.under_way = asyncio.get_running_loop().create_future()

    def end(self, *, kept: bool) -> None:
        self._said.put_nowait(f"ends, kept: {kept}")

    async def stop(self) -> None:
        await asyncio.sleep(0)
        if self.under_way is not None:
            self._said.put_nowait("stops")
            self.under_way = None

    async def release_memory(self) -> None:
        self._said.put_nowait("gives memory back")

    def has_ended(self) -> bool:
        if self.under_way is None or not self.under_way.done():
            return False
        done, self.under_way = self.under_way, None
        done.result()
        return True


class Journal:
    """What the node says; it looks at the disk whenever something about a promise is said."""

    def __init__(self, said: asyncio.Queue[str], promise_file: Path) -> None:
        self._said, self._promise_file = said, promise_file
        self.taken: Plan | None = None
        self._last: Promise | None = None

    def say(self, state: str, text: str, **_: object) -> None:
        self._said.put_nowait(f"{state}: {text}")

    def note(
        self, *, standing: PeerState | None = None, taken: Plan | None = None, leaving: bool | None = None
    ) -> None:
        if leaving is not None:
            return
        assert standing is not None
        kept = self._promise_file.read_bytes() if self._promise_file.exists() else None
        promise = Promise.model_validate_json(kept) if kept is not None else Promise()
        assert promise == standing.promise, "said before it is on the disk"
        if self.taken is not None and taken is None and promise == self._last:
            self._said.put_nowait("shows no plan any more")
        self.taken = taken
        if promise != self._last:
            self._said.put_nowait(f"promised {promise.version}, took {promise.accepted}")
        self._last = promise

    def hurry(self) -> None:
        pass

    def pause(self, why: str) -> None:
        self._said.put_nowait(why)

    def end_pause(self) -> None:
        self._said.put_nowait("goes on")

    def unconfirmed(self) -> tuple[()]:
        return ()

    def remember(self, rows: list[object]) -> None:
        pass


class Node:
    """A plan_loop, and all that is around it."""

    def __init__(self, folder: Path) -> None:
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.promise_file = folder / "promise.json"
        self.broker = Broker()
        self.worker: Any = Worker(self.said)
        self.checkpointer: Any = SimpleNamespace(is_idle=True)
        self.reporter: Any = Journal(self.said, self.promise_file)
        self.holdings: Any = SimpleNamespace(
            live=None,
            snapshots=SimpleNamespace(rows=list),
            standing=lambda promise: PeerState(promise=promise),
            drop=lambda: self.said.put_nowait("drops all"),
        )
        self.inbox = Inbox(INVITE, ME, Display("plain"), self.reporter, SESSION)
        self.inbox.read(self.broker)  # type: ignore[arg-type]
        self.broker.say(ANSWERS, Answers(to=("another", SESSION), session=RUN))
        promise_store = PromiseStore(self.promise_file, self.holdings, self.reporter, lambda: self.inbox.heard.call)
        self.plan_loop = PlanLoop(
            self.inbox, self.worker, promise_store, self.holdings, self.checkpointer, self.reporter, retry_seconds=0.001
        )

    def hear(self, *messages: Schema) -> None:
        """Have messages come one right after the other."""
        topics = {Epoch: EPOCH, Plan: PLAN, Phase: PHASE}
        for message in messages:
            self.broker.say(topics[type(message)], message)

    async def until(self, said: str) -> list[str]:
        """All that was said up to `said`, which is waited for."""
        heard: list[str] = []
        async with asyncio.timeout(30):
            while said not in heard:
                heard.append(await self.said.get())
        return heard


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    node = Node(tmp_path)
    task = asyncio.create_task(node.plan_loop.follow())
    await node.until("promised 0, took 0")
    yield node
    task.cancel()
    await asyncio.wait({task})


DONE = Phase(name="done", text="all steps done", session=RUN, called=9)


async def test_a_plan_is_promised_taken_and_begun_each_before_the_next_is_said(node: Node) -> None:
    node.hear(Epoch(called=1))
    assert await node.until("promised 1, took 0") == ["promised 1, took 0"]
    node.hear(plan(1, ME))
    assert await node.until("promised 1, took 1") == ["promised 1, took 1"]
    assert Plan.load(node.promise_file.with_name("plan.json")) == plan(1, ME)
    node.hear(Epoch(called=1, in_force=1))
    assert await node.until("begins 1") == ["begins 1"]


async def begun(node: Node) -> None:
    node.hear(Epoch(called=1, in_force=1), plan(1, ME))
    await node.until("begins 1")


async def test_a_node_stops_before_it_promises(node: Node) -> None:
    await begun(node)
    node.hear(Epoch(called=2, in_force=1))
    assert await node.until("promised 2, took 1") == ["stops", "promised 2, took 1"]


async def test_a_gentle_call_is_answered_when_the_plan_has_ended(node: Node) -> None:
    await begun(node)
    node.hear(Epoch(called=2, in_force=1, gently=True, parked=True))
    assert await node.until("ends, kept: True") == ["ends, kept: True"]
    node.worker.under_way.set_result(None)
    assert await node.until("promised 2, took 1") == ["promised 2, took 1"]


async def test_a_node_begins_no_plan_that_it_has_promised_not_to_act_under(node: Node) -> None:
    """Plan 2 comes into force, and is ended; the node hears both at once."""
    node.hear(Epoch(called=2, in_force=1), plan(2, ME))
    await node.until("promised 2, took 2")
    node.hear(Epoch(called=3, in_force=2))
    assert await node.until("promised 3, took 2") == ["promised 3, took 2"]
    node.hear(DONE)
    assert await node.until("finished: all steps done") == ["drops all", "finished: all steps done"]


@pytest.mark.parametrize("full", ["promise.json", "plan.json"])
async def test_a_full_disk_is_said_and_tried_again_until_it_has_room(
    node: Node, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = on_disk.write_atomically, 0

    def refuse(path: Path, text: str, *, lasting: bool) -> None:
        nonlocal tries
        if path.name == full and tries < 2:
            tries += 1
            raise UserError("no space left")
        write(path, text, lasting=lasting)

    monkeypatch.setattr(on_disk, "write_atomically", refuse)
    node.hear(Epoch(called=1, in_force=1), plan(1, ME))
    said = await node.until("begins 1")
    stalled = ["stalled: no space left"] * 2
    promised, took = "promised 1, took 0", "promised 1, took 1"
    assert said == (
        [*stalled, promised, took, "begins 1"] if full == "promise.json" else [promised, *stalled, took, "begins 1"]
    )


async def test_what_was_promised_outlives_the_process(node: Node, tmp_path: Path) -> None:
    await begun(node)
    node.hear(Epoch(called=2, in_force=1))
    await node.until("promised 2, took 1")
    again = Node(tmp_path)
    task = asyncio.create_task(again.plan_loop.follow())
    assert await again.until("promised 2, took 1") == ["promised 2, took 1"]
    again.hear(DONE)
    await task


async def test_a_node_that_started_anew_says_that_it_is_not_part_of_its_plan_any_more(
    node: Node, tmp_path: Path
) -> None:
    await begun(node)
    again = Node(tmp_path)
    task = asyncio.create_task(again.plan_loop.follow())
    again.hear(Epoch(called=1, in_force=1, started=1), plan(1, ME))
    text = "stalled: started anew: not part of plan 1 any more"
    assert await again.until(text) == ["promised 1, took 1", text]
    again.hear(DONE)
    await task


async def test_the_plan_that_was_taken_from_another_coordinator_is_told_to_who_calls(tmp_path: Path) -> None:
    """It may have come into force without the one who calls now."""
    (tmp_path / "promise.json").write_text(Promise(version=3, to="X", accepted=2).model_dump_json())
    (tmp_path / "plan.json").write_text(plan(2, ME).model_dump_json())
    node = Node(tmp_path)
    node.hear(DONE)
    await node.plan_loop.follow()
    assert node.reporter.taken == plan(2, ME)


async def test_a_plan_is_shown_to_its_own_author_where_that_one_does_not_name_it_as_in_force(node: Node) -> None:
    """Its disk may have been put back to what it was before that plan."""
    await begun(node)
    node.hear(Epoch(called=9, in_force=0))
    await node.until("promised 9, took 1")
    assert node.reporter.taken == plan(1, ME)
    node.hear(Epoch(called=10, in_force=1))
    await node.until("promised 10, took 1")
    assert node.reporter.taken is None


async def test_a_node_that_was_started_anew_shows_its_plan_until_it_hears_that_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "promise.json").write_text(Promise(version=3, to=plan(2, ME).author, accepted=2).model_dump_json())
    (tmp_path / "plan.json").write_text(plan(2, ME).model_dump_json())
    node = Node(tmp_path)
    task = asyncio.create_task(node.plan_loop.follow())
    await node.until("promised 3, took 2")
    assert node.reporter.taken == plan(2, ME)
    node.hear(Epoch(called=3, in_force=2))
    assert await node.until("shows no plan any more") == ["shows no plan any more"]
    node.hear(DONE)
    await task


def test_a_promise_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "promise.json").write_text("{")
    with pytest.raises(UserError, match=r"(?s)promise.json.*take another --state-dir"):
        Node(tmp_path)


async def test_a_spare_drops_what_it_held_once_the_others_have_begun(node: Node) -> None:
    await begun(node)
    node.hear(Epoch(called=2, in_force=2), plan(2, OTHER))
    await node.until("begins 2")
    node.worker.under_way.set_result(None)
    node.hear(Epoch(called=2, in_force=2, started=2))
    assert await node.until("drops all") == ["drops all"]


async def test_a_node_leaves_once_a_plan_without_it_has_begun(node: Node) -> None:
    await begun(node)
    node.holdings.live = object()
    node.plan_loop.leave()
    node.hear(Epoch(called=2, in_force=2), plan(2, OTHER))
    await node.until("begins 2")
    node.hear(Epoch(called=2, in_force=2, started=2))
    assert await node.until("finished: ") == ["stops", "drops all", "finished: "]


async def test_a_node_that_holds_nothing_leaves_at_once(node: Node) -> None:
    await begun(node)
    node.plan_loop.leave()
    assert await node.until("finished: ") == ["stops", "drops all", "finished: "]


async def test_what_breaks_the_work_ends_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    task = asyncio.create_task(node.plan_loop.follow())
    await begun(node)
    node.worker.under_way.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, 30)
    assert node.said.empty(), "it does not say that it has finished"


async def test_a_swarm_that_has_failed_stops_the_work(tmp_path: Path) -> None:
    node = Node(tmp_path)
    task = asyncio.create_task(node.plan_loop.follow())
    await begun(node)
    node.hear(Phase(name="failed", text="it diverged", session=RUN, called=1))
    with pytest.raises(UserError, match="the swarm has stopped: it diverged"):
        await asyncio.wait_for(task, 30)
    assert (node.said.get_nowait(), node.said.empty()) == ("stops", True)


async def test_a_plan_that_no_coordinator_signed_is_not_heard(node: Node) -> None:
    forged = plan(1, ME).model_copy(update={"routes": ((OTHER,),)})
    with pytest.raises(Refused):
        node.hear(forged)
    assert node.inbox.plan is None
    assert node.inbox.heard.plan is None


@pytest.mark.parametrize("name", ["failed", "done"])
@pytest.mark.parametrize(
    "replayed",
    [
        {"session": "an earlier run"},
        {"session": ""},
        {"called": 1},
    ],
    ids=["an earlier run's", "of no run", "an earlier epoch's"],
)
async def test_an_end_that_an_earlier_run_or_epoch_spoke_of_makes_no_node_go(
    node: Node, name: str, replayed: dict[str, Any]
) -> None:
    """Anybody who can write to the broker can say again what a coordinator once signed."""
    await begun(node)
    node.hear(Epoch(called=2, in_force=1, gently=True))
    await node.until("ends, kept: False")
    values = {"name": name, "text": "it is over", "session": RUN, "called": 2} | replayed
    node.hear(Phase.model_validate(values))
    node.worker.under_way.set_result(None)
    assert await node.until("promised 2, took 1") == ["promised 2, took 1"]
    assert not node.inbox.is_over


async def test_a_coordinator_that_has_started_anew_is_challenged_once_and_believed_when_it_answers(node: Node) -> None:
    for text in ("waiting for one", "waiting for another"):
        node.hear(Phase(name="waiting", text=text, session="its next run"))
    assert node.broker.challenges == 1
    node.hear(DONE.model_copy(update={"session": "its next run"}))
    assert node.broker.challenges == 2
    assert not node.inbox.is_over
    node.broker.say(ANSWERS, Answers(to=("another",), session="its next run"))
    assert not node.inbox.is_over
    node.broker.say(ANSWERS, Answers(to=(SESSION,), session="its next run"))
    assert await node.until("finished: all steps done") == ["drops all", "finished: all steps done"]


class Held:
    """A state in memory."""

    mark = object()


async def trains(node: Node) -> None:
    await begun(node)
    node.holdings.live = Held()

    async def save(state: object, rows: object) -> None:
        node.said.put_nowait("saves")

    node.checkpointer.save = save

    def drop() -> None:
        node.holdings.live = None
        node.said.put_nowait("drops all")

    node.holdings.drop = drop


async def test_a_node_pauses_once_a_plan_without_it_has_begun_and_takes_part_again_after_that(node: Node) -> None:
    await trains(node)
    node.plan_loop.pause("paused by you")
    node.hear(Epoch(called=2, in_force=2), plan(2, OTHER))
    await node.until("begins 2")
    node.hear(Epoch(called=2, in_force=2, started=2))
    assert await node.until("paused by you") == ["stops", "drops all", "gives memory back", "paused by you"]
    assert node.plan_loop.is_paused
    node.plan_loop.go_on()
    assert await node.until("goes on") == ["drops all", "goes on"]
    node.hear(Epoch(called=3, in_force=3), plan(3, ME))
    await node.until("begins 3")


@pytest.mark.parametrize("saved", [False, True])
async def test_a_node_that_pauses_at_once_answers_calls_and_takes_the_newest_plan_when_it_comes_back(
    node: Node, saved: bool
) -> None:
    await trains(node)
    node.plan_loop.pause("paused by you", at_once=True, saved=saved)
    assert await node.until("paused by you") == [
        "stops", *["saves"] * saved, "drops all", "gives memory back", "paused by you",
    ]  # fmt: skip
    node.hear(Epoch(called=2, in_force=1))
    assert await node.until("promised 2, took 1") == ["promised 2, took 1"]
    node.hear(plan(2, ME), Epoch(called=2, in_force=2))
    node.plan_loop.go_on()
    assert await node.until("begins 2") == ["goes on", "promised 2, took 2", "begins 2"]


async def test_a_node_leaves_as_soon_as_its_checkpoint_is_handed_in_though_nothing_more_is_heard(node: Node) -> None:
    """The last node of a swarm: the coordinator's last word may come before its answer to the checkpoint."""
    await trains(node)
    handed_in = asyncio.Event()
    node.checkpointer.is_idle, node.checkpointer.settled = False, handed_in.wait
    node.plan_loop.leave()
    node.hear(Epoch(called=2, in_force=1, gently=True, parked=True))
    await node.until("ends, kept: True")
    node.worker.under_way.set_result(None)
    await node.until("promised 2, took 1")
    node.checkpointer.is_idle = True
    handed_in.set()
    assert await node.until("finished: ") == ["drops all", "finished: "]
