"""The sizes of data sets by name, as the hub, or the folder of one, tells them."""

from functools import lru_cache
from importlib.util import find_spec

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import DataSource

_WHY_LONGEST = 200
"""Characters of the library's words that are repeated."""


def hub_bytes(source: DataSource, key: str) -> int:
    """Return the bytes of a data set's files, as they are stored.

    Raises:
        UserError: there is no such data set.
    """
    check_datasets(key)
    try:
        return max(1, _stored_bytes(source))
    except Exception as error:  # noqa: BLE001 - likewise
        raise no_dataset(source, key, error) from None


def check_datasets(key: str) -> None:
    """Check that data sets can be streamed.

    Raises:
        UserError: `datasets` is not installed.
    """
    if find_spec("datasets") is None:
        raise UserError(f"{key}: data sets by name need datasets: pip install 'dtfm[data]'")


@lru_cache(maxsize=16)
def _stored_bytes(source: DataSource) -> int:
    from datasets import load_dataset_builder
    from datasets.utils.file_utils import xgetsize

    builder = load_dataset_builder(source.path, source.subset, revision=source.revision)
    files, splits = builder.config.data_files or {}, builder.info.splits or {}
    if source.split in files:
        return sum(int(xgetsize(file)) for file in files[source.split])
    if source.split not in splits:
        raise LookupError(f"it has no such split, only {', '.join(map(str, {**files, **splits}))}")
    return int(splits[source.split].num_bytes)


@lru_cache(maxsize=16)
def bytes_a_row(source: DataSource) -> float | None:
    """Return the stored bytes that a row takes on average; None: the data set does not tell how many it has."""
    from datasets import load_dataset_builder

    splits = load_dataset_builder(source.path, source.subset, revision=source.revision).info.splits or {}
    rows = splits[source.split].num_examples if source.split in splits else None
    return _stored_bytes(source) / rows if rows else None


def no_dataset(source: DataSource, key: str, error: Exception) -> UserError:
    """Return what is said of a data set that cannot be opened."""
    named = f"{source.path}{'' if source.subset is None else f', subset {source.subset}'}, split {source.split}"
    return UserError(f"{key}: cannot open the data set {named}: {in_a_line(error)}")


def in_a_line(error: Exception) -> str:
    """Return what the library says, on a line."""
    return " ".join(str(error).split())[:_WHY_LONGEST] or type(error).__name__
