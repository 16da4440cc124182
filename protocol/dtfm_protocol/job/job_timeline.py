"""Timeline of a job: which values hold for which step, and which samples each step reads, where the job was amended
while it trained. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Self

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import MOST_AMENDMENTS, Amendment, Settings, Values, needed
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.job.job_limits import check_limits
from dtfm_protocol.job.resolved_job import ResolvedJob


@dataclass(frozen=True)
class Stretch:
    """A run of steps for which the same values hold."""

    first: int
    """Number of its first step."""
    settings: Settings
    samples: int
    """Number of samples that the steps before it have read."""


class JobTimeline:
    """A job with all its amendments: answers for each step what holds for it."""

    def __init__(self, job: ResolvedJob, amendments: Sequence[Amendment] = ()) -> None:
        """Work out what holds when. Of two amendments the one from a later step counts, then the one made later.

        Raises:
            UserError: an amendment does not fit the job, or is none of a list.
        """
        self.job, self.amendments = job, tuple(amendments)
        if len(self.amendments) > MOST_AMENDMENTS:
            raise UserError(f"{len(self.amendments)} amendments: a run has {MOST_AMENDMENTS} at most")
        if [one.number for one in self.amendments] != list(range(1, len(self.amendments) + 1)):
            raise UserError("amendments are to be numbered one by one from 1")
        found = [Stretch(1, Settings.of(job), 0)]
        order = sorted(self.amendments, key=lambda one: (one.from_step, one.number))
        for first, group in groupby(order, key=lambda one: one.from_step):
            before, settings = found[-1], found[-1].settings
            for amendment in group:
                settings = settings.amended(amendment.known)
            self._check(settings)
            samples = before.samples + (first - before.first) * before.settings.training.global_batch
            if first == before.first:
                found.pop()
            found.append(Stretch(first, settings, samples))
        self.stretches = tuple(found)
        """Runs of steps, the first from step 1 on; the last has no end but the job's."""
        self._firsts = [stretch.first for stretch in found]
        self.last_step = self._last_step()
        """Number of the job's last step."""

    def _check(self, settings: Settings) -> None:
        base = self.job.evaluation
        check_limits(settings.training, settings.evaluation, len(self.job.corpus.held_out))
        if settings.evaluation.every and not base.every:
            raise UserError(
                "evaluation.every: the job began without evaluation, and trains on all of its text: nothing is left to "
                "evaluate on; `dtfm-coordinator fork` begins a new job with the weights of this one"
            )
        if settings.evaluation.sequences > base.sequences and settings.evaluation.every:
            raise UserError(
                f"evaluation.sequences: {settings.evaluation.sequences} is more than the {base.sequences} that the job "
                "has held back since it began: the others were trained on"
            )

    def _last_step(self) -> int:
        for stretch, following in pairwise(self.stretches):
            steps = max(stretch.settings.training.steps, stretch.first - 1)
            if steps < following.first - 1:
                return steps
        newest = self.stretches[-1]
        return max(newest.settings.training.steps, newest.first - 1)

    def amended(self, values: Values, from_step: int, at: float) -> Self:
        """Return the timeline with one more amendment, the newest.

        Raises:
            UserError: it does not fit the job.
        """
        if len(self.amendments) >= MOST_AMENDMENTS:
            raise UserError(f"the job was changed {MOST_AMENDMENTS} times, and a run may change no more often")
        number = len(self.amendments) + 1
        one = Amendment(number=number, from_step=from_step, values=values, at=at, needs=needed(values))
        return type(self)(self.job, (*self.amendments, one))

    def settings_at(self, step: int) -> Settings:
        """Return the values that hold for `step`, from 1."""
        return self._stretch(step).settings

    def job_at(self, step: int) -> ResolvedJob:
        """Return the job with the values that hold for `step`, and the number of steps that it has in all."""
        settings = self.settings_at(step)
        training = settings.training.model_copy(update={"steps": self.last_step})
        return self.job.model_copy(update={**settings._asdict(), "training": training})

    def training_at(self, step: int) -> Training:
        """Return the mathematics of `step`, from 1."""
        return self.settings_at(step).training

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of `step`, from 1."""
        return self.settings_at(step).training.learning_rate_at(step)

    def samples_before(self, step: int) -> int:
        """Return the number of samples that all steps before `step` read: each step goes on where that one stopped."""
        stretch = self._stretch(step)
        return stretch.samples + (step - stretch.first) * stretch.settings.training.global_batch

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows `step`."""
        settings = self.settings_at(step)
        every = settings.evaluation.every
        return every > 0 and (step % every == 0 or step == settings.training.steps)

    def keeps(self, step: int) -> bool:
        """Whether the state after `step` is handed in for a checkpoint."""
        settings = self.settings_at(step)
        every = settings.checkpoint.every
        return step == settings.training.steps or bool(every and step % every == 0)

    def copies(self, step: int) -> bool:
        """Whether the state after `step` is copied, where one peer alone serves a stage."""
        return step % self.settings_at(step).checkpoint.shadow == 0

    def last_kept(self, step: int) -> int:
        """Return the newest step up to `step` whose state is handed in; 0: none."""
        if step >= self.last_step:
            return self.last_step
        for stretch in reversed(self.stretches[: bisect_right(self._firsts, step)]):
            steps, every = stretch.settings.training.steps, stretch.settings.checkpoint.every
            found = max(step - step % every if every else 0, steps if steps <= step else 0)
            if found >= stretch.first:
                return found
            step = stretch.first - 1
        return 0

    def plan_end(self, first: int) -> int:
        """Return the last step of a plan whose first is `first`: after it the job ends, or another layout is due."""
        mine = self.settings_at(first).of_a_plan
        later = (one.first for one in self.stretches if one.first > first and one.settings.of_a_plan != mine)
        return min(self.last_step, next(later, self.last_step + 1) - 1)

    def jump(self, step: int) -> tuple[float, float] | None:
        """Return the learning rates of the step before `step` and of `step`, if the rate rises between them by more
        than warm-up does; None if it does not."""
        if step < 2:
            return None
        before, after = self.learning_rate_at(step - 1), self.learning_rate_at(step)
        training = self.settings_at(step).training
        rise = training.learning_rate / training.warmup_steps if step <= training.warmup_steps else 0.0
        return (before, after) if after > before + 1.001 * rise else None

    def _stretch(self, step: int) -> Stretch:
        return self.stretches[max(0, bisect_right(self._firsts, step) - 1)]


class TimelineCache:
    """The timeline of one job under whatever amendments were asked for last."""

    def __init__(self, job: ResolvedJob) -> None:
        self._newest = JobTimeline(job)

    def under(self, amendments: tuple[Amendment, ...]) -> JobTimeline:
        """Return the job's timeline with these amendments.

        Raises:
            UserError: they do not fit the job.
        """
        if amendments != self._newest.amendments:
            self._newest = JobTimeline(self._newest.job, amendments)
        return self._newest
