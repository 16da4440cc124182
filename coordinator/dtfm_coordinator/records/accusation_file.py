"""File of the accusations that a coordinator has heard: a liar does not get its good name back by a restart."""

from pathlib import Path

from dtfm_coordinator.faults.accusations import AccusationRecord, Accusations, Quarrel
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

NAME = "accusations.json"


class KeptAccusations(Accusations):
    """Accusations of a run, in memory and in a coordinator's state folder.

    A disk that is full costs the record, not the run: the next change is written with what was missed.

    Args:
        folder: the state folder.

    Raises:
        UserError: what an earlier process has written there cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        super().__init__(_read(self._path))

    def excuse(self, plan: int) -> None:
        """See `Accusations`."""
        super().excuse(plan)
        self._write()

    def proven(self, peer: str) -> bool:
        """See `Accusations`."""
        is_news = super().proven(peer)
        if is_news:
            self._write()
        return is_news

    def reported(self, accuser: str, accused: str, plan: int) -> bool:
        """See `Accusations`."""
        is_news = super().reported(accuser, accused, plan)
        if is_news:
            self._write()
        return is_news

    def differed(self, pair: Quarrel, plan: int) -> bool:
        """See `Accusations`."""
        is_news = super().differed(pair, plan)
        if is_news:
            self._write()
        return is_news

    def _write(self) -> None:
        try:
            write_atomically(self._path, self.record.model_dump_json(), private=True)
        except UserError as error:
            log.warning("accusations could not be written down: %s", error)


def _read(path: Path) -> AccusationRecord:
    try:
        return AccusationRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return AccusationRecord()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise UserError(
            f"{path} cannot be understood: restore the file, or delete it to forget who accused whom"
        ) from None
