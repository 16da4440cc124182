"""Records of contributions that stay when a node's files are removed: one for each swarm and key, for good."""

from pathlib import Path

from dtfm_node.commands.state_folders import data_folder, known_folders
from dtfm_node.control.contribution_keeper import NAME
from dtfm_node.devices.device_folders import device_folders
from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.state_dir import write_atomically


def records_folder() -> Path:
    """Return the folder of this user's records of nodes that were removed."""
    return data_folder() / "contributions"


def keep(path: Path) -> Path | None:
    """Copy the record in a file to where records stay, and return its place there; None: it is no genuine record.

    Raises:
        UserError: it cannot be read, or there is no room for it.
    """
    try:
        data = path.read_bytes()
        said, _ = ContributionRecord.parsed(data).opened()
        name = f"{said.swarm}-{short(said.peer)}"
        if not name.replace("-", "").isalnum():
            return None
        folder = records_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot keep the record of the contribution, {path}: {error}; nothing was deleted") from None
    except (UserError, Refused):
        return None
    kept = folder / f"{name}.json"
    write_atomically(kept, data)
    return kept


def record_files(state_dir: Path | None) -> list[Path]:
    """Return the files of this user's records: of the named state folder and its devices; None: all that are known."""
    folder, nodes = records_folder(), known_folders() if state_dir is None else [state_dir]
    kept = sorted(folder.glob("*.json")) if state_dir is None and folder.is_dir() else []
    of_devices = [(one, *device_folders(one)) for one in nodes]
    return [path for group in of_devices for path in (one / NAME for one in group) if path.is_file()] + kept
