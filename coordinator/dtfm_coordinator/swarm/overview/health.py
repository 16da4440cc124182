"""Health of a run in one plain sentence: is it going well, how far, when done; and what to do if not. Pure."""

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


def health(phase: Phase, progress: Progress, figures: Figures, quiet: float | None) -> Health:
    """Return how a run is.

    Args:
        phase: what the coordinator does.
        progress: how far the run is.
        figures: of its newest step.
        quiet: seconds since the newest step was recorded; None: this coordinator has seen none.
    """
    text = phase.text
    if phase.paused:
        return Health(
            level="wait",
            sentence=phase_in_words(phase),
            advice="It goes on with `dtfm-coordinator resume`, or Resume on the page.",
        )
    match phase.name:
        case "failed":
            return Health(
                level="bad",
                sentence=phase_in_words(phase),
                advice="Mend the cause, then start `dtfm-coordinator serve` again on the same state folder: the newest "
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
            return Health(level="wait", sentence=phase_in_words(phase), advice=_waiting(progress))
        case "probing" | "planning":
            return Health(level="wait", sentence=phase_in_words(phase))
        case "training":
            return _training(progress, figures, quiet)
    return Health(level="wait", sentence=phase_in_words(phase))


def _waiting(progress: Progress) -> str:
    if progress.step:
        return f"The run stands at step {progress.step:,} and goes on as soon as enough machines are there."
    return "Hand the invite to those who should join: `dtfm-coordinator invite` makes one for each."


def _training(progress: Progress, figures: Figures, quiet: float | None) -> Health:
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
