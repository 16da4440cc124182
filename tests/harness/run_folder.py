"""Folder that all processes of a test run share, whichever of its workers they serve."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_NAME = "DTFM_TEST_RUN"
_OWNER = "pid"


def run_folder() -> Path:
    """Return the folder; the first process of the run that asks makes it, and deletes it when it ends."""
    if _NAME not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="run-"))  # short: a Unix socket's path has at most 108 bytes
        (folder / _OWNER).write_text(str(os.getpid()), encoding="ascii")
        os.environ[_NAME] = str(folder)
        atexit.register(_delete, folder, os.getpid())
    return Path(os.environ[_NAME])


def owner_of(folder: Path) -> int:
    """Return the id of the process with which the run ends."""
    return int((folder / _OWNER).read_text(encoding="ascii"))


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and no copy of it
        shutil.rmtree(folder, ignore_errors=True)
