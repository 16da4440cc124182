"""`dtfm-node contribution`: shows, or checks, signed records of what nodes have contributed."""

import time
from pathlib import Path

from dtfm_node.commands.kept_contributions import record_files
from dtfm_node.commands.state_folders import known_folders
from dtfm_node.control.contribution_words import contributed
from dtfm_protocol.bounds import printable
from dtfm_protocol.control.contribution_record import RECORD_LIMIT, ContributionRecord, ContributionStatement
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import called


def shown(state_dir: Path | None) -> str:
    """Return what this user's nodes have contributed, in words.

    Args:
        state_dir: of one node; None: of all that are known, those that were removed, too.

    Raises:
        UserError: there is no record, or one that cannot be read.
    """
    files = record_files(state_dir)
    if not files:
        raise UserError(
            "no record of a contribution is here yet: a node gets one once steps in which it took part are kept; "
            "name its folder with --state-dir if it is elsewhere"
        )
    return "\n\n".join(_told(path) for path in files)


def _told(path: Path) -> str:
    said, signer = _opened(path)
    return f"{_lines(said)}\nSigned by the coordinator {signer}, in\n  {printable(str(path))}"


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
