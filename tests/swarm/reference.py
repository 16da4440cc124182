"""What a swarm's curve is held to: that of one process."""

import asyncio
import fcntl
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.commands import solo
from dtfm_node.control.display import Display
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.process.state_dir import write_atomically
from tests.harness.run_folder import run_folder

CURVE = 1e-5
"""Relative, over the first 20 steps."""
DRIFT = 1e-3
"""Relative, beyond: training amplifies the rounding of regrouped sums."""


def same_curve(
    rows: list[dict[str, Any]], reference: list[dict[str, Any]], stopped: int = 0, near: float | None = None
) -> None:
    """Steps, tokens and learning rates are equal, losses and norms to floating-point tolerance.

    Args:
        stopped: the step after which all was stopped, or a plan broke: its evaluation may have been cut off, and is
            not made up for.
        near: how far losses and norms may be apart, relatively, where states are kept in less than fp32.
    """
    assert [row["step"] for row in rows] == [row["step"] for row in reference]
    for row, other in zip(rows, reference, strict=True):
        assert row["tokens"] == other["tokens"]
        assert row["learning_rate"] == other["learning_rate"]
        for key in ("loss", "grad_norm", "eval_loss"):
            if key == "eval_loss" and row["step"] == stopped and row[key] is None:
                continue
            tolerance = near or (CURVE if row["step"] <= 20 else DRIFT)
            assert row[key] == (other[key] and pytest.approx(other[key], rel=tolerance)), (key, row["step"])


async def alone(job: Path) -> list[dict[str, Any]]:
    """The rows that `dtfm-node solo` records of a job, by its own function in this process, once for tests alike.

    The command itself is run by `test_a_local_swarm_trains_exports_and_generates_what_one_process_would`.
    """
    return await asyncio.to_thread(_trained_once, Job.load(job))


def _trained_once(job: Job) -> list[dict[str, Any]]:
    """The rows of a job, kept for all workers of the test run by what of it the mathematics depends on."""
    mathematics = job.model_dump_json(exclude={"checkpoint"})
    kept = run_folder() / hashlib.sha256(mathematics.encode()).hexdigest()
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            write_atomically(kept, json.dumps(_trained(job)))
    rows: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))
    return rows


def alone_amended(job: Path, amendments: Path) -> list[dict[str, Any]]:
    """The rows that `dtfm-node solo --amendments` records of a job."""
    return _trained(Job.load(job), amendments)


def _trained(job: Job, amendments: Path | None = None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="alone-") as folder, Display("plain") as display:
        solo.run(job, Path(folder), torch.device("cpu"), display, amendments)
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
