"""The same job in one process, and how near a swarm's training has to come to it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.commands.solo import Solo
from dtfm_protocol.checkpoint.state_slots import TABLES
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.job.resolved_job import ResolvedJob
from tests.node.engine_swarm import CPU, Result, State, job_of
from tests.node.kept_reference import dequantised

LESS: dict[str, dict[str, Any]] = {
    "moments in 8 bits": {"optimizer": "adamw-8bit"},
    "weights in bf16": {"weights": "bf16"},
    "both": {"optimizer": "adamw-8bit", "weights": "bf16"},
    "sgd of weights in bf16": {"optimizer": "sgd", "learning_rate": 0.05, "weights": "bf16"},
}
"""Keys of a job whose states are kept in less than fp32."""
LESS_APART = 2e-3
"""What such states may differ by from those whose sums were made in another order: a value near the middle between two
levels, or near where it would be rounded another way, goes the other way."""


def alone(home: Path, tied: bool, **training: Any) -> Result:
    """The job in one process; it is run once, as it is the same in every folder with the corpus."""
    job = job_of(home, tied=tied, **training)
    known = job.model_dump_json()
    if known not in _runs:
        _runs[known] = _alone(home, job)
    return _runs[known]


_runs: dict[str, Result] = {}


def _alone(home: Path, job: ResolvedJob) -> Result:
    folder = home / f"solo-{len(_runs)}"
    folder.mkdir()
    (folder / "tokens").symlink_to(home / "tokens")
    return result_of(Solo(job, folder, CPU), folder)


def result_of(solo: Solo, folder: Path) -> Result:
    """All steps of a job in one process, whose state folder is `folder`."""
    result = Result([solo.step(step) for step in range(1, solo.timeline.last_step + 1)])
    solo.keep(result.rows[-1])
    result.state = state_in(folder, solo.timeline.job)
    return result


def state_in(folder: Path, job: ResolvedJob) -> State:
    """The state in the newest checkpoint of the state folder `folder`."""
    store = CheckpointStore(folder / "checkpoints")
    manifest = store.newest()
    assert manifest is not None
    kinds = [slot.name for slot in TABLES[job.training.optimizer].state]
    return {f"{kind}/{name}": value for kind in kinds for name, value in store.tensors(manifest, kind)}


def distance(found: State, wanted: State) -> float:
    """Relative L2 distance over all tensors together."""
    assert found.keys() == wanted.keys()
    apart = sum(float((found[key] - wanted[key]).double().square().sum()) for key in wanted)
    size = sum(float(wanted[key].double().square().sum()) for key in wanted)
    return float((apart / size) ** 0.5)


def assert_same_training(found: Result, wanted: Result, tolerance: float) -> None:
    assert [row.step for row in found.rows] == [row.step for row in wanted.rows]
    for ours, theirs in zip(found.rows, wanted.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=tolerance)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=tolerance)
        assert (ours.eval_loss is None) == (theirs.eval_loss is None)
        if theirs.eval_loss is not None:
            assert ours.eval_loss == pytest.approx(theirs.eval_loss, rel=tolerance)
        assert ours.learning_rate == theirs.learning_rate
        assert ours.tokens == theirs.tokens
    values = values_of(found.state), values_of(wanted.state)
    for kind in {key.partition("/")[0] for one in values for key in one}:
        parts = [{key: value for key, value in one.items() if key.startswith(f"{kind}/")} for one in values]
        assert distance(*parts) < tolerance


def values_of(state: State) -> State:
    """What a state's tensors stand for, by the names that they have in fp32."""
    found = {}
    for key, value in state.items():
        kind, _, name = key.partition("/")
        if kind.endswith("_code"):
            moment = kind.removesuffix("_code")
            scales = state[f"{moment}_scale/{name}"].numpy()
            found[f"{moment}/{name}"] = torch.from_numpy(dequantised(value.numpy(), scales, moment == "exp_avg"))
        elif not kind.endswith("_scale"):
            found[key] = value
    return found
