"""What an installation brings: packages and megabytes, each in a fresh virtual environment.

torch comes first, in the build that pip is set up to take (for the table: the one for processors alone), and what it
brings is told apart: its CUDA build is some gigabytes. Versions are those of constraints.txt.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import keep, markdown, show

ROOT = Path(__file__).parents[1]
EXTRAS = ("", "coordinator", "lab")
HEADINGS = ("installed", "packages", "MB", "packages beside torch and what it brings", "MB")


@dataclass(frozen=True)
class Installed:
    """What lies in a virtual environment, beside what was there when it was made."""

    packages: int
    megabytes: float

    def __sub__(self, other: "Installed") -> "Installed":
        return Installed(self.packages - other.packages, self.megabytes - other.megabytes)


def measure(site: Path) -> Installed:
    """Count what is in site-packages, compiled modules included."""
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and not path.is_symlink())
    return Installed(len(list(site.glob("*.dist-info"))), size / 1e6)


def installed(source: Path, extra: str, folder: Path) -> tuple[Installed, Installed]:
    """What `pip install SOURCE[EXTRA]` brings to a fresh environment in `folder`: all, and all but torch's part."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    empty = measure(site)
    python, pinned = str(folder / "bin" / "python"), str(source / "constraints.txt")
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", pinned]
    subprocess.run([*pip, "torch"], check=True)
    torch = measure(site)
    subprocess.run([*pip, f"{source}[{extra}]" if extra else str(source)], check=True)
    everything = measure(site)
    return everything - empty, everything - torch


def unpacked(revision: str, folder: Path) -> Path:
    """The repository as it was at a revision of git."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="REVISION", help="a plain installation of that one, too")
    parser.add_argument("--folder", type=Path, help="where environments are made (default: a temporary one, removed)")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        folder = Path(made)
        sources = []
        if asked.before:
            sources.append((f"`pip install .` at {asked.before}", unpacked(asked.before, folder / "before"), ""))
        here = unpacked("HEAD", folder / "here")
        sources += [(f"`pip install '.[{extra}]'`" if extra else "`pip install .`", here, extra) for extra in EXTRAS]
        for number, (name, source, extra) in enumerate(sources):
            every, beside = installed(source, extra, folder / f"venv-{number}")
            figures = [f"{value:,.0f}" for one in (every, beside) for value in (one.packages, one.megabytes)]
            rows.append([name, *figures])
            print(*rows[-1], flush=True)
    title = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    show(title, HEADINGS, rows)
    before = f" --before {asked.before}" if asked.before else ""
    table = markdown(title, HEADINGS, rows)
    keep(asked.out, "What an installation brings", f"python -m benchmarks.install{before}", [table])


if __name__ == "__main__":
    main()
