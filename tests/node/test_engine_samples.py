"""On packed documents of which a part is learned, any plan trains as one process does; of nothing, nothing is made."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_node.commands.solo import Solo
from dtfm_node.engine.mailbox import PeerLost
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Resume, Source
from tests.node.engine_reference import assert_same_training, result_of
from tests.node.engine_swarm import CPU, Result, Swarm, home, identical, one_thread, plan_of
from tests.node.packed_jobs import STEPS, packed_job

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow

EMPTY = 5
LORA = {"method": "lora", "lora": {"target_modules": ("v_proj",)}, "learning_rate": 0.02}
_runs: dict[str, Result] = {}


def alone(home: Path, job: ResolvedJob) -> Result:
    """The job in one process; each is run once."""
    known = job.model_dump_json()
    if known not in _runs:
        folder = home / f"packed-{len(_runs)}"
        folder.mkdir()
        (folder / "tokens").symlink_to(home / "tokens")
        _runs[known] = result_of(Solo(job, folder, CPU), folder)
    return _runs[known]


def targets_of(home: Path, job: ResolvedJob, step: int) -> int:
    counts = CorpusReader(job.corpus, ShardFolder(home / "tokens")).counts
    return Batches(job.corpus, job.training, job.evaluation).targets(step, counts)


def test_the_reference_learns_from_another_number_of_targets_at_each_step(home: Path) -> None:
    """Else the comparisons below would compare nothing."""
    job = packed_job(home, empty=(EMPTY,))
    rows = alone(home, job).rows
    assert [row.tokens for row in rows] == [targets_of(home, job, step) for step in range(1, STEPS + 1)]
    assert rows[EMPTY - 1].tokens == 0
    assert len({row.tokens for row in rows}) > 10
    assert max(row.tokens for row in rows) < job.training.tokens
    assert all(row.loss > 1 for row in rows if row.tokens)
    assert any(row.eval_loss is not None for row in rows)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("2x2", {}),
        ("2x2", {"tied": True}),
        ("uneven shares", {"tied": True}),
        ("crossed routes", {"architecture": "gpt2", "tied": True}),
        ("crossed routes zero-bubble", {"architecture": "qwen3"}),
        ("1x4", LORA),
    ],
)
async def test_any_plan_trains_as_one_process_does(home: Path, name: str, keys: dict[str, Any]) -> None:
    job = packed_job(home, empty=(EMPTY,), **keys)
    found = await Swarm(home, job, plan_of(name)).run(last=STEPS)
    assert_same_training(found, alone(home, job), 1e-5)


@pytest.mark.parametrize("recompute", [[0, 1, 2]])
async def test_recomputing_a_stage_does_not_change_what_is_computed(home: Path, recompute: list[int]) -> None:
    job = packed_job(home, empty=(EMPTY,))
    found = await Swarm(home, job, plan_of("crossed routes", recompute=recompute)).run(last=STEPS)
    assert_same_training(found, alone(home, job), 1e-5)


async def test_a_kill_in_the_middle_and_another_plan_after_it_go_unnoticed(home: Path) -> None:
    """The victim's stage has another replica; the others go on under a plan without it."""
    job = packed_job(home, empty=(EMPTY,))
    former = Swarm(home, job, plan_of("2x2"))
    former.peers["y"].pause = lambda step, call: step == 8 and call == "backward"
    for errors in (await former.ends("y", last=STEPS)).values():
        assert {type(error) for error in errors} == {PeerLost}
    left = [me for me in former.peers if me != "y"]
    rows = former.peers["a"].rows
    assert [row.step for row in rows] == list(range(1, 8))
    held = tuple(Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in left)
    resume = Resume(mark=Mark(step=7, plan=1), sources=held)
    second = plan_of("uneven shares", version=2, resume=resume).renamed({"y": "b"})
    rest = await Swarm(home, job, second, former.network, former).run(last=STEPS)
    assert_same_training(Result(rows + rest.rows, rest.state), alone(home, job), 1e-5)


@pytest.mark.parametrize("step", [1, EMPTY])
@pytest.mark.parametrize(
    ("wire", "keys"),
    [
        ("fp32", {}),
        ("int8", {}),
        ("fp32", {"optimizer": "sgd"}),
        ("fp32", {"optimizer": "adamw-8bit", "weights": "bf16"}),
    ],
)
async def test_a_step_without_targets_is_final_and_changes_no_bit(
    home: Path, wire: str, keys: dict[str, Any], step: int
) -> None:
    """Also where a lossy wire owes something of the steps before; the first step leaves a whole state, too."""
    job = packed_job(home, empty=(step,), **keys)
    swarm = Swarm(home, job, plan_of("2x2", wire=wire))
    found = await swarm.run(last=step + 1)
    row = found.rows[step - 1]
    assert (row.step, row.tokens, row.loss, row.grad_norm) == (step, 0, 0.0, 0.0)
    for peer in swarm.peers.values():
        assert peer.stage is not None
        before, after = peer.states[step - 1], peer.states[step]
        assert after.keys() == set(peer.stage.optimizer.table.keys(peer.stage.parameters, step))
        assert identical({key: after[key] for key in before}, before)
        assert all(float(after[key].float().abs().max()) == 0 for key in after.keys() - before.keys())
        assert not identical(after, {key: peer.states[step + 1][key] for key in after})


async def test_a_step_without_targets_sends_no_tensor_and_alarms_nobody(home: Path) -> None:
    """Lone stages vote no norm in it, and usual ones before and after."""
    job = packed_job(home, empty=(3, 4))
    found = await Swarm(home, job, plan_of("1x4")).run(last=6)
    usual, nothing = found.rows[1].bytes_sent, found.rows[3].bytes_sent
    assert nothing < usual / 5
    assert found.rows[5].bytes_sent > 0.9 * usual


async def test_where_nothing_that_is_held_out_is_a_target_there_is_no_evaluation(home: Path) -> None:
    job = packed_job(home, held_out_empty=True)
    found = await Swarm(home, job, plan_of("2x2")).run(last=STEPS)
    assert {row.eval_loss for row in found.rows} == {None}
    assert_same_training(found, alone(home, job), 1e-5)
