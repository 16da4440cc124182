"""Runs in virtual time on machines that come and go: what is done, lost and waited for; traces; the command."""

import csv
from collections.abc import Collection
from pathlib import Path

import pytest

from dtfm_coordinator.main import app
from dtfm_coordinator.tools.lifetimes.lived_run import Keeping, Lived, live
from dtfm_coordinator.tools.lifetimes.machine_trace import MachineEvent, MachineTrace, read_trace
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.coordinator.lettered_swarm import JOB, swarm

STEP, STANDSTILL, SEARCH, MOVING = 10.0, 2.0, 1.0, 4.0
FIRST = TIMEOUTS.settle + SEARCH + STANDSTILL
"""Seconds until the first plan begins: nothing moves."""
NOTICED = TIMEOUTS.silence_shortest + TIMEOUTS.settle_in_run
ROOT = Path(__file__).parents[2]


class TwoStages:
    """Plans of two stages, whose replicas are as many as can be, up to `most`; others are idle."""

    standstill = STANDSTILL

    def __init__(self, most: int = 9) -> None:
        self._most = most

    def search_seconds(self, machines: int) -> float:
        return SEARCH

    def plan(self, here: Collection[str], in_force: Plan | None) -> Plan:
        replicas = min(self._most, len(here) // 2)
        if not replicas:
            raise UserError("two machines are needed")
        if in_force is not None and set(in_force.peers) <= set(here) and len(in_force.routes) == replicas:
            return in_force
        peers = sorted(here)
        routes = tuple((peers[2 * number], peers[2 * number + 1]) for number in range(replicas))
        used = {peer for route in routes for peer in route}
        cost = Cost(kind="makespan", total=STEP, data_parallel=0.0, pipeline=0.0, compute=STEP)
        idle = tuple(peer for peer in peers if peer not in used)
        return Plan(stages=((0, 1), (1, 2)), routes=routes, idle=idle, cost=cost)

    def moving_seconds(self, here: Collection[str], before: Plan | None, after: Plan) -> float:
        return 0.0 if before is None else MOVING


def lived(first: str, end: float, *events: tuple[float, str, bool], plans: TwoStages | None = None) -> Lived:
    trace = MachineTrace(frozenset(first), tuple(MachineEvent(*event) for event in events))
    found = live(trace, end, plans or TwoStages(), Keeping(every=5, shadow=2), layers=2)
    assert found.trained + found.lost + found.changing + found.waiting == pytest.approx(end)
    assert sum(span.end - span.begin for span in found.spans) == pytest.approx(end)
    there = sum((span.end - span.begin) * len(span.here) for span in found.spans)
    assert found.working + found.idle + found.standing == pytest.approx(there)
    return found


def test_where_nobody_comes_or_goes_steps_follow_each_other() -> None:
    found = lived("abc", 100.0)
    assert (found.steps, found.thrown_away, found.broken) == (9, 0, 0)
    assert found.changing == pytest.approx(FIRST)
    assert found.working == pytest.approx(2 * (100 - FIRST))
    assert found.idle == pytest.approx(100 - FIRST)


def test_who_has_a_replica_takes_the_step_under_way_along_and_nothing_else() -> None:
    gone = FIRST + 3 * STEP + 4.0
    found = lived("abcd", 100.0, (gone, "d", False))
    assert (found.thrown_away, found.broken) == (0, 1)
    assert found.lost == pytest.approx(4.0)
    began = found.plans[1]
    assert began.at == pytest.approx(gone + NOTICED + SEARCH + STANDSTILL + MOVING)
    assert (began.took, began.why, began.here) == (pytest.approx(began.at - gone), "d has gone", 3)
    assert found.steps == 3 + int((100 - began.at) / STEP)


def test_who_has_no_replica_takes_what_no_disk_has() -> None:
    gone = FIRST + 3 * STEP + 1.0
    kept = lived("abc", 200.0, (gone, "b", False))  # the idle one has copies of every second step
    assert (kept.thrown_away, kept.plans[1].thrown_away) == (1, 1)
    assert kept.lost == pytest.approx(1.0 + STEP)
    late = FIRST + 6 * STEP + 1.0
    both = lived("abc", 300.0, (late, "b", False), (late, "c", False), (late + 1, "d", True))
    assert both.thrown_away == 1  # the shadows are gone, too, and the coordinator has the checkpoint of step 5
    early = lived("abc", 300.0, (gone, "b", False), (gone, "c", False), (gone + 1, "d", True))
    assert (early.thrown_away, early.plans[1].thrown_away) == (3, 3)
    assert early.plans[1].took == pytest.approx(1 + TIMEOUTS.settle_in_run + SEARCH + STANDSTILL)  # nothing moves


def test_too_few_machines_wait_for_others() -> None:
    found = lived("ab", 300.0, (50.0, "b", False), (150.0, "c", True), (160.0, "b", True))
    assert found.waiting == pytest.approx(100.0)
    assert found.plans[1].plan.peers == ("a", "c")
    assert lived("a", 20.0).waiting == pytest.approx(20.0)


def test_who_comes_is_used_at_the_end_of_a_step() -> None:
    came = FIRST + 1.0
    found = lived("ab", 100.0, (came, "c", True), (came, "d", True))
    assert (found.broken, found.lost) == (0, 0.0)
    began = found.plans[1]
    assert began.at == pytest.approx(FIRST + STEP + STANDSTILL + MOVING)
    assert (len(began.plan.peers), began.took) == (4, pytest.approx(STANDSTILL + MOVING))
    one_more = lived("ab", 100.0, (came, "c", True))  # no plan is better with it
    assert len(one_more.plans) == 1
    assert one_more.idle == pytest.approx(100 - came)


def test_who_goes_during_a_change_has_it_made_anew() -> None:
    gone = FIRST + STEP + 1.0
    found = lived("abcdef", 100.0, (gone, "f", False), (gone + NOTICED + 1, "e", False))
    assert found.broken == 2
    assert len(found.plans) == 2
    assert found.plans[1].took == pytest.approx(2 * NOTICED + 1 + SEARCH + STANDSTILL + MOVING)


def test_both_forms_of_a_trace_say_the_same() -> None:
    events = "time,machine,event\n5,b,down\n0,c,up\n3,a,up\n7,b,up\n9,b,down\n"
    spans = "machine,up,down\na,3,\nb,0,5\nb,7,9\nc,0,\n"
    found = read_trace(events, "abcd", "t.csv")
    assert found == read_trace(spans, "abcd", "t.csv")
    assert found.at_first == {"b", "c", "d"}
    assert found.events[0] == MachineEvent(3.0, "a", True)
    assert found.end == 9.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line must be time,machine,event or machine,up,down"),
        ("time,machine,event\n1,a\n", "line 2: 2 entries, not 3"),
        ("time,machine,event\n1,a,gone\n", "line 2: event is up or down"),
        ("time,machine,event\n-1,a,up\n", "line 2: '-1' is no time"),
        ("time,machine,event\n\n1,x,up\n", "line 3: the view has no machine 'x'"),
        ("time,machine,event\n1,a,up\n2,a,up\n", "line 3: a comes twice in a row"),
        ("machine,up,down\na,5,2\n", "line 2: a goes at 2 s, and comes only at 5 s"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"t\.csv") as refused:
        read_trace(text, "ab", "t.csv")
    assert said in str(refused.value)


def test_the_command_says_draws_and_writes_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swarm("abc", gbps=1.0).save(Path("view.json"))
    Path("job.toml").write_text(JOB)
    Path("trace.csv").write_text("time,machine,event\n20,a,down\n40,a,up\n60,b,down\n")
    said = []
    for _ in range(2):
        app(
            [
                "lifetimes", "view.json", "trace.csv", "--job", "job.toml", "--hours", "0.02", "--evaluations", "50",
                "--figure", "run.svg", "--csv", "plans.csv",
            ],
            standalone_mode=False,
        )  # fmt: skip
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
    assert "tokens in" in said[0]
    assert "a has gone" in said[0]
    rows = list(csv.DictReader(Path("plans.csv").read_text().splitlines()))
    assert rows[0]["why"] == "start"
    assert float(rows[1]["begun_s"]) > 20
    assert "<svg" in Path("run.svg").read_text()


def test_a_trace_in_which_nothing_happens_needs_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swarm("ab").save(Path("view.json"))
    Path("job.toml").write_text(JOB)
    Path("trace.csv").write_text("time,machine,event\n")
    with pytest.raises(SystemExit):
        app(["lifetimes", "view.json", "trace.csv", "--job", "job.toml"], standalone_mode=False)
    assert "say how long with --hours" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        app(["lifetimes", "view.json", "trace.csv", "--job", "job.toml", "--hours", "inf"], standalone_mode=False)
    assert "--hours inf: give a number above 0" in capfd.readouterr().err


def test_the_example_is_a_trace_of_the_network_that_its_page_makes_up() -> None:
    view = network("spot", 16)
    trace = read_trace((ROOT / "examples" / "spot.csv").read_text(), view.ids, "spot.csv")
    assert len(trace.events) > 20
    assert trace.end > 3600
