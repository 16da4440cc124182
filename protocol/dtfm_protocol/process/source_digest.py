"""The digest of Python sources: what is kept under it is outdated once the sources have changed."""

import hashlib
from pathlib import Path


def sources_digest(*places: Path) -> str:
    """Hash Python sources: where the hash is equal, what they made before is not outdated.

    Args:
        places: files, and folders with what is below them.
    """
    digest = hashlib.sha256()
    for place in places:
        for source in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()
