"""The plan: what follows from its routes, what it refuses, and its signature."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.job_file import Wire
from dtfm_protocol.plan.lineage import Ancestor
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Cost, Plan, Resume, Source
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.signed_commit import SignedCommit

SWARM = "0123456789abcdef"
OWNER, STRANGER = Identity.generate(), Identity.generate()


codecs = st.sampled_from(["fp32", "fp16", "bf16", "int8"])
wires = st.builds(Wire, activations=codecs, gradients=codecs)
seconds = st.floats(0, 1e9)
names = st.text(max_size=5).filter(str.isprintable)
costs = st.builds(Cost, kind=st.just("paper"), total=seconds, data_parallel=seconds, pipeline=seconds)
marks = st.builds(Mark, step=st.integers(0, 1000), plan=st.integers(0, 1 << 31))
sources = st.builds(Source, peer=names, layers=st.just(((0, 1), (2, 4))))
commits = st.builds(
    SignedCommit, plan=st.integers(0, 9), step=st.integers(0, 9), text=names, signature=st.just("0f" * 64)
)
resumes = st.builds(Resume, mark=marks, commit=st.none() | commits, sources=st.lists(sources, max_size=2).map(tuple))


ancestors = st.builds(
    Ancestor, version=st.integers(1, 9), began=marks, stages=st.just(((0, 2),)), replicas=st.just((("a", "b"),))
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any layout: uneven layers, uneven numbers of replicas, uneven shares."""
    depth = draw(st.integers(1, 4))
    ends = sorted(draw(st.sets(st.integers(1, 12), min_size=depth, max_size=depth)))
    peers = [[f"p{stage}.{number}" for number in range(draw(st.integers(1, 3)))] for stage in range(depth)]
    routes = draw(st.lists(st.tuples(*map(st.sampled_from, peers)), min_size=1, max_size=8))
    return Plan(
        version=draw(st.integers(0, 1 << 31)),
        stages=tuple(zip([0, *ends[:-1]], ends, strict=True)),
        routes=tuple(routes),
        idle=tuple(draw(st.lists(names, max_size=2))),
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "zero-bubble"])),
        wire=Wire(activations=draw(codecs), gradients=draw(codecs)),
        boundaries=draw(st.just(()) | st.tuples(*[wires] * (depth - 1))),
        recompute=tuple(sorted(draw(st.sets(st.integers(0, depth - 1))))),
        resume=draw(resumes),
        lineage=tuple(draw(st.lists(ancestors, max_size=2))),
        shadows=draw(st.sampled_from([(), (None,) * (depth - 1) + ("z",)])),
        reason=draw(names),
        seconds=draw(st.none() | st.floats(0, 1e6)),
        cost=draw(st.none() | costs),
        history=tuple(draw(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=3))),
    )


GRID = Plan(version=3, stages=((0, 2), (2, 4)), routes=(("a", "x"), ("b", "y"), ("a", "x"), ("b", "y")))
UNEVEN = Plan(version=4, stages=((0, 1), (1, 4)), routes=(("a", "x"), ("a", "y"), ("a", "x"), ("a", "x")), idle=("z",))


def test_a_grid_is_a_plan_whose_routes_repeat_its_pipelines() -> None:
    assert GRID.pipelines == (("a", "x"), ("b", "y"))
    assert GRID.peers == ("a", "b", "x", "y")
    assert GRID.shares() == {"a": 2, "b": 2, "x": 2, "y": 2}
    assert GRID.micro_batches("y") == (1, 3)
    assert GRID.layers == 4


def test_three_peers_can_share_two_stages_unequally() -> None:
    assert UNEVEN.replicas(0) == ("a",)
    assert UNEVEN.replicas(1) == ("x", "y")
    assert UNEVEN.shares() == {"a": 4, "x": 3, "y": 1}
    assert UNEVEN.micro_batches("x") == (0, 2, 3)
    assert UNEVEN.pipelines == (("a", "x"), ("a", "y"))
    assert [UNEVEN.stage_of(peer) for peer in "axyz"] == [0, 1, 1, None]


@given(plan=plans())
@settings(max_examples=80, deadline=None)
def test_everything_follows_from_the_routes(plan: Plan) -> None:
    depth = len(plan.stages)
    assert sum(plan.shares().values()) == depth * len(plan.routes)
    assert sorted(plan.peers) == sorted({peer for route in plan.routes for peer in route})
    for stage in range(depth):
        members = plan.replicas(stage)
        assert len(set(members)) == len(members)
        assert sorted(index for peer in members for index in plan.micro_batches(peer)) == list(range(len(plan.routes)))
        assert all(plan.stage_of(peer) == stage for peer in members)
    for peer in plan.peers:
        assert plan.shares()[peer] == len(plan.micro_batches(peer))
    assert set(plan.pipelines) == set(plan.routes)
    assert len(plan.pipelines) == len(set(plan.pipelines))


@given(plan=plans())
@settings(max_examples=60, deadline=None)
def test_a_plan_survives_json_with_its_pipelines_and_its_signature(plan: Plan) -> None:
    signed = plan.signed(OWNER, SWARM)
    text = signed.model_dump_json()
    assert json.loads(text)["pipelines"] == [list(route) for route in plan.pipelines]
    for read in (Plan.model_validate_json(text), Plan.read(json.loads(json.dumps(json.loads(text))), "plan")):
        assert read == signed
        read.verify([OWNER.peer_id], SWARM)


def test_pipelines_in_a_file_are_not_believed_over_its_routes() -> None:
    values = json.loads(GRID.model_dump_json()) | {"pipelines": [["evil", "evil"]]}
    assert Plan.read(values, "plan").pipelines == GRID.pipelines


def test_a_signature_is_good_for_one_swarm_and_for_its_author() -> None:
    signed = GRID.signed(OWNER, SWARM)
    assert signed.author == OWNER.peer_id
    signed.verify([OWNER.peer_id], SWARM)
    signed.verify([STRANGER.peer_id, OWNER.peer_id], SWARM)
    for coordinators, swarm in (([OWNER.peer_id], "f" * 16), ([STRANGER.peer_id], SWARM), ([], SWARM), ([""], SWARM)):
        with pytest.raises(Refused):
            signed.verify(coordinators, swarm)


def test_a_plan_by_one_who_is_no_coordinator_is_refused_by_name_whoever_signed_it() -> None:
    said = f"a plan by {STRANGER.peer_id[-8:]}, who is no coordinator of this swarm"
    with pytest.raises(Refused, match=said):
        GRID.signed(STRANGER, SWARM).verify([OWNER.peer_id], SWARM)
    with pytest.raises(Refused, match="a plan by nobody"):
        GRID.verify([OWNER.peer_id], SWARM)


def test_a_coordinator_cannot_pass_off_its_plan_as_another_ones() -> None:
    both = [OWNER.peer_id, STRANGER.peer_id]
    forged = GRID.signed(STRANGER, SWARM).model_copy(update={"author": OWNER.peer_id})
    with pytest.raises(Refused, match="signature is not"):
        forged.verify(both, SWARM)


def test_whose_promises_decide_are_its_peers_and_its_author_each_once() -> None:
    assert GRID.electors == ("a", "b", "x", "y")
    assert UNEVEN.model_copy(update={"author": "c"}).electors == (*UNEVEN.peers, "c")
    assert UNEVEN.model_copy(update={"author": "x"}).electors == UNEVEN.peers
    assert set(UNEVEN.idle).isdisjoint(UNEVEN.electors), "spares that say nothing must not hold up a plan"


def test_who_keeps_copies_is_named_by_stage() -> None:
    assert [GRID.shadow_of(stage) for stage in (0, 1)] == [None, None]
    shadowed = UNEVEN.model_copy(update={"shadows": ("z", None)})
    assert [shadowed.shadow_of(stage) for stage in (0, 1)] == ["z", None]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 4},
        {"stages": [[0, 1], [1, 4]]},
        {"routes": [["a", "x"], ["b", "y"], ["a", "x"], ["a", "y"]]},
        {"idle": ["z"]},
        {"schedule": "gpipe"},
        {"wire": "fp16"},
        {"wire": {"gradients": "int8"}},
        {"boundaries": ["int8"]},
        {"recompute": [0]},
        {"resume": {"mark": {"step": 1, "plan": 0}}},
        {"resume": {"mark": {"step": 0, "plan": 1}}},
        {"resume": {"commit": {"plan": 1, "step": 1, "text": "{}", "signature": "00" * 64}}},
        {"lineage": [{"version": 1, "stages": [[0, 4]], "replicas": [["a"]]}]},
        {"resume": {"sources": [{"peer": "z", "layers": [[0, 4]]}]}},
        {"shadows": ["x", None]},
        {"cost": {"kind": "paper", "total": 1.0, "data_parallel": 1.0, "pipeline": 0.0}},
        {"seed": 1},
        {"evaluations": 1},
        {"seconds": 1.0},
        {"reason": "because"},
        {"history": [[0.0, 1.0]]},
        {"signature": None},
        {"signature": ""},
        {"signature": "no hex"},
        {"signature": "00" * 64},
        {"signature": "00" * 63},
    ],
)
def test_after_any_change_the_signature_fails(change: dict[str, Any]) -> None:
    values = json.loads(GRID.signed(OWNER, SWARM).model_dump_json()) | change
    with pytest.raises(Refused, match="signature is not"):
        Plan.read(values, "plan").verify([OWNER.peer_id], SWARM)


def test_a_shadow_is_named_for_each_stage_or_for_none() -> None:
    for shadows in (["z"], ["z", None, None]):
        assert "shadows" in complaint(shadows=shadows)


def complaint(**change: Any) -> str:
    with pytest.raises(UserError) as caught:
        Plan.read(json.loads(GRID.model_dump_json()) | change, "plan.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_peer_serves_one_stage() -> None:
    text = complaint(routes=[["a", "x"], ["x", "y"]])
    assert "routes" in text
    assert "peer x serves stages 1 and 0" in text
    assert "peer a serves stages 0 and 1" in complaint(routes=[["a", "a"]])


@pytest.mark.parametrize(
    "stages",
    [[[0, 2], [3, 4]], [[0, 2], [1, 4]], [[1, 2], [2, 4]], [[0, 2], [2, 2]], [[0, 3], [3, 2]]],
)
def test_layers_join_up_without_gap_or_overlap(stages: list[list[int]]) -> None:
    assert "do not follow layer" in complaint(stages=stages)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routes": []}, "routes: "),
        ({"stages": []}, "stages: "),
        ({"routes": [["a", "x"], ["b"]]}, "routes: every route names one peer a stage"),
        ({"routes": [["a"]]}, "1 peers a route for 2 stages"),
        ({"routes": [["a", "x", "m"]]}, "3 peers a route for 2 stages"),
        ({"routes": [[]]}, "0 peers a route for 2 stages"),
        ({"stages": [[-1, 2], [2, 4]]}, "stages.0.0: "),
        ({"version": -1}, "version: "),
        ({"resume": {"mark": {"step": -1}}}, "resume.mark.step: "),
        ({"resume": {"mark": {"plan": -1}}}, "resume.mark.plan: "),
        ({"resume": {"sources": [{"peer": "a", "layers": [[-1, 2]]}]}}, "resume.sources.0.layers.0.0: "),
        ({"resume_step": 1}, "resume_step: unknown key"),
        ({"schedule": "zb"}, "schedule: "),
        ({"schedule": "auto"}, "schedule: "),
        ({"wire": "int4"}, "wire.activations: "),
        ({"wire": {"gradients": "int4"}}, "wire.gradients: "),
        ({"wire": {"weights": "fp16"}}, "wire.weights: unknown key"),
        ({"boundaries": ["int8", "int8"]}, "boundaries: 2 wires, where 2 stages need 1"),
        ({"boundaries": ["int4"]}, "boundaries.0.activations: "),
        ({"boundaries": [{"weights": "int8"}]}, "boundaries.0.weights: unknown key"),
        ({"boundaries": "int8"}, "boundaries: "),
        ({"recompute": [2]}, "recompute: there is no stage 2 among 2"),
        ({"recompute": [-1]}, "recompute.0: "),
        ({"more": 1}, "more: unknown key"),
        ({"seconds": float("nan")}, "seconds: "),
    ],
)
def test_what_is_no_layout_is_named(change: dict[str, Any], said: str) -> None:
    assert said in complaint(**change)


def test_one_name_stands_for_the_whole_wire() -> None:
    values = json.loads(GRID.model_dump_json()) | {"wire": "int8"}
    wire = Plan.read(values, "plan.json").wire
    assert wire == Wire(activations="int8", gradients="int8")
    assert (str(wire), str(Wire(gradients="fp16"))) == ("int8", "fp32 activations, fp16 gradients")


def test_each_boundary_has_the_plans_wire_or_one_of_its_own() -> None:
    values = json.loads(GRID.model_dump_json()) | {
        "stages": [[0, 1], [1, 2], [2, 4]],
        "routes": [["a", "m", "x"]],
        "wire": "bf16",
    }
    plan = Plan.read(values, "plan.json")
    assert [plan.boundary_wire(boundary) for boundary in (0, 1)] == [plan.wire, plan.wire]
    coarse = Plan.read(values | {"boundaries": ["bf16", {"activations": "int8"}]}, "plan.json")
    assert [coarse.boundary_wire(boundary) for boundary in (0, 1)] == [plan.wire, Wire(activations="int8")]
    assert coarse.wires == (plan.wire, Wire(activations="int8"))
    assert not coarse.is_laid_out_as(plan)
    assert plan.is_laid_out_as(plan.model_copy(update={"boundaries": (plan.wire, plan.wire), "reason": "another"}))
    assert not plan.is_laid_out_as(plan.model_copy(update={"routes": (("b", "m", "x"),)}))
    trees = ReductionTrees(stages=((),) * len(plan.stages))
    assert not plan.is_placed_as(plan.model_copy(update={"trees": trees}))
    for orders in ({"schedule": "gpipe"}, {"recompute": (1,)}):
        assert plan.is_placed_as(plan.model_copy(update=orders))
        assert not plan.is_laid_out_as(plan.model_copy(update=orders))
    for boundary in (-1, 2):
        with pytest.raises(IndexError, match=f"no boundary {boundary} between 3 stages"):
            coarse.boundary_wire(boundary)
    assert "boundaries: 1 wires, where 1 stages need 0" in complaint(
        stages=[[0, 4]], routes=[["a"]], boundaries=["int8"]
    )


def test_renaming_fills_placeholders_and_leaves_other_names() -> None:
    renamed = UNEVEN.renamed({"a": "A", "z": "Z"})
    assert renamed.routes[1] == ("A", "y")
    assert renamed.idle == ("Z",)
    assert renamed.shares() == {"A": 4, "x": 3, "y": 1}
    assert UNEVEN.routes[1] == ("a", "y")


def test_a_plan_file_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(UNEVEN.model_dump_json(), encoding="utf-8")
    assert Plan.load(path) == UNEVEN
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="is not JSON"):
        Plan.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot read the plan"):
        Plan.load(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match="cannot read the plan"):
        Plan.load(tmp_path / "none.json")
