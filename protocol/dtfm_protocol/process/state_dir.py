"""A program's state directory: closed to other users, locked while it runs, its files replaced whole."""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log

PRIVATE = 0o700
"""Mode of folders that hold keys, secrets, or other people's text: this user's alone."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors by which the system says that a disk, or this user's part of it, is full."""
OWN_FILES = ("lock", "key")
"""Files of which one lies in each state dir that a program has used."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Create `folder` and hold its lock in the block; the kernel frees it when the process ends, however it ends.

    Raises:
        UserError: the folder is not writable, others may read it (`make_private`), or a live process holds its lock.
    """
    make_private(folder)
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UserError(
            f"cannot write to the state dir {folder}: {error.strerror}; choose another --state-dir"
        ) from None
    try:
        if not _taken(descriptor):
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "another process"
            raise UserError(
                f"the state dir {folder} is in use by process {holder}: stop it, or choose another --state-dir"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield folder
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> None:
    """Create a state dir that only this user may read; close one that is there and that others may read.

    Raises:
        UserError: it cannot be made or closed, or it holds what is no program's state, which others may have to read.
    """
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        found = folder.stat()
        if not stat.S_IMODE(found.st_mode) & 0o077:
            return
        is_own = any((folder / name).exists() for name in OWN_FILES) or not any(folder.iterdir())
        if found.st_uid != os.geteuid() or not is_own:
            raise UserError(
                f"others may read the state dir {folder}, and it is not this program's to close: "
                f"run chmod 700 '{folder}', or choose another --state-dir"
            )
        folder.chmod(PRIVATE)
    except OSError as error:
        raise UserError(
            f"cannot write to the state dir {folder}: {error.strerror}; choose another --state-dir"
        ) from None
    log.info("the state dir %s was open to other users: it is closed to them now", folder)


def _taken(descriptor: int) -> bool:
    """Take the lock and return whether it was free; try some times, because `is_live` holds it for a moment to look."""
    import fcntl  # not on Windows, where this module must be there to say so

    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def is_live(folder: Path) -> bool:
    """Whether a live process holds the lock of `folder`."""
    import fcntl

    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(folder: Path) -> int | None:
    """Return the id of the process that last took the lock of `folder`; None where nobody has."""
    try:
        return int((folder / "lock").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def check_writable(path: Path) -> None:
    """Check before long work that its result can be written.

    Raises:
        UserError: there is no such folder, it is not writable, or the path is a folder itself.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}: the folder {folder} is not writable")


def write_atomically(path: Path, data: str | bytes, *, private: bool = False, lasting: bool = False) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old one or the new one.

    A `private` file can be read by its owner only. A `lasting` one survives a power cut from here on. A path that is no
    file, as /dev/stdout, is written to as it is.

    Raises:
        UserError: the disk is full, or the folder not writable.
    """
    path = path.resolve()  # what a link leads to is replaced, not the link
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe is written to; in its place a file would be of no use to anyone.
            path.write_bytes(data.encode() if isinstance(data, str) else data)
            return
        temporary.touch(mode=0o600 if private else 0o666)
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if lasting:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        hint = "; make room on that disk" if error.errno in NO_ROOM else ""
        raise UserError(f"cannot write {path}: {error.strerror}{hint}") from None


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, so that they survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
