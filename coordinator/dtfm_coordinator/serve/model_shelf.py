"""Shelf of a coordinator: the newest model, written out once as `transformers` loads it, for members to fetch.

Another process writes it: that takes the memory of a whole model, and none of it stays. A model stays on the shelf for
as long as somebody fetches it.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.control.member_requests import ModelFile, ModelFileName, OfferedModel, WantPart
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.process.child_processes import end_with_parent
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.process.state_dir import make_private

FOLDER = "shared-model"
"""Name of the shelf's folder in a coordinator's state folder."""
NOT_FOR_A_CARD = frozenset({"checkpoints", FOLDER, "key", "lock"})
"""Names in a state folder of what a model's writer has no use for."""
_NAME: TypeAdapter[str] = TypeAdapter(ModelFileName)
RETRY_SECONDS = 60.0
"""Pause after a model that could not be written out."""
Write = Callable[[Path, int, Path], Awaitable[None]]
"""Writes the model of a state folder's checkpoint, by its step, to a folder that is not there. Raises UserError where
it cannot."""


class NotYet(Refused):
    """The refusal of a model that may be there in a while."""


@dataclass(frozen=True)
class ShelvedModel:
    """A model on the shelf."""

    folder: Path
    offered: OfferedModel

    @classmethod
    def of(cls, folder: Path, job: str, step: int) -> Self:
        """Hash the files of a folder; what is no file of a model is passed over."""
        files = []
        for path in sorted(folder.iterdir()):
            with contextlib.suppress(ValidationError), path.open("rb") as stream:
                name = _NAME.validate_python(path.name)
                size = os.fstat(stream.fileno()).st_size
                files.append(ModelFile(name=name, bytes=size, sha256=hashlib.file_digest(stream, "sha256").hexdigest()))
        return cls(folder, OfferedModel(job=job, step=step, files=tuple(files)))

    def read(self, want: WantPart) -> bytes:
        """Return part of a file.

        Raises:
            Refused: there is no such part.
        """
        size = next((file.bytes for file in self.offered.files if file.name == want.name), 0)
        if want.offset + want.size > size:
            raise Refused("a part of a file that is not there")
        try:
            with (self.folder / want.name).open("rb") as stream:
                stream.seek(want.offset)
                data = stream.read(want.size)
        except OSError as error:
            raise Refused(f"{want.name} cannot be read: {error.strerror}") from None
        if len(data) != want.size:
            raise Refused(f"{want.name} is shorter than it was")
        return data


class ModelShelf:
    """Shelf of one run. Use it within `open`."""

    def __init__(
        self,
        state_dir: Path,
        job: str,
        write: Write | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put nothing there yet.

        Args:
            state_dir: the coordinator's state folder.
            job: the job's name.
            write: writes a model out; None: `dtfm-coordinator checkpoints export` does.
            clock: gives seconds.
        """
        self._state_dir, self._root, self._job = state_dir, state_dir / FOLDER, job
        self._write, self._clock = write or _write_in_a_child, clock
        self._model: ShelvedModel | None = None
        self._readers: Counter[Path] = Counter()
        self._writing: asyncio.Task[None] | None = None
        self._source, self._fault = (-1, 0.0), ""
        """Checkpoint that was tried last, by step and time, and why the last one could not be written out."""
        self._tried, self._made = 0.0, 0
        self._kept = -1
        """Step of the newest checkpoint that was seen."""

    @property
    def newest(self) -> int | None:
        """The step of the newest model that is on the shelf, or that comes there if somebody asks again; None: none."""
        if self._kept >= 0 and not self._fault:
            return self._kept
        return None if self._model is None else self._model.offered.step

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Take away what an earlier run has left; in the end, what is being written."""
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
        try:
            yield self
        finally:
            if self._writing is not None:
                self._writing.cancel()
                await asyncio.wait([self._writing])

    @contextlib.contextmanager
    def fetching(self) -> Iterator[ShelvedModel]:
        """Keep the newest model on the shelf within the block.

        Raises:
            NotYet: it is being written out.
            Refused: there is none, or it cannot be written out.
            UserError: the checkpoints cannot be read.
        """
        model = self._newest()
        self._readers[model.folder] += 1
        try:
            yield model
        finally:
            self._readers[model.folder] -= 1
            self._clear(model)

    def _newest(self) -> ShelvedModel:
        """Return the newest model that is written out, and have that of a newer checkpoint written out."""
        store = CheckpointStore(self._state_dir / "checkpoints", sweep=False)
        steps = store.steps()
        if not steps:
            raise Refused("there is no checkpoint yet: the model can be fetched once the first one is kept")
        self._kept = steps[-1]
        source, now = (steps[-1], store.written_at(steps[-1])), self._clock()
        is_over = bool(self._fault) and now >= self._tried + RETRY_SECONDS
        if (source != self._source or is_over) and (self._writing is None or self._writing.done()):
            self._source, self._tried = source, now
            self._fault = "" if is_over else self._fault
            self._writing = asyncio.create_task(self._put(steps[-1]))
        if self._model is not None:
            return self._model  # whoever comes while a newer one is written is not to wait for that
        if self._fault:
            raise Refused(self._fault)
        raise NotYet(f"the coordinator is writing out the model after step {steps[-1]:,}")

    async def _put(self, step: int) -> None:
        """Write the model of `step` out, and put it in the place of the one before."""
        self._made += 1
        folder = self._root / f"{self._made}-step-{step:08d}"
        try:
            await asyncio.to_thread(self._check_room, step)
            make_private(self._root)
            with pinned(self._state_dir, step, folder.with_name(f"{folder.name}-source")) as source:
                await self._write(source, step, folder)
            model = await asyncio.to_thread(ShelvedModel.of, folder, self._job, step)
        except (UserError, Refused, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._fault = "the coordinator cannot write the model out; its owner can read why in the log"
            log.warning("A member wants the model, which cannot be written out: %s.", str(error).rstrip("."))
            return
        before, self._model, self._fault = self._model, model, ""
        log.info("Members can fetch the model after step %d now.", step)
        if before is not None:
            self._clear(before)

    def _clear(self, model: ShelvedModel) -> None:
        """Take a model away that is not the newest one, and that nobody fetches."""
        if model is not self._model and not self._readers[model.folder]:
            del self._readers[model.folder]
            shutil.rmtree(model.folder, ignore_errors=True)

    def _check_room(self, step: int) -> None:
        """Check that the run has room left for its next checkpoint. Raises UserError where it would have none."""
        manifest, _ = CheckpointStore(self._state_dir / "checkpoints", sweep=False).described(step)
        needed = weight_bytes(manifest) + sum(file.bytes for file in manifest.files)
        free = shutil.disk_usage(self._state_dir).free
        if free < needed:
            raise UserError(
                f"{bytes_in_words(free)} are free in {self._state_dir}, and the model and the run's next checkpoint "
                f"need {bytes_in_words(needed)}: free some space"
            )


@contextlib.contextmanager
def pinned(state_dir: Path, step: int, folder: Path) -> Iterator[Path]:
    """Make `folder` look like the state folder with this one checkpoint, which is not deleted within the block.

    Raises:
        OSError: the checkpoint is gone, or the disk cannot be written.
    """
    try:
        _link(state_dir, folder, step)
        for path in state_dir.iterdir():
            if path.name not in NOT_FOR_A_CARD:
                (folder / path.name).symlink_to(path.absolute())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link(state_dir: Path, folder: Path, step: int) -> None:
    """Put the checkpoint of `step` into `folder`, too. Raises OSError where it is gone, or cannot be put there."""
    name = f"step-{step:08d}"
    kept = folder / "checkpoints" / name
    kept.mkdir(mode=0o700, parents=True)
    for path in (state_dir / "checkpoints" / name).iterdir():
        try:
            os.link(path, kept / path.name)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one without such links
            shutil.copyfile(path, kept / path.name)


async def _write_in_a_child(state_dir: Path, step: int, folder: Path) -> None:
    """Have another process write a model out, with low priority."""
    program = [sys.executable, "-c", "from dtfm_coordinator.main import main; main()"]
    child = await asyncio.create_subprocess_exec(
        *program, "checkpoints", "export", str(step), str(folder), "--state-dir", str(state_dir), "--merge",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent(signal.SIGTERM),
    )  # fmt: skip
    try:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, 10)
        _, said = await child.communicate()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        raise UserError(lines[-1][:300] if lines else f"its writer ended with {child.returncode}")


def weight_bytes(manifest: Manifest) -> int:
    """Return the bytes of a checkpoint's weights alone."""
    return sum(entry.bytes for key, entry in manifest.tensors.items() if key.startswith("weight/"))
