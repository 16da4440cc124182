"""What a node resumes a plan from: its memory, its disk, what a failed plan had loaded, other peers."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.snapshots import Snapshots, write_snapshot
from dtfm_node.state.state_reading import Reading
from dtfm_protocol.checkpoint.state_slots import ADAMW
from dtfm_protocol.checkpoint.transfers import STATE, serve_state
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.node.finals import final
from tests.node.small_states import (
    State,
    at,
    holdings,
    inline,
    load,
    now,
    reduce,
    resuming,
    same,
    snapshot,
    trained,
    vote_by,
)
from tests.node.test_training_stage import one_thread, plan_of, state_of

__all__ = ["holdings", "one_thread"]  # fixtures


def put(holdings: Inventory, state: TrainingStage, whole: State, keys: list[str]) -> None:
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
    assert holdings.loaded == set(ADAMW.keys(second.parameters, 2))
    holdings.enter(second)
    assert (holdings.live, holdings.held.coming) == (second, None)


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


def certifying(vote: StateVote, *sources: str) -> Plan:
    """A plan that resumes from what `vote` is on, of which the digest is certified."""
    digest = StateDigest(mark=vote.mark, layers=vote.layers, digest=vote.digest)
    given = tuple(Source(peer=peer, layers=(vote.layers,)) for peer in sources)
    return plan_of("middle", version=2, resume=Resume(mark=vote.mark, sources=given, digests=(digest,)))


async def other_node(folder: Path, network: MemoryNetwork, name: str, state: TrainingStage) -> None:
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
