"""The command `python -m docs.recording`: a volunteer joins a swarm on this machine, and is recorded."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from docs.recording.animation import animation
from docs.recording.cast import frames
from docs.recording.screen import Screen
from docs.recording.session import Session

COLUMNS, ROWS = 88, 32
TITLE = "A terminal: somebody joins a swarm, agrees to its terms, and trains layers of the model until it is done"
PACE = 8.0
"""The recording shows training so many times as fast as it was."""
SHORTEST = 0.2
"""Seconds of the shortest frame."""
START_SECONDS, TRAINING_SECONDS = 300.0, 1500.0
ROOT = Path(__file__).parents[2]


def main() -> None:
    """Record, and write the picture."""
    asked = argparse.ArgumentParser(prog="python -m docs.recording", description=__doc__)
    asked.add_argument("--out", type=Path, default=Path(__file__).parent / "join.svg", help="the picture to write")
    asked.add_argument("--job", type=Path, default=ROOT / "examples" / "demo.toml", help="the job that is trained")
    asked.add_argument("--home", type=Path, help="the volunteer's home folder (default: a new one)")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        session = record(options.job.resolve(), Path(folder), options.home or Path(folder) / "ann")
    film = frames(session.pieces, Screen(COLUMNS, ROWS), shortest=SHORTEST)
    options.out.write_text(animation(film, COLUMNS, ROWS, TITLE), encoding="utf-8")
    print(f"wrote {options.out}: {len(film)} frames, {options.out.stat().st_size / 1000:.0f} kB")


def record(job: Path, folder: Path, home: Path) -> Session:
    """Return a session in which somebody joins the swarm that trains `job`, to its end."""
    run, programs = folder / "run", Path(sys.executable).parent
    home.mkdir(parents=True, exist_ok=True)
    serve = [
        f"{programs}/dtfm-coordinator", "serve", str(job), "--state-dir", str(run), "--listen", "127.0.0.1",
        "--port", "0", "--exit-when-done", "--min-nodes", "2",
    ]  # fmt: skip
    other = [f"{programs}/dtfm-node", "join", "--yes", f"@{run}/invite", "--state-dir", f"{folder}/other"]
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.defpath}", "LANG": "C.UTF-8"}
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        environment |= {name: os.environ[name]} if name in os.environ else {}
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as coordinator:
        assert coordinator.stdout is not None
        if not coordinator.stdout.readline():
            raise SystemExit("the coordinator did not start: `dtfm-coordinator check` says why")
        (home / "invite.txt").write_bytes((run / "invite").read_bytes())
        with subprocess.Popen(other, stderr=subprocess.DEVNULL) as first:
            try:
                time.sleep(0.5)
                os.chdir(home)
                return _joined(environment)
            finally:
                os.chdir(ROOT)
                first.terminate()
                coordinator.terminate()


def _joined(environment: dict[str, str]) -> Session:
    with Session.running(environment, COLUMNS, ROWS) as session:
        session.until(lambda shown: "$" in shown, START_SECONDS)
        session.watch(0.5)
        session.type('dtfm-node join --name "Ann\'s PC" @invite.txt\r')
        session.until(lambda shown: "[y/N]" in shown, START_SECONDS)
        session.watch(2.0)
        session.type("y\r")
        session.watch(1.0)
        session.hurry(PACE)
        session.until(lambda shown: shown.rstrip().endswith("$\x1b[0m"), TRAINING_SECONDS)
        return session


if __name__ == "__main__":
    main()
