"""What votes on states cost: hashing weights and moments on every replica, beside weights alone, and beside writing.

`python -m benchmarks.state_votes --out FILE` keeps the table. Each round takes the ways in turn; medians count. A state
is read on a thread of its own, as beside training, and an update that follows at once waits as long as it must: that is
the most by which a step can be delayed. In a run all replicas step together, so that they wait for the slowest anyway:
for the one that writes.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_node.state.snapshots import write_snapshot
from dtfm_node.state.state_reading import Reading
from dtfm_protocol.checkpoint.shard import tensor_entry
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.process import command_line

SIZES = (3_000_000, 30_000_000, 100_000_000)
"""Parameters of a stage."""
ROUNDS = 5
MARK, LAYERS = Mark(step=1, plan=1), (0, 1)
State = Mapping[str, torch.Tensor]
Way = Callable[[Reading], None]
HEADINGS = ("parameters", "way", "CPU seconds", "an update at once waits", "GB/s")


def state_of(parameters: int) -> dict[str, torch.Tensor]:
    """Weights and moments of a stage, in matrices of a million values."""
    rows = [1 << 20] * (parameters >> 20) + [parameters % (1 << 20)]
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    return {f"{kind}/{index}": torch.randn(count) for index, count in enumerate(rows) for kind in kinds if count}


def hashing(signer: Signer | None) -> Way:
    """Hash all that is read, and vote on it where there is a signer."""

    def way(reading: Reading) -> None:
        hashes: dict[str, str] = {}

        def look(key: str, tensor: torch.Tensor) -> None:
            hashes[key] = tensor_entry("x.safetensors", tensor)[0].sha256

        reading.visit(look)
        if signer is not None:
            StateVote.made(signer, MARK, LAYERS, digest_of_state(hashes))

    return way


def writing(state: State, folder: Path, signer: Signer | None) -> Way:
    """Write a snapshot, and vote on it where there is a signer."""

    def way(reading: Reading) -> None:
        vouch = (lambda hashes: (StateVote.made(signer, MARK, LAYERS, digest_of_state(hashes)),)) if signer else None
        write_snapshot(folder, MARK, LAYERS, state, reading, None, (), *([vouch] if vouch else []))

    return way


def measure(state: State, way: Way) -> tuple[float, float]:
    """Return the CPU seconds that a way takes, and the seconds for which an update waits that follows at once."""
    reading, taken = Reading(state), [0.0]

    def run() -> None:
        begun = time.thread_time()
        way(reading)
        taken[0] = time.thread_time() - begun

    thread = threading.Thread(target=run)
    thread.start()
    begun = time.perf_counter()
    reading.settle()
    waited = time.perf_counter() - begun
    thread.join()
    return taken[0], waited


def rows(parameters: int, rounds: int) -> list[tuple[str, ...]]:
    """Return the rows of one size under `HEADINGS`."""
    signer = Signer(Identity.generate(), "0123456789abcdef")
    state = state_of(parameters)
    weights = {key: tensor for key, tensor in state.items() if key.startswith("weight/")}
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, tuple[State, Way]] = {
            "other replicas before: weights hashed": (weights, hashing(None)),
            "other replicas: all hashed, and a vote": (state, hashing(signer)),
            "first replica before: written": (state, writing(state, Path(folder), None)),
            "first replica: written, and a vote": (state, writing(state, Path(folder), signer)),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (part, way) in ways.items():
                found[name].append(measure(part, way))
    lines: list[tuple[str, ...]] = []
    for name, (part, _) in ways.items():
        cpu, waited = (statistics.median(each) for each in zip(*found[name], strict=True))
        size = sum(tensor.nbytes for tensor in part.values())
        speed = f"{size / 1e9 / cpu:.2f}"
        lines.append((f"{parameters / 1e6:.0f} M", name, f"{cpu:.3f}", f"{1e3 * waited:.0f} ms", speed))
    return lines


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small size alone, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded():
        sizes = SIZES[:1] if options.quick else SIZES
        lines = [
            line
            for size in track(sizes, description="hashing", console=console, transient=True)
            for line in rows(size, ROUNDS)
        ]
        title = "Hashing a state, and voting on it"
        show(title, HEADINGS, lines)
        command = "python -m benchmarks.state_votes"
        keep(options.out, "Votes on states", command, [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines)])


if __name__ == "__main__":
    main()
