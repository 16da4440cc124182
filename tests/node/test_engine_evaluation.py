"""An evaluation of many micro-batches: nobody holds more of them in memory than it must, and nobody waits for ever."""

from functools import partial
from pathlib import Path

import pytest

from dtfm_node.engine.exchange import Exchange
from dtfm_protocol.job.job_file import Evaluation
from dtfm_protocol.job.resolved_job import ResolvedJob
from tests.node.engine_swarm import Swarm, home, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures

MICRO_BATCHES = 13
"""The last one is smaller than the others."""


def job_with_evaluation(home: Path) -> ResolvedJob:
    job = job_of(home, steps=2, warmup_steps=1)
    return job.model_copy(update={"evaluation": Evaluation(every=1, sequences=2 * MICRO_BATCHES - 1)})


@pytest.mark.slow
@pytest.mark.parametrize("unread", [1, 2, 100])
@pytest.mark.parametrize("name", ["1x4", "uneven shares", "crossed routes"])
async def test_the_loss_is_that_of_one_peer_however_few_are_taken_in_ahead(home: Path, name: str, unread: int) -> None:
    """Votes, commits and the next step's activations come behind them on the same streams."""
    wanted = await Swarm(home, job_with_evaluation(home), plan_of("1x1")).run(last=2)
    swarm = Swarm(home, job_with_evaluation(home), plan_of(name))
    for peer in swarm.peers.values():
        peer.exchanging = partial(Exchange.running, unread_evaluations=unread)
    found = await swarm.run(last=2)
    assert [row.eval_loss for row in found.rows] == pytest.approx([row.eval_loss for row in wanted.rows], rel=1e-5)
    assert all(row.eval_loss is not None for row in wanted.rows)
