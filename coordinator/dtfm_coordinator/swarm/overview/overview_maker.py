"""Maker of overviews, of what the coordinator knows."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.records import event_log
from dtfm_coordinator.records.member_records import Contribution, MemberRecords
from dtfm_coordinator.records.step_history import StepHistory
from dtfm_coordinator.swarm.overview.health import health
from dtfm_coordinator.swarm.overview.loss_course import LossCourse
from dtfm_coordinator.swarm.overview.member_views import Around, Known, member_view
from dtfm_coordinator.swarm.overview.news import NewsBoard, WarningListener, news, told_plan
from dtfm_coordinator.swarm.overview.overview import Figures, MemberView, NewsItem, Overview, PlanView, Progress
from dtfm_coordinator.swarm.overview.owner_words import with_names
from dtfm_coordinator.swarm.overview.plan_map import plan_map
from dtfm_coordinator.swarm.overview.step_pace import pace_in_words
from dtfm_coordinator.swarm.overview.storage_watch import StorageWatch
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.control.messages import Phase
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version

MOST_GONE = 100
"""Members that have left of which is told."""
EARLIER_TOLD = 20
"""Plans of an earlier life of the coordinator that are told, and as many acts of its owner."""

Acts = Callable[[], Sequence[NewsItem]]
"""Returns what the owner has done since it was asked last, or ever, oldest first."""


def recall(board: NewsBoard, folder: Path, acts: Acts) -> None:
    """Put the plans of an earlier life of the coordinator on a board, and what its owner has done."""
    found = list(acts()[-EARLIER_TOLD:])
    try:
        found += [told_plan(event) for event in event_log.read(folder)[-EARLIER_TOLD:]]
    except (UserError, ValueError) as error:
        log.warning("What has happened so far cannot be shown: %s", error)
    for item in sorted(found, key=lambda one: one.at):
        board.put(item)


class OverviewMaker:
    """Maker of overviews of one run."""

    def __init__(
        self,
        folder: Path,
        swarm: str,
        job: Callable[[], ResolvedJob],
        state: SwarmState,
        phase: Callable[[], Phase],
        names: Callable[[], Mapping[str, str]] = dict,
        banned: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.time,
        *,
        board: NewsBoard | None = None,
        acts: Acts = tuple,
    ) -> None:
        """Read what an earlier life of the coordinator has written.

        Args:
            folder: the state folder.
            swarm: the swarm's id.
            job: returns the job as it is now.
            state: the swarm as the coordinator knows it.
            phase: returns what the coordinator does now.
            names: returns whom the invites were for with which members have entered, by peer id.
            banned: returns the peer ids of the members that are banned.
            clock: gives Unix seconds.
            board: holds what has happened so far; None: what the folder tells of that.
            acts: returns what the owner has done, as far as the board does not have it.
        """
        self._swarm, self._job, self._state, self._phase = swarm, job, state, phase
        self._names, self._banned, self._clock, self._acts = names, banned, clock, acts
        self.history = StepHistory(folder / "metrics.jsonl")
        """Steps so far, as the last overview had them."""
        self._records, self._storage = MemberRecords(folder), StorageWatch(folder, state.clock.now)
        self._board = NewsBoard(clock) if board is None else board
        self._before: Overview | None = None
        self._step, self._stepped = -1, 0.0
        self._stands = False
        """Whether the run stood, for a reason of its own, at the last overview."""
        self._map: tuple[Plan | None, int, PlanView | None] = (None, 0, None)
        """Plan in force and changes of links when the plan's map was drawn last, and the map."""
        if board is None:
            recall(self._board, folder, acts)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Have the log's warnings told in overviews, within the block."""
        listener = WarningListener(self._board)
        log.addHandler(listener)
        try:
            yield
        finally:
            log.removeHandler(listener)

    def make(self) -> Overview:
        """Return the overview of now."""
        self.history.take_up()
        phase, progress, figures = self._phase(), self._progress(), self._figures()
        names = self._state.members.names()
        phase = phase.model_copy(update={"text": with_names(phase.text, names)})
        diverged, storage = bool(self._state.divergence.verdict), self._storage.look(self._state.kept.step)
        course = LossCourse.of(self.history, storage, has_diverged=diverged)
        overview = Overview(
            at=self._clock(),
            swarm=self._swarm,
            version=product_version(),
            job=self._job().name,
            phase=phase.name,
            text=phase.text,
            is_paused=phase.paused,
            has_diverged=diverged,
            loss_rises=course.rises,
            health=health(phase, progress, figures, self._quiet(progress.step, phase), course),
            progress=progress,
            figures=figures,
            plan=self._plan_map(),
            members=self._members(phase.name),
            news={},
            storage=storage,
        )
        for item in self._acts():
            self._board.put(item)
        for level, text, advice in news(self._before, overview):
            self._board.say(level, text, advice)
        self._before = overview
        told = {
            number: item.model_copy(update={"text": with_names(item.text, names)})
            for number, item in self._board.items.items()
        }
        return overview.model_copy(update={"news": told})

    def _quiet(self, step: int, phase: Phase) -> float | None:
        """Return the seconds since the newest step came, or since the run has gone on: as long as it stands for a
        reason, none is due. None: no step has come since this coordinator began."""
        now, stood = self._state.clock.now(), self._stands
        self._stands = phase.paused or phase.name in {"waiting", "done", "failed"}
        if step != self._step:
            self._stepped = now if self._step >= 0 else 0.0
            self._step = step
        elif self._stepped and (stood or self._stands):
            self._stepped = now
        return now - self._stepped if self._stepped else None

    def _progress(self) -> Progress:
        history, steps = self.history, self._job().training.steps
        step, usual = history.last.step if history.last else 0, history.step_seconds
        left = max(0, steps - step) * usual if usual is not None else None
        trains = self._phase().name == "training" and left is not None
        return Progress(
            step=step,
            steps=steps,
            tokens=history.tokens,
            step_seconds=usual,
            seconds_left=left,
            ends_at=round(self._clock() + (left or 0.0)) if trains else None,
        )

    def _figures(self) -> Figures:
        history, last = self.history, self.history.last
        if last is None:
            return Figures()
        evaluated = history.evaluated
        return Figures(
            loss=history.loss,
            eval_loss=evaluated.eval_loss if evaluated else None,
            eval_step=evaluated.step if evaluated else None,
            sets=evaluated.sets if evaluated else (),
            learning_rate=last.learning_rate,
            grad_norm=last.grad_norm,
            tokens_per_second=history.tokens_per_second,
            seconds=last.seconds,
            predicted_seconds=last.predicted_seconds,
            pace=pace_in_words(history.recent, is_over=self._phase().name in {"done", "failed"}),
            sent_bytes=last.bytes_sent,
        )

    def _plan_map(self) -> PlanView | None:
        plan, links = self._state.plan, self._state.links
        if self._map[:2] != (plan, links.changes):
            self._map = plan, links.changes, plan_map(plan, links.figures) if plan is not None else None
        return self._map[2]

    def _members(self, phase: str) -> dict[str, MemberView]:
        state, plan = self._state, self._state.plan
        heard = {member.peer for member in state.members.heard()}
        ready = state.members.ready()
        unreached = {member.peer for member in ready} - {member.peer for member in state.links.reachable(ready)}
        around = Around.of(plan, heard, state.pace.slow(), state.doubted, unreached, phase, product_version())
        contributions = self._records.contributions(self.history.work)
        whole = sum(one.layer_tokens for one in contributions.values())
        names, banned = self._names(), self._banned()
        shown = self._shown({*contributions, *banned})
        ago = self._clock() - state.clock.now()
        nobody = Contribution()
        found = {}
        for member in shown:
            mine = contributions.get(member.peer, nobody)
            known = Known(
                name=", ".join(dict.fromkeys(filter(None, (names.get(member.peer, ""), member.name)))),
                contribution=mine,
                share=mine.layer_tokens / whole if whole else 0.0,
                limits=state.links.limits.of(member.peer),
                line_spread=state.links.limits.spread(member.peer),
                seen_at=round(member.heard + ago, 1) if member.heard else 0.0,
                now=self._clock(),
                is_banned=member.peer in banned,
            )
            found[member.peer] = member_view(member, around, known)
        return found

    def _shown(self, known: Collection[str]) -> list[Member]:
        """Return the members of which is told: who is here, and the last of those who have left, also those of whom it
        is only known that they have contributed or are banned."""
        members = self._state.members
        here, gone = members.online(), [one for one in members.known() if not one.is_here]
        unseen = [Member(peer, 0) for peer in sorted(known) if members.get(peer) is None]
        gone.sort(key=lambda one: -one.heard)
        return [*here, *(gone + unseen)[:MOST_GONE]]
