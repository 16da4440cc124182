"""`dtfm-coordinator plan` on saved views: what goes together, and what is refused in one line."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtfm_coordinator.main import app
from dtfm_coordinator.tools import offline_plan
from dtfm_coordinator.tools.offline_plan import PlanOptions, answer
from dtfm_coordinator.tools.view_notes import view_notes
from dtfm_lab.networks.catalogue import NETWORKS, network
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

JOB = """
name = "tiny"
[model]
architecture = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 4
num_attention_heads = 2
num_key_value_heads = 2
[data]
text = ["never read"]
[training]
steps = 10
global_batch = 8
micro_batch = 1
sequence_length = 16
learning_rate = 1e-3
"""


@pytest.fixture
def asked(tmp_path: Path) -> PlanOptions:
    """By the paper's cost, on four nodes of two clusters."""
    network("two-clusters", 4, 0).save(tmp_path / "view.json")
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    return PlanOptions(
        view=tmp_path / "view.json",
        job=None,
        cost=None,
        stages=2,
        activation_bytes=1e6,
        gradient_bytes=1e6,
        algorithm="evolutionary",
        seed=0,
        budget=None,
        evaluations=1000,
        in_force=None,
        horizon=None,
    )


def by_step(question: PlanOptions, **changes: object) -> PlanOptions:
    """The same with a job, by the simulated step."""
    return replace(
        question, job=question.view.with_name("job.toml"), activation_bytes=None, gradient_bytes=None, **changes
    )  # type: ignore[arg-type]


def refused(question: PlanOptions) -> str:
    with pytest.raises(UserError) as caught:
        answer(question)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["evolutionary", "random", "in-order", "greedy", "exhaustive"])
def test_every_algorithm_answers_by_either_cost(asked: PlanOptions, algorithm: str) -> None:
    plan, said = answer(replace(asked, algorithm=algorithm))
    assert plan.cost is not None
    assert plan.cost.kind == "paper"
    assert said.startswith(f"{plan.cost.total:.3f} s (data parallel ")
    plan, said = answer(by_step(asked, algorithm=algorithm))
    assert plan.cost is not None
    assert plan.cost.kind == "makespan"
    assert len(plan.stages) == 2
    assert "s a step predicted" in said


def test_the_same_seed_and_evaluations_write_the_same_plan_but_for_the_clock(asked: PlanOptions) -> None:
    for question in (asked, by_step(asked)):
        one, other = (answer(question)[0].model_copy(update={"seconds": 0.0, "history": ()}) for _ in range(2))
        assert one == other


def test_a_view_kept_as_npz_gives_the_same_plan(asked: PlanOptions) -> None:
    packed = asked.view.with_suffix(".npz")
    View.load(asked.view).save(packed)
    assert answer(asked)[0].routes == answer(replace(asked, view=packed))[0].routes


def test_the_plan_in_force_is_read_and_kept(asked: PlanOptions) -> None:
    plan, _ = answer(by_step(asked))
    path = asked.view.with_name("plan.json")
    path.write_text(plan.model_dump_json(), encoding="utf-8")
    again, said = answer(by_step(asked, in_force=path, horizon=1e-6, seed=1))
    assert again.stages == plan.stages
    assert said.startswith("the plan in force stays")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": 1.0}, "--budget and --evaluations exclude each other"),
        ({"stages": None}, "--stages is missing"),
        ({"gradient_bytes": None}, "--gradient-bytes is missing"),
        ({"horizon": 5.0}, "--horizon goes with the makespan cost"),
        ({"horizon": 0.0}, "--horizon 0: nothing pays back at once"),
        ({"activation_bytes": float("inf")}, "--activation-bytes inf: give a finite number"),
        ({"job": Path("job.toml"), "cost": "paper"}, "--job goes with the makespan cost"),
        ({"cost": "makespan"}, "--job is missing"),
        ({"stages": 5}, "5 stages need at least 5 nodes and the view has 4"),
        ({"view": Path("nowhere.json")}, "cannot read the view nowhere.json"),
    ],
)
def test_what_does_not_go_together_is_one_line(asked: PlanOptions, changes: dict[str, object], words: str) -> None:
    assert words in refused(replace(asked, **changes))  # type: ignore[arg-type]


def test_a_makespan_plan_refuses_sizes_and_unknown_speeds(asked: PlanOptions) -> None:
    assert "--activation-bytes goes with the paper's cost" in refused(replace(by_step(asked), activation_bytes=1.0))
    view = View.load(asked.view)
    bare = tuple(NodeView(id=node.id) for node in view.nodes)
    View(nodes=bare, latency_ms=view.latency_ms, bandwidth_gbps=view.bandwidth_gbps).save(asked.view)
    assert "no peer's speed is known" in refused(by_step(asked))


def test_figures_of_another_unit_and_pairs_that_a_limit_cuts_are_noted() -> None:
    gbps = np.array([[0, 1.0, 0.05], [0.3, 0, np.nan], [0.05, 0.05, 0]])
    view = View(
        nodes=(
            NodeView(id="a", flops=40, up_gbps=0.05),
            NodeView(id="b", flops=25e12, down_gbps=0.5),
            NodeView(id="c", flops={"fp32": 1e12, "bf16": 80}),
        ),
        latency_ms=np.ones((3, 3)),
        bandwidth_gbps=gbps,
    )
    assert view_notes(view) == [
        "note: flops of a is 40 (1 more node alike): it is in FLOP/s, so 25 TFLOP/s is 25e12",
        "note: a -> b has 1 Gbit/s and counts 0.05: up_gbps of a cuts it",
    ]
    free = tuple(node.model_copy(update={"flops": 1e12, "up_gbps": None}) for node in view.nodes)
    (line,) = view_notes(view.model_copy(update={"nodes": free}))
    assert line == "note: a -> b has 1 Gbit/s and counts 0.5: down_gbps of b cuts it"
    for name in NETWORKS:
        assert view_notes(network(name, 8)) == []


def test_a_network_in_pieces_is_named_by_either_cost(asked: PlanOptions) -> None:
    speed = LayerSeconds(forward=1.0, backward=2.0)
    nodes = tuple(NodeView(id=name, layer_seconds=speed) for name in "abcd")
    joined = np.kron(np.eye(2), np.ones((2, 2)))
    View(nodes=nodes, latency_ms=np.ones((4, 4)), bandwidth_gbps=joined).save(asked.view)
    assert "of 2, 2 nodes" in refused(asked)
    plan, _ = answer(by_step(asked))
    assert set(plan.peers) in ({"a", "b"}, {"c", "d"})
    View(nodes=nodes, latency_ms=np.ones((4, 4)), bandwidth_gbps=np.zeros((4, 4))).save(asked.view)
    assert "of 1, 1, 1, 1 nodes" in refused(asked)
    assert "cannot reach each other" in refused(by_step(asked))


def test_a_model_that_fits_nowhere_is_named(asked: PlanOptions) -> None:
    values = json.loads(asked.view.read_text(encoding="utf-8"))
    for node in values["nodes"]:
        node["memory_bytes"] = 1000
    asked.view.write_text(json.dumps(values), encoding="utf-8")
    assert "fits in their memory" in refused(by_step(asked))


def test_a_plan_in_force_that_is_none_is_refused(asked: PlanOptions) -> None:
    path = asked.view.with_name("plan.json")
    path.write_text("{}", encoding="utf-8")
    assert str(path) in refused(by_step(asked, in_force=path))


@pytest.mark.parametrize("algorithm", ["evolutionary", "exhaustive"])
def test_a_search_that_is_cut_short_gives_the_best_plan_so_far_and_says_so(asked: PlanOptions, algorithm: str) -> None:
    endless = replace(asked, evaluations=None, budget=1e9, algorithm=algorithm)
    for question in (endless, by_step(endless)):
        found, said = answer(question, lambda: True)
        assert found.cost is not None
        assert found.evaluations is not None
        assert found.evaluations < 1000
        assert "the search was cut short" in found.reason
        assert found.reason in said or question.job is None


def test_ctrl_c_saves_the_best_plan_so_far(
    asked: PlanOptions, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(question: PlanOptions, stop: Callable[[], bool]) -> tuple[Plan, str]:
        os.kill(os.getpid(), signal.SIGINT)
        return answer(question, stop)

    monkeypatch.setattr(offline_plan, "answer", interrupted)
    out = asked.view.with_name("plan.json")
    job = str(asked.view.with_name("job.toml"))
    with pytest.raises(SystemExit) as ended:
        app(["plan", str(asked.view), "--job", job, "--budget", "1e9", "--out", str(out)], standalone_mode=False)
    assert ended.value.code == 130
    assert "cut short" in Plan.load(out).reason
    assert "cut short" in capfd.readouterr().err
