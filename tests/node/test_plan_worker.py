"""Work under a plan begins only where the plan is within what this node offers."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_node.control.plain_words import WorkShare
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.step_arbiter import Disputed
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.runner.plan_worker import PlanWorker, _why
from dtfm_protocol.model.stage_demand import stage_demand
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.plan import Plan
from tests.harness.named_peers import signer_of, vote_on
from tests.node.test_job_survey import job

PLAN = Plan(version=7, stages=((0, 3), (3, 4)), routes=(("a", "x"),) * 4)
HOSTILE = job({"vocab_size": 10**9})
"""The last stage of it takes 600 GB."""


class Machine:
    """Compute that notes what it was asked for."""

    compiled, tracer, action_seconds = False, None, None

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.asked.append(getattr(function, "func", function))
        return function(*arguments)


class Reports:
    """What is reported, one field after the other."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def say(self, state: str, text: str, **values: Any) -> None:
        self.said.append((state, text, values))

    def forget(self, **_: Any) -> None:
        pass

    def given(self, share: WorkShare) -> None:
        pass


async def redo(*_: Any) -> None:
    pass


@pytest.mark.parametrize("peer", ["x", "spare"])
async def test_a_plan_beyond_the_offer_is_reported_and_nothing_of_it_is_built(peer: str) -> None:
    machine, reports = Machine(), Reports()
    uplink, plane = SimpleNamespace(release=lambda: None), SimpleNamespace(peer_id=peer)
    holdings, keeping = SimpleNamespace(redo=redo), SimpleNamespace(serve=lambda plan: None)
    worker = PlanWorker(
        HOSTILE, machine, plane, None, holdings, keeping, reports, uplink, lambda: None, 1e9, signer_of(peer)  # type: ignore[arg-type]
    )  # fmt: skip
    worker.begin(PLAN)
    await asyncio.wait_for(asyncio.gather(*worker.tasks), 30)
    assert worker.has_ended()
    assert TrainingStage not in machine.asked
    ((state, text, values),) = reports.said
    assert values == {"plan_version": 7, "lost": (), "refused": "", "evidence": ()}
    if peer == "spare":
        assert state == "idle"
    else:
        needed = stage_demand(HOSTILE.config, HOSTILE.training, PLAN, "x")
        assert state == "stalled"
        assert text.startswith(f"plan 7 asks for {needed / 1e9:.3g} GB of memory and this node offers 1 GB")


@pytest.mark.parametrize("refused", [False, True])
async def test_a_report_tells_a_peer_that_was_refused_from_one_that_vanished(refused: bool) -> None:
    reports = Reports()
    uplink, plane = SimpleNamespace(release=lambda: None), SimpleNamespace(peer_id="a")
    worker = PlanWorker(
        HOSTILE, Machine(), plane, None, None, None, reports, uplink, lambda: None, 1e9, signer_of("a")  # type: ignore[arg-type]
    )  # fmt: skip
    lost = PeerLost("x", "it is", refused=refused)
    worker._stall(PLAN, *_why(BaseExceptionGroup("", [ExceptionGroup("", [lost])])))  # type: ignore[arg-type]
    ((state, text, values),) = reports.said
    assert (state, text) == ("stalled", "x is gone: it is")
    assert values == {"plan_version": 7, "lost": ("x",), "refused": "x" if refused else "", "evidence": ()}


async def test_an_arbiter_that_ends_a_plan_reports_the_votes_for_which_it_does() -> None:
    reports = Reports()
    uplink, plane = SimpleNamespace(release=lambda: None), SimpleNamespace(peer_id="a")
    worker = PlanWorker(
        HOSTILE, Machine(), plane, None, None, None, reports, uplink, lambda: None, 1e9, signer_of("a")  # type: ignore[arg-type]
    )  # fmt: skip
    votes = tuple(vote_on(peer, Mark(step=1, plan=7), (0, 1), digest * 64) for peer, digest in ("x1", "y2"))
    dispute = Disputed("state", ("x", "y"), votes)
    worker._stall(PLAN, *_why(BaseExceptionGroup("", [ExceptionGroup("", [dispute])])))  # type: ignore[arg-type]
    ((state, text, values),) = reports.said
    assert (state, text) == ("stalled", "x, y differ in the state that the same steps have led to")
    assert values == {"plan_version": 7, "lost": (), "refused": "", "evidence": votes}
