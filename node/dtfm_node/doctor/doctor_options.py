"""What the person would join with."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DoctorOptions:
    """As with `dtfm-node join`."""

    state_dir: Path | None = None
    device: str = "auto"
    announce: str | None = None
    listen: str | None = None
    port: int = 0
