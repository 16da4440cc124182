"""Download of a model from a coordinator's desk: file by file, each whole and with its hash, or not there.

What has come is kept beside the place of the model until all of it is there, so that a download that breaks off goes on
where it was.
"""

import contextlib
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from dtfm_node.control.desk_client import Visit
from dtfm_node.doctor.checks.leftovers import nearest
from dtfm_protocol.control.member_requests import PIECE_LIMIT, ModelFile, OfferedModel, WantPart, checked, send
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.process.quantities import bytes_in_words

AHEAD = 4
"""Parts that are asked for before they come: else each would cost a round trip."""
SPARE_BYTES = 200_000_000
"""Bytes that are to stay free on the disk."""
OFFER = "offer.json"
"""Name of the file that tells of which model the files are parts."""


class ModelDownload:
    """Download of one model to a folder that is not there yet."""

    def __init__(self, out: Path, model: OfferedModel) -> None:
        """Look what has come before, and whether there is room for the rest.

        Args:
            out: the folder that appears when all is there.
            model: what a coordinator offers.

        Raises:
            UserError: there is no room, or the disk cannot be written.
            Refused: the offer cannot be used.
        """
        self._out, self.model = out, checked(model)
        self.folder = partial_folder(out)
        with _writing(self.folder):
            self._prepare()
        self.total = sum(file.bytes for file in model.files)
        """Bytes of all files."""
        left, free = self.total - self.done, shutil.disk_usage(nearest(out)).free
        if left + SPARE_BYTES > free:
            raise UserError(
                f"the model needs {bytes_in_words(left)} more, and {bytes_in_words(free)} are free where {out} is to "
                f"be, of which {bytes_in_words(SPARE_BYTES)} are to stay free: make room, or choose another --out"
            )

    def _prepare(self) -> None:
        """Make the folder, or keep of one that is there what belongs to this very model."""
        offer = self.folder / OFFER
        try:
            known: OfferedModel | None = OfferedModel.model_validate_json(offer.read_bytes())
        except (OSError, ValidationError):
            known = None
        if known != self.model:
            if self.folder.is_dir() and not self.folder.is_symlink():
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True)
            offer.write_text(self.model.model_dump_json(), encoding="utf-8")

    @property
    def done(self) -> int:
        """Bytes that have come so far."""
        return sum(min(self._size(file), file.bytes) for file in self.model.files)

    def _size(self, file: ModelFile) -> int:
        try:
            return (self.folder / file.name).stat().st_size
        except OSError:
            return 0

    async def run(self, visit: Visit, came: Callable[[int], None]) -> None:
        """Fetch all that is left, on a connection on which this very model was offered, and put the model in its place.

        Args:
            visit: the connection.
            came: called with the number of bytes that came.

        Raises:
            OSError: the connection ends, or nothing comes.
            EOFError: the same.
            Refused: what came has another hash than was said.
            UserError: the disk cannot be written.
        """
        for file in self.model.files:
            await self._fetch(file, visit, came)
        with _writing(self._out):
            (self.folder / OFFER).unlink(missing_ok=True)
            self.folder.rename(self._out)  # replaces an empty folder

    async def _fetch(self, file: ModelFile, visit: Visit, came: Callable[[int], None]) -> None:
        path, digest = self.folder / file.name, hashlib.sha256()
        with _writing(path), path.open("a+b") as stream:
            if os.fstat(stream.fileno()).st_size > file.bytes:
                stream.truncate(0)
            stream.seek(0)
            while piece := stream.read(PIECE_LIMIT):
                digest.update(piece)
            wanted, asked = _parts(file, stream.tell()), deque[WantPart]()
            while True:
                while len(asked) < AHEAD and (part := next(wanted, None)) is not None:
                    send(visit.writer, part)
                    asked.append(part)
                if not asked:
                    break
                data = await visit.read(asked.popleft().size)
                stream.write(data)
                digest.update(data)
                came(len(data))
            stream.flush()
            os.fsync(stream.fileno())
        if digest.hexdigest() != file.sha256:
            path.unlink(missing_ok=True)
            raise Refused(f"{file.name} came with another hash than was said")


def partial_folder(out: Path) -> Path:
    """Return the folder in which a download to `out` is kept until all is there."""
    return out.with_name(f".{out.name}.partial")


def _parts(file: ModelFile, begin: int) -> Iterator[WantPart]:
    for offset in range(begin, file.bytes, PIECE_LIMIT):
        yield WantPart(name=file.name, offset=offset, size=min(PIECE_LIMIT, file.bytes - offset))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk in the block into a UserError; one of the connection stays what it is."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: make room, or choose another --out") from None
