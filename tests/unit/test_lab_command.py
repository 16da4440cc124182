"""`dtfm-coordinator lab`: what it refuses, and how it ends; here without namespaces."""

import json
import os
import sys
from pathlib import Path

import pytest

from dtfm_coordinator import main

TWO = [[0, 0], [0, 0]]


@pytest.fixture
def view(tmp_path: Path) -> Path:
    """Two hosts that cannot talk: nothing is measured."""
    path = tmp_path / "view.json"
    nodes = [{"id": "one", "up_gbps": 1}, {"id": "two"}]
    path.write_text(json.dumps({"nodes": nodes, "latency_ms": TWO, "bandwidth_gbps": TWO}))
    return path


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option in ("--scale", "--loss", "--queue-ms") for value in ("inf", "nan")],
)
def test_numbers_without_end_and_those_that_are_none_are_refused_in_one_line(
    view: Path, option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # no lab is made, whatever comes
    monkeypatch.setattr(sys, "argv", ["dtfm-coordinator", "lab", str(view), option, value, "--", "true"])
    with pytest.raises(SystemExit) as raised:
        main.main()
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert option in said
