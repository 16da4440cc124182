"""The folder of a model of a hub, as `huggingface_hub` has it on this machine, or downloads it."""

import functools
from pathlib import Path

from dtfm_protocol.errors import UserError

FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""Files of a model that are taken: its config, weights and tokenizer. No other format of weights is."""


@functools.cache
def hub_folder(name: str, revision: str | None) -> Path:
    """Return the folder of a model, by its name as ORGANISATION/NAME.

    Where it lies, whether anything is downloaded, and with which token, `huggingface_hub` decides by its own settings
    (`HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN`).

    Raises:
        UserError: there is no such model, or it cannot be had here now, or has no safetensors.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = name if revision is None else f"{name} at revision {revision}"
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except LocalEntryNotFoundError:
        why = (
            "and HF_HUB_OFFLINE forbids to look for it: unset that, or download it first"
            if constants.HF_HUB_OFFLINE
            else "and the hub cannot be reached: check the network, or give a folder as path"
        )
        raise UserError(
            f"model.hub: {what} is not in the hub's cache on this machine ({constants.HF_HUB_CACHE}), {why}"
        ) from None
    except GatedRepoError:
        raise UserError(
            f"model.hub: {what} is given to those alone who have accepted its terms: do so on its page, and log in"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"model.hub: the hub has no model {name}, or shows it to others only: log in if it does"
        ) from None
    except RevisionNotFoundError:
        raise UserError(f"model.revision: {name} has no revision {revision!r}") from None
    except HFValidationError as error:
        raise UserError(f"model.hub: {' '.join(str(error).split())[:200]}") from None
    except (OSError, ValueError, RuntimeError) as error:  # of the network, of an archive, of the disk
        raise UserError(f"model.hub: cannot get {what}: {' '.join(str(error).split())[:200]}") from None
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"model.hub: {what} has no weights as safetensors in its folder {folder}: choose a model that has, or give "
            "a folder as path"
        )
    return folder
