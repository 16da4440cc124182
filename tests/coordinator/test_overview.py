"""The overview says in plain words how a run is, who does what and what has happened; status and page show the same."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.records.step_history import StepHistory
from dtfm_coordinator.swarm.overview.health import health
from dtfm_coordinator.swarm.overview.loss_course import LossCourse
from dtfm_coordinator.swarm.overview.member_views import Around, Known, member_view
from dtfm_coordinator.swarm.overview.news import KEPT, NewsBoard, WarningListener, news
from dtfm_coordinator.swarm.overview.overview import Figures, Overview, Progress
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed, merge_patch
from dtfm_coordinator.swarm.overview.overview_maker import OverviewMaker
from dtfm_coordinator.swarm.overview.spoken_numbers import duration, many
from dtfm_coordinator.swarm.overview.step_pace import pace_in_words
from dtfm_protocol.control.messages import Phase, Report
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.plan import Resume
from tests.coordinator.peers import JOB, Peers, linked, plan_of, row
from tests.harness.manual_clock import ManualClock

HALFWAY = Progress(step=400, steps=1500, tokens=3200, step_seconds=0.5, seconds_left=550.0)
FIGURES = Figures(loss=2.5, predicted_seconds=0.45)


def phase_of(name: str, text: str = "waiting for 2 more nodes", *, paused: bool = False) -> Phase:
    return Phase.model_validate({"name": name, "text": text, "paused": paused})


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "0.2 s"), (45, "45 s"), (540, "9 min"), (3599, "1 h"), (12_000, "3 h 20 min"), (90_000, "1 day 1 h")],
)
def test_durations_are_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_counts_and_sizes_are_as_people_say_them() -> None:
    assert [many(950), many(12_345), many(4_560_000)] == ["950", "12.3 thousand", "4.56 million"]


@pytest.mark.parametrize(
    ("phase", "progress", "figures", "quiet", "level", "said"),
    [
        ("training", HALFWAY, FIGURES, 1.0, "good", "Training well: step 400 of 1,500, about 9 min left."),
        ("training", HALFWAY, FIGURES, None, "good", "Training well: step 400 of 1,500, about 9 min left."),
        ("training", HALFWAY, FIGURES, 120.0, "warn", "No step has ended for 2 min; one usually takes 0.5 s"),
        ("training", HALFWAY, Figures(loss=2.0, predicted_seconds=0.2), 1.0, "warn", "Training, but slowly"),
        ("training", Progress(steps=9), Figures(), None, "wait", "the first step is under way"),
        ("waiting", Progress(steps=9), Figures(), None, "wait", "Waiting for 2 more nodes"),
        ("failed", HALFWAY, FIGURES, 1.0, "bad", "The run has failed: waiting for 2 more nodes"),
        ("done", HALFWAY, FIGURES, 1.0, "done", "Done: waiting for 2 more nodes"),
        ("done", Progress(step=9, steps=9), FIGURES, 1.0, "done", "Done: all 9 steps are trained."),
    ],
)
def test_how_a_run_is_stands_in_one_sentence(
    phase: str, progress: Progress, figures: Figures, quiet: float | None, level: str, said: str
) -> None:
    found = health(phase_of(phase), progress, figures, quiet)
    assert found.level == level
    assert said in found.sentence


RISEN = LossCourse(lowest=3.6, at=390, lately=372.0, checkpoints=(400, 350))
BROKEN = RISEN._replace(has_diverged=True)


def test_a_loss_that_rises_is_said_with_the_checkpoint_from_before() -> None:
    found = health(phase_of("training"), HALFWAY, FIGURES, 1.0, RISEN)
    assert found.level == "warn"
    assert found.sentence == ("Training, but the loss rises: from 3.6 at step 390 to 372 (step 400 of 1,500).")
    assert "set training.learning_rate" in found.advice
    assert "that after step 350 is from before the loss rose" in found.advice
    assert health(phase_of("training"), HALFWAY, FIGURES, 1.0, RISEN._replace(lately=3.9)).level == "good"


@pytest.mark.parametrize(
    "phase",
    [
        phase_of("waiting", "keeping a checkpoint for the owner: plan 1 ends"),
        phase_of("waiting", "paused", paused=True),
    ],
)
def test_a_loss_that_is_not_finite_is_said_whatever_is_done_about_it(phase: Phase) -> None:
    found = health(phase, HALFWAY, FIGURES, 1.0, BROKEN)
    assert found.level == "warn"
    assert found.sentence.startswith("The loss is not finite after step 400. ")
    assert "dtfm-coordinator fork" in found.advice


def test_a_run_that_has_failed_by_its_loss_is_told_the_way_back() -> None:
    advice = health(phase_of("failed"), HALFWAY, FIGURES, 1.0, BROKEN).advice
    assert "dtfm-coordinator fork" in advice
    assert "that after step 350" in advice


def test_who_waits_for_their_own_wish_is_told_how_to_take_it_back_and_of_no_machines() -> None:
    advice = health(
        phase_of("waiting", "keeping a checkpoint for the owner: plan 1 ends"), HALFWAY, FIGURES, 9.0
    ).advice
    assert "dtfm-coordinator cancel" in advice
    assert "machines" not in advice


async def test_a_loss_that_rises_and_a_run_that_goes_back_are_news_once(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a", "b")
    peers.state.plan = plan_of("a", "b")
    await peers.announcer.say("training", "plan 1")
    maker = maker_of(peers)
    for step in range(1, 20):
        peers.rows.append(row(step).model_copy(update={"loss": 3.0 if step < 12 else 30.0}))
        maker.make()
    peers.state.plan = plan_of("a", "b").model_copy(update={"version": 2, "resume": Resume(mark=Mark(step=11, plan=1))})
    peers.rows.forget_after(11)
    told = [one.text for one in maker.make().news.values()]
    assert [text for text in told if "loss rises" in text or "went back" in text] == [
        "Training, but the loss rises: from 3 at step 8 to 16.5 (step 15 of 90).",
        "The run went back to the state after step 11, the newest that is left whole: 8 steps are run again.",
    ]


@pytest.mark.parametrize("phase", ["waiting", "failed"])
def test_who_has_to_do_something_is_told_what(phase: str) -> None:
    assert health(phase_of(phase), HALFWAY, FIGURES, None).advice


def test_a_run_that_its_owner_has_paused_is_not_said_to_wait_for_nodes() -> None:
    found = health(phase_of("waiting", "paused by the owner after step 9", paused=True), HALFWAY, FIGURES, 500.0)
    assert (found.level, found.sentence) == ("wait", "Paused by the owner after step 9.")
    assert "resume" in found.advice


def member(state: str = "training", *, listed: bool = True, online: bool = True, **values: Any) -> Member:
    peers = Peers(Path("/nowhere"))
    found = Member("b", 0, session="one", online=online)
    found.report = Report.model_validate({"session": "one", "state": state, "plan_version": 1} | values)
    if listed:
        from dtfm_protocol.discovery.records import Profile
        from dtfm_protocol.view.view import LayerSeconds

        found.profile = Profile(
            device="cpu", flops={}, layer_seconds=LayerSeconds(forward=1, backward=1), memory_bytes=1, addresses=(),
            version="1", session="one",
        )  # fmt: skip
    del peers
    return found


@pytest.mark.parametrize(
    ("found", "around", "role", "said"),
    [
        (member(), Around.of(plan_of("a", "b"), "b"), "trains", "computes layers 1-4 of 4, for 1 of 2 parts"),
        (member(), Around.of(plan_of("b"), "b"), "trains", "computes layers 1-4 of 4"),
        (member(), Around.of(plan_of("b"), "b", slow="b"), "trains", "much slower"),
        (member("starting"), Around.of(plan_of("b"), "b"), "starting", "takes up its part"),
        (member("stalled"), Around.of(plan_of("b"), "b"), "stalled", "waits for the next plan"),
        (member(), Around.of(plan_of("b"), ""), "silent", "has said nothing"),
        (member("paused", leaving=True, text="on battery"), Around.of(None, ""), "paused", "(on battery)"),
        (member("idle"), Around.of(None, "b"), "spare", "waits for the first plan"),
        (member("idle"), Around.of(plan_of("a").model_copy(update={"idle": ("b",)}), "b"), "spare", "ready as a spare"),
        (member("idle"), Around.of(plan_of("a"), "b"), "spare", "new: it is measured"),
        (member("idle"), Around.of(plan_of("a"), "b", doubted="b"), "spare", "others accuse it"),
        (member("idle"), Around.of(plan_of("a"), "b", unreached="b"), "spare", "no other machine reaches it"),
        (member("idle"), Around.of(plan_of("a"), "b", phase="done"), "spare", "the run is over"),
        (member("measuring", listed=False), Around.of(None, "b"), "measuring", "measures how fast"),
        (member("idle", listed=False), Around.of(None, "b"), "joining", "looked up"),
        (member("idle", leaving=True), Around.of(None, "b"), "leaving", "as soon as others have"),
        (member(online=False), Around.of(plan_of("b"), ""), "gone", "has left; its work so far counts"),
        (replace(member(), kicked="one"), Around.of(plan_of("b"), "b"), "gone", "was sent away by the owner"),
        (member(online=False), Around.of(plan_of("b"), "", phase="done"), "gone", "has left; its work counts"),
        (Member("b", 0, online=True), Around.of(None, "b"), "joining", "has just come"),
        (member(), Around.of(plan_of("b"), "b", version="0.1.0"), "spare", "is left out: it has dtfm 1 and this"),
    ],
)
def test_each_member_is_said_to_do_something_and_why_if_nothing(
    found: Member, around: Around, role: str, said: str
) -> None:
    view = member_view(found, around, Known())
    assert view.role == role
    assert said in view.does


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda values: st.dictionaries(st.sampled_from("abcd"), values, max_size=4),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def patched(target: Any, patch: Any) -> Any:
    """RFC 7386, as the page has it."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = patched(made.get(key), value)
    return made


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}


@given(OBJECT, OBJECT)
def test_a_patch_makes_the_later_overview_of_the_earlier_one(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert patched(without_nulls(before), merge_patch(before, after)) == without_nulls(after)
    assert merge_patch(after, after) == {}


def maker_of(peers: Peers, now: Callable[[], float] = lambda: 1000.0) -> OverviewMaker:
    context = peers.context
    return OverviewMaker(
        context.folder,
        "swarm",
        lambda: JOB,
        peers.state,
        lambda: peers.announcer.phase,
        lambda: {"a": "Ann"},
        clock=now,
    )


async def test_who_is_banned_is_shown_with_that_also_where_nothing_else_is_known_of_it(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a")
    maker = OverviewMaker(
        tmp_path, "swarm", lambda: JOB, peers.state, lambda: peers.announcer.phase, banned=lambda: {"a", "b"}
    )
    shown = maker.make().members
    assert {peer: (one.role, one.is_banned) for peer, one in shown.items()} == dict.fromkeys("ab", ("gone", True))
    assert "is banned by the owner" in shown["b"].does


async def test_what_happens_is_told_once_and_in_plain_words(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    maker = maker_of(peers)
    maker.make()
    await peers.join("a", "b")
    first = maker.make()
    assert [one.text for one in first.news.values()] == ["Ann (a) joined.", "b joined."]
    peers.state.plan = plan_of("a", "b").model_copy(update={"reason": "the best of 3"})
    await peers.announcer.say("training", "plan 1")
    await peers.goodbye("b")
    second = maker.make()
    assert [one.text for one in second.news.values()][2:] == [
        "b left.", "The work is divided: 2 machines compute, each of them the whole model.",
    ]  # fmt: skip
    assert maker.make().news == second.news


@pytest.mark.parametrize(
    ("phase", "paused", "is_missed"), [("training", False, True), ("waiting", True, False), ("done", False, False)]
)
async def test_nobody_is_missed_who_leaves_where_nothing_is_trained(
    tmp_path: Path, phase: str, paused: bool, is_missed: bool
) -> None:
    peers = Peers(tmp_path)
    maker = maker_of(peers)
    await peers.join("a", "b")
    peers.state.plan = plan_of("a", "b")
    await peers.announcer.say("training", "plan 1")
    maker.make()
    await peers.announcer.say(phase, "as it is", paused=paused)
    await peers.goodbye("b")
    (left,) = (one for one in maker.make().news.values() if one.text == "b left.")
    assert (left.level == "warn", "go on without it" in left.advice) == (is_missed, is_missed)


@pytest.mark.parametrize(
    ("planned", "is_over", "words"),
    [
        (17.0, False, "A step takes 0.1 s, far less than the 17 s that were planned: a machine was busy"),
        (17.0, True, "A step took 0.1 s"),
        (0.04, False, "far more than the 0.0 s"),
        (0.12, False, ""),
        (None, False, ""),
    ],
)
def test_a_step_that_takes_far_less_or_more_than_planned_is_said(
    planned: float | None, is_over: bool, words: str
) -> None:
    rows = [row(step).model_copy(update={"predicted_seconds": planned}) for step in range(1, 7)]
    said = pace_in_words(rows, is_over=is_over)
    assert said.startswith(words) if words.startswith("A step") else words in said
    assert bool(said) == bool(words)
    assert pace_in_words([rows[0].model_copy(update={"plan_version": 2}), *rows[:4]]) == "", "too few of this plan"


@pytest.mark.parametrize(
    ("phase", "paused", "is_stall"), [("training", False, True), ("waiting", True, False), ("done", False, False)]
)
async def test_the_time_that_a_run_stands_for_a_reason_is_no_silence(
    tmp_path: Path, phase: str, paused: bool, is_stall: bool
) -> None:
    clock = ManualClock()
    peers = Peers(tmp_path, clock=clock)
    maker = maker_of(peers)
    await peers.join("a")
    peers.state.plan = plan_of("a")
    await peers.announcer.say("training", "plan 1")
    maker.make()
    await peers.report("a", "training", plan_version=1, step=2, rows=(row(1), row(2)))
    maker.make()
    await peers.announcer.say(phase, "as it is", paused=paused)
    maker.make()
    clock.skip(3600.0)
    await peers.announcer.say("training", "plan 2")
    assert ("No step has ended" in maker.make().health.sentence) == is_stall
    clock.skip(90.0)
    assert "No step has ended" in maker.make().health.sentence, "it is one after it has gone on"


async def test_the_members_the_plan_and_the_figures_are_those_of_the_coordinator(tmp_path: Path) -> None:
    clock = ManualClock()
    peers = Peers(tmp_path, clock=clock)
    await peers.join("a", "b")
    linked(peers, "a", "b")
    peers.state.plan = plan_of("a", "b")
    await peers.announcer.say("training", "plan 1")
    maker = maker_of(peers)
    for step in (1, 2):
        await peers.report(
            "a", "training", plan_version=1, step=step, rows=(row(step),), sent_bytes=70, received_bytes=90
        )
    found = maker.make()
    assert (found.progress.step, found.progress.steps, found.progress.tokens) == (2, JOB.training.steps, 16)
    assert found.progress.seconds_left == pytest.approx((JOB.training.steps - 2) * 0.1)
    assert found.progress.ends_at == round(1000 + 8.8)
    assert found.plan is not None
    assert [one.micro_batches for one in found.plan.pipelines] == [1, 1]
    assert found.members["a"].name == "Ann"
    assert found.members["a"].layers == (1, 4)
    assert (found.members["a"].sent_bytes, found.members["a"].received_bytes) == (70, 90)
    assert found.health.level == "good"


def test_nothing_that_leads_to_a_member_or_lets_anybody_in_is_shown() -> None:
    names = json.dumps(Overview.model_json_schema())
    assert not any(word in names for word in ('address"', "addresses", 'token"', 'invite"', "secret"))


def test_the_logs_warnings_are_told_with_what_to_do() -> None:
    board = NewsBoard(lambda: 5.0)
    listener = WarningListener(board)
    for text in ("cannot write the history: no space left on device", "what is \x1b[2Jthis", "what is \x1b[2Jthis"):
        listener.handle(logging.LogRecord("dtfm", logging.WARNING, "", 0, text, (), None))
    told = list(board.items.values())
    assert len(told) == 2, "what is said again is told once"
    assert "Make room" in told[0].advice
    assert all(one.text.isprintable() for one in told)
    for number in range(500):
        board.say("good", str(number))
    assert len(board.items) == KEPT


def test_the_first_overview_is_no_news() -> None:
    peers = Peers(Path("/nowhere"))
    assert list(news(None, maker_of(peers).make())) == []


async def test_status_and_page_show_the_same_overview(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a")
    peers.state.plan = plan_of("a")
    await peers.announcer.say("training", "plan 1")
    file = StatusFile(peers.context, peers.state, peers.announcer, peers.rows)
    file.write()
    status = json.loads((tmp_path / "status.json").read_text())
    is_whole, data = file.feed.since(0)
    assert is_whole
    assert json.loads(data) == status["overview"]
    assert status["overview"]["progress"]["step"] == status["step"]


async def test_a_viewer_gets_patches_while_it_keeps_up_and_whole_overviews_when_it_does_not(tmp_path: Path) -> None:
    peers, now = Peers(tmp_path), [0.0]
    maker, feed = maker_of(peers), OverviewFeed(StepHistory(tmp_path / "none"), lambda: now[0])
    feed.viewers = 1

    def put() -> None:
        overview = maker.make()
        feed.put(overview, overview.model_dump(mode="json"))

    put()
    seen = json.loads(feed.since(0)[1])
    put()
    assert feed.number == 1, "nobody reads faster"
    now[0] += 1
    await peers.join("a")
    put()
    is_whole, data = feed.since(1)
    assert not is_whole
    assert without_nulls(patched(without_nulls(seen), json.loads(data))) == without_nulls(json.loads(feed.since(0)[1]))
    now[0] += 1
    put()
    assert feed.since(1)[0], "it has missed one"
