"""Formats may change from one minor version to the next by the rule in `dtfm_protocol.schema`, and no further."""

import json
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.control.messages import JOB, PHASE, PLAN, REPORT, Phase, Report
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.envelope import Post, read_body
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.amendment import Amendment, needed
from dtfm_protocol.job.job_file import Planning, Training, Wire
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.schema import NEEDED, Fallback, Message, Schema, needs_of
from tests.protocol import wire_formats
from tests.protocol.test_job_timeline import job as job_of
from tests.protocol.wire_formats import Format, differences, formats

OWNER = Identity.generate()
SWARM = "0123456789abcdef"


class LaterTraining(Training):
    """The training table of a later version."""

    noise: Annotated[float, NEEDED] = 0.0
    """It changes what is computed."""


class LaterPlanning(Planning):
    """The plan table of a later version."""

    patience: float = 1.0
    """It does not."""


class LaterJob(ResolvedJob):
    """The job of a later version."""

    training: LaterTraining
    plan: LaterPlanning


class LaterPlan(Plan):
    """The plan of a later version."""

    colour: str = Field(default="", exclude_if=not_)
    ratio: float = Field(default=0.0, exclude_if=not_)
    nested: dict[str, Any] = Field(default={}, exclude_if=not_)
    twist: Annotated[int, NEEDED] = Field(default=0, exclude_if=not_)


def later_job(*, noise: float = 0.0) -> LaterJob:
    values = job_of().model_dump()
    values["training"]["noise"], values["plan"]["patience"] = noise, 7.0
    made = LaterJob.model_validate(values)
    return made.model_copy(update={"needs": needs_of(made)})


def sent(kind: str, body: Schema, schema: type[Schema]) -> Any:
    """What comes of `body` for a reader that knows `schema`."""
    here, there = Post(SWARM, OWNER), Post(SWARM, Identity.generate())
    return read_body(there.open(here.seal(kind, body), kind), schema)


def test_keys_of_a_later_job_that_change_nothing_computed_are_dropped() -> None:
    assert sent(JOB.name, later_job(), ResolvedJob) == job_of()


def test_a_later_job_that_computes_something_else_is_refused_by_the_name_of_its_key() -> None:
    assert needs_of(later_job(noise=0.5)) == ("training.noise",)
    with pytest.raises(Refused, match=r"it needs training\.noise, which this version of dtfm does not know"):
        sent(JOB.name, later_job(noise=0.5), ResolvedJob)
    assert sent(JOB.name, later_job(noise=0.5), LaterJob) == later_job(noise=0.5)


@pytest.mark.parametrize("key", ["training.nothing.at_all", "steps", "", "x" * 500])
def test_a_job_cannot_need_what_no_version_knows(key: str) -> None:
    with pytest.raises(ValidationError, match="it needs"):
        ResolvedJob.model_validate(job_of().model_dump() | {"needs": [key]})


def test_a_misspelt_key_of_a_job_file_is_an_error_as_ever() -> None:
    with pytest.raises(UserError, match="did you mean horizon"):
        Planning.read({"horizn": 3}, "job.toml")


def test_a_later_plans_signature_holds_for_who_does_not_know_all_its_fields_and_hands_it_on() -> None:
    plan = LaterPlan(
        version=3,
        stages=((0, 2),),
        routes=(("a",),),
        colour="red",
        ratio=2,
        nested={"b": [1.5, None], "a": {"z": 1e22}},
    ).signed(OWNER, SWARM)
    heard = sent(PLAN.name, plan, Plan)
    heard.verify([OWNER.peer_id], SWARM)
    handed_on = sent(REPORT.name, Report(session="s", state="idle", taken=heard), Report).taken
    handed_on.verify([OWNER.peer_id], SWARM)
    assert sent(PLAN.name, handed_on, LaterPlan) == plan
    with pytest.raises(Refused):
        handed_on.model_copy(update={"colour": "blue"}).verify([OWNER.peer_id], SWARM)


def test_an_older_plans_signature_holds_for_who_knows_more_fields() -> None:
    plan = Plan(version=3, stages=((0, 2),), routes=(("a",),)).signed(OWNER, SWARM)
    heard = sent(PLAN.name, plan, LaterPlan)
    heard.verify([OWNER.peer_id], SWARM)
    sent(PLAN.name, heard, Plan).verify([OWNER.peer_id], SWARM)


def test_a_later_plan_that_must_be_understood_is_refused_by_the_name_of_its_field() -> None:
    plan = LaterPlan(version=3, stages=((0, 2),), routes=(("a",),), twist=1).signed(OWNER, SWARM)
    with pytest.raises(Refused, match="it needs twist"):
        sent(PLAN.name, plan, Plan)


def test_boundaries_of_another_wire_must_be_known_and_are_left_out_where_there_are_none() -> None:
    """Who decodes all by one wire would compute something else."""
    plain = Plan(version=3, stages=((0, 1), (1, 2)), routes=(("a", "b"),))
    coarse = plain.model_copy(update={"boundaries": (Wire(activations="int8", gradients="int8"),)})
    assert "boundaries" not in plain.signed(OWNER, SWARM).model_dump()
    assert coarse.signed(OWNER, SWARM).needs == ("boundaries",)
    heard = sent(PLAN.name, coarse.signed(OWNER, SWARM), Plan)
    heard.verify([OWNER.peer_id], SWARM)
    assert heard.boundaries == coarse.boundaries
    assert "boundaries" not in wire_formats.kept()["Plan"]["fields"], "it is known everywhere: remove this line"
    assert "slow_wire" not in Planning().model_dump()


def test_a_plan_that_somebody_has_written_may_not_have_unknown_keys(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"stages": [[0, 2]], "routes": [["a"]], "shedule": "gpipe"}))
    with pytest.raises(UserError, match="shedule: unknown key; did you mean schedule"):
        Plan.load(path)


def test_amendments_of_later_keys_are_left_out_where_they_change_nothing_computed() -> None:
    later = Amendment(number=1, from_step=2, values={"plan.patience": 3.0, "training.clip_norm": 0.5})
    assert JobTimeline(job_of(), (later,)).training_at(2).clip_norm == 0.5
    with pytest.raises(ValidationError, match=r"it needs training\.noise"):
        Amendment(number=1, from_step=2, values={"training.noise": 1.0}, needs=("training.noise",))
    with pytest.raises(UserError, match="sequence_length"):
        JobTimeline(job_of(), (Amendment(number=1, from_step=2, values={"training.sequence_length": 8}),))
    assert needed(("training.steps", "plan.stages")) == ()


def test_values_that_a_later_version_has_are_read_as_what_is_harmless() -> None:
    assert Report.model_validate({"session": "s", "state": "resting"}).state == "paused"
    assert sent(PHASE.name, Phase(name="planning", text="x"), Phase).name == "planning"
    assert Phase.model_validate({"name": "dreaming" * 1000, "text": "x"}).name == "waiting"
    with pytest.raises(ValidationError):
        Report.model_validate({"session": "s", "state": ["idle"]})
    values = {"device": "d", "layer_seconds": {"forward": 1, "backward": 1}, "memory_bytes": 1, "addresses": ()}
    later = values | {"version": "9", "flops": {"fp32": 1e9, "fp4": 1e12}, "shape": "round"}
    assert Profile.model_validate(later).flops == {"fp32": 1e9}


def test_formats_differ_from_those_of_the_minor_version_before_only_as_a_minor_version_may() -> None:
    """Where this fails, the change breaks swarms of two versions: see the rule in `dtfm_protocol.schema`."""
    assert differences(wire_formats.kept(), formats()) == []


class Before(Message):
    """A message of the version before."""

    a: int
    kind: Annotated[Literal["x"], Fallback("x")] = "x"
    size: int = 0


class Wider(Message):
    """What a minor version may make of it."""

    a: int
    kind: Annotated[Literal["x", "y"], Fallback("x")] = "x"
    size: int = 0
    more: int = 0


class Narrower(Message):
    """What it may not: a field has gone, a bound has come, a new field must be there."""

    a: Annotated[int, Field(le=3)]
    kind: Literal["x", "y"] = "x"
    more: int


class CarelessPlan(Plan):
    """A plan whose older author's signature would not hold any more."""

    colour: str = ""


def test_what_a_minor_version_may_not_change_is_found() -> None:
    before: dict[str, Format] = {"M": wire_formats.format_of(Before)}
    assert differences(before, {"M": wire_formats.format_of(Wider)}) == []
    found = differences(before, {"M": wire_formats.format_of(Narrower)})
    assert [line.split(": ")[0] for line in found] == ["M.a", "M.kind", "M.more", "M.size"]
    assert differences(before, {}) == ["M: is gone"]
    entry = {"TensorEntry": wire_formats.format_of(TensorEntry)}
    form = entry["TensorEntry"]["fields"]["dtype"]["form"]
    fewer, other = form.replace(', "U8"', ""), form.replace('"U8"', '"U9"')
    for kept, differs in ((fewer, False), (form, False), (other, True)):
        entry["TensorEntry"]["fields"]["dtype"]["form"] = kept
        assert bool(differences(entry, {"TensorEntry": wire_formats.format_of(TensorEntry)})) == differs
    grown = {"Plan": wire_formats.format_of(Plan)}, {"Plan": wire_formats.format_of(CarelessPlan)}
    assert differences(*grown) == ["Plan.colour: is new, and not left out where it has its default"]
