"""Clocks that are off, each for one process alone: a library of a few lines of C that is loaded before its program."""

import subprocess
from pathlib import Path


def shim(folder: Path) -> Path:
    """Compile the library into a folder, and return its path."""
    library = folder / "shifted_clock.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def shifted(library: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is `seconds` ahead."""
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(seconds)}
