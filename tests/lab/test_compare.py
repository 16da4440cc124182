"""What `compare` makes of algorithms: their outcomes, summaries, rows, and what it refuses."""

import csv
import io
import math
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dtfm_coordinator.allocator.simulator.peer_time import TimeShares
from dtfm_coordinator.main import app
from dtfm_lab.compare import command
from dtfm_lab.compare.algorithm_outcomes import COLUMNS, Outcome, Run, as_csv, outcomes, summaries
from dtfm_lab.compare.algorithm_tables import show
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

SIZES = ["--stages", "2", "--activation-bytes", "1e7", "--gradient-bytes", "1e7"]


def planned(total: float) -> Plan:
    cost = Cost(kind="paper", total=total, data_parallel=total / 4, pipeline=total * 3 / 4)
    return Plan(stages=((0, 1),), routes=(("a",),), cost=cost, evaluations=10, seconds=0.5)


def run(algorithm: str, seed: int, evaluations: int | None) -> Plan:
    """The better, the earlier in the alphabet; "luck" fails on odd seeds, "none" on all."""
    if algorithm == "none" or (algorithm == "luck" and seed % 2):
        raise UserError("no placement\nwas found")
    return planned(ord(algorithm[0]) - 96 + seed)


def view(nodes: int, unreachable: bool = False) -> View:
    rng = np.random.default_rng(0)
    bandwidth = rng.uniform(0.1, 2, (nodes, nodes))
    if unreachable:
        # Two halves, each with one node that the other half's odd ones cannot reach.
        bandwidth[0, 2:] = bandwidth[2:, 0] = 0.0
    layer = LayerSeconds(forward=0.01, backward=0.02)
    return View(
        nodes=tuple(NodeView(id=f"n{number}", layer_seconds=layer) for number in range(nodes)),
        latency_ms=rng.uniform(1, 50, (nodes, nodes)),
        bandwidth_gbps=bandwidth,
    )


def test_an_algorithm_that_finds_nothing_is_an_outcome() -> None:
    steps: list[int] = []
    found = outcomes(("a", "luck", "none"), range(3), run, done=lambda: steps.append(1))
    assert len(steps) == len(found) == 9
    first, luck, none = summaries(found)
    assert (first.runs, first.failures, first.mean, first.least, first.most) == (3, 0, 2.0, 1.0, 3.0)
    assert first.deviation == pytest.approx(stdev([1, 2, 3]))
    assert first.rate == 20.0
    assert first.best is found[0]
    assert (luck.failures, luck.mean) == (1, 13.0)
    assert (none.failures, none.mean, none.failure) == (3, math.inf, "no placement was found")
    with pytest.raises(UserError, match="no placement was found"):
        outcomes(("none",), range(2), run)


def test_the_table_has_a_row_for_each_algorithm_and_says_what_failed() -> None:
    out = Console(width=140, file=io.StringIO(), markup=False, highlight=False)
    show(out, outcomes(("a", "luck", "none"), range(3), run))
    file = out.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    row = next(line for line in lines if line.startswith("│ a "))
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "a", "2", "1", "1 - 3", "2.000", "20", "0.5",
    ]  # fmt: skip
    best = [line for line in lines if line.startswith("│ a ")][1]
    assert [cell.strip() for cell in best.strip("│").split("│")] == ["a", "1 x 1", "0", "0.25", "0.75"]
    assert any("luck (1 of 3 failed)" in line for line in lines)
    assert any("none" in line and "no placement" in line for line in lines)
    assert "none, 3 of 3 runs: no placement was found" in lines


def uneven(algorithm: str, seed: int, evaluations: int | None) -> Plan:
    """A plan of 20 stages, two peers in the first and one in each other."""
    rest = tuple(f"p{stage}" for stage in range(1, 20))
    cost = Cost(kind="makespan", total=12345.0, data_parallel=1.0, pipeline=2.0, compute=3.0)
    stages = tuple((stage, stage + 1) for stage in range(20))
    return Plan(stages=stages, routes=(("a", *rest), ("b", *rest)), cost=cost, evaluations=10**9, seconds=1000.0)


def test_layouts_and_shares_of_time_are_told_in_a_hundred_columns() -> None:
    out = Console(width=100, file=io.StringIO(), markup=False, highlight=False)
    found = outcomes(("evolutionary", "exhaustive"), range(2), uneven, lambda plan: TimeShares(0.5, 0.3, 0.2))
    show(out, found)
    file = out.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert "…" not in file.getvalue()
    row = [line for line in lines if line.startswith("│ evolutionary ")][1]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "evolutionary", "20 x 1 to 2", "0", "1f1b", "50 %", "30 %", "20 %",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 100
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert rows[0]["layout"] == "20 x 2" + "+1" * 19
    assert [rows[0][f"{name}_share"] for name in ("compute", "communication", "waiting")] == ["0.5", "0.3", "0.2"]


def test_a_comparison_that_is_cut_short_has_the_runs_that_are_done() -> None:
    asked: list[int] = []

    def cut(algorithm: str, seed: int, evaluations: int | None) -> Plan:
        asked.append(seed)
        return planned(1.0 + seed)

    found = outcomes(("a", "b"), range(3), cut, stop=lambda: len(asked) > 3)
    assert [(outcome.algorithm, outcome.seed) for outcome in found] == [("a", 0), ("a", 1), ("a", 2)]
    assert outcomes(("a",), range(3), cut, stop=lambda: True) == []


def test_a_row_for_each_algorithm_and_seed() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(outcomes(("a", "none"), range(2), run)))))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["algorithm"], row["seed"]) for row in rows] == [("a", "0"), ("a", "1"), ("none", "0"), ("none", "1")]
    assert (rows[1]["total"], rows[1]["cost"], rows[1]["failure"]) == ("2.0", "paper", "")
    assert rows[1]["evaluations_per_second"] == "20.0"
    assert (rows[1]["compute"], rows[2]["total"], rows[2]["failure"]) == ("", "", "no placement was found")
    assert Outcome("none", 0, None).total == math.inf


def test_the_command_compares_by_the_papers_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    view(6).save(Path("view.json"))
    app(["compare", "view.json", *SIZES, "--seeds", "2", "--budget", "0.05", "--csv", "-"], standalone_mode=False)
    said = capfd.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    names = ("evolutionary", "greedy", "in-order", "random", "exhaustive")
    assert [(row["algorithm"], int(row["seed"])) for row in rows] == [(name, seed) for name in names for seed in (0, 1)]
    totals = {row["algorithm"]: float(row["total"]) for row in rows}
    assert totals["exhaustive"] == pytest.approx(min(totals.values()))
    assert totals["evolutionary"] == pytest.approx(totals["exhaustive"])
    for row in rows:
        assert float(row["total"]) == pytest.approx(float(row["data_parallel"]) + float(row["pipeline"]))
    assert "evolutionary" in said.err


def test_ctrl_c_shows_and_writes_the_runs_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    view(6).save(Path("view.json"))

    def interrupted(algorithms: Iterable[str], seeds: Sequence[int], run: Run, *rest: Any) -> list[Outcome]:
        def third_is_cut(algorithm: str, seed: int, evaluations: int | None) -> Plan:
            if (algorithm, seed) == ("evolutionary", 2):
                os.kill(os.getpid(), signal.SIGINT)
            return run(algorithm, seed, evaluations)

        return outcomes(algorithms, seeds, third_is_cut, *rest)

    monkeypatch.setattr(command, "outcomes", interrupted)
    with pytest.raises(SystemExit) as ended:
        app(
            ["compare", "view.json", *SIZES, "--seeds", "4", "--budget", "0.05", "--csv", "rows.csv"],
            standalone_mode=False,
        )
    assert ended.value.code == 130
    rows = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    assert [(row["algorithm"], row["seed"]) for row in rows] == [("evolutionary", "0"), ("evolutionary", "1")]
    said = capfd.readouterr()
    assert "evolutionary" in said.out
    assert "cut short: 2 of 20 runs are done" in said.err


def test_the_command_shows_a_placement_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    view(5, unreachable=True).save(Path("view.json"))
    app(
        ["compare", "view.json", *SIZES, "--seeds", "3", "--budget", "0.05", "--csv", "rows.csv"], standalone_mode=False
    )
    assert "0 Gbit/s" in capfd.readouterr().out
    rows = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    assert any(row["failure"] and not row["total"] for row in rows)
    assert all(row["total"] for row in rows if row["algorithm"] == "evolutionary")


def test_a_view_alone_is_compared_by_the_papers_own_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    view(4).save(Path("view.json"))
    app(["compare", "view.json", "--seeds", "1", "--budget", "0.01"], standalone_mode=False)
    said = capfd.readouterr()
    assert "GPT-3 XL: 2 stages, 471249223 bytes of activations, 2600000000 of gradients" in said.err
    assert "in-order" in said.out


def test_the_command_compares_by_the_simulated_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.coordinator.lettered_swarm import JOB

    monkeypatch.chdir(tmp_path)
    view(3).save(Path("view.json"))
    Path("job.toml").write_text(JOB)
    arguments = ["view.json", "--job", "job.toml", "--seeds", "1", "--budget", "0.05", "--csv", "rows.csv"]
    app(["compare", *arguments], standalone_mode=False)
    said = capfd.readouterr().out
    assert "exhaustive" in said
    assert "stages x peers" in said
    rows = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    assert {row["cost"] for row in rows} == {"makespan"}
    assert all(float(row["compute"]) > 0 for row in rows)
    names = ("compute_share", "communication_share", "waiting_share")
    for row in rows:
        assert sum(float(row[name]) for name in names) == pytest.approx(1)
        assert int(row["layout"].split(" x ")[0]) >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["view.json", "--job", "job.toml", *SIZES], "--stages goes with the paper's cost"),
        (["nowhere.json", *SIZES], "cannot read the view"),
        (["view.json", *SIZES, "--seeds", "1", "--budget", "0.01", "--csv", "no/rows.csv"], "cannot write no/rows.csv"),
        (["view.json", "--stages", "9", *SIZES[2:]], "9 stages need at least 9 nodes"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    view(4).save(Path("view.json"))
    with pytest.raises(SystemExit) as ended:
        app(["compare", *arguments], standalone_mode=False)
    assert ended.value.code == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert said in lines[0]
