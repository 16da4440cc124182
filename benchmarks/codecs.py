"""What each wire costs and saves: bytes a token, and the loss curve beside that of fp32.

`python -m benchmarks.codecs --out FILE` keeps the table, and beside it the curves as FILE's name with .svg and .png.
The demo's job on 2 stages x 2 replicas, every wire on the same plan, so that nothing differs but the coding. Bytes are
what all peers together send for a step, frames' headers and votes included.
"""

import argparse
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from benchmarks.runs import Runs, forced, machine, rows, toml
from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.tools.explain.figure import write
from dtfm_protocol.job.job_file import CodecName, Wire
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.process import command_line

DEMO = Path(__file__).parents[1] / "examples" / "demo.toml"
STEPS, QUICK_STEPS = 300, 40
REFERENCE = Wire()
WIRES = (
    REFERENCE,
    *(Wire(activations=codec, gradients=codec) for codec in ("bf16", "fp16", "int8")),
    Wire(activations="int8", gradients="fp16"),
)
SMOOTHED = 20
"""Steps of the running mean."""
DEADLINE_SECONDS = 1800.0

Curve = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """One run."""

    wire: Wire
    steps: tuple[StepMetrics, ...]

    @property
    def bytes_a_token(self) -> float:
        """The median over the steps: an evaluation's traffic counts to the step after it."""
        return statistics.median(row.bytes_sent / row.tokens for row in self.steps)

    @property
    def final(self) -> float:
        """The evaluation loss after the last step."""
        loss = self.steps[-1].eval_loss
        assert loss is not None
        return loss

    @property
    def curve(self) -> Curve:
        """The training loss, each the mean of `SMOOTHED` steps; shape (steps - SMOOTHED + 1,)."""
        losses = np.array([row.loss for row in self.steps])
        return np.convolve(losses, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")


def train(runs: Runs, wire: Wire, steps: int) -> Trained:
    """Train the demo's job over `wire`."""
    job = tomllib.loads(DEMO.read_text(encoding="utf-8"))
    coded: CodecName | dict[str, CodecName] = wire.activations
    if wire.activations != wire.gradients:
        coded = {"activations": wire.activations, "gradients": wire.gradients}
    job["training"]["steps"] = steps
    job["plan"] = {"stages": 2, "replicas": 2, "schedule": "1f1b", "wire": coded}
    job["checkpoint"]["every"] = 0
    training = job["training"]
    layers, micro_batches = job["model"]["num_hidden_layers"], training["global_batch"] // training["micro_batch"]
    state = runs.folder / f"{wire.activations}-{wire.gradients}"
    path, plan = state.with_suffix(".toml"), runs.folder / "plan.json"
    path.write_text(toml(job), encoding="utf-8")
    routes = [("ac", "bd")[index % 2] for index in range(micro_batches)]
    plan.write_text(forced([(0, layers // 2), (layers // 2, layers)], routes), encoding="utf-8")
    runs.swarm(path, 4, state, "--plan", plan).watch(DEADLINE_SECONDS)
    found = tuple(rows(state))
    assert len(found) == steps
    return Trained(wire, found)


HEADINGS = (
    "wire",
    "bytes a token",
    "of fp32's",
    "final eval loss",
    "beside fp32's",
    f"largest difference of the training loss ({SMOOTHED}-step mean)",
)


def table(runs: list[Trained]) -> list[tuple[str, ...]]:
    """The runs as rows under `HEADINGS`; the first is the reference."""
    reference = runs[0]
    found: list[tuple[str, ...]] = []
    for run in runs:
        apart = np.abs(run.curve - reference.curve)
        at = int(apart.argmax())
        found.append(
            (
                str(run.wire),
                f"{run.bytes_a_token:,.1f}",
                f"{100 * run.bytes_a_token / reference.bytes_a_token:.1f} %",
                f"{run.final:.4f}",
                "-" if run is reference else f"{100 * (run.final / reference.final - 1):+.3f} %",
                "-" if run is reference else f"{apart[at]:.4f} ({100 * apart[at] / reference.curve[at]:.2f} %)",
            )
        )
    return found


def draw(runs: list[Trained]) -> Figure:
    """The smoothed curves, and what sets them apart from the reference's."""
    figure = Figure(figsize=(10.0, 3.8), layout="constrained")
    losses, apart = figure.subplots(1, 2)
    reference = runs[0].curve
    steps = np.arange(SMOOTHED, SMOOTHED + len(reference))
    for run in runs:
        losses.plot(steps, run.curve, label=str(run.wire), linewidth=1.2)
        apart.plot(steps, 100 * (run.curve / reference - 1), label=str(run.wire), linewidth=1.2)
    losses.set(xlabel="step", ylabel=f"training loss, mean of {SMOOTHED} steps", title="Loss over each wire")
    losses.legend(frameon=False, fontsize=8)
    apart.set(xlabel="step", ylabel="per cent of fp32's", title="Difference to fp32")
    apart.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    return figure


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps of each wire, {SMOOTHED} at least")
    parser.add_argument("--quick", action="store_true", help=f"fp32 and int8 for {QUICK_STEPS} steps, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    steps = QUICK_STEPS if options.quick else options.steps
    wires = [wire for wire in WIRES if wire.activations == wire.gradients in {"fp32", "int8"} or not options.quick]
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded(), Runs.open("codecs") as runs:
        trained = [
            train(runs, wire, steps) for wire in track(wires, description="training", console=console, transient=True)
        ]
        title = f"Bytes a token and loss after {steps} steps of the demo's job, 2 stages x 2 replicas"
        lines = table(trained)
        show(title, HEADINGS, lines)
        command = "python -m benchmarks.codecs" + (" --quick" if options.quick else f" --steps {steps}")
        parts = [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines)]
        if options.out is not None:
            figure = draw(trained)
            for suffix in (".svg", ".png"):
                write(figure, options.out.with_suffix(suffix))
            parts.append(f"![Training loss over each wire, and its difference to fp32]({options.out.stem}.svg)\n")
        keep(options.out, "Codecs", command, parts)


if __name__ == "__main__":
    main()
