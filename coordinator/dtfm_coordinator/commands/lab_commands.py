"""Researchers' commands: compare algorithms, make up a network, run something on an emulated one."""

from pathlib import Path
from typing import Annotated

import typer

from dtfm_coordinator.commands.option_types import ActivationBytes, GradientBytes, JobOption, Seed, ViewFile
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line
from dtfm_protocol.process.logs import LogFormat, set_up


def compare(
    view: ViewFile,
    job: JobOption = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Pipeline stages (paper's cost).")] = None,
    activation_bytes: ActivationBytes = None,
    gradient_bytes: GradientBytes = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 5,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of each search.")] = 1.0,
    csv: Annotated[Path | None, typer.Option(help="Where a row for each run is written; - is standard output.")] = None,
) -> None:
    """Compare algorithms that place a job on a network. Each is run with several seeds."""
    with command_line.guarded():
        from dtfm_lab.compare.command import CompareOptions
        from dtfm_lab.compare.command import compare as compared
        from dtfm_protocol.process.state_dir import check_writable

        if csv is not None and str(csv) != "-":
            check_writable(csv)
        with command_line.stoppable() as stop:
            compared(
                CompareOptions(
                    view=view,
                    job=job,
                    stages=stages,
                    activation_bytes=activation_bytes,
                    gradient_bytes=gradient_bytes,
                    seeds=seeds,
                    budget=budget,
                    csv=csv,
                ),
                stop,
            )
        if stop():
            raise SystemExit(command_line.EXIT_INTERRUPT)


def lifetimes(
    view: ViewFile,
    trace: Annotated[Path, typer.Argument(help="Who comes and goes (CSV): time,machine,event, or machine,up,down.")],
    job: Annotated[Path, typer.Option("--job", help="The job file that is trained.")],
    hours: Annotated[float | None, typer.Option(min=0, help="How long (default: until the trace's end).")] = None,
    seed: Seed = 0,
    evaluations: Annotated[int, typer.Option(min=1, help="Placements to look at for each plan.")] = 3000,
    figure: Annotated[Path | None, typer.Option(help="Draw it, too: .svg, .png or .pdf.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Where a row for each plan is written.")] = None,
) -> None:
    """Train a job in virtual time on machines that come and go. Says what is done, and what changes of plan cost."""
    with command_line.guarded():
        from dtfm_coordinator.tools.lifetimes.command import LifetimesOptions
        from dtfm_coordinator.tools.lifetimes.command import lifetimes as lived_through
        from dtfm_protocol.process.state_dir import check_writable

        for path in (figure, csv):
            if path is not None:
                check_writable(path)
        with command_line.interruptible():
            lived_through(
                LifetimesOptions(
                    view=view,
                    trace=trace,
                    job=job,
                    hours=hours,
                    seed=seed,
                    evaluations=evaluations,
                    figure=figure,
                    csv=csv,
                )
            )


def network(
    name: Annotated[str, typer.Argument(help="Which network; a wrong name lists them all.")],
    nodes: Annotated[int, typer.Option(help="How many nodes it has.")],
    out: Annotated[Path, typer.Option(help="Where the view is written, .json or .npz.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
) -> None:
    """Make up a network of N machines. It is written as a view, to plan on."""
    with command_line.guarded():
        from dtfm_lab.networks.catalogue import network as made
        from dtfm_lab.networks.summary import summary

        if out.suffix not in (".json", ".npz"):
            raise UserError(f"--out {out}: a view is written as .json or as .npz")
        view = made(name, nodes, seed)
        view.save(out)
        typer.echo(f"wrote {summary(view)} to {out}")


def lab(
    view: ViewFile,
    command: Annotated[
        list[str], typer.Argument(help="After --: what to run; {node}, {address}, {address:NODE} are filled in.")
    ],
    on: Annotated[str | None, typer.Option(metavar="NODE", help="On which host (default: the first).")] = None,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="On all hosts at once.")] = False,
    scale: Annotated[float, typer.Option(min=1e-9, max=1e9, help="Multiply all rates by this.")] = 1.0,
    loss: Annotated[float, typer.Option(min=0, max=0.99, help="Share of packets that vanish.")] = 0.0,
    queue_ms: Annotated[
        float, typer.Option(min=1, help="Longest queue of a link, as time at its rate; 72 KiB at least.")
    ] = 200.0,
    script: Annotated[Path | None, typer.Option(help="Timed changes of the world (TOML).")] = None,
) -> None:
    """Run a command on hosts whose network is as a view says. That is delays, rates, uplinks. Needs root."""
    set_up(LogFormat.plain.value)
    with command_line.guarded():
        from dtfm_lab.emulation.command import CommandEnded, LabOptions, run

        question = LabOptions(view, tuple(command), on, everywhere, scale, loss, queue_ms, script)
        try:
            command_line.run(run(question))
        except CommandEnded as ended:
            raise SystemExit(ended.code) from None
