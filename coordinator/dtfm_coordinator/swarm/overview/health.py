"""Health of a run in one plain sentence: is it going well, how far, when done; and what to do if not. Pure."""

import re

from dtfm_coordinator.swarm.overview.loss_course import UNKNOWN, LossCourse
from dtfm_coordinator.swarm.overview.overview import Figures, Health, Progress
from dtfm_coordinator.swarm.overview.owner_words import phase_in_words
from dtfm_coordinator.swarm.overview.spoken_numbers import counted, duration
from dtfm_protocol.control.messages import Phase

STALLED_SECONDS = 60.0
"""Silence since the last step that is worth a word at least, however fast steps usually are: a change of plan takes
some of it."""
STALLED_STEPS = 10.0
"""Silence that is worth a word, in usual steps."""
SLOWER = 2.0
"""How many times longer than the plan said steps may take before that is worth a word."""


FOR_OWNER = re.compile(r"(keeping a checkpoint|pausing|ending the run) for the owner")
"""What a coordinator says that brings a run to a stand, as its owner wishes."""


def health(
    phase: Phase, progress: Progress, figures: Figures, quiet: float | None, course: LossCourse = UNKNOWN
) -> Health:
    """Return how a run is.

    Args:
        phase: what the coordinator does.
        progress: how far the run is.
        figures: of its newest step.
        quiet: seconds since the newest step was recorded; None: this coordinator has seen none.
        course: way of the loss so far.
    """
    found = _health(phase, progress, figures, quiet, course)
    if course.has_diverged and phase.name not in {"failed", "done"}:
        said = f"The loss is not finite after step {progress.step:,}. {found.sentence}"
        return Health(level="warn", sentence=said, advice=f"{course.advice} {found.advice}".strip())
    return found


def _health(phase: Phase, progress: Progress, figures: Figures, quiet: float | None, course: LossCourse) -> Health:
    text = phase.text
    if phase.paused:
        return Health(
            level="wait",
            sentence=phase_in_words(phase),
            advice="It goes on with `dtfm-coordinator resume`, or Resume on the page.",
        )
    match phase.name:
        case "failed":
            mend = course.advice if course.has_diverged else "Mend the cause."
            return Health(
                level="bad",
                sentence=phase_in_words(phase),
                advice=f"{mend} `dtfm-coordinator serve` on the same state folder goes on with this run: the newest "
                "checkpoint is kept.",
            )
        case "done":
            return Health(
                level="done",
                sentence=f"Done: all {counted(progress.steps, 'step')} are trained."
                if progress.step >= progress.steps
                else f"Done: {text}",
                advice="`dtfm-coordinator export` writes the model as a folder that transformers loads.",
            )
        case "waiting":
            return Health(level="wait", sentence=phase_in_words(phase), advice=_waiting(phase, progress))
        case "probing" | "planning":
            return Health(level="wait", sentence=phase_in_words(phase))
        case "training":
            return _training(progress, figures, quiet, course)
    return Health(level="wait", sentence=phase_in_words(phase))


def _waiting(phase: Phase, progress: Progress) -> str:
    if FOR_OWNER.match(phase.text):
        return "`dtfm-coordinator cancel` takes back what you have asked for."
    if progress.step and not phase.text.startswith("waiting for "):
        return ""  # it says itself for what
    if progress.step:
        return f"The run stands at step {progress.step:,} and goes on as soon as enough machines are there."
    return "Hand the invite to those who should join: `dtfm-coordinator invite` makes one for each."


def _training(progress: Progress, figures: Figures, quiet: float | None, course: LossCourse) -> Health:
    step, usual = progress.step, progress.step_seconds
    if usual is None or figures.loss is None:
        return Health(level="wait", sentence="Starting: the first step is under way.")
    far = f"step {step:,} of {progress.steps:,}"
    if step >= progress.steps:
        return Health(level="good", sentence=f"All {progress.steps:,} steps are trained; the last checkpoint comes in.")
    if quiet is not None and quiet > max(STALLED_SECONDS, STALLED_STEPS * usual):
        return Health(
            level="warn",
            sentence=f"No step has ended for {duration(quiet)}; one usually takes {duration(usual)} ({far}).",
            advice="Look below for members that are silent or slow. The swarm plans without them by itself; `kick` "
            "sends one away at once.",
        )
    if course.rises:
        said = f"Training, but the loss rises: {course.risen_in_words} ({far})."
        return Health(level="warn", sentence=said, advice=course.advice)
    predicted = figures.predicted_seconds
    left = f", about {duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    if predicted and usual > SLOWER * predicted:
        return Health(
            level="warn",
            sentence=f"Training, but slowly: {far}{left}. A step takes {duration(usual)} where the plan said "
            f"{duration(predicted)}.",
            advice="A machine or a link has become slower, or is busy with something else. The swarm measures it and "
            "plans anew where that helps.",
        )
    return Health(level="good", sentence=f"Training well: {far}{left}.")
