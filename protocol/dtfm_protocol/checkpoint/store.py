"""The folder of checkpoints: each is there as a whole or not at all, and a damaged one is not used."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dtfm_protocol.checkpoint.draft import MANIFEST, TEMPORARY, Draft, seal, take_away, writing
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.process.logs import log

if TYPE_CHECKING:
    import torch


class CheckpointStore:
    """Checkpoints as `ROOT/step-00000050/{manifest.json, stage-0.safetensors, ...}`.

    One process writes; any may read. `manifest.json` is the manifest and, as `sha256`, the hash of the rest of it. An
    empty file `ROOT/keep-00000050` beside a checkpoint has it kept for good; anybody may put one there.
    """

    def __init__(self, root: Path, sweep: bool = True) -> None:
        """Open the store.

        Args:
            root: the folder of checkpoints; made when something is first written.
            sweep: whether to take away what a crash left half-written. False for a reader beside a process that writes.
        """
        self._root = root
        self._whole: set[int] = set()
        if sweep and root.is_dir():
            with writing(root):
                for leftover in root.glob(f"{TEMPORARY}*"):
                    shutil.rmtree(leftover)

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, whole or not, ascending.

        Raises:
            UserError: the folder cannot be read.
        """
        return sorted(int(name[1]) for name in self._names(r"step-(\d{8,})"))

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint of which every byte has its hash; a damaged one is skipped with a warning."""
        for step in reversed(self.steps()):
            try:
                return self.whole(step)
            except Refused as fault:
                log.warning("the checkpoint of step %d is skipped: %s", step, fault)
        return None

    def whole(self, step: int) -> Manifest:
        """Return the manifest of the checkpoint of `step`, after every byte of it was hashed.

        Raises:
            Refused: a file of it is not there, torn, truncated or changed; it says which.
        """
        folder = self._folder(step)
        manifest = _read_manifest(folder / MANIFEST)
        if manifest.step != step:
            raise Refused(f"{MANIFEST} is of step {manifest.step}")
        for file in manifest.files:
            try:
                with (folder / file.name).open("rb") as stream:
                    size = os.fstat(stream.fileno()).st_size
                    if size != file.bytes:
                        raise Refused(f"{file.name} has {size} bytes, not {file.bytes}")
                    if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                        raise Refused(f"{file.name} has another hash than when it was written")
            except OSError as error:
                raise Refused(f"{file.name} cannot be read: {error.strerror}") from None
        self._whole.add(step)
        return manifest

    def described(self, step: int) -> tuple[Manifest, float]:
        """Return the manifest of the checkpoint of `step`, and when it was written in Unix seconds. Its files are
        there with their sizes, but were not hashed.

        Raises:
            Refused: a file of it is not there, or has another size.
        """
        folder = self._folder(step)
        manifest = _read_manifest(folder / MANIFEST)
        try:
            for file in manifest.files:
                if (size := (folder / file.name).stat().st_size) != file.bytes:
                    raise Refused(f"{file.name} has {size} bytes, not {file.bytes}")
            return manifest, (folder / MANIFEST).stat().st_mtime
        except OSError as error:
            raise Refused(f"a file of the checkpoint cannot be read: {error.strerror}") from None

    def written_at(self, step: int) -> float:
        """Return when the checkpoint of `step` was written, in Unix seconds; 0: it is gone."""
        try:
            return (self._folder(step) / MANIFEST).stat().st_mtime
        except OSError:
            return 0.0

    def kept_for_good(self) -> set[int]:
        """Return the steps whose checkpoints are never deleted.

        Raises:
            UserError: the folder cannot be read.
        """
        return {int(name[1]) for name in self._names(r"keep-(\d{8,})")}

    def keep_for_good(self, step: int, *, kept: bool = True) -> None:
        """Have the checkpoint of `step` never deleted, or, where it is not to be `kept`, as any other.

        Raises:
            UserError: it cannot be written down.
        """
        mark = self._root / f"keep-{step:08d}"
        with writing(mark):
            if kept:
                mark.touch(mode=0o600)
            else:
                mark.unlink(missing_ok=True)

    def read(self, manifest: Manifest, key: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read the bytes of one tensor, or `size` of them, without the rest of its file. Their hash is not checked.

        Raises:
            Refused: there is no such tensor, or the checkpoint is gone.
        """
        entry = manifest.tensors.get(key)
        if entry is None:
            raise Refused(f"there is no tensor {key:.80} in the checkpoint of step {manifest.step}")
        try:
            with (self._folder(manifest.step) / entry.file).open("rb") as stream:
                stream.seek(entry.offset + offset)
                wanted = min(entry.bytes - offset, entry.bytes if size is None else size)
                data = stream.read(wanted)
        except OSError as error:
            raise Refused(f"the checkpoint of step {manifest.step} cannot be read: {error.strerror}") from None
        if len(data) != wanted:
            raise Refused(f"the checkpoint of step {manifest.step}: {entry.file} ends before {key}")
        return data

    def tensors(self, manifest: Manifest, kind: str = "weight") -> "Iterator[tuple[str, torch.Tensor]]":
        """Read name and value of every tensor in a slot ("weight", "exp_avg", ...), one at a time.

        Raises:
            Refused: a tensor cannot be read, or its bytes have another hash.
        """
        for key, entry in manifest.tensors.items():
            group, _, name = key.partition("/")
            if group == kind:
                yield name, decode_tensor(entry, self.read(manifest, key))

    def draft(self, step: int) -> "Draft":
        """Begin a checkpoint; use it in a `with` block, where it vanishes unless it is committed.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        return Draft(
            self._root / f"{TEMPORARY}{step:08d}-{secrets.token_hex(4)}", self._folder(step), step, self._whole
        )

    def prune(self, keep: int) -> None:
        """Delete checkpoints older than the newest `keep` whole ones, but for those that are kept for good; where fewer
        are whole, none."""
        if keep < 1:
            raise ValueError(f"keep at least one checkpoint, not {keep}")
        whole, for_good = 0, self.kept_for_good()
        for step in reversed(self.steps()):
            if whole == keep:
                if step in for_good:
                    continue
                with writing(self._root):
                    take_away(self._folder(step))
                self._whole.discard(step)
                continue
            # What this process wrote or hashed already is not hashed again: pruning follows every commit.
            with contextlib.suppress(Refused):
                if step not in self._whole:
                    self.whole(step)
                whole += 1

    def _names(self, pattern: str) -> list[re.Match[str]]:
        """Return the names in the folder that are of a pattern.

        Raises:
            UserError: the folder cannot be read.
        """
        try:
            found = [re.fullmatch(pattern, name) for name in os.listdir(self._root)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read the checkpoints in {self._root}: {error.strerror}") from None
        return [name for name in found if name]

    def _folder(self, step: int) -> Path:
        return self._root / f"step-{step:08d}"


def _read_manifest(path: Path) -> Manifest:
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise Refused(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except ValueError:
        raise Refused(f"{MANIFEST} is not JSON") from None
    if not isinstance(values, dict) or values.pop("sha256", None) != seal(values):
        raise Refused(f"{MANIFEST} has another hash than when it was written")
    try:
        return Manifest.read(values, MANIFEST)
    except UserError as error:
        raise Refused(str(error)) from None
