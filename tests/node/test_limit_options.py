"""The options of `join` that limit what a node takes: what they mean, and one clear line for what means nothing."""

import math
from pathlib import Path

import pytest
import typer.testing

from dtfm_node import main
from dtfm_node.commands.limit_options import checked_gb, rate_of, rules_of
from dtfm_node.engine.process_limits import memory_of, share_of
from dtfm_node.limits.availability import Rules
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from tests.harness.invites import invite_to

DEAD = invite_to(Identity.generate(), 9).encode()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10Mbit", 1.25e6),
        ("10mbit/s", 1.25e6),
        ("0.8 Mbps", 1e5),
        ("10MBps", None),
        ("800 kbit/s", 1e5),
        ("1.2MB/s", 1.2e6),
        ("500kB", 5e5),
        ("1Gbit", 1.25e8),
        ("10", None),
        ("10 Mb/s", None),
        ("10mb/s", None),
        ("fast", None),
        ("-1Mbit", None),
        ("1kbit", None),
        ("0Mbit", None),
        ("nanMbit", None),
    ],
)
def test_a_rate_has_a_unit_that_nobody_can_misread(text: str, rate: float | None) -> None:
    if rate is None:
        with pytest.raises(UserError, match="--upload"):
            rate_of(text, "--upload")
    else:
        assert rate_of(text, "--upload") == rate


def test_a_share_of_a_gpus_time_is_refused_where_the_processor_computes() -> None:
    assert share_of("cpu", None) == 1.0
    with pytest.raises(UserError, match="--gpu-share: this node computes on the processor"):
        share_of("cpu", 50.0)


def test_what_is_not_given_is_no_limit() -> None:
    assert rate_of(None, "--upload") == math.inf
    assert checked_gb(None, "--memory") is None
    assert rules_of(None, not_on_battery=False, when_idle=False, not_metered=False) == Rules()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--memory", "0"], "--memory 0: a node cannot take part"),
        (["--memory", "-1"], "--memory -1"),
        (["--memory", "nan"], "--memory nan"),
        (["--gpu-memory", "0"], "--gpu-memory 0"),
        (["--disk", "0"], "--disk 0"),
        (["--disk", "inf"], "--disk inf"),
        (["--upload", "10"], "--upload 10: say a number and its unit"),
        (["--download", "1kbit"], "--download 1kbit: a node cannot take part with less"),
        (["--hours", "late"], "--hours late: say from when until when"),
        (["--announce", "10.77.0.3"], "--announce 10.77.0.3: say the port too, as HOST:PORT"),
    ],
)
def test_nonsense_is_refused_in_one_line_before_anything_is_made(
    arguments: list[str], why: str, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    command = ["join", "--yes", DEAD, "--state-dir", str(folder), *arguments]
    result = typer.testing.CliRunner().invoke(main.app, command)
    assert not folder.exists()
    assert result.exit_code == 2
    lines = result.output.strip().splitlines()
    assert why in lines[-1]
    assert lines[-1].startswith("error: ")


def test_memory_of_a_gpu_is_no_limit_of_a_processor() -> None:
    assert memory_of("cpu", 2.0, None) == 2.0
    with pytest.raises(UserError, match="--gpu-memory: this node computes on the processor"):
        memory_of("cpu", None, 2.0)
