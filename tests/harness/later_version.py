"""A later version of this product, really installed beside the present one: for swarms of two versions."""

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from dtfm_protocol.process.product_version import product_version

ROOT = Path(__file__).parents[2]
_SOURCES = ("protocol", "coordinator", "node", "lab", "pyproject.toml", "README.md", "LICENSE")

Change = tuple[str, str, str]
"""A file, the text in it that is replaced, which it has once, and what comes there."""
_PROTOCOL = "protocol/dtfm_protocol"
_SAYS = "            await control.publish(PRESENCE, self._presence())\n"
_READY = '            self._reporter.say("idle", availability(survey, profile))\n'


def _after(file: str, line: str, more: str) -> Change:
    return file, line, line + more


ADDITIONS: tuple[Change, ...] = (
    _after(
        f"{_PROTOCOL}/discovery/records.py",
        '    """Version of the program that the peer runs."""\n',
        '    colour: Label = "green"\n',
    ),
    _after(f"{_PROTOCOL}/control/messages.py", '        Literal["measuring", "idle",', ' "warming",'),
    _after(f"{_PROTOCOL}/job/step_metrics.py", "    learning_rate: float\n", "    mood: float = 1.0\n"),
    _after(
        f"{_PROTOCOL}/job/job_file.py",
        "    strict: bool = False\n",
        "    patience: Annotated[float, Field(gt=0, le=1e9)] = 5.0\n",
    ),
    _after(
        f"{_PROTOCOL}/job/job_file.py",
        "    seed: NotNegative = 0\n",
        "    noise: Annotated[float, Field(ge=0, le=1), NEEDED] = 0.0\n",
    ),
    _after(
        f"{_PROTOCOL}/plan/plan.py",
        '    schedule: ScheduleName = "1f1b"\n',
        '    colour: Label = Field(default="", exclude_if=not_)\n',
    ),
    _after(f"{_PROTOCOL}/plan/plan.py", '"reason": reason, ', '"colour": "green", '),
    ("node/dtfm_node/daemon.py", _READY, '            self._reporter.say("warming", "warming up")\n'),
    ("node/dtfm_node/daemon.py", f"{_SAYS}            following", f"{_SAYS}{_READY}            following"),
)
"""What a minor version may add: a field of profiles, of metrics and of plans, a state of nodes, and two keys of the
job, of which one changes what is computed."""


@dataclass(frozen=True)
class Installation:
    """A version of the product in a folder of its own, on the libraries of the present one."""

    folder: Path
    version: str

    @property
    def environment(self) -> dict[str, str]:
        """What its programs have in their environment to be its own, and not the present version's."""
        return {"PYTHONPATH": str(self.folder)}

    def program(self, name: str) -> tuple[str, ...]:
        """Return how its console script `name` is started."""
        return (str(self.folder / "bin" / name),)


def later(minors: int = 1, majors: int = 0) -> str:
    """Return the version that comes so many after the present one."""
    now = Version(product_version())
    return f"{now.major + majors}.{now.minor + minors if not majors else 0}.0"


async def install(folder: Path, version: str, changes: tuple[Change, ...] = (), tree: Path = ROOT) -> Installation:
    """Install a copy of this tree, or of another commit's, under another version and with changes.

    Raises:
        AssertionError: the text that a change replaces is not there, or pip fails.
    """
    copy = folder / "sources"
    for name in _SOURCES:
        source = tree / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy / name)
    now = Version(product_version())
    for name, old, new in (("pyproject.toml", f'version = "{now}"', f'version = "{version}"'), *changes):
        text = (copy / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
        (copy / name).write_text(text.replace(old, new), encoding="utf-8")
    target = folder / "installed"
    pip = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
        "--no-build-isolation", "--no-index", "--target", str(target), str(copy),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    said, _ = await pip.communicate()
    assert pip.returncode == 0, said.decode(errors="replace")
    shutil.rmtree(copy)
    return Installation(target, version)
