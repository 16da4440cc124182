"""Arguments and options that several commands of `dtfm-coordinator` take."""

from pathlib import Path
from typing import Annotated

import typer

from dtfm_protocol.process.logs import LogFormat

JobFile = Annotated[Path, typer.Argument(help="The job file (TOML).")]
ViewFile = Annotated[Path, typer.Argument(help="The network: a view (JSON or .npz), as `network` or a run makes it.")]
JobOption = Annotated[Path | None, typer.Option("--job", help="The job file that the plan is for.")]
StateDir = Annotated[Path, typer.Option("--state-dir", help="The run's folder: key, invite, metrics, checkpoints.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Merge = Annotated[bool, typer.Option("--merge", help="The whole model, also of a LoRA job.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the search for a plan.")]
ActivationBytes = Annotated[
    float | None, typer.Option(min=0, help="Bytes a pipeline's share sends over a boundary (paper's cost).")
]
GradientBytes = Annotated[float | None, typer.Option(min=0, help="Bytes of a stage's gradients (paper's cost).")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more, in the planner's words.")]
Format = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or one JSON object a line.")]
