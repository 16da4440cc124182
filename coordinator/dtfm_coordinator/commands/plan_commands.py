"""Commands about plans and steps: make a plan, say where its step goes, merge the traces of nodes that ran it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dtfm_coordinator.commands.option_types import ActivationBytes, GradientBytes, JobOption, Seed, ViewFile
from dtfm_protocol.process import command_line


class Algorithm(StrEnum):
    """How a placement is found."""

    evolutionary = "evolutionary"
    random = "random"
    in_order = "in-order"
    greedy = "greedy"
    exhaustive = "exhaustive"


class WireName(StrEnum):
    """Codec of tensors between peers, by its name in a job file."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"


class ScheduleChoice(StrEnum):
    """Pipeline schedule, by its name in a job file."""

    one_forward_one_backward = "1f1b"
    gpipe = "gpipe"
    zero_bubble = "zero-bubble"


class CostName(StrEnum):
    """What a plan is judged by."""

    paper = "paper"
    makespan = "makespan"


def plan(
    view: ViewFile,
    job: JobOption = None,
    cost: Annotated[
        CostName | None, typer.Option(help="Judge by paper (communication), or makespan (a step; default with --job).")
    ] = None,
    stages: Annotated[
        int | None, typer.Option(min=1, help="So many pipeline stages (default with --job: as many as pay).")
    ] = None,
    activation_bytes: ActivationBytes = None,
    gradient_bytes: GradientBytes = None,
    algorithm: Annotated[Algorithm, typer.Option(help="How the placement is found.")] = Algorithm.evolutionary,
    seed: Seed = 0,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds of search (default: 1.2, for large swarms up to 10; with a slow_wire two thirds more)."
        ),
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="Placements to look at, instead of seconds: the same with the same seed.")
    ] = None,
    in_force: Annotated[
        Path | None, typer.Option(help="The plan in force: another one must be worth the move.")
    ] = None,
    horizon: Annotated[
        float | None, typer.Option(min=0, help="Seconds within which it must pay (default: 600).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the plan is written (default: standard output).")] = None,
) -> None:
    """Place a job on a network that was saved or made up. No swarm is needed."""
    with command_line.guarded():
        from dtfm_coordinator.tools.offline_plan import PlanOptions, answer
        from dtfm_protocol.process.state_dir import check_writable, write_atomically

        if out is not None:
            check_writable(out)
        with command_line.stoppable() as stop:
            found, said = answer(
                PlanOptions(
                    view=view,
                    job=job,
                    cost=cost.value if cost else None,
                    stages=stages,
                    activation_bytes=activation_bytes,
                    gradient_bytes=gradient_bytes,
                    algorithm=algorithm.value,
                    seed=seed,
                    budget=budget,
                    evaluations=evaluations,
                    in_force=in_force,
                    horizon=horizon,
                ),
                stop,
            )
        text = found.model_dump_json(indent=1)
        if out is None:
            typer.echo(text)
        else:
            write_atomically(out, text + "\n")
            typer.echo(f"{said}: {out}")
        if stop():
            typer.echo("the search was cut short; a longer one may find a better plan", err=True)
            raise SystemExit(command_line.EXIT_INTERRUPT)


def explain(
    plan: Annotated[Path, typer.Argument(help="The plan file (JSON).")],
    view: Annotated[Path, typer.Option(help="The view that it was made on (JSON or .npz).")],
    job: JobOption = None,
    activation_bytes: ActivationBytes = None,
    gradient_bytes: GradientBytes = None,
    wire: Annotated[WireName | None, typer.Option(help="What if: this wire in place of the plan's.")] = None,
    schedule: Annotated[
        ScheduleChoice | None, typer.Option(help="What if: this schedule in place of the plan's.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it, too: .svg, .png or .pdf.")] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Set beside it a step that was measured: where nodes wrote with --trace."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="With --trace: which step (default: the one of median length).")
    ] = None,
    seed: Seed = 0,
    budget: Annotated[
        float, typer.Option(min=0, help="Seconds of each of two searches for the next node's worth; 0 leaves it out.")
    ] = 1.0,
) -> None:
    """Say where the time of a plan's step goes. Peers, links, bottleneck, and what the next node would bring."""
    with command_line.guarded():
        from dtfm_coordinator.tools.explain.command import ExplainOptions
        from dtfm_coordinator.tools.explain.command import explain as explained
        from dtfm_protocol.process.state_dir import check_writable

        if figure is not None:
            check_writable(figure)
        with command_line.interruptible():
            explained(
                ExplainOptions(
                    plan=plan,
                    view=view,
                    job=job,
                    activation_bytes=activation_bytes,
                    gradient_bytes=gradient_bytes,
                    wire=wire.value if wire else None,
                    schedule=schedule.value if schedule else None,
                    figure=figure,
                    trace=tuple(trace or ()),
                    step=step,
                    seed=seed,
                    budget=budget,
                )
            )


def trace(
    traces: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Where nodes wrote with --trace; or files.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the merged trace is written (JSON).")],
) -> None:
    """Merge the nodes' timelines into one, on one clock, for Perfetto; print what each node's steps are made of."""
    with command_line.guarded():
        from dtfm_coordinator.tools.trace.command import medians_table, merge
        from dtfm_protocol.process.console import console
        from dtfm_protocol.process.state_dir import check_writable, write_atomically

        check_writable(out)
        with command_line.interruptible():
            text, said, medians = merge(traces, out)
        write_atomically(out, text)
        typer.echo(f"{said}: {out}")
        if medians:
            console().print(medians_table(medians))
