"""Plain words for the person at the machine: what their node does, how far the training is, and what comes next. Pure.

The planner's own words (plans, stages, replicas) are for `--verbose`.
"""

import re
from typing import NamedTuple, Self

from dtfm_node.limits.availability import BY_ORDER
from dtfm_protocol.control.messages import Phase
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.quantities import bytes_in_words

_COUNTS = re.compile(r"waiting for \d+ more nodes \((\d{1,9}) of (\d{1,9}) are ready")
"""What a coordinator says that waits for nodes."""
_PLAN_END = re.compile(r"plan \d+ ends with step (\d+)")
"""What a node says that has done all that a plan asks of it."""
_ENDED = re.compile(r"ended by the owner after step (\d+)")
"""What a coordinator says of a run that has ended before its last step."""
READY = "ready; waiting for work"
"""What a node says that has not been given anything, and could take some."""


class WorkShare(NamedTuple):
    """The part of the work that a plan gives to one node."""

    layers: tuple[int, int] | None
    """Layers `[first, end)` that it computes; None: none, it is a spare."""
    of: int
    """Layers of the whole model."""
    keeps_copy: bool = False
    """Whether it keeps a copy of what only one other node has."""
    is_left_out: bool = False
    """Whether the plan was made without it: it came later, or nobody reaches it."""

    @classmethod
    def of_plan(cls, plan: Plan, peer: str) -> Self:
        """Return the part that `plan` gives to `peer`."""
        stage = plan.stage_of(peer)
        layers = None if stage is None else plan.stages[stage]
        return cls(layers, plan.layers, peer in plan.shadows, layers is None and peer not in plan.idle)

    @property
    def in_words(self) -> str:
        """The layers as people count them: from 1, the last one included."""
        assert self.layers is not None, "a spare has none"
        first, end = self.layers[0] + 1, self.layers[1]
        if (first, end) == (1, self.of):
            return "the whole model"
        return f"layer {first} of {self.of}" if first == end else f"layers {first}-{end} of {self.of}"


def doing(
    state: str, text: str, share: WorkShare | None, obstacle: str = "", *, halted: bool = False, option: str = ""
) -> str:
    """Return what a node does, as sentences.

    Args:
        state: its state, as it reports it.
        text: what goes with that.
        share: its part of the work; None: no plan has come yet.
        obstacle: why it may never be given any; "": nothing stands in the way.
        halted: whether the owner has paused the run.
        option: what commands about this node need behind their name to find its folder.
    """
    if state == "paused":
        by_order = text.startswith(BY_ORDER)
        return sentence(f"paused by you{text.removeprefix(BY_ORDER)}" if by_order else f"paused: {text}")
    if halted and state in {"idle", "starting"}:
        return "Nothing to compute for now: the owner has paused the run. There is nothing to do for you."
    computes = share is not None and share.layers is not None
    if state == "idle" and share is not None and not computes:
        if obstacle:
            return f"Nothing to compute for now: {obstacle}."
        if share.is_left_out:
            return (
                "Nothing to compute for now: the work was divided before this machine came, or the others cannot reach "
                f"it (`dtfm-node doctor{option}` says whether). It is counted in when the work is divided anew."
            )
        copy = " Until then it keeps a copy of layers that only one machine computes." if share.keeps_copy else ""
        return f"Nothing to compute for now: there are enough machines. Yours takes over when one leaves.{copy}"
    if state == "starting" and computes and share is not None:
        return f"Getting ready to compute {share.in_words}."
    if state == "training" and computes and share is not None:
        if text.startswith("all steps done"):
            return "All steps are done. The coordinator is saving the result."
        return f"You compute {share.in_words}."
    if state == "measuring":
        return f"Measuring how fast this machine is ({text.removeprefix('measuring ')})."
    if state == "finished":
        is_done = text.startswith("all ") and "steps are done" in text
        if is_done:
            return f"The model is trained. Thank you for your part in it. {_afterwards(option)}"
        if ended := _ended(text):
            return f"{ended} Thank you for your part in it. {_afterwards(option)}"
        return f"This machine has left the swarm. `dtfm-node join{option}` comes back. {_afterwards(option)}"
    if state in {"stalled", "diverged"}:
        return f"The step under way broke off: {text}. The work is being divided anew; there is nothing to do for you."
    if (end := _PLAN_END.fullmatch(text)) is not None:
        return f"Step {int(end[1]):,} is done; the work is being divided anew, or the run stands still."
    if state == "joining":
        return "Joining the swarm."
    return sentence(text or state)


def standing(phase: Phase | None) -> str:
    """Return why the whole swarm computes nothing now, for a node without work; "": it does, or nothing is known."""
    if phase is None or phase.name != "waiting":
        return ""
    if phase.paused:
        return "the owner has paused the run"
    if " for the owner" in phase.text:
        return "the run stands still for a moment, as its owner wishes"
    return "the run waits for more machines" if _COUNTS.match(phase.text) else ""


def _ended(text: str) -> str:
    """Return where the owner has ended the run; "": the phase does not say that they have."""
    found = _ENDED.match(text)
    return f"The owner ended the run after step {int(found[1]):,}." if found is not None else ""


def _afterwards(option: str) -> str:
    return f"`dtfm-node remove{option}` deletes what it keeps."


def sent(size: int) -> str:
    """Return how much this node has sent to the others; "" while it is nothing."""
    return f"Sent {bytes_in_words(size)}." if size else ""


def swarm_does(phase: Phase) -> str:
    """Return what the swarm as a whole does."""
    match phase.name:
        case "probing":
            return "The connections between the machines are being measured."
        case "planning":
            return "The work is being divided among the machines."
        case "training":
            return "The model is being trained."
        case "done":
            return _ended(phase.text) or "The model is trained."
        case "waiting" if (counts := _COUNTS.match(phase.text)) is not None:
            ready, needed = map(int, counts.groups())
            return f"Waiting until {needed} machine{'s are' if needed != 1 else ' is'} ready; {ready or 'none'} so far."
        case _:
            return sentence(phase.text)


def sentence(text: str) -> str:
    """Return `text` as a sentence, with a capital and a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text[-1:] in '.!?' else '.'}" if text else ""
