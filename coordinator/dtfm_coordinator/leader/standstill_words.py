"""What is said of a run that stands still, to its owner and to all. Pure."""

from dtfm_coordinator.owner.owner_wishes import OwnerWishes


def reason_of(wishes: OwnerWishes) -> str:
    """Return why a run is brought to a stand."""
    if wishes.is_finished:
        return "ending the run for the owner"
    return "pausing for the owner" if wishes.is_paused else "keeping a checkpoint for the owner"


def where_it_stands(step: int, kept: int, steps: int, *, has_diverged: bool = False) -> str:
    """Return at which step a run stands, and where the state of that is.

    Args:
        step: newest step that was trained.
        kept: step of the newest whole checkpoint.
        steps: number of the job's last step.
        has_diverged: whether the step after it is not finite.
    """
    if not max(step, kept):
        return "before the first step"
    if kept >= step:
        return f"after step {kept} of {steps}; its state is kept"
    if has_diverged:
        lies = f"that after step {kept} is the newest that is kept" if kept else "none is kept"
        return f"after step {step} of {steps}; the loss of step {step + 1} is not finite; of the states, {lies}"
    lies = f"step {kept} is kept here" if kept else "none is kept here yet"
    return f"after step {step} of {steps}; {lies}, later ones are with the nodes: keep those running"


def what_was_kept(step: int, kept: int, *, has_diverged: bool = False) -> tuple[bool, str]:
    """Return whether the checkpoint that the owner has asked for is there, and what to answer.

    Args:
        step: newest step that was trained.
        kept: step of the newest whole checkpoint.
        has_diverged: whether the step after it is not finite, so that nobody hands it in.
    """
    if has_diverged and kept < step:
        older = f"that after step {kept} is" if kept else "no other one is"
        return False, f"the state after step {step} is not kept, as the loss of step {step + 1} is not finite; {older}"
    if not kept:
        return False, "there is no step yet whose state could be kept"
    if kept < step:
        return False, f"the state after step {step} could not be kept; that after step {kept} is"
    return True, f"the state after step {kept} is kept for good; `checkpoints keep {kept} --undo` lets it go again"
