"""Options of `dtfm-node join` that decide what the doctor looks at."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DoctorOptions:
    """Options with the meaning that they have in `dtfm-node join`."""

    state_dir: Path | None = None
    device: str = "auto"
    announce: str | None = None
    listen: str | None = None
    port: int = 0
    lan: bool = False
