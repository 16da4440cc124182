"""Files of the owner's page, read and compressed once."""

import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Content types by the ending of a name."""


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    kind: str
    """Content type."""
    data: bytes
    compressed: bytes
    tag: str
    """What a browser names to be told that nothing has changed (an ETag)."""


def load_assets() -> dict[str, Asset]:
    """Read all files of the page, by name."""
    found = {}
    for path in (resources.files(__package__) / "assets").iterdir():
        kind = KINDS.get(path.name.rpartition(".")[2])
        if kind is not None:
            data = path.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
            found[path.name] = Asset(kind, data, gzip.compress(data, 9, mtime=0), tag)
    return found
