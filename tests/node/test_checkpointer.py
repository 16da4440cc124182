"""States are kept beside training: on this node's disk, on a shadow's, and with the coordinator."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dtfm_node.engine.stage_state import StageState
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_node.state.shadow_replication import COPIES_A_STAGE
from dtfm_node.state.snapshots import UNSAFE_FILES, Snapshot, Snapshots
from dtfm_protocol.checkpoint.shard import describe_shard, encode_shard, tensor_entry
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, HAND_IN_LIMIT, SHADOW, Deposit, HandIn, Receipt, deposit
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.model.tied_embeddings import kept_names
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable, read_message, write_message
from tests.harness.disks import full_disk
from tests.harness.named_peers import id_of, identity_of, signer_of, vote_on
from tests.node.finals import final
from tests.node.test_stage_state import TRAINING, Neighbours, one_thread, state_of

__all__ = ["one_thread"]  # a fixture

NAMES = {id_of(name): name for name in ("a", "b", "z", "stranger")}
A, B, Z, STRANGER = NAMES
STAGES = ((0, 2), (2, 5))
ALONE = Plan(version=1, stages=STAGES, routes=((A, B),) * 4, idle=(Z,), shadows=(Z, Z), author="owner")
"""Each of `a` and `b` has a stage to itself, and `z` keeps copies of both."""
TWICE = Plan(version=1, stages=((0, 5),), routes=((A,), (B,)) * 2, author="owner")
"""`a` and `b` are replicas."""
LIMIT = 1 << 22
State = dict[str, torch.Tensor]


def at(step: int, plan: int = 1) -> Mark:
    return Mark(step=step, plan=plan)


def said(mark: Mark) -> SignedCommit:
    """The commit of the arbiter, which is `a` in each of these plans."""
    return final(mark, by=identity_of("a"))


def row(step: int) -> StepMetrics:
    return StepMetrics(
        step=step, loss=1.0, tokens=8, seconds=0.1, plan_version=1, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None, eval_loss=1.5,
    )  # fmt: skip


def state_under(plan: Plan, me: str) -> StageState:
    """A stage that has been trained for a step."""
    state = StageState(state_of("only").config, plan, me, TRAINING, torch.device("cpu"))
    state.initialise()
    train(state, 1)
    return state


def train(state: StageState, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    state.begin_step(lambda group: None)
    for gradient in state.gradients.of_bucket.values():
        gradient.copy_(torch.randn(gradient.shape, generator=generator))
    state.prepare(at(step))
    state.apply(1.0, said(at(step)))


def now(state: StageState) -> State:
    return {key: tensor.clone() for key, tensor in state_tensors(state.parameters, state.optimizer)}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def vote_on_file(name: str, data: bytes, mark: Mark, layers: LayerRange) -> StateVote:
    """The vote of whoever writes a file like this; on nothing where it is no such file."""
    try:
        _, entries = describe_shard("x.safetensors", data)
    except Refused:
        entries = {}
    return vote_on(name, mark, layers, digest_of_state({key: entry.sha256 for key, entry in entries.items()}))


def digest_of(state: StageState, leave_out: Collection[str] = ()) -> str:
    """The digest of all weights and moments of a stage."""
    tensors = state_tensors(state.parameters, state.optimizer)
    hashes = {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors}
    return digest_of_state({k: value for k, value in hashes.items() if k.partition("/")[2] not in leave_out})


async def until_there(snapshots: Snapshots, mark: Mark) -> None:
    """Wait until a snapshot of `mark` is there."""
    added = asyncio.Event()
    snapshots.when_added(added.set)
    async with asyncio.timeout(30):
        while mark not in {holding.mark for holding in snapshots.holdings()}:
            await added.wait()
            added.clear()


def offered(data: bytes) -> Deposit:
    """An offer of a file with another hash."""
    votes = (vote_on_file("a", data, at(7), STAGES[0]),)
    return Deposit(
        plan_version=1, mark=at(7), layers=STAGES[0], size=len(data), sha256="0" * 64, commit=said(at(7)), votes=votes
    )


class Plane(MemoryDataPlane):
    """A peer on a network that notes whom it did not reach."""

    def __init__(self, network: MemoryNetwork, peer: str) -> None:
        super().__init__(network, peer)
        self.unreached: asyncio.Queue[str] = asyncio.Queue()

    async def open(self, peer: str, service: str) -> MemoryStream:
        try:
            return await super().open(peer, service)
        except Unreachable:
            self.unreached.put_nowait(peer)
            raise


class Swarm:
    """Nodes that keep, and a coordinator that takes checkpoints unless it is away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.network = MemoryNetwork()
        self.handed_in: list[tuple[str, HandIn, bytes]] = []
        self.taken: asyncio.Queue[HandIn] = asyncio.Queue()
        """What was handed in, for who waits for it."""
        self._planes: dict[str, Plane] = {}

    def plane(self, peer: str) -> Plane:
        return self._planes.setdefault(peer, Plane(self.network, peer))

    @contextlib.asynccontextmanager
    async def node(
        self,
        peer: str,
        plan: Plan | None = None,
        *,
        snapshots: Snapshots | None = None,
        uplink: UplinkPacer | None = None,
        confirm_seconds: float = 1000.0,
    ) -> AsyncIterator[Checkpointer]:
        keeping = Checkpointer.running(
            self.plane(peer), uplink or UplinkPacer(), snapshots or Snapshots(self._folder / peer), LIMIT,
            signer_of(NAMES[peer]), room_retry_seconds=0.01, upload_retry_seconds=0.01, confirm_seconds=confirm_seconds,
        )  # fmt: skip
        async with keeping as checkpointer:
            if plan is not None:
                checkpointer.serve(plan)
            yield checkpointer

    async def coordinate(self) -> None:
        async def take(stream: Stream) -> None:
            share = await read_message(stream, HandIn, HAND_IN_LIMIT)
            data = b""
            if share.size:
                await write_message(stream, Receipt(taken=True, text="send the file"))
                data = bytes(await stream.read(share.size))
            self.handed_in.append((stream.peer, share, data))
            self.taken.put_nowait(share)
            await write_message(stream, Receipt(taken=True, text="kept"))

        await self.plane("owner").serve(CHECKPOINT, take)

    async def answered(self) -> None:
        """Wait until nobody answers a stream any more, and whoever has asked has read the answer."""
        await asyncio.wait_for(asyncio.gather(*self.network.tasks), 30)
        for _ in range(10):
            await asyncio.sleep(0)

    async def offer(self, peer: str, data: bytes, **change: Any) -> Receipt:
        """Have `peer` give `z` a copy of its stage, or of what it says it is."""
        file = self._folder / "file.safetensors"
        file.write_bytes(data)
        stage = ALONE.stage_of(peer) or 0
        values = {"plan_version": 1, "mark": at(7), "layers": STAGES[stage], "size": len(data)}
        values["sha256"] = hashlib.sha256(data).hexdigest()
        values["commit"] = said(change.get("mark", at(7)))
        values |= change
        values.setdefault("votes", (vote_on_file(NAMES[peer], data, values["mark"], values["layers"]),))
        async with asyncio.timeout(30):
            return await deposit(self.plane(peer), Z, Deposit.model_validate(values), file)

    def files(self, peer: str) -> list[str]:
        return sorted(path.name for path in (self._folder / peer).iterdir())


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm(tmp_path)


async def test_a_stage_of_one_peer_leaves_a_copy_with_its_shadow(swarm: Swarm, tmp_path: Path) -> None:
    async with swarm.node(A, ALONE) as checkpointer, swarm.node(Z, ALONE) as shadow:
        told: list[int] = []
        shadow.snapshots.when_added(lambda: told.append(len(shadow.snapshots.holdings())))
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await until_there(shadow.snapshots, at(1))
        await swarm.answered()
        votes = (vote_on("a", at(1), STAGES[0], digest_of(state)),)
        held = [Holding(mark=at(1), layers=STAGES[0], commit=said(at(1)), votes=votes)]
        assert checkpointer.snapshots.holdings() == held
        assert shadow.snapshots.holdings() == held
        assert told == [1]
        (path,) = (tmp_path / Z).glob("*.safetensors")
        assert same(load_file(path), now(state))
        assert checkpointer.shadows.copied_bytes == path.stat().st_size
    again = Snapshots(tmp_path / Z)
    again.load()
    assert again.holdings() == held


async def test_a_shadow_that_is_away_costs_the_copy_and_nothing_else(swarm: Swarm) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        async with swarm.node(Z, ALONE) as shadow:
            train(state, 2)
            await checkpointer.keep(state, ALONE, row(2), (), handed_in=False, copied=True, last=False)
            await until_there(shadow.snapshots, at(2))
            assert [holding.mark for holding in shadow.snapshots.holdings()] == [at(2)]


async def test_a_strangers_copy_is_not_taken(swarm: Swarm) -> None:
    """Nor one of a peer of which this one is no shadow."""
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        for peer in (STRANGER, Z):
            receipt = await swarm.offer(peer, data)
            assert (receipt.taken, receipt.text) == (False, "this peer is no shadow of that one")
        shadow.serve(ALONE.model_copy(update={"shadows": (None, Z)}))
        assert not (await swarm.offer(A, data)).taken
        assert (await swarm.offer(B, data)).taken
    assert len(swarm.files(Z)) == 2


async def test_before_there_is_a_plan_no_copy_is_taken(swarm: Swarm) -> None:
    async with swarm.node(Z):
        assert not (await swarm.offer(A, b"")).taken
    assert swarm.files(Z) == []


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (0, 5)},
        {"layers": (2, 5)},
        {"size": LIMIT + 1},
        {"sha256": "0" * 64},
        {"votes": ()},
        {"votes": (vote_on("a", at(7), STAGES[0], "f" * 64),)},
        {"votes": (vote_on("b", at(7), STAGES[0], "f" * 64),)},
        {"votes": (vote_on("a", at(8), STAGES[0], "f" * 64),)},
        {"votes": (vote_on("b", at(7), STAGES[0], "f" * 64).model_copy(update={"peer": A}),)},
    ],
    ids=[
        *("all layers", "another stage's", "too large", "another hash", "no vote", "not what was signed"),
        *("another's vote", "a vote on another step", "another's signature"),
    ],
)
async def test_a_copy_that_is_not_what_belongs_to_its_peer_leaves_nothing(swarm: Swarm, change: dict[str, Any]) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        with pytest.raises(StreamClosed):
            await swarm.offer(A, data, **change)
        assert shadow.snapshots.holdings() == []
        assert swarm.files(Z) == []
        assert (await swarm.offer(A, data)).taken


LEADS_NOWHERE = "that state leads nowhere, or this peer kept no copies of it"
LATER = ALONE.model_copy(
    update={"version": 2, "resume": Resume(mark=at(5)), "lineage": ALONE.chain.plans, "shadows": (None, Z)}
)
"""A plan that goes on from the fifth step of the other one, and has `z` keep copies of the second stage alone."""


@pytest.mark.parametrize(
    ("mark", "why"),
    [(at(6), LEADS_NOWHERE), (at(6, plan=3), LEADS_NOWHERE), (at(0), LEADS_NOWHERE), (at(4), ""), (at(6, plan=2), "")],
    ids=["after its plan's end", "of no plan", "of no step", "of the plan before", "of the plan in force"],
)
async def test_a_shadow_keeps_copies_only_of_states_along_the_chain_of_plans(
    swarm: Swarm, mark: Mark, why: str
) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, LATER) as shadow:
        receipt = await swarm.offer(B, data, mark=mark)
        assert (receipt.taken, receipt.text) == ((False, why) if why else (True, "kept"))
        assert bool(shadow.snapshots.holdings()) is receipt.taken


@pytest.mark.parametrize("commit", [None, final(at(6, 2)), said(at(7, 2)), said(at(6, 1))])
async def test_a_copy_without_the_arbiters_commit_is_not_kept(swarm: Swarm, commit: SignedCommit | None) -> None:
    """Nobody could go on from it; and with a false norm others would apply the step wrongly."""
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, LATER):
        with pytest.raises(StreamClosed):
            await swarm.offer(B, data, mark=at(6, 2), commit=commit)
        assert (await swarm.offer(B, data, mark=at(4), commit=None)).taken, "how far that plan went is signed"
    assert len(swarm.files(Z)) == 2


async def test_what_is_no_safetensors_file_leaves_nothing(swarm: Swarm) -> None:
    async with swarm.node(Z, ALONE):
        with pytest.raises(StreamClosed):
            await swarm.offer(A, b"no safetensors file")
    assert swarm.files(Z) == []


async def test_a_copy_that_is_here_is_not_sent_again(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE):
        assert (await swarm.offer(A, data)).taken
        receipt = await swarm.offer(A, data)
        assert (receipt.taken, receipt.text) == (False, "it is here already")


async def test_a_copy_that_breaks_off_leaves_nothing_and_may_come_again(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        stream = await swarm.plane(A).open(Z, SHADOW)
        offer = offered(data)
        await write_message(stream, offer)
        assert (await read_message(stream, Receipt)).taken
        await stream.write(data[:10])
        await stream.close()
        await swarm.answered()
        assert (shadow.snapshots.holdings(), swarm.files(Z)) == ([], [])
        assert (await swarm.offer(A, data)).taken


async def test_a_peer_that_leaves_a_copy_of_every_step_fills_no_disk(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        assert (await swarm.offer(B, data, layers=STAGES[1])).taken
        for step in (*range(1, 91), (1 << 32) - 1):
            await swarm.offer(A, data, mark=at(step))
        kept = [holding.mark.step for holding in shadow.snapshots.holdings() if holding.layers == STAGES[0]]
        assert sorted(kept) == [*range(91 - COPIES_A_STAGE + 1, 91), (1 << 32) - 1]
        assert shadow.snapshots.has(at(7), STAGES[1]), "another peer's copy stays"
    assert len(swarm.files(Z)) == 2 * (COPIES_A_STAGE + 1)


async def test_a_peer_leaves_one_copy_at_a_time(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE):
        stream = await swarm.plane(A).open(Z, SHADOW)
        await write_message(stream, offered(data))
        assert (await read_message(stream, Receipt)).taken
        receipt = await swarm.offer(A, data, mark=at(8))
        assert (receipt.taken, receipt.text) == (False, "another copy of this peer is on its way")
        await stream.close()
        await swarm.answered()
        assert (await swarm.offer(A, data, mark=at(8))).taken


async def test_a_shadow_without_room_says_so(swarm: Swarm) -> None:
    async with swarm.node(Z, ALONE):
        data = encode_shard({"weight/a": torch.ones(3000)})
        (swarm._folder / "file.safetensors").write_bytes(data)
        offer = offered(data).model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
        with full_disk(1000):
            receipt = await deposit(swarm.plane(A), Z, offer, swarm._folder / "file.safetensors")
        assert (receipt.taken, receipt.text) == (False, "no room")
    assert swarm.files(Z) == []


async def test_copies_and_snapshots_that_the_budget_of_disk_has_no_room_for_are_not_begun(
    swarm: Swarm, tmp_path: Path
) -> None:
    """A shadow says so before anything is sent; a peer trains on without a snapshot, and its update waits for none."""
    small = Snapshots(tmp_path / Z, DiskBudget(1000))
    async with (
        swarm.node(Z, ALONE, snapshots=small),
        swarm.node(A, ALONE, snapshots=Snapshots(tmp_path / A, DiskBudget(1000))) as checkpointer,
    ):
        receipt = await swarm.offer(A, encode_shard({"weight/a": torch.ones(3000)}))
        assert (receipt.taken, receipt.text) == (False, "no room")
        assert small.budget.room == 1000
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(asyncio.to_thread(train, state, 2), 30)
        await checkpointer.settled()
    assert (swarm.files(A), swarm.files(Z)) == ([], [])


async def test_what_is_kept_is_the_state_of_its_step_though_training_goes_on(swarm: Swarm, tmp_path: Path) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        wanted = now(state)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await asyncio.to_thread(train, state, 2)
        await checkpointer.settled()
        (path,) = (tmp_path / A).glob("*.safetensors")
        assert same(load_file(path), wanted)
        assert not same(now(state), wanted)


async def test_every_replica_vouches_for_a_checkpoint_and_the_first_hands_it_in(swarm: Swarm, tmp_path: Path) -> None:
    await swarm.coordinate()
    rows = (row(1),)
    async with swarm.node(A, TWICE) as first, swarm.node(B, TWICE) as second:
        for checkpointer, me in ((first, A), (second, B)):
            await checkpointer.keep(
                state_under(TWICE, me), TWICE, row(1), rows, handed_in=True, copied=False, last=False
            )
            await asyncio.wait_for(checkpointer.settled(), 30)
    (one, share, data), (other, vote, nothing) = swarm.handed_in
    assert (one, other, nothing, vote.size, vote.sha256) == (A, B, b"", 0, None)
    assert share.digest == vote.digest
    assert (share.step, share.plan_version, share.stage, share.eval_loss, share.rows) == (1, 1, 0, 1.5, rows)
    assert hashlib.sha256(data).hexdigest() == share.sha256
    assert swarm.files(B) == []
    (path,) = (tmp_path / A).glob("*.safetensors")
    assert path.read_bytes() == data


async def test_every_replica_votes_on_weights_and_moments_whether_or_not_it_writes_them(swarm: Swarm) -> None:
    await swarm.coordinate()
    states = {A: state_under(TWICE, A), B: state_under(TWICE, B)}
    with torch.no_grad():
        next(iter(states[B].optimizer.moments.values())).view(-1)[0] += 1e-3
    wanted = {peer: vote_on(NAMES[peer], at(1), (0, 5), digest_of(state)) for peer, state in states.items()}
    assert wanted[A].digest != wanted[B].digest
    for peer, state in states.items():
        async with swarm.node(peer, TWICE) as checkpointer:
            assert checkpointer.snapshots.newest_digest is None
            await checkpointer.keep(state, TWICE, row(1), (), handed_in=True, copied=False, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
            assert checkpointer.snapshots.votes_on(at(1), (0, 5)) == (wanted[peer],)
            newest = StateDigest(mark=at(1), layers=(0, 5), digest=wanted[peer].digest)
            assert checkpointer.snapshots.newest_digest == newest
    assert {peer: share.votes for peer, share, _ in swarm.handed_in} == {A: (wanted[A],), B: (wanted[B],)}
    assert swarm.files(B) == []


async def test_a_restart_keeps_the_vote_beside_its_snapshot_and_beside_its_copy(swarm: Swarm, tmp_path: Path) -> None:
    state = state_under(ALONE, A)
    async with swarm.node(A, ALONE) as checkpointer, swarm.node(Z, ALONE) as shadow:
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await until_there(shadow.snapshots, at(1))
    for peer in (A, Z):
        again = Snapshots(tmp_path / peer)
        again.load()
        assert again.votes_on(at(1), STAGES[0]) == (vote_on("a", at(1), STAGES[0], digest_of(state)),)
        assert again.votes_on(at(2), STAGES[0]) == ()


async def test_replicas_that_differ_in_a_weight_hand_in_other_digests(swarm: Swarm) -> None:
    await swarm.coordinate()
    state = state_under(TWICE, B)
    with torch.no_grad():
        next(iter(state.parameters.values())).view(-1)[0] += 1e-3
    async with swarm.node(A, TWICE) as first, swarm.node(B, TWICE) as second:
        for checkpointer, kept in ((first, state_under(TWICE, A)), (second, state)):
            await checkpointer.keep(kept, TWICE, row(1), (), handed_in=True, copied=False, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
    assert len({share.digest for _, share, _ in swarm.handed_in}) == 2


async def test_a_coordinator_that_is_away_is_given_the_checkpoint_when_it_is_back(swarm: Swarm) -> None:
    async with swarm.node(A, TWICE) as checkpointer:
        await checkpointer.keep(state_under(TWICE, A), TWICE, row(1), (), handed_in=True, copied=False, last=False)
        for _ in range(2):
            assert await asyncio.wait_for(swarm.plane(A).unreached.get(), 30) == "owner"
            assert not checkpointer.is_idle
        await swarm.coordinate()
        await asyncio.wait_for(checkpointer.settled(), 30)
        assert checkpointer.is_idle
        assert len(swarm.handed_in) == 1


async def test_a_checkpoint_that_nobody_confirms_is_handed_in_again(swarm: Swarm) -> None:
    """A coordinator that was killed before the others had handed in has forgotten it."""
    await swarm.coordinate()
    async with swarm.node(A, TWICE, confirm_seconds=0.01) as checkpointer:
        await checkpointer.keep(state_under(TWICE, A), TWICE, row(1), (), handed_in=True, copied=False, last=False)
        for _ in range(3):
            assert (await asyncio.wait_for(swarm.taken.get(), 30)).step == 1


async def test_snapshots_wait_until_the_swarm_has_an_earlier_one_whole(swarm: Swarm) -> None:
    """Else a disk would fill while copies do not get away; checkpoints are written all the same."""
    await swarm.coordinate()
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)

        async def keep_at(step: int, *, handed_in: bool) -> list[int]:
            if step > 1:
                train(state, step)
            await checkpointer.keep(state, ALONE, row(step), (), handed_in=handed_in, copied=True, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
            return [holding.mark.step for holding in checkpointer.snapshots.holdings()]

        for step in range(1, UNSAFE_FILES + 1):
            await keep_at(step, handed_in=False)
        full = list(range(1, UNSAFE_FILES + 1))
        assert await keep_at(UNSAFE_FILES + 1, handed_in=False) == full
        assert await keep_at(UNSAFE_FILES + 2, handed_in=True) == [*full, UNSAFE_FILES + 2]
        checkpointer.confirm(0, at(UNSAFE_FILES))
        assert checkpointer.safe == at(UNSAFE_FILES)
        assert await keep_at(UNSAFE_FILES + 3, handed_in=False) == [UNSAFE_FILES, UNSAFE_FILES + 2, UNSAFE_FILES + 3]
        checkpointer.confirm(0, at(1))  # which comes late
        assert checkpointer.safe == at(UNSAFE_FILES)


async def test_a_full_disk_costs_the_snapshot_and_training_goes_on(swarm: Swarm) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        with full_disk(100):
            await checkpointer.keep(state, ALONE, row(1), (), handed_in=True, copied=True, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
        assert (checkpointer.snapshots.holdings(), swarm.files(A)) == ([], [])
        train(state, 2)
        await checkpointer.keep(state, ALONE, row(2), (), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        assert [holding.mark for holding in checkpointer.snapshots.holdings()] == [at(2)]


async def test_what_is_saved_at_the_end_is_there_in_the_next_life(swarm: Swarm, tmp_path: Path) -> None:
    state = state_under(ALONE, B)
    async with swarm.node(B, ALONE) as checkpointer:
        await checkpointer.save(state, (row(1),))
    snapshots = Snapshots(tmp_path / B)
    snapshots.load()
    votes = (vote_on("b", at(1), STAGES[1], digest_of(state)),)
    assert snapshots.holdings() == [Holding(mark=at(1), layers=STAGES[1], commit=said(at(1)), votes=votes)]
    assert list(snapshots.rows()) == [row(1)]
    assert snapshots.of(at(1)).keys() == now(state).keys()


async def test_what_is_on_the_disk_already_is_not_saved_again(swarm: Swarm, tmp_path: Path) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (row(1),), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        (path,) = (tmp_path / A).glob("*.safetensors")
        before = path.stat().st_ino
        await checkpointer.save(state, ())
        assert path.stat().st_ino == before
        assert list(checkpointer.snapshots.rows()) == [row(1)]


async def test_what_cannot_be_saved_at_the_end_keeps_nobody_from_ending(swarm: Swarm) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        with full_disk(100):
            await checkpointer.save(state_under(ALONE, A), ())
    assert swarm.files(A) == []


async def test_while_a_checkpoint_waits_for_the_coordinator_a_further_snapshot_does_not_end_the_waiting(
    swarm: Swarm,
) -> None:
    """Else a run that is parked would be left before its checkpoint is with the coordinator."""
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=True, copied=False, last=False)
        await asyncio.wait_for(swarm.plane(A).unreached.get(), 30)
        train(state, 2)
        await checkpointer.keep(state, ALONE, row(2), (), handed_in=False, copied=True, last=False)
        await until_there(checkpointer.snapshots, at(2))
        assert await asyncio.wait_for(swarm.plane(A).unreached.get(), 30)
        assert not checkpointer.is_idle
        await swarm.coordinate()
        await asyncio.wait_for(checkpointer.settled(), 30)
        assert [share.step for _, share, _ in swarm.handed_in] == [1]


async def test_a_matrix_that_both_ends_hold_is_written_by_the_first_one(swarm: Swarm) -> None:
    state = state_of("last", tied=True)
    plan = Plan(version=1, stages=((0, 2), (2, 5)), routes=((A, B),) * 4, shadows=(B, A), author="owner")
    Neighbours(state)
    train(state, 1)
    await swarm.coordinate()
    async with swarm.node(B, plan) as checkpointer:
        await checkpointer.keep(state, plan, row(1), (), handed_in=True, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        written = checkpointer.snapshots.of(at(1)).keys()
    assert state.gradients.shared
    (vote,) = checkpointer.snapshots.votes_on(at(1), state.layers)
    assert {key.partition("/")[2] for key in now(state).keys() - written} == state.gradients.shared
    assert vote.digest == digest_of(state, leave_out=state.gradients.shared)
    assert {key.partition("/")[2] for key in written} == kept_names(state.config, state.layers)


class BrokenSnapshots(Snapshots):
    """A list of snapshots with a bug."""

    def add(self, snapshot: Snapshot) -> None:
        raise RuntimeError(f"a bug, with {snapshot.stem}")


class BrokenUplink(UplinkPacer):
    """A line with a bug."""

    async def idle(self, peer: str) -> None:
        raise RuntimeError(f"a bug, with {peer}")


@pytest.mark.parametrize("where", ["the writer", "the copies", "the upload"])
async def test_an_error_that_nobody_expects_ends_the_keeping_and_is_seen(
    swarm: Swarm, tmp_path: Path, where: str
) -> None:
    """Else it would be waited for for ever what nobody does any more."""
    await swarm.coordinate()
    snapshots = BrokenSnapshots(tmp_path / A) if where == "the writer" else None
    uplink = BrokenUplink() if where != "the writer" else None
    upload = where == "the upload"

    async def train_on() -> None:
        async with swarm.node(Z, ALONE), swarm.node(A, ALONE, snapshots=snapshots, uplink=uplink) as checkpointer:
            state = state_under(ALONE, A)
            await checkpointer.keep(state, ALONE, row(1), (), handed_in=upload, copied=not upload, last=False)
            await checkpointer.settled()
            await asyncio.Event().wait()  # as the daemon does until its job is done

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(train_on(), 30)
    bugs = caught.value.subgroup(lambda error: isinstance(error, RuntimeError) and "a bug, with" in str(error))
    assert bugs is not None
    assert caught.value.subgroup(lambda error: isinstance(error, TimeoutError)) is None
