"""Growing file of lines that another part of the program appends to, or replaces as a whole."""

import os
from pathlib import Path

BYTES_A_LOOK = 1 << 22
"""Bytes that one look reads at most, so that a long file is read in several turns of an event loop."""


class GrowingFile:
    """Growing file of which each whole line is read once, and all anew when the file was replaced."""

    def __init__(self, path: Path, bytes_a_look: int = BYTES_A_LOOK) -> None:
        self._path, self._bytes_a_look = path, bytes_a_look
        self._offset = 0
        self._inode = 0

    def look(self) -> tuple[bool, list[bytes]]:
        """Return whether the file begins anew, and its further lines; a line that is being written comes the next time.

        A file that cannot be read has no lines for now.
        """
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                is_new = found.st_ino != self._inode or found.st_size < self._offset
                if is_new:
                    self._inode, self._offset = found.st_ino, 0
                file.seek(self._offset)
                data = file.read(self._bytes_a_look)
        except OSError:
            is_new, self._inode, self._offset = self._inode != 0, 0, 0
            return is_new, []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return is_new, whole.splitlines()
