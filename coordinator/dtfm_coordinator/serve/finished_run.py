"""Run that is over: what an owner hears who would have it trained once more."""

import time
from pathlib import Path

from dtfm_coordinator.owner.job_on_disk import JobOnDisk
from dtfm_coordinator.owner.owner_wishes import Amended, FinishWanted
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.serve.job_edits import edits_of, served_last
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import FIXED, Settings
from dtfm_protocol.job.job_file import Job


def finished_run(file: Job, folder: Path) -> str:
    """Return that the run of a state folder is over, and how it goes on, in lines; "": it is not, or `file` is of
    another job, or cannot be served there, which whoever serves it hears.

    Args:
        file: the job file as it is now: more steps in it are to be trained.
        folder: the state folder.
    """
    if not (folder / "plan.json").exists() or not _is_same(file, served_last(folder)):
        return ""
    found = JobOnDisk.of(folder)
    try:
        edits = edits_of(file, folder, found)
        steps = (found.changed(Amended(at=time.time(), values=edits)) if edits else found.timeline).last_step
    except UserError:
        return ""
    newest = CheckpointStore(folder / "checkpoints", sweep=False).newest()
    kept, wishes = newest.step if newest is not None else 0, WishFile(folder).wishes
    if wishes.is_finished and not wishes.open(FinishWanted):
        said, on = f"was ended after step {kept:,} of {steps:,}", "resume"
    elif min(kept, found.recorded) >= steps:
        said, on = f"is done: all {steps:,} steps are trained", f"set training.steps={2 * steps}"
    else:
        return ""
    return (
        f"{file.name} {said}. Nothing was started.\n"
        f"  to train on, then start it again:     dtfm-coordinator {on} --state-dir {folder}\n"
        f"  to begin a new job with its weights:  dtfm-coordinator fork --from {folder} new.toml\n"
        f"  to have the model:                    dtfm-coordinator export --state-dir {folder} model"
    )


def _is_same(file: Job, served: Job | None) -> bool:
    """Whether two job files are of one job, whatever was changed that may change while it trains."""
    if served is None or (file.name, file.model, file.data) != (served.name, served.model, served.data):
        return False
    mine, other = Settings.of(file), Settings.of(served)
    return all(mine.get(key) == other.get(key) for key in FIXED)
