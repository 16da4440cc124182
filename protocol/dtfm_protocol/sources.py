"""What names the work of programs that change more often than their version."""

import hashlib
from pathlib import Path


def sources_digest(*folders: Path) -> str:
    """A hash of the Python sources in `folders` and below: where it is equal, what they made before is not outdated."""
    digest = hashlib.sha256()
    for folder in folders:
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()
