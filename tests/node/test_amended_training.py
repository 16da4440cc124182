"""A job that is changed while a swarm trains it comes to what one process makes of the same changes."""

from pathlib import Path

import pytest

from dtfm_node.commands.solo import Solo
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Resume, Source
from tests.node.engine_reference import assert_same_training, result_of
from tests.node.engine_swarm import CPU, STEPS, Result, Swarm, home, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow
AMENDMENTS = (
    Amendment(number=1, from_step=2, values={"training.learning_rate": 4e-3, "training.weight_decay": 0.3}),
    Amendment(number=2, from_step=4, values={"training.global_batch": 12, "training.micro_batch": 3}),
    Amendment(number=3, from_step=5, values={"training.clip_norm": 0.1, "evaluation.every": 5}),
    Amendment(number=4, from_step=6, values={"training.steps": 7}),
)


async def test_a_changed_job_is_trained_as_one_process_trains_it(home: Path, tmp_path: Path) -> None:
    """Rates in the middle of a plan; a batch where one plan ends, as it says itself, and the next begins."""
    job = job_of(home)
    former = Swarm(home, job, plan_of("2x2", amendments=AMENDMENTS))
    start = await former.run(last=3)
    assert {peer.trainer.last_step for peer in former.peers.values() if peer.trainer} == {3}
    held = tuple(Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in former.peers)
    resume = Resume(mark=Mark(step=3, plan=1), sources=held)
    second = plan_of("uneven shares", version=2, resume=resume, amendments=AMENDMENTS)
    rest = await Swarm(home, job, second, former.network, former).run(last=STEPS + 1)
    assert [row.tokens for row in (*start.rows, *rest.rows)] == [128] * 3 + [192] * 4

    (tmp_path / "tokens").symlink_to(home / "tokens")
    solo = Solo(job, tmp_path, CPU, AMENDMENTS)
    assert solo.timeline.last_step == STEPS + 1
    reference = result_of(solo, tmp_path)
    assert [row.step for row in reference.rows if row.eval_loss is not None] == [4, 5, 7]
    assert_same_training(Result(start.rows + rest.rows, rest.state), reference, 1e-5)
