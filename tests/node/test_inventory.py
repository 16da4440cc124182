"""What a node holds: given to others as it is, applied once where it was only prepared, told of while it counts."""

import asyncio
from pathlib import Path

import pytest
import torch

from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state import inventory as holding
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.shard import decode_tensor, tensor_entry
from dtfm_protocol.checkpoint.state_slots import ADAMW
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.peer_state import HOLDINGS_LIMIT, Holding, Mark, PeerState
from tests.node.finals import SIGNER, final
from tests.node.small_states import (
    PROMISE,
    at,
    given,
    holdings,
    inline,
    job,
    load,
    now,
    reduce,
    resuming,
    same,
    snapshot,
    trained,
    vote_by,
)
from tests.node.test_training_stage import TRAINING, one_thread, plan_of

__all__ = ["holdings", "one_thread"]  # fixtures


@pytest.mark.parametrize("piece", [7, 1000, 1 << 20])
async def test_a_live_state_is_given_as_it_is(holdings: Inventory, piece: int) -> None:
    state = trained(2)
    holdings.enter(state)
    found = await given(holdings, at(2), piece)
    assert same(found, now(state))
    assert found.keys() == set(ADAMW.keys(state.parameters, 2))


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


def test_a_standing_brings_the_votes_on_what_is_held(holdings: Inventory) -> None:
    state = trained(2)
    holdings.enter(state)
    vote = vote_by("b", state)
    assert (holdings.newest_vote, holdings.standing(PROMISE).holdings[0].votes) == (None, ())
    holdings.snapshots.cast(vote)
    assert holdings.standing(PROMISE).holdings[0].votes == (vote,)
    assert holdings.newest_vote == vote
    reduce(state, 3)
    state.apply(1.5, None)
    assert holdings.standing(PROMISE).holdings[0].votes == (), "another state"


async def test_what_is_loaded_counts_and_is_given_before_its_plan_has_begun(holdings: Inventory) -> None:
    """The others may have begun, and have dropped what they held of these layers before."""
    snapshot(holdings, trained(2))
    state = await load(holdings, resuming(at(2), 1.0))
    holdings.snapshots.prune(at(3))
    assert holdings.standing(PROMISE).holdings == (Holding(mark=at(2), layers=(1, 4), live=True, commit=final(at(2))),)
    assert same(await given(holdings, at(2)), now(state))


async def test_what_was_trained_before_counts_until_a_step_of_the_new_plan_is_final(holdings: Inventory) -> None:
    former = TrainingStage(job().config, plan_of("middle"), "a", TRAINING, torch.device("cpu"))
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
