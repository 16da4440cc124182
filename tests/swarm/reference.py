"""What a swarm's curve is held to: that of one process."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.commands import solo
from dtfm_node.control.display import Display
from dtfm_protocol.job.job_file import Job

CURVE = 1e-5
"""Relative, over the first 20 steps."""
DRIFT = 1e-3
"""Relative, beyond: training amplifies the rounding of regrouped sums."""
_curves: dict[str, list[dict[str, Any]]] = {}
"""By what of a job the mathematics depends on."""


def same_curve(rows: list[dict[str, Any]], reference: list[dict[str, Any]], stopped: int = 0) -> None:
    """Steps, tokens and learning rates are equal, losses and norms to floating-point tolerance.

    Args:
        stopped: the step after which all was stopped: its evaluation may have been cut off, and is not made up for.
    """
    assert [row["step"] for row in rows] == [row["step"] for row in reference]
    for row, other in zip(rows, reference, strict=True):
        assert row["tokens"] == other["tokens"]
        assert row["learning_rate"] == other["learning_rate"]
        for key in ("loss", "grad_norm", "eval_loss"):
            if key == "eval_loss" and row["step"] == stopped and row[key] is None:
                continue
            tolerance = CURVE if row["step"] <= 20 else DRIFT
            assert row[key] == (other[key] and pytest.approx(other[key], rel=tolerance)), (key, row["step"])


async def alone(job: Path) -> list[dict[str, Any]]:
    """The rows that `dtfm-node solo` records of a job, by its own function in this process, once for tests alike.

    The command itself is run by `test_a_local_swarm_trains_exports_and_generates_what_one_process_would`.
    """
    parsed = Job.load(job)
    mathematics = parsed.model_dump_json(exclude={"checkpoint"})
    if mathematics not in _curves:
        _curves[mathematics] = await asyncio.to_thread(_trained, parsed)
    return _curves[mathematics]


def alone_amended(job: Path, amendments: Path) -> list[dict[str, Any]]:
    """The rows that `dtfm-node solo --amendments` records of a job."""
    return _trained(Job.load(job), amendments)


def _trained(job: Job, amendments: Path | None = None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="alone-") as folder, Display("plain") as display:
        solo.run(job, Path(folder), torch.device("cpu"), display, amendments)
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
