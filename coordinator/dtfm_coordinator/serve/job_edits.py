"""Edits of a job file that is served again: what may change while the job trains becomes a wish of the owner."""

import time
from pathlib import Path

from dtfm_coordinator.owner.amending import changed_values, described, steep_rise
from dtfm_coordinator.owner.job_on_disk import JobOnDisk
from dtfm_coordinator.owner.owner_wishes import Amended
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import Settings, Values
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

NAME = "served.json"
"""File of the job file that was served last, as JSON: what has been changed since by `set` is no edit."""


def remember(file: Job, folder: Path) -> None:
    """Write down what the job file says, for its next edit.

    Raises:
        UserError: there is no room on the disk.
    """
    write_atomically(folder / NAME, file.model_dump_json(indent=1))


def take_up_edits(file: Job, folder: Path) -> None:
    """Write down as a wish what `file` says otherwise than the job file that was served last, and say so line by line.

    Raises:
        UserError: the run cannot be changed so; nothing was written.
    """
    found = JobOnDisk.of(folder)
    if edits := edits_of(file, folder, found):
        wish = Amended(at=time.time(), values=edits)
        try:
            changed = found.changed(wish)
        except UserError as error:
            raise UserError(f"the job file was changed in a way in which this run cannot go on: {error}") from None
        for line in described(found.timeline, changed, is_sure=False):
            log.info("%s", line)
        if rise := steep_rise(found.timeline, changed):
            log.warning("%s `dtfm-coordinator set` gives another one.", rise)
        WishFile(folder).add(wish)
    remember(file, folder)


def edits_of(file: Job, folder: Path, found: JobOnDisk) -> Values:
    """Return what `file` says otherwise than the job file that was served last, and than what holds by now, by key."""
    served = served_last(folder)
    before = Settings.of(served if served is not None else found.timeline.job)
    present = found.timeline.settings_at(found.recorded + 1)
    return {key: value for key, value in changed_values(before, Settings.of(file)).items() if present.get(key) != value}


def served_last(folder: Path) -> Job | None:
    """Return the job file that was served last; None: nothing is known of it."""
    try:
        return Job.model_validate_json((folder / NAME).read_bytes())
    except (OSError, ValueError):
        return None
