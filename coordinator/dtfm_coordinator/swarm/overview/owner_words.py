"""Plain words for the owner: what a coordinator does, and what that means for the run. Pure.

The log, `status` and the page say the same. The planner's own words and figures are for `serve --verbose`.
"""

import re
from collections.abc import Mapping

from dtfm_coordinator.swarm.overview.spoken_numbers import counted, duration
from dtfm_protocol.bounds import printable
from dtfm_protocol.control.messages import Phase
from dtfm_protocol.plan.plan import Plan

_COUNTS = re.compile(
    r"waiting for \d+ more nodes \((?P<ready>\d+) of (?P<needed>\d+) are ready(?P<others>[^)]*)\)(?P<more>.*)"
)
_OTHERS = (
    (r"(\d+) paused", "paused by their people"),
    (r"(\d+) not heard of for .*", "silent: asleep, busy, or without a network"),
    (r"(\d+) measuring", "measuring how fast they are"),
    (r"(\d+) connected, but .*", "not found by the others yet"),
)
"""What else nodes do while a coordinator waits for more of them, in its words and in plain ones."""
_FIGURES = re.compile(r"^(?P<why>.*?):? ?\d+ stages? x .*$")
"""A reason, and the figures of a layout after it."""
_LACKING = re.compile(r"the job's \[plan\] needs (\d+) nodes and (\d+) are here")
"""What a planner adds where the job wants more nodes than there are."""
_ROUND = re.compile(r".*: round (\d+) of (\d+)$")
_STANDS = (
    (r"plan \d+ begins, and ends with its first step", "one more step is trained first"),
    (r"plan \d+ ends with the step under way", "the step under way is finished first"),
    (r"plan \d+ ends$", "nothing is under way"),
    (r"\d+ of the \d+ that decide on what follows plan \d+ have answered, and the others may be training",
     "machines that may still be training do not answer"),
)  # fmt: skip
"""What is said of plans while a run is brought to a stand, and what that means."""
_REASONS = (
    (r"^the first plan$", ""),
    (r"\bcame$", "joined"),
    (r"\bmay have links that nobody knows", "may be reached better than was known"),
    (r"^(\S+ -> \S+.*) may have changed", r"the connection \1 may have become faster or slower"),
    (r"^links that nobody knew", "connections that were measured meanwhile"),
    (r"^links have changed, and have stayed as they are since", "connections have changed for good"),
    (r"\bstalled \(", "cannot go on ("),
    (r"^the coordinator is back, and the plan's peers are not all training", "not all machines were found training"),
    (r"^the coordinator is back, and was about to plan anew", "that was under way when this coordinator ended"),
)
"""Reasons of changes, and what they are to who does not know plans."""


def phase_in_words(phase: Phase, plan: Plan | None = None) -> str:
    """Return what a coordinator does, in a sentence or two.

    Args:
        phase: its phase, with what it says of that.
        plan: the plan in force; None: there is none.
    """
    text = phase.text
    match phase.name:
        case "waiting":
            return _waiting(text)
        case "probing":
            count = f" ({at[1]} of {at[2]})" if (at := _ROUND.match(text)) else ""
            what = "what each machine can send" if "in all" in text else "the connections between the machines"
            return f"Measuring {what}{count}."
        case "planning":
            return _planning(text)
        case "training":
            if text.startswith("back: "):
                return "This coordinator is back, and looks whether all machines still train."
            return working(plan)
        case "failed":
            return sentence(f"The run has failed: {text}")
        case "done":
            return f"{sentence(f'Done: {text}')} `dtfm-coordinator export` makes it one that other programs load."
    return sentence(text)


def working(plan: Plan | None) -> str:
    """Return who trains under a plan, and how fast that should be."""
    if plan is None:
        return "Training."
    spare = f"; {counted(len(plan.idle), 'more stands', 'more stand')} by" if plan.idle else ""
    pace = f". A step should take about {_pace(plan.cost.total)}" if plan.cost is not None else ""
    return f"Training: {division(len(plan.peers), len(plan.stages))}{spare}{pace}."


def plan_in_words(plan: Plan) -> str:
    """Return what an owner wants to know of a plan beside its map: how fast a step should be, and what it lacks."""
    said = [f"A step should take about {_pace(plan.cost.total)}."] if plan.cost is not None else []
    if lacking := _LACKING.search(plan.reason):
        said.append(f"The job's [plan] asks for {lacking[1]} machines, and {lacking[2]} could be used.")
    return " ".join(said)


def division(machines: int, parts: int) -> str:
    """Return how the work is divided among so many machines, with the model in so many parts."""
    if machines == 1:
        return "1 machine computes the whole model"
    how = "each of them the whole model" if parts == 1 else f"the model cut into {parts} parts"
    return f"{counted(machines, 'machine')} compute, {how}"


def begun_in_words(plan: Plan, step: int) -> str:
    """Return what a plan that begins means, which goes on from the state after `step`."""
    return f"the run goes on from step {step + 1:,}: {division(len(plan.peers), len(plan.stages))}"


def again_in_words(steps: int, step: int) -> str:
    """Return that `steps` steps are run again, from the state after `step`, in a sentence."""
    state = f"the state after step {step:,}" if step else "the beginning"
    again = "1 step is" if steps == 1 else f"{steps:,} steps are"
    return f"The run went back to {state}, the newest that is left whole: {again} run again."


def _pace(seconds: float) -> str:
    return duration(seconds) if seconds >= 0.095 else f"{seconds:.1g} s"


def reason_in_words(why: str) -> str:
    """Return why the work is divided anew, in words for people; "": it is divided for the first time."""
    found = _FIGURES.match(why)
    said = found["why"] if found else why
    parts = []
    for one in said.split("; "):
        for pattern, words in _REASONS:
            one = re.sub(pattern, words, one)
        parts.append(one)
    return "; ".join(filter(None, parts))


def is_aside(phase: Phase) -> bool:
    """Whether a phase is not worth a line of the log once there is a plan: something is measured or compared while
    machines train, or after the line that says why, or it is as it was before that."""
    if phase.name == "training":
        return bool(re.match(r"plan \d+: ", phase.text))
    return phase.name == "probing" or (phase.name == "planning" and phase.text.startswith("planning for "))


def phase_in_brief(phase: Phase, plan: Plan | None = None) -> str:
    """Return what a coordinator does as `phase_in_words`, without what changes by the second: it is for the log, of
    which lines that follow each other are one where they say the same."""
    if phase.name == "waiting" and (counts := _COUNTS.match(phase.text)) is not None:
        phase = phase.model_copy(
            update={"text": phase.text.replace(counts["others"], "", 1) if counts["others"] else phase.text}
        )
    return re.sub(r" \(\d+ of \d+\)\.$", ".", phase_in_words(phase, plan))


def sentence(text: str) -> str:
    """Return `text` as a sentence, with a capital and a full stop; "" of nothing."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text[-1:] in '.!?' else '.'}" if text else ""


def _waiting(text: str) -> str:
    counts = _COUNTS.match(text)
    if counts is None:
        for pattern, words in _STANDS:
            text = re.sub(pattern, words, text)
        return sentence(text.removeprefix("waiting: "))
    needed, ready = int(counts["needed"]), int(counts["ready"])
    said = f"Waiting until {counted(needed, 'machine is', 'machines are')} ready: {ready or 'none'} so far"
    for part in filter(None, counts["others"].split("; ")):
        for pattern, words in _OTHERS:
            part = re.sub(f"^{pattern}$", rf"\1 {words}", part)
        said += f", {part}"
    return sentence(f"{said}. {sentence(counts['more'].removeprefix('; '))}")


def _occasion(why: str) -> str:
    """Return what it means that a new division of the work is taken up, for a reason in words for people."""
    if why.startswith("the owner changes "):
        return "The settings change after this step"
    if re.search(r"\bwants? to leave or to pause\b", why):
        return "The work of who goes is given to others after this step"
    if re.search(r"\bjoined\b", why):
        return "The work is divided anew after this step, among those who are here now"
    if "may have become faster or slower" in why:
        return (
            "A better division of the work was found, and is taken up after this step, or at once where that is quicker"
        )
    if re.search(r"\b(has|have) become slow|is slow no more|stays slow|are better than was thought|for good$", why):
        return "A better division of the work was found, and is taken up after this step"
    return "The work is divided anew after this step"


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return a text with members called by their names, beside the ends of their ids.

    Args:
        names: what a member calls itself, by the end of its id.
    """
    if not names:
        return text

    def named(end: re.Match[str]) -> str:
        return f"{printable(names[end[0]])} ({end[0]})" if end[0] in names else end[0]

    return re.sub(r"(?<![\w(])[0-9A-Za-z]{6}(?!\w)", named, text)


def _planning(text: str) -> str:
    if re.match(r"planning for \d+ nodes$", text):
        return "Working out which machine computes what."
    if text.endswith("keeping a checkpoint first"):
        return sentence(f"Keeping a checkpoint, as the run cannot go on as it is: {text.rpartition(':')[0]}")
    found = _FIGURES.match(text)
    why = reason_in_words(text)
    if found:
        return sentence(f"{_occasion(why)}: {why}")
    return sentence(f"Dividing the work anew: {why}" if why else "Dividing the work among the machines")
