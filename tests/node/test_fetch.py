"""A state is fetched from all who have it at once; what they give is believed by its hash alone."""

import asyncio
import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator

import pytest
import torch

from dtfm_node.state.catalogue_proof import CertifiedPart
from dtfm_node.state.fetch import Fetch, Fetched, Lacking
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor, tensor_entry
from dtfm_protocol.checkpoint.state_slots import ADAMW
from dtfm_protocol.checkpoint.transfers import STATE, Catalogue, WantCatalogue, serve_state
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.mark import LayerRange, Mark, StateDigest
from dtfm_protocol.plan.state_vote import digest_of_state
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Bytes, Handler, Stream, StreamClosed, read_message, write_message

MARK = Mark(step=7, plan=2)
PIECE = 100
State = dict[str, torch.Tensor]


def state(*names: str) -> State:
    """Of each name a tensor of ten pieces, the last of them a short one."""
    found = {}
    for name in names:
        generator = torch.Generator().manual_seed(ord(name[-1]))
        found[f"weight/{name}"] = torch.randn(10 * PIECE // 4 - 3, generator=generator)
    return found


class Source:
    """A peer that has tensors of a state, and may do badly."""

    def __init__(self, tensors: State, mark: Mark = MARK) -> None:
        self.mark, self.served = mark, 0
        self.entries: dict[str, TensorEntry] = {}
        self.data: dict[str, bytes] = {}
        self.before: Callable[[int], None] = lambda served: None
        """Called before each piece."""
        self.gate: asyncio.Event | None = None
        for key, tensor in tensors.items():
            entry, data = tensor_entry("live.safetensors", tensor)
            self.entries[key], self.data[key] = entry, bytes(data)

    async def catalogue(self, mark: Mark) -> dict[str, TensorEntry]:
        return self.entries if mark == self.mark else {}

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        assert mark == self.mark
        if self.gate is not None:
            await self.gate.wait()
        self.before(self.served)
        self.served += 1
        return self.data[key][offset : offset + size]


class Swarm:
    """Sources on a network, and one who fetches."""

    def __init__(self) -> None:
        self._network = MemoryNetwork()
        self.taken: State = {}
        self.patience = self.late = 60.0
        """Seconds for an answer, and beside others that prove all."""

    async def add(self, peer: str, source: Source) -> Source:
        await self.serve(peer, lambda stream: serve_state(stream, source))
        return source

    async def serve(self, peer: str, handler: Handler) -> None:
        await MemoryDataPlane(self._network, peer).serve(STATE, handler)

    async def fetch(self, wanted: State, *peers: str, parts: Collection[CertifiedPart] = ()) -> Fetched:
        async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
            assert key not in self.taken
            self.taken[key] = decode_tensor(entry, data)

        shapes = {key: tuple(tensor.shape) for key, tensor in wanted.items()}
        plane = MemoryDataPlane(self._network, "me")
        one = Fetch(
            plane, MARK, shapes, peers, table=ADAMW, parts=parts,
            piece_bytes=PIECE, catalogue_seconds=self.patience, late_seconds=self.late, piece_seconds=self.patience,
        )  # fmt: skip
        async with asyncio.timeout(30):
            return await one.run(take)

    def has(self, wanted: State) -> bool:
        return self.taken.keys() == wanted.keys() and all(torch.equal(self.taken[key], wanted[key]) for key in wanted)


@pytest.fixture
def swarm() -> Swarm:
    return Swarm()


@contextlib.contextmanager
def refused(match: str) -> Iterator[None]:
    with pytest.raises(Refused, match=re.escape(match)) as caught:
        yield
    assert "\n" not in str(caught.value)


async def test_one_source_gives_all_that_is_wanted_and_no_more(swarm: Swarm) -> None:
    source = await swarm.add("a", Source(state("a", "b", "c")))
    wanted = state("a", "b")
    fetched = await swarm.fetch(wanted, "a")
    assert swarm.has(wanted)
    assert source.served == 20
    assert fetched == Fetched(sum(tensor.nbytes for tensor in wanted.values()), {"a"})


async def test_several_sources_share_the_work_of_one_tensor(swarm: Swarm) -> None:
    wanted = state("a")
    sources = {peer: await swarm.add(peer, Source(wanted)) for peer in "xyz"}
    fetched = await swarm.fetch(wanted, *sources)
    assert swarm.has(wanted)
    assert sum(source.served for source in sources.values()) == 10
    assert all(2 <= source.served <= 6 for source in sources.values())
    assert fetched.sources == set(sources)


async def test_a_fast_source_gives_what_a_slow_one_does_not(swarm: Swarm) -> None:
    wanted = state("a", "b")
    slow, fast = await swarm.add("slow", Source(wanted)), await swarm.add("fast", Source(wanted))
    slow.gate = asyncio.Event()
    fast.before = lambda served: slow.gate.set() if served == 18 and slow.gate is not None else None
    await swarm.fetch(wanted, "slow", "fast")
    assert swarm.has(wanted)
    assert slow.served == 1
    assert fast.served in (19, 20)  # the last of them may have been asked of both


async def test_a_piece_that_a_slow_source_owes_is_asked_of_one_that_has_nothing_left_to_do(swarm: Swarm) -> None:
    wanted = state("a", "b")
    slow, fast = await swarm.add("slow", Source(wanted)), await swarm.add("fast", Source(wanted))
    slow.gate = asyncio.Event()  # stays shut
    fetched = await swarm.fetch(wanted, "slow", "fast")
    assert swarm.has(wanted)
    assert (slow.served, fast.served) == (0, 20)
    assert fetched.sources == {"fast"}


async def test_each_source_is_asked_for_what_it_has(swarm: Swarm) -> None:
    await swarm.add("x", Source(state("a", "b")))
    await swarm.add("y", Source(state("b", "c")))
    wanted = state("a", "b", "c")
    assert (await swarm.fetch(wanted, "x", "y")).sources == {"x", "y"}
    assert swarm.has(wanted)


def vanish(after: int) -> Callable[[int], None]:
    def look(served: int) -> None:
        if served >= after:
            raise StreamClosed("gone")

    return look


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_source_that_vanishes_midway_leaves_its_pieces_to_the_others(swarm: Swarm, after: int) -> None:
    wanted = state("a", "b")
    leaver, other = await swarm.add("x", Source(wanted)), await swarm.add("y", Source(wanted))
    leaver.before = vanish(after)
    fetched = await swarm.fetch(wanted, "x", "y")
    assert swarm.has(wanted)
    assert (leaver.served, other.served) == (after, 20 - after)
    assert fetched.bytes == sum(tensor.nbytes for tensor in wanted.values())


async def test_a_source_that_vanishes_last_leaves_its_piece_to_one_who_had_nothing_left_to_do(swarm: Swarm) -> None:
    wanted = state("a")
    leaver, other = await swarm.add("x", Source(wanted)), await swarm.add("y", Source(wanted))
    leaver.gate = asyncio.Event()
    leaver.before = vanish(0)
    other.before = lambda served: leaver.gate.set() if served == 8 and leaver.gate is not None else None
    await swarm.fetch(wanted, "x", "y")
    assert swarm.has(wanted)


async def test_a_source_whose_state_has_moved_on_leaves_its_pieces_to_the_others(swarm: Swarm) -> None:
    wanted = state("a")
    await swarm.add("y", Source(wanted))
    moved = await swarm.add("x", Source(wanted))

    async def gone(mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        return None

    moved.read = gone  # type: ignore[method-assign]
    assert (await swarm.fetch(wanted, "x", "y")).sources == {"y"}
    assert swarm.has(wanted)


@pytest.mark.parametrize("when", ["at the catalogue", "at a piece"])
async def test_a_source_that_stops_answering_is_not_waited_for(swarm: Swarm, when: str) -> None:
    """As a process does that was stopped."""
    swarm.patience = 0.1
    wanted = state("a")
    stopped = await swarm.add("x", Source(wanted))
    stopped.gate = asyncio.Event()
    if when == "at the catalogue":

        async def silent(mark: Mark) -> dict[str, TensorEntry]:
            await asyncio.Event().wait()
            return {}

        stopped.catalogue = silent  # type: ignore[method-assign]
    await swarm.add("y", Source(wanted))
    assert (await swarm.fetch(wanted, "x", "y")).sources == {"y"}
    assert swarm.has(wanted)


async def test_where_the_only_source_vanishes_what_was_taken_before_stays_taken(swarm: Swarm) -> None:
    """The next plan does not fetch it again."""
    wanted = state("a", "b")
    (await swarm.add("x", Source(wanted))).before = vanish(13)
    with pytest.raises(
        Lacking, match=r"nobody who answers has weight/b of step 7 \(plan 2\) \(1 tensors are lacking\)"
    ):
        await swarm.fetch(wanted, "x")
    assert swarm.has(state("a"))


async def test_what_nobody_has_is_named_before_anything_is_fetched(swarm: Swarm) -> None:
    source = await swarm.add("x", Source(state("a")))
    with pytest.raises(Lacking, match="nobody who answers has weight/b"):
        await swarm.fetch(state("a", "b"), "x")
    assert source.served == 0


@pytest.mark.parametrize("sources", [(), ("nobody",), ("later",), ("nobody", "later")])
async def test_where_nobody_has_the_state_that_is_said(swarm: Swarm, sources: tuple[str, ...]) -> None:
    await swarm.add("later", Source(state("a"), Mark(step=8, plan=2)))
    with pytest.raises(Lacking):
        await swarm.fetch(state("a"), *sources)
    assert swarm.taken == {}


async def test_a_source_that_gives_other_bytes_than_it_says_is_refused(swarm: Swarm) -> None:
    wanted = state("a")
    liar = await swarm.add("liar", Source(wanted))
    data = liar.data["weight/a"]
    liar.data["weight/a"] = data[:500] + bytes([data[500] ^ 1]) + data[501:]
    with refused("weight/a of step 7 (plan 2) from liar has another hash than its sources gave"):
        await swarm.fetch(wanted, "liar")
    assert swarm.taken == {}


async def test_of_those_who_gave_a_tensor_together_the_one_that_lied_is_named_and_left_out(swarm: Swarm) -> None:
    """The tensor is given once more, by one of them alone; the others' pieces are compared with what is right."""
    wanted = state("a", "b")
    honest, liar = await swarm.add("x", Source(wanted)), await swarm.add("y", Source(wanted))
    liar.data["weight/a"] = bytes(len(liar.data["weight/a"]))
    fetched = await swarm.fetch(wanted, "x", "y")
    assert swarm.has(wanted)
    assert fetched.false == {"y": "weight/a of step 7 (plan 2) from y has another hash than its sources gave"}
    assert honest.served < 30


async def test_a_liar_that_is_asked_alone_the_second_time_is_left_out_and_the_other_gives_it(swarm: Swarm) -> None:
    """It is whoever gave the last piece."""
    wanted = state("a")
    honest, liar = await swarm.add("x", Source(wanted)), await swarm.add("y", Source(wanted))
    liar.data["weight/a"] = bytes(len(liar.data["weight/a"]))
    liar.gate = asyncio.Event()
    honest.before = lambda served: liar.gate.set() if served == 8 and liar.gate is not None else None
    fetched = await swarm.fetch(wanted, "y", "x")
    assert swarm.has(wanted)
    assert fetched.false.keys() == {"y"}
    assert liar.served == 11


async def test_however_many_lie_one_who_does_not_is_enough(swarm: Swarm) -> None:
    wanted = state("a", "b", "c")
    await swarm.add("x", Source(wanted))
    for number, peer in enumerate("klmn"):
        liar = await swarm.add(peer, Source(wanted))
        for key, data in liar.data.items():
            liar.data[key] = data[:200] + bytes([number + 1] * 600) + data[800:]
    fetched = await swarm.fetch(wanted, "k", "l", "x", "m", "n")
    assert swarm.has(wanted)
    assert "x" not in fetched.false


async def test_a_liar_that_vanishes_leaves_its_tensor_to_the_others(swarm: Swarm) -> None:
    """Also while it was the only one to be asked for it."""
    wanted = state("a")
    await swarm.add("x", Source(wanted))
    liar = await swarm.add("y", Source(wanted))
    liar.data["weight/a"] = bytes(len(liar.data["weight/a"]))
    liar.before = vanish(6)
    await swarm.fetch(wanted, "x", "y")
    assert swarm.has(wanted)


def part_of(tensors: State, layers: LayerRange = (0, 2), mark: Mark = MARK) -> CertifiedPart:
    """A part of a state that has just these tensors, certified."""
    hashes = {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors.items()}
    return CertifiedPart(StateDigest(mark=mark, layers=layers, digest=digest_of_state(hashes)), frozenset(tensors))


def changed(tensors: State) -> State:
    return {key: tensor + 1e-3 for key, tensor in tensors.items()}


@pytest.mark.parametrize("first", ["liar", "x"])
async def test_a_source_of_another_state_than_its_replicas_signed_is_named_and_the_others_give_all(
    swarm: Swarm, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a shadow that has changed its copy: hashes and bytes fit, and are not what was signed."""
    wanted = state("a", "b")
    honest, liar = await swarm.add("x", Source(wanted)), await swarm.add("liar", Source(changed(wanted)))
    peers = ("liar", "x") if first == "liar" else ("x", "liar")
    with caplog.at_level("WARNING"):
        fetched = await swarm.fetch(wanted, *peers, parts=[part_of(wanted)])
    assert swarm.has(wanted)
    assert (fetched.sources, honest.served, liar.served) == ({"x"}, 20, 0)
    why = "liar offers layers 0 to 2 of step 7 (plan 2) that are not what their replicas have signed"
    assert fetched.false == {"liar": why}
    assert f"{why}: it is left out" in caplog.messages


async def test_a_lie_about_a_tensor_that_is_not_wanted_is_a_lie_too(swarm: Swarm) -> None:
    wanted, whole = state("a"), state("a", "b")
    await swarm.add("x", Source(whole))
    await swarm.add("liar", Source(wanted | changed(state("b"))))
    fetched = await swarm.fetch(wanted, "liar", "x", parts=[part_of(whole)])
    assert (swarm.has(wanted), fetched.sources, fetched.false.keys()) == (True, {"x"}, {"liar"})


async def test_who_has_some_of_a_part_is_compared_with_who_proves_all_of_it(swarm: Swarm) -> None:
    """A plan may cut a state otherwise than the plan that made it."""
    whole, wanted = state("a", "b", "c"), state("b", "c")
    await swarm.add("x", Source(whole))
    await swarm.add("y", Source(state("b")))
    await swarm.add("liar", Source(changed(state("b")) | state("c")))
    fetched = await swarm.fetch(wanted, "liar", "y", "x", parts=[part_of(whole)])
    assert swarm.has(wanted)
    assert fetched.sources == {"x", "y"}
    assert fetched.false == {"liar": "liar offers another weight/b than its replicas have signed"}


async def test_sources_that_have_a_part_together_prove_it_together(swarm: Swarm) -> None:
    whole = state("a", "b", "c")
    await swarm.add("x", Source(state("a", "b")))
    await swarm.add("y", Source(state("b", "c")))
    assert (await swarm.fetch(whole, "x", "y", parts=[part_of(whole)])).sources == {"x", "y"}
    assert swarm.has(whole)


async def test_what_nobody_offers_as_it_was_signed_is_lacking_and_the_liars_are_named(swarm: Swarm) -> None:
    wanted = state("a")
    liar = await swarm.add("liar", Source(changed(wanted)))
    with refused("liar offers layers 0 to 2 of step 7 (plan 2) that are not what their replicas have signed"):
        await swarm.fetch(wanted, "liar", parts=[part_of(wanted)])
    await swarm.add("x", Source(changed(state("a"))))
    with pytest.raises(Lacking):  # nobody offers all of the part, and what is offered proves nothing
        await swarm.fetch(wanted, "x", parts=[part_of(state("a", "b"))])
    assert (swarm.taken, liar.served) == ({}, 0)


async def test_a_certified_tensor_in_another_shape_or_type_names_its_source(swarm: Swarm) -> None:
    """The hash is over bytes alone; what they mean is part of the lie."""
    wanted = state("a")
    await swarm.add("x", Source(wanted))
    for peer, change in {"k": {"shape": (1, 247)}, "l": {"dtype": "F16", "bytes": 494}}.items():
        liar = await swarm.add(peer, Source(wanted))
        liar.entries["weight/a"] = liar.entries["weight/a"].model_copy(update=change)
    fetched = await swarm.fetch(wanted, "k", "l", "x", parts=[part_of(wanted)])
    assert (swarm.has(wanted), fetched.sources, fetched.false.keys()) == (True, {"x"}, {"k", "l"})


async def test_beside_what_is_certified_sources_must_still_agree(swarm: Swarm) -> None:
    wanted = state("a", "b")
    await swarm.add("x", Source(wanted))
    await swarm.add("y", Source(state("a") | changed(state("b"))))
    with refused("y has another weight/b of step 7 (plan 2) than the other sources"):
        await swarm.fetch(wanted, "x", "y", parts=[part_of(state("a"))])


async def test_a_tensor_of_another_shape_is_refused_before_anything_is_fetched(swarm: Swarm) -> None:
    """However large it says that it is."""
    source = await swarm.add("x", Source(state("a")))
    entry = source.entries["weight/a"]
    for shape in ((1, 247), (247, 1), (248,), (1 << 40,), ()):
        source.entries["weight/a"] = entry.model_copy(update={"shape": shape, "bytes": 4 * math.prod(shape)})
        with refused(f"x offers weight/a of shape {shape}, not (247,)"):
            await swarm.fetch(state("a"), "x")
    assert source.served == 0
    assert swarm.taken == {}


async def test_sources_that_disagree_are_refused_before_anything_is_fetched(swarm: Swarm) -> None:
    """One of them lies, or two replicas have come apart: nobody can tell here."""
    first = await swarm.add("x", Source(state("a")))
    other = {"weight/a": state("a")["weight/a"] + 1}
    second = await swarm.add("y", Source(other))
    with refused("y has another weight/a of step 7 (plan 2) than the other sources"):
        await swarm.fetch(state("a"), "x", "y")
    assert (first.served, second.served) == (0, 0)


async def test_where_the_bytes_lie_in_a_sources_file_is_its_own_affair(swarm: Swarm) -> None:
    wanted = state("a")
    await swarm.add("x", Source(wanted))
    shifted = await swarm.add("y", Source(wanted))
    place = {"file": "step-7.safetensors", "offset": 640}
    shifted.entries = {key: entry.model_copy(update=place) for key, entry in shifted.entries.items()}
    assert (await swarm.fetch(wanted, "x", "y")).sources == {"x", "y"}
    assert swarm.has(wanted)


async def test_a_catalogue_that_cannot_be_read_is_no_source(swarm: Swarm) -> None:
    async def nonsense(stream: Stream) -> None:
        await read_message(stream, WantCatalogue)
        text = b'{"tensors": {"../weight": {}}}'
        await stream.write(len(text).to_bytes(4, "big") + text)

    await swarm.serve("x", nonsense)
    await swarm.add("y", Source(state("a")))
    assert (await swarm.fetch(state("a"), "x", "y")).sources == {"y"}
    assert swarm.has(state("a"))


async def test_a_silent_source_is_not_waited_for_where_others_prove_all_that_is_wanted(swarm: Swarm) -> None:
    wanted = state("a")

    async def silent(stream: Stream) -> None:
        await stream.read(1 << 20)

    await swarm.serve("silent", silent)
    await swarm.add("x", Source(wanted))
    swarm.late = 0.05
    assert (await swarm.fetch(wanted, "silent", "x", parts=[part_of(wanted)])).sources == {"x"}
    assert swarm.has(wanted)


async def test_a_fetch_that_is_given_up_leaves_no_stream_open(swarm: Swarm) -> None:
    wanted, heard, closed = state("a"), asyncio.Event(), asyncio.Event()

    async def silent(stream: Stream) -> None:
        await read_message(stream, WantCatalogue)
        await stream.read(1)

    async def answers(stream: Stream) -> None:
        await read_message(stream, WantCatalogue)
        await write_message(stream, Catalogue(tensors=Source(wanted).entries))
        heard.set()
        with pytest.raises(StreamClosed):
            await stream.read(1)
        closed.set()

    await swarm.serve("silent", silent)
    await swarm.serve("x", answers)
    fetching = asyncio.create_task(swarm.fetch(wanted, "x", "silent"))
    await asyncio.wait_for(heard.wait(), 30)
    await asyncio.sleep(0.05)
    fetching.cancel()
    await asyncio.wait([fetching])
    await asyncio.wait_for(closed.wait(), 30)


@pytest.mark.parametrize("lie", ["shape", "pieces"])
async def test_who_answers_late_gives_what_a_quick_source_does_not(swarm: Swarm, lie: str) -> None:
    """The quick one offers what is certified, in another shape, or gives none of it."""
    wanted = state("a")
    quick, late, goes_on = Source(wanted), Source(wanted), asyncio.Event()
    if lie == "shape":
        quick.entries = {key: entry.model_copy(update={"shape": (1, 1)}) for key, entry in quick.entries.items()}
    else:
        quick.gate = asyncio.Event()

    async def later(mark: Mark) -> dict[str, TensorEntry]:
        await goes_on.wait()
        return late.entries

    late.catalogue = later  # type: ignore[method-assign]
    await swarm.add("quick", quick)
    await swarm.add("late", late)
    swarm.late = 0.05
    fetching = asyncio.create_task(swarm.fetch(wanted, "quick", "late", parts=[part_of(wanted)]))
    await asyncio.sleep(0.2)
    assert not fetching.done()
    goes_on.set()
    assert (await fetching).sources == {"late"}
    assert swarm.has(wanted)
