"""`dtfm-node contribution`: shows, checks, or deletes signed records of what nodes have contributed."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dtfm_node.commands.kept_contributions import record_files, records_folder
from dtfm_node.commands.state_folders import known_folders
from dtfm_node.control.contribution_words import contributed
from dtfm_protocol.bounds import printable
from dtfm_protocol.control.contribution_record import RECORD_LIMIT, ContributionRecord, ContributionStatement
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import called
from dtfm_protocol.process.state_dir import is_live


def shown(state_dir: Path | None) -> str:
    """Return what this user's nodes have contributed, in words.

    Args:
        state_dir: of one node; None: of all that are known, those that were removed, too.

    Raises:
        UserError: there is no record, or one that cannot be read.
    """
    return "\n\n".join(_told(path) for path in _files(state_dir))


def _files(state_dir: Path | None) -> list[Path]:
    if files := record_files(state_dir):
        return files
    raise UserError(
        "no record of a contribution is here yet: a node gets one once steps in which it took part are kept; "
        "name its folder with --state-dir if it is elsewhere"
    )


@dataclass(frozen=True)
class Deletion:
    """The deletion of records, which nobody can make again."""

    files: tuple[Path, ...]

    @classmethod
    def of(cls, state_dir: Path | None) -> Self:
        """Find the records to delete: those that `shown` shows.

        Raises:
            UserError: there is none; or one is of a node that runs, and would get it again.
        """
        files = tuple(_files(state_dir))
        for folder in (path.parent for path in files):
            if folder != records_folder() and is_live(folder):
                raise UserError(
                    f"a node runs with {folder}, and would get its record again: have it leave first, with "
                    "`dtfm-node leave`; nothing was deleted"
                )
        return cls(files)

    def screen(self) -> str:
        """Return what is going to happen, in words for people."""
        return "\n".join(
            [
                "This deletes the record of what this machine has contributed:",
                *(f"  {printable(str(path))}{_in_short(path)}" for path in self.files),
                "It cannot be made again: its coordinator signs it for the node's key alone, while",
                "it runs. What the owner has noted of the run, and published, is not changed by this.",
            ]
        )

    def carry_out(self) -> str:
        """Delete the files, and the folder of kept records if it is empty then; return what was done, in a line.

        Raises:
            UserError: the system refuses to delete something.
        """
        try:
            for path in self.files:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot delete {path}: {error.strerror}; mend that, and run this again") from None
        with contextlib.suppress(OSError):
            records_folder().rmdir()
        count = len(self.files)
        return f"deleted: {'the record' if count == 1 else f'{count} records'} of what this machine has contributed"


def _in_short(path: Path) -> str:
    """Return what a record is of, for a list; "" where it cannot be read."""
    try:
        said, _ = _opened(path)
    except UserError:
        return ""
    return f', {called(said.peer, said.name)} in the run "{said.job}"'


def _told(path: Path) -> str:
    said, signer = _opened(path)
    return (
        f"{_lines(said)}\nSigned by the coordinator {signer}, in\n  {printable(str(path))}\n"
        "(`dtfm-node contribution --delete` deletes it.)"
    )


def check(path: Path, coordinator: str | None, state_dir: Path | None = None) -> str:
    """Check the record in a file, and return what it says, in words.

    Args:
        path: the file, which may come from anybody.
        coordinator: peer id of the coordinator that is trusted; None: one that an invite of this user's names.
        state_dir: of the node with that invite; None: any.

    Raises:
        UserError: it is no record, or a forged one; or nobody says that who has signed it coordinates the swarm.
    """
    said, signer = _opened(path)
    record = ContributionRecord.parsed(_bytes(path))
    if coordinator is not None and len(coordinator) < len(signer):
        raise UserError(
            f"--coordinator {coordinator}: give the whole id, {len(signer)} letters, as the model's card does"
        )
    trusted = [coordinator] if coordinator is not None else _known_coordinators(said.swarm, state_dir)
    if not trusted:
        raise UserError(
            f"{path} is signed by {signer}, which says nothing as long as nobody knows that this is the coordinator "
            f"of the swarm {said.swarm}: say whom you trust with --coordinator, as the model's card names it"
        )
    for one in trusted:
        try:
            record.said_by(one)
        except Refused:
            continue
        return f"{_lines(said)}\nGenuine: the coordinator {one} has signed it{_replaced(one, signer)}."
    raise UserError(
        f"{path} is not signed by the coordinator {' or '.join(trusted)}, but by {signer}: it is worth nothing, unless "
        "that was the coordinator's key before; then have the member ask for a new record, by joining again"
    )


def _replaced(trusted: str, signer: str) -> str:
    return "" if trusted == signer else f", by the key {signer} that has taken its place"


def _opened(path: Path) -> tuple[ContributionStatement, str]:
    """Return what a record says, and whose key has signed it. Raises UserError where it was changed."""
    try:
        said, signer = ContributionRecord.parsed(_bytes(path)).opened()
    except Refused as error:
        raise UserError(f"{path} is not genuine: {printable(str(error))}") from None
    return said, signer.peer


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(RECORD_LIMIT + 1)
    except OSError as error:
        raise UserError(f"cannot read the record {path}: {error.strerror}") from None


def _known_coordinators(swarm: str, state_dir: Path | None) -> list[str]:
    """Return the coordinators that this user's invites to `swarm` name."""
    found: list[str] = []
    for folder in known_folders() if state_dir is None else [state_dir]:
        try:
            invite = Invite.decode((folder / "invite").read_text(encoding="utf-8").strip())
        except (OSError, UserError, UnicodeDecodeError):
            continue
        if invite.swarm == swarm:
            found += invite.coordinators
    return list(dict.fromkeys(found))


def _lines(said: ContributionStatement) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(said.at))
    return (
        f'{called(said.peer, said.name)} in the run "{said.job}" of the swarm {said.swarm}, as of {when}\n'
        f"{contributed(said, 'It did')}\nIts key is {said.peer}."
    )
