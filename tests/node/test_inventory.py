"""What a node holds: given to others as it is, applied once where it was only prepared, kept where a plan failed."""

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.engine.stage_state import StageState
from dtfm_node.engine.state_tensors import load_tensor, state_keys, state_tensors
from dtfm_node.state import inventory as holding
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import load_state
from dtfm_node.state.snapshots import Snapshots, write_snapshot
from dtfm_node.state.state_reading import Reading
from dtfm_protocol.checkpoint.shard import decode_tensor, tensor_entry
from dtfm_protocol.checkpoint.transfers import STATE, serve_state
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import HOLDINGS_LIMIT, Holding, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.plan.schedule import Action
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.harness.named_peers import vote_on
from tests.node.finals import SIGNER, ancestors, final
from tests.node.test_stage_state import TRAINING, Neighbours, one_thread, plan_of, state_of

__all__ = ["one_thread"]  # a fixture

State = dict[str, torch.Tensor]
PROMISE = Promise(version=4, to="c", accepted=3)


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def at(step: int, plan: int = 1) -> Mark:
    return Mark(step=step, plan=plan)


def reduce(state: StageState, step: int) -> None:
    """Compute a step's gradients, up to where only the word is missing that it is final."""
    state.begin_step(lambda group: None)
    neighbours = Neighbours(state)
    for micro_batch in range(4):
        neighbours.act(Action("forward", micro_batch))
        neighbours.act(Action("backward", micro_batch))
    state.prepare(at(step))


def trained(steps: int, role: str = "middle") -> StageState:
    state = state_of(role)
    for step in range(1, steps + 1):
        reduce(state, step)
        state.apply(0.5 * step, final(at(step), 0.5 * step))
    return state


def now(state: StageState) -> State:
    return {key: tensor.clone() for key, tensor in state_tensors(state.parameters, state.optimizer)}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture
def holdings(tmp_path: Path) -> Inventory:
    return Inventory(Snapshots(tmp_path), inline)


async def given(holdings: Inventory, mark: Mark, piece: int = 1000) -> State:
    """All that another node can have of a state."""
    found = {}
    for key, entry in (await holdings.catalogue(mark)).items():
        data = b""
        for offset in range(0, entry.bytes, piece):
            data += bytes(await holdings.read(mark, key, offset, min(piece, entry.bytes - offset)) or b"")
        found[key] = decode_tensor(entry, data)
    return found


def snapshot(holdings: Inventory, state: StageState) -> None:
    assert state.mark is not None
    tensors = dict(state_tensors(state.parameters, state.optimizer))
    folder, mark, layers = holdings.snapshots.folder, state.mark, state.layers
    written, _ = write_snapshot(folder, mark, layers, tensors, Reading(tensors), state.commit)
    holdings.snapshots.add(written)


@pytest.mark.parametrize("piece", [7, 1000, 1 << 20])
async def test_a_live_state_is_given_as_it_is(holdings: Inventory, piece: int) -> None:
    state = trained(2)
    holdings.enter(state)
    found = await given(holdings, at(2), piece)
    assert same(found, now(state))
    assert found.keys() == set(state_keys(list(state.parameters), 2))


async def test_only_the_state_that_was_asked_for_is_given(holdings: Inventory) -> None:
    assert await holdings.catalogue(at(2)) == {}
    holdings.enter(trained(2))
    for mark in (at(1), at(3), at(2, plan=2), Mark()):
        assert await holdings.catalogue(mark) == {}
        assert await holdings.read(mark, "weight/none", 0, 1) is None


async def test_a_state_that_trains_on_while_it_is_read_gives_no_mixture(holdings: Inventory) -> None:
    state = trained(2)
    holdings.enter(state)
    key, entry = next(iter((await holdings.catalogue(at(2))).items()))
    assert await holdings.read(at(2), key, 0, entry.bytes)
    reduce(state, 3)
    assert await holdings.read(at(2), key, 0, entry.bytes)  # gradients are no part of it
    state.apply(1.0, None)
    assert await holdings.read(at(2), key, 0, entry.bytes) is None
    assert same(await given(holdings, at(3)), now(state))


async def test_a_state_in_the_midst_of_an_update_is_none(holdings: Inventory) -> None:
    state = trained(1)
    holdings.enter(state)
    state.mark = None  # as `apply` has it until it is through
    assert holdings.standing(PROMISE).holdings == ()
    assert await holdings.catalogue(at(1)) == {}


async def test_what_is_no_more_in_memory_is_given_from_the_disk(holdings: Inventory) -> None:
    state = trained(1)
    holdings.enter(state)
    before = now(state)
    snapshot(holdings, state)
    reduce(state, 2)
    state.apply(1.0, None)
    assert same(await given(holdings, at(1)), before)
    holdings.drop()
    assert same(await given(holdings, at(1)), before)
    assert await holdings.catalogue(at(2)) == {}


async def test_a_standing_says_what_is_held_and_what_it_may_become(holdings: Inventory) -> None:
    assert holdings.standing(PROMISE) == PeerState(promise=PROMISE)
    state = trained(2)
    holdings.enter(state)
    snapshot(holdings, state)
    reduce(state, 3)
    live = Holding(mark=at(2), layers=(1, 4), live=True, commit=final(at(2)), prepared=at(3))
    disk = Holding(mark=at(2), layers=(1, 4), commit=final(at(2)))
    assert holdings.standing(PROMISE) == PeerState(promise=PROMISE, holdings=(live, disk))
    state.begin_step(lambda group: None)  # the gradients are gone, and with them what they lead to
    without = live.model_copy(update={"prepared": None})
    assert holdings.standing(PROMISE) == PeerState(promise=PROMISE, holdings=(without, disk))
    holdings.drop()
    assert holdings.standing(PROMISE) == PeerState(promise=PROMISE, holdings=(disk,))


def test_however_much_is_held_the_live_state_is_told_of(holdings: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Holding(mark=at(step), layers=(0, 1)) for step in range(2 * HOLDINGS_LIMIT)]
    monkeypatch.setattr(holdings.snapshots, "holdings", lambda: many)
    holdings.enter(trained(1))
    found = holdings.standing(PROMISE).holdings
    assert len(found) == HOLDINGS_LIMIT
    assert found[0].live


async def test_gradients_that_were_final_are_applied_once_and_give_what_an_update_gives(holdings: Inventory) -> None:
    updated, late = trained(2), trained(2)
    for state in (updated, late):
        reduce(state, 3)
    updated.apply(0.75, None)
    holdings.enter(late)
    for _ in range(2):
        await holdings.redo(resuming(at(3), 0.75), SIGNER)
        assert (late.mark, late.prepared, late.commit) == (at(3), None, final(at(3), 0.75))
        assert same(now(late), now(updated))


@pytest.mark.parametrize(("mark", "norm"), [(at(3), None), (at(4), 0.75), (at(3, plan=2), 0.75), (at(2), 1.0)])
async def test_gradients_that_lead_elsewhere_are_not_applied(
    holdings: Inventory, mark: Mark, norm: float | None
) -> None:
    state = trained(2)
    reduce(state, 3)
    before = now(state)
    holdings.enter(state)
    await holdings.redo(resuming(mark, norm), SIGNER)
    assert (state.mark, state.prepared) == (at(2), at(3))
    assert same(now(state), before)


async def test_gradients_are_not_applied_with_a_norm_that_the_arbiter_never_said(holdings: Inventory) -> None:
    """Neither a coordinator that was lied to nor one that lies makes a peer clip all gradients to nothing."""
    state = trained(2)
    reduce(state, 3)
    before = now(state)
    holdings.enter(state)
    forged = final(at(3), 1e9, by=Identity.generate())
    plan = resuming(at(3), 1e9)
    plan = plan.model_copy(update={"resume": plan.resume.model_copy(update={"commit": forged})})
    with pytest.raises(Refused, match="signature is not"):
        await holdings.redo(plan, SIGNER)
    with pytest.raises(Refused, match="signature is not"):
        await holdings.redo(resuming(at(3), 0.75), Signer(SIGNER.identity, "another swarm"))
    assert (state.mark, state.prepared) == (at(2), at(3))
    assert same(now(state), before)


async def test_a_state_to_which_another_commit_of_the_same_step_has_led_is_fetched_anew(holdings: Inventory) -> None:
    """Its arbiter has told some peers one norm and others another one: what this node applied is another state."""
    former = trained(2)
    former.commit = final(at(2), 4.0)
    holdings.enter(former)
    snapshot(holdings, former)
    with pytest.raises(ConnectionError, match="nobody who answers has"):
        await load(holdings, resuming(at(2), 1.0))
    assert holdings.loaded == set()


async def test_who_asks_for_a_state_before_it_was_applied_is_given_it_then(holdings: Inventory) -> None:
    """The new plan reaches peers one by one."""
    state = trained(2)
    reduce(state, 3)
    holdings.enter(state)
    asking = asyncio.create_task(given(holdings, at(3)))
    for _ in range(10):  # whatever it could do without waiting is done then
        await asyncio.sleep(0)
    assert not asking.done()
    await holdings.redo(resuming(at(3), 0.75), SIGNER)
    assert same(await asyncio.wait_for(asking, 30), now(state))


async def test_who_asks_for_a_state_that_never_comes_is_told_so(tmp_path: Path) -> None:
    holdings = Inventory(Snapshots(tmp_path), inline, redo_seconds=0.05)
    state = trained(2)
    reduce(state, 3)
    holdings.enter(state)
    assert await holdings.catalogue(at(3)) == {}


def put(holdings: Inventory, state: StageState, whole: State, keys: list[str]) -> None:
    """Load some tensors, as if they had been fetched."""
    for key in keys:
        load_tensor(state.parameters, state.optimizer, key, whole[key])
        holdings.loaded.add(key)


def test_what_was_loaded_for_a_plan_that_failed_is_there_for_the_next_one_with_that_state(holdings: Inventory) -> None:
    whole = now(trained(2))
    first, second = state_of("middle"), state_of("middle")
    holdings.begin(first, at(2))
    assert holdings.loaded == set()
    keys = sorted(whole)[::2]
    put(holdings, first, whole, keys)
    holdings.begin(second, at(2))
    assert holdings.loaded == set(keys)
    assert holdings.held.coming is second
    taken = dict(state_tensors(second.parameters, second.optimizer))
    given = dict(state_tensors(first.parameters, first.optimizer))
    assert all(torch.equal(taken[key], whole[key]) for key in keys)
    assert all(taken[key].data_ptr() == given[key].data_ptr() for key in keys)  # no copy


def test_of_another_state_nothing_that_was_loaded_stays(holdings: Inventory) -> None:
    whole = now(trained(2))
    first = state_of("middle")
    holdings.begin(first, at(2))
    put(holdings, first, whole, sorted(whole))
    holdings.begin(state_of("middle"), at(2, plan=2))
    assert holdings.loaded == set()


def test_of_other_layers_only_what_both_have_stays(holdings: Inventory) -> None:
    whole = now(trained(2, "only"))
    first, second = state_of("only"), state_of("last")
    holdings.begin(first, at(2))
    put(holdings, first, whole, sorted(whole))
    holdings.begin(second, at(2))
    assert holdings.loaded == set(state_keys(list(second.parameters), 2))
    holdings.enter(second)
    assert (holdings.live, holdings.held.coming) == (second, None)


def job() -> ResolvedJob:
    config = state_of("only").config
    return ResolvedJob(
        name="tiny",
        config=config,
        corpus=Corpus(dtype="uint16", vocab_size=61, shards=(Shard(sha256="0" * 64, tokens=1000),)),
        training=TRAINING,
        evaluation=Evaluation(),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )


def resuming(mark: Mark, norm: float | None = None) -> Plan:
    """A plan that goes on from a state that the first plan, or the second, made final with this norm."""
    commit = final(mark, norm) if norm is not None else None
    lineage = ancestors((1, Mark()), *([(2, at(2))] if mark.plan == 2 else []))
    plan = plan_of("middle", version=3, resume=Resume(mark=mark, commit=commit))
    return plan.model_copy(update={"lineage": lineage})


def stage(plan: Plan) -> StageState:
    return StageState(job().config, plan, "b", TRAINING, torch.device("cpu"))


async def load(holdings: Inventory, plan: Plan, network: MemoryNetwork | None = None) -> StageState:
    """Load the middle stage, alone in the world unless there is a network."""
    state = stage(plan)
    holdings.begin(state, plan.resume.mark)
    plane = MemoryDataPlane(network or MemoryNetwork(), "b")
    fetched = await load_state(plane, job(), plan, state, holdings, inline)
    assert bool(fetched.bytes) == (network is not None)
    return state


async def test_a_first_plan_begins_with_the_seeds_weights(holdings: Inventory) -> None:
    state = await load(holdings, resuming(Mark()))
    assert state.mark == Mark()
    assert same(now(state), now(state_of("middle")))


async def test_what_is_in_memory_is_taken_over_without_a_copy_and_trained_on(holdings: Inventory) -> None:
    former, wanted = trained(2), trained(3)
    holdings.enter(former)
    state = await load(holdings, resuming(at(2), 1.0))
    assert (state.mark, state.commit) == (at(2), final(at(2)))
    places = [
        {tensor.data_ptr() for _, tensor in state_tensors(each.parameters, each.optimizer)} for each in (former, state)
    ]
    assert places[0] == places[1]
    reduce(state, 3)
    state.apply(1.5, None)
    assert same(now(state), now(wanted))


async def test_what_is_on_the_disk_is_read_and_trained_on_to_the_same_bits(holdings: Inventory) -> None:
    former, wanted = trained(2), trained(3)
    snapshot(holdings, former)
    state = await load(holdings, resuming(at(2), 1.0))
    assert same(now(state), now(former))
    reduce(state, 3)
    state.apply(1.5, None)
    assert same(now(state), now(wanted))


def vote_by(name: str, state: StageState) -> StateVote:
    """The vote of a replica of the middle stage on its weights and moments."""
    assert state.mark is not None
    return vote_on(name, state.mark, state.layers, digest_of_state(hashes_of(now(state))))


def hashes_of(tensors: State) -> dict[str, str]:
    return {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors.items()}


def certifying(vote: StateVote, *sources: str) -> Plan:
    """A plan that resumes from what `vote` is on, of which the digest is certified."""
    digest = StateDigest(mark=vote.mark, layers=vote.layers, digest=vote.digest)
    given = tuple(Source(peer=peer, layers=(vote.layers,)) for peer in sources)
    return plan_of("middle", version=2, resume=Resume(mark=vote.mark, sources=given, digests=(digest,)))


async def other_node(folder: Path, network: MemoryNetwork, name: str, state: StageState) -> None:
    """Another node that gives away what it holds."""
    held = Inventory(Snapshots(folder / name), inline)
    held.enter(state)
    await MemoryDataPlane(network, name).serve(STATE, lambda stream: serve_state(stream, held))


async def test_a_copy_on_this_nodes_disk_that_is_not_what_was_signed_is_not_used(
    holdings: Inventory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file and its hashes may fit each other: whoever gave it, or changed it, may have seen to that."""
    right, false = trained(2), trained(2)
    with torch.no_grad():
        next(iter(false.parameters.values())).add_(1e-3)
    snapshot(holdings, false)
    network = MemoryNetwork()
    await other_node(tmp_path, network, "x", right)
    with caplog.at_level("WARNING"):
        state = await load(holdings, certifying(vote_by("x", right), "x"), network)
    assert same(now(state), now(right))
    assert f"the copy of layers 1 to 4 of {at(2)} here is not what its replicas have signed" in caplog.messages


async def test_a_copy_on_this_nodes_disk_that_was_signed_is_used(holdings: Inventory) -> None:
    former = trained(2)
    snapshot(holdings, former)
    state = await load(holdings, certifying(vote_by("x", former)))
    assert same(now(state), now(former))


async def test_a_node_that_voted_otherwise_than_is_certified_gives_up_what_it_has_in_memory(
    holdings: Inventory, tmp_path: Path
) -> None:
    """As a replica whose memory has failed, where the others agree."""
    right, false = trained(2), trained(2)
    with torch.no_grad():
        next(iter(false.parameters.values())).add_(1e-3)
    holdings.enter(false)
    network = MemoryNetwork()
    await other_node(tmp_path, network, "x", right)
    holdings.snapshots.cast(vote_by("b", false))
    state = await load(holdings, certifying(vote_by("x", right), "x"), network)
    assert same(now(state), now(right))


async def test_a_false_source_is_left_out_and_the_others_are_loaded_from(
    holdings: Inventory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right, false = trained(2), trained(2)
    with torch.no_grad():
        next(iter(false.optimizer.moments.values())).mul_(2)
    network = MemoryNetwork()
    await other_node(tmp_path, network, "liar", false)
    await other_node(tmp_path, network, "x", right)
    with caplog.at_level("WARNING"):
        state = await load(holdings, certifying(vote_by("x", right), "liar", "x"), network)
    assert same(now(state), now(right))
    assert any("liar offers layers 1 to 4" in message for message in caplog.messages)


def test_a_standing_brings_the_votes_on_what_is_held(holdings: Inventory) -> None:
    state = trained(2)
    holdings.enter(state)
    vote = vote_by("b", state)
    assert (holdings.newest_digest, holdings.standing(PROMISE).holdings[0].votes) == (None, ())
    holdings.snapshots.cast(vote)
    assert holdings.standing(PROMISE).holdings[0].votes == (vote,)
    assert holdings.newest_digest == StateDigest(mark=at(2), layers=(1, 4), digest=vote.digest)
    reduce(state, 3)
    state.apply(1.5, None)
    assert holdings.standing(PROMISE).holdings[0].votes == (), "another state"


async def test_what_is_nowhere_is_lacking_and_what_was_loaded_stays(holdings: Inventory) -> None:
    former = trained(2)
    tensors = dict(state_tensors(former.parameters, former.optimizer))
    some = {key: tensors[key] for key in sorted(tensors)[::2]}
    holdings.snapshots.add(write_snapshot(holdings.snapshots.folder, at(2), (1, 4), some, Reading(some))[0])
    with pytest.raises(ConnectionError, match="nobody who answers has"):
        await load(holdings, resuming(at(2)))
    assert holdings.loaded == set(some)
    assert holdings.held.coming is not None
    assert holdings.held.coming.mark is None


def change_a_bit(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flatten(path: Path) -> None:
    """Keep hash and bytes, but not the shape."""
    beside = path.with_suffix(".json")
    found = json.loads(beside.read_text())
    for entry in found["tensors"].values():
        entry["shape"] = [math.prod(entry["shape"])]
    beside.write_text(json.dumps(found))


@pytest.mark.parametrize("damage", [change_a_bit, tear, Path.unlink, flatten])
async def test_a_snapshot_that_was_damaged_since_is_taken_away_and_its_state_fetched(
    holdings: Inventory, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    former = trained(2)
    snapshot(holdings, former)
    (path,) = tmp_path.glob("*.safetensors")
    damage(path)
    if damage is flatten:  # which is known from what lies beside
        holdings.snapshots.load()
    other = Inventory(Snapshots(tmp_path / "other"), inline)
    other.enter(former)
    network = MemoryNetwork()
    await MemoryDataPlane(network, "x").serve(STATE, lambda stream: serve_state(stream, other))
    plan = resuming(at(2), 1.0)
    sources = (Source(peer="x", layers=((1, 4),)),)
    plan = plan.model_copy(update={"resume": plan.resume.model_copy(update={"sources": sources})})
    state = await load(holdings, plan, network)
    assert same(now(state), now(former))
    assert holdings.snapshots.holdings() == []
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


async def test_what_is_loaded_counts_and_is_given_before_its_plan_has_begun(holdings: Inventory) -> None:
    """The others may have begun, and have dropped what they held of these layers before."""
    snapshot(holdings, trained(2))
    state = await load(holdings, resuming(at(2), 1.0))
    holdings.snapshots.prune(at(3))
    assert holdings.standing(PROMISE).holdings == (Holding(mark=at(2), layers=(1, 4), live=True, commit=final(at(2))),)
    assert same(await given(holdings, at(2)), now(state))


async def test_what_was_trained_before_counts_until_a_step_of_the_new_plan_is_final(holdings: Inventory) -> None:
    former = StageState(job().config, plan_of("middle"), "a", TRAINING, torch.device("cpu"))
    former.settle(at(2), final(at(2)))
    holdings.enter(former)
    snapshot(holdings, trained(2))
    state = await load(holdings, resuming(at(2), 1.0))
    holdings.enter(state)
    assert holdings.held.whole == (state, former)
    assert (await given(holdings, at(2))).keys() == now(state).keys() | now(former).keys()
    reduce(state, 3)
    state.apply(1.5, None)
    assert (holdings.at(at(2)), holdings.at(at(3))) == ([former], [state])
    holdings.begun()
    assert holdings.held.whole == (state,)
    assert [found.mark for found in holdings.standing(PROMISE).holdings if found.live] == [at(3)]


async def test_an_update_ends_the_states_whose_tensors_it_took_over(holdings: Inventory) -> None:
    """Though the plan's first step is not through yet, what they hold is not what they were any more."""
    former = trained(2)
    holdings.enter(former)
    state = await load(holdings, resuming(at(2), 1.0))
    holdings.enter(state)
    assert len(holdings.at(at(2))) == 2
    reduce(state, 3)
    assert len(holdings.at(at(2))) == 2
    state.apply(1.5, None)
    assert holdings.held.whole == (state,)
    assert await holdings.catalogue(at(2)) == {}


async def test_an_update_ends_states_whose_tensors_were_taken_over_twice(holdings: Inventory) -> None:
    """A plan that failed before it began took them from the one before, and the next plan from that one."""
    former = trained(2)
    holdings.enter(former)
    await load(holdings, resuming(at(2), 1.0))
    state = await load(holdings, resuming(at(2), 1.0))
    holdings.enter(state)
    reduce(state, 3)
    state.apply(1.5, None)
    assert holdings.held.whole == (state,)


async def test_an_update_waits_for_a_snapshot_of_the_state_that_its_tensors_were_taken_over_from(
    holdings: Inventory,
) -> None:
    former = trained(2)
    waited: list[Mark | None] = []
    former.before_update = lambda: waited.append(former.mark)
    holdings.enter(former)
    state = await load(holdings, resuming(at(2), 1.0))
    holdings.enter(state)
    reduce(state, 3)
    state.apply(1.5, None)
    assert waited == [at(2)]


async def test_gradients_that_are_applied_late_end_states_that_took_the_tensors_over(holdings: Inventory) -> None:
    """A plan from the state before had been loaded, when somebody came back who had applied the step."""
    former = trained(2)
    reduce(former, 3)
    holdings.enter(former)
    await load(holdings, resuming(at(2), 1.0))
    await holdings.redo(resuming(at(3), 0.75), SIGNER)
    assert [state.mark for state in holdings.held.whole] == [at(3)]


async def test_what_a_standing_says_may_become_of_a_state_it_becomes(holdings: Inventory) -> None:
    """The plan after the one that failed may go on from it, and then nobody else has these layers."""
    former = trained(2)
    reduce(former, 3)
    holdings.enter(former)
    holdings.enter(await load(holdings, resuming(at(2), 1.0)))
    found = {one.prepared for one in holdings.standing(PROMISE).holdings} - {None}
    await holdings.redo(resuming(at(3), 0.75), SIGNER)
    assert {state.mark for state in holdings.held.whole} >= found


def test_an_entry_of_a_live_state_is_that_of_its_bytes() -> None:
    state = trained(1)
    for key, tensor in state_tensors(state.parameters, state.optimizer):
        entry, data = tensor_entry(holding.LIVE, tensor)
        assert torch.equal(decode_tensor(entry, data), tensor), key
