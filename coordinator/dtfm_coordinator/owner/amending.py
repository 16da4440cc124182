"""How the owner's wishes to change a job become amendments of it: from which step each holds, or why not. Pure."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dtfm_coordinator.owner.owner_wishes import Amended
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import KEYS, Amendment, Settings, Values, as_written, check_key, spoken
from dtfm_protocol.job.job_timeline import JobTimeline

Check = Callable[[Settings], None]
"""Raises a UserError where no step can have such settings."""


STEEP_TIMES = 10.0
"""A learning rate that becomes so many times as high at once is asked about: mostly a digit was mistyped, and what it
does to the weights cannot be undone."""


class RefusedWish(NamedTuple):
    """A wish that cannot be fulfilled, and why, in one line."""

    wish: Amended
    why: str


def place(
    timeline: JobTimeline, wishes: Iterable[Amended], resumed: int, recorded: int, check: Check
) -> tuple[JobTimeline, tuple[RefusedWish, ...]]:
    """Return the job with those of `wishes` that can be fulfilled, and the others.

    Each holds from the first step that nobody can have made without it. Steps that are made anew after a fault are made
    as they were; only what changes no weights, as how the plan is laid out, holds for these, too.

    Args:
        timeline: the job as the newest plan has it; wishes that are among its amendments are passed over.
        resumed: step of the state with which the next plan begins.
        recorded: newest step that was final.
        check: whether a job with such settings can be trained.
    """
    refused = []
    for wish in wishes:
        if placed_as(timeline, wish) is not None:
            continue
        try:
            timeline = _placed(timeline, wish, resumed, recorded, check)
        except UserError as error:
            refused.append(RefusedWish(wish, str(error)))
    return timeline, tuple(refused)


def placed_as(timeline: JobTimeline, wish: Amended) -> Amendment | None:
    """Return the amendment that a wish has become; None: it has not."""
    return next((one for one in timeline.amendments if one.at == wish.at and one.values == wish.values), None)


def _placed(timeline: JobTimeline, wish: Amended, resumed: int, recorded: int, check: Check) -> JobTimeline:
    done = max(resumed, recorded) if changes_weights(wish.values) else resumed
    first = max(done + 1, wish.from_step or 0)
    for key in wish.values:
        check_key(key)
    if first > timeline.last_step + 1:
        raise UserError(f"the job ends with step {timeline.last_step}: there is no step {first}; raise training.steps")
    steps = wish.values.get("training.steps")
    if isinstance(steps, int | float) and steps < first - 1:
        raise UserError(f"training.steps: step {first - 1} is done already or comes before: give that or more")
    before, result = timeline.settings_at(first), timeline.amended(wish.values, first, wish.at)
    if before == result.settings_at(first):
        raise UserError(f"nothing to change: {spoken(wish.values)} holds already")
    for stretch in result.stretches:
        if stretch.first >= first:
            check(stretch.settings)
    return result


def changes_weights(values: Iterable[str]) -> bool:
    """Whether any of these keys changes what steps come to, and not only how the work is laid out, or what is kept."""
    coded = ("plan.wire", "plan.slow_wire")
    return any(not key.startswith(("plan.", "checkpoint.")) or key.startswith(coded) for key in values)


def changed_values(before: Settings, after: Settings) -> Values:
    """Return the values in which the job file `after` differs from `before`, by key."""
    found = {key: after.get(key) for key in KEYS if before.get(key) != after.get(key)}
    if "training.schedule_end" in found:
        found["training.schedule_end"] = after.training.last_decay
    return found


def described(timeline: JobTimeline, amended: JobTimeline, *, is_sure: bool = True) -> list[str]:
    """Return in one line each what the newest amendments change: key, old and new value, and the step.

    Args:
        timeline: the job before them.
        is_sure: whether the steps are known, and not only the earliest that they can be.
    """
    about = "" if is_sure else " or a little later"
    lines = []
    for one in amended.amendments[len(timeline.amendments) :]:
        before = timeline.settings_at(one.from_step)
        for key, value in one.values.items():
            old = before.training.last_decay if key == "training.schedule_end" else before.get(key)
            if old != value:
                new = as_written(value)
                lines.append(f"{key} {as_written(old)} -> {new} from step {one.from_step}{about}")
        if rates := amended.jump(one.from_step):
            lines.append(
                f"the learning rate jumps up from {rates[0]:.3g} at step {one.from_step - 1} to {rates[1]:.3g} at step "
                f"{one.from_step}: a lower training.learning_rate, or another training.schedule_end, smooths that"
            )
    return lines


def steep_rise(timeline: JobTimeline, amended: JobTimeline) -> str:
    """Return in two sentences that the newest amendments make the learning rate `STEEP_TIMES` as high or more, and what
    that may do; "": they do not.

    Args:
        timeline: the job before them.
    """
    for one in amended.amendments[len(timeline.amendments) :]:
        step = one.from_step
        before, after = timeline.learning_rate_at(step), amended.learning_rate_at(step)
        if after > 0.999 * STEEP_TIMES * before:
            return (
                f"The learning rate jumps to {after / before:,.0f} times what it is: {after:.3g} instead of "
                f"{before:.3g} from step {step} on. That can spoil the model for good."
            )
    return ""
