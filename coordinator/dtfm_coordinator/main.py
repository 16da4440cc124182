"""`dtfm-coordinator`: the owner's command line."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line, extras
from dtfm_protocol.process.logs import LogFormat, log, set_up

app = typer.Typer(
    help="Have a community train a language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JobFile = Annotated[Path, typer.Argument(help="The job file (TOML).")]
ViewFile = Annotated[Path, typer.Argument(help="A saved view (JSON or .npz).")]
JobOption = Annotated[Path | None, typer.Option("--job", help="The job file that the plan is for.")]
StateDir = Annotated[Path, typer.Option("--state-dir", help="Where key, invite, metrics and checkpoints are kept.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the allocator's search.")]
ActivationBytes = Annotated[
    float | None, typer.Option(min=0, help="Bytes a pipeline's share sends over a boundary (paper's cost).")
]
GradientBytes = Annotated[float | None, typer.Option(min=0, help="Bytes of a stage's gradients (paper's cost).")]
Format = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or one JSON object a line.")]


LAB_COMMANDS = {"compare", "lab", "network"}
"""Researchers' commands; all others are the owner's."""


@app.callback()
def _begin(context: typer.Context) -> None:
    with command_line.guarded():
        extras.require("lab" if context.invoked_subcommand in LAB_COMMANDS else "coordinator")


class Algorithm(StrEnum):
    """How a placement is found."""

    evolutionary = "evolutionary"
    random = "random"
    in_order = "in-order"
    greedy = "greedy"
    exhaustive = "exhaustive"


class CostName(StrEnum):
    """What a plan is judged by."""

    paper = "paper"
    makespan = "makespan"


@app.command()
def serve(
    job: JobFile,
    state_dir: StateDir,
    listen: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65534, help="Broker's port; the data plane takes the next.")] = 7700,
    announce: Annotated[str | None, typer.Option(help="Host at which nodes reach this machine.")] = None,
    broker: Annotated[
        str, typer.Option(envvar="DTFM_BROKER", help="embedded, or mqtt[s]://[USER:PASSWORD@]HOST[:PORT].")
    ] = "embedded",
    broker_ca: Annotated[Path | None, typer.Option(help="PEM certificate that signs the broker's own.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Force this layout; a changed file is taken up.")] = None,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Wait for so many nodes.")] = None,
    exit_when_done: Annotated[bool, typer.Option("--exit-when-done", help="End after the last step.")] = False,
    without_quorum: Annotated[
        bool, typer.Option("--without-quorum", help="Plan without peers that are gone for good and cannot answer.")
    ] = False,
    card: Annotated[
        list[str] | None, typer.Option(help="A coordinator that may take over: what `card` prints.")
    ] = None,
    standby: Annotated[
        str | None, typer.Option(metavar="INVITE", help="Take over this swarm (text or @FILE) when nobody leads it.")
    ] = None,
    seed: Seed = 0,
    log_format: Format = LogFormat.plain,
) -> None:
    """Serve a job: print an invite, plan for whoever joins, keep the result."""
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.state_dir import locked

    set_up(log_format.value)
    with command_line.guarded():
        parsed = Job.load(job)
        with locked(state_dir):
            from dtfm_coordinator.allocator.allocate import compile_now
            from dtfm_coordinator.serve.service import Coordinator, ServeOptions

            compile_now(log.info)
            options = ServeOptions(
                listen,
                port,
                announce,
                broker,
                broker_ca,
                plan,
                min_nodes,
                exit_when_done,
                seed,
                without_quorum,
                tuple(card or ()),
                standby,
            )
            command_line.run(Coordinator(parsed, state_dir, options).run(_say_invite))


@app.command()
def card(
    state_dir: StateDir,
    listen: Annotated[str, typer.Option(help="Address that `serve --standby` will listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65534, help="Its broker's port.")] = 7700,
    announce: Annotated[str | None, typer.Option(help="Host at which nodes reach this machine.")] = None,
    broker: Annotated[str, typer.Option(envvar="DTFM_BROKER", help="As with serve.")] = "embedded",
) -> None:
    """Introduce a second coordinator, for `serve --card` on the first one's machine."""
    from dtfm_protocol.process.state_dir import locked

    with command_line.guarded(), locked(state_dir):
        from dtfm_coordinator.serve.service import ServeOptions
        from dtfm_coordinator.serve.service import card as made

        typer.echo(made(state_dir, ServeOptions(listen, port, announce, broker)).encode())


def _say_invite(invite: str) -> None:
    typer.echo(f"dtfm-node join {invite} --state-dir my-node")


@app.command()
def swarm(
    job: JobFile,
    state_dir: StateDir,
    nodes: Annotated[int, typer.Option(min=1, help="How many node processes.")] = 2,
    plan: Annotated[Path | None, typer.Option(help="Force this layout.")] = None,
    text: Annotated[Path | None, typer.Option(help="Train on this file instead of the job's text.")] = None,
    sample: Annotated[str | None, typer.Option(help="Generate from this prompt at the end.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Have the nodes write timelines to this folder.")] = None,
    seed: Seed = 0,
    log_format: Format = LogFormat.plain,
) -> None:
    """Serve a job and train it with N nodes on this machine."""
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.state_dir import locked

    set_up(log_format.value)
    with command_line.guarded():
        parsed = Job.load(job)
        if text is not None:
            parsed = parsed.model_copy(update={"data": parsed.data.model_copy(update={"text": [str(text.resolve())]})})
        with locked(state_dir):
            from dtfm_coordinator.allocator.allocate import compile_now
            from dtfm_coordinator.serve.service import ServeOptions
            from dtfm_coordinator.tools.local_swarm import run

            compile_now(log.info)
            options = ServeOptions("127.0.0.1", 0, plan=plan, min_nodes=nodes, exit_when_done=True, seed=seed)
            command_line.run(run(parsed, state_dir, nodes, options, trace))
            if sample is not None:
                from dtfm_coordinator.tools.generate import generate as sampled

                typer.echo(sampled(state_dir, sample, 200, 0.8, 0))


@app.command()
def plan(
    view: ViewFile,
    job: JobOption = None,
    cost: Annotated[CostName | None, typer.Option(help="paper; or makespan, the default with --job.")] = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None,
    activation_bytes: ActivationBytes = None,
    gradient_bytes: GradientBytes = None,
    algorithm: Annotated[Algorithm, typer.Option(help="How the placement is found.")] = Algorithm.evolutionary,
    seed: Seed = 0,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds of search, beside reading and judging.")] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Placements to look at, instead of seconds.")] = None,
    in_force: Annotated[Path | None, typer.Option(help="The plan in force: another must pay back the move.")] = None,
    horizon: Annotated[float | None, typer.Option(min=0, help="Seconds within which it must.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the plan is written (default: standard output).")] = None,
) -> None:
    """Run the allocator alone on a saved view."""
    with command_line.guarded():
        from dtfm_coordinator.tools.offline_plan import PlanOptions, answer
        from dtfm_protocol.process.state_dir import check_writable, write_atomically

        if out is not None:
            check_writable(out)
        with command_line.interruptible():
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
                )
            )
        text = found.model_dump_json(indent=1)
        if out is None:
            typer.echo(text)
        else:
            write_atomically(out, text + "\n")
            typer.echo(f"{said}: {out}")


@app.command()
def explain(
    plan: Annotated[Path, typer.Argument(help="The plan file (JSON).")],
    view: Annotated[Path, typer.Option(help="The view that it was made on (JSON or .npz).")],
    job: JobOption = None,
    activation_bytes: ActivationBytes = None,
    gradient_bytes: GradientBytes = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it, too: .svg, .png or .pdf.")] = None,
    seed: Seed = 0,
    budget: Annotated[
        float, typer.Option(min=0, help="Seconds of each of two searches for the next node's worth; 0 leaves it out.")
    ] = 1.0,
) -> None:
    """Say where a plan's step goes: peers, links, bottleneck, and what the next node would bring."""
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
                    figure=figure,
                    seed=seed,
                    budget=budget,
                )
            )


@app.command()
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
    """Compare the allocator's algorithms on a saved view."""
    with command_line.guarded():
        from dtfm_lab.compare import CompareOptions
        from dtfm_lab.compare import compare as compared
        from dtfm_protocol.process.state_dir import check_writable

        if csv is not None and str(csv) != "-":
            check_writable(csv)
        with command_line.interruptible():
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
                )
            )


@app.command()
def network(
    name: Annotated[str, typer.Argument(help="Which; a wrong name lists them all.")],
    nodes: Annotated[int, typer.Option(help="How many nodes it has.")],
    out: Annotated[Path, typer.Option(help="Where the view is written, .json or .npz.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
) -> None:
    """Write the view of a made-up network, to plan on."""
    with command_line.guarded():
        from dtfm_lab.networks.catalogue import network as made
        from dtfm_lab.networks.summary import summary

        if out.suffix not in (".json", ".npz"):
            raise UserError(f"--out {out}: a view is written as .json or as .npz")
        view = made(name, nodes, seed)
        view.save(out)
        typer.echo(f"wrote {summary(view)} to {out}")


@app.command()
def lab(
    view: ViewFile,
    command: Annotated[list[str], typer.Argument(help="After --: what to run; {node} and {address} are filled in.")],
    on: Annotated[str | None, typer.Option(metavar="NODE", help="On which host (default: the first).")] = None,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="On all hosts at once.")] = False,
    scale: Annotated[float, typer.Option(min=1e-9, max=1e9, help="All rates times this.")] = 1.0,
    loss: Annotated[float, typer.Option(min=0, max=0.99, help="Share of packets that vanish.")] = 0.0,
    queue_ms: Annotated[
        float, typer.Option(min=1, help="Longest queue of a link, as time at its rate; 72 KiB at least.")
    ] = 200.0,
    script: Annotated[Path | None, typer.Option(help="Timed changes of the world (TOML).")] = None,
) -> None:
    """Run a command on hosts whose network is as a view says: delays, rates, uplinks. Needs root."""
    set_up(LogFormat.plain.value)
    with command_line.guarded():
        from dtfm_lab.emulation.command import CommandEnded, LabOptions, run

        question = LabOptions(view, tuple(command), on, everywhere, scale, loss, queue_ms, script)
        try:
            command_line.run(run(question))
        except CommandEnded as ended:
            raise SystemExit(ended.code) from None


@app.command()
def trace(
    traces: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Where nodes wrote with --trace; or files.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the merged trace is written (JSON).")],
) -> None:
    """Merge nodes' traces into one with aligned clocks, for Perfetto."""
    with command_line.guarded():
        from dtfm_coordinator.tools.trace.command import merge
        from dtfm_protocol.process.state_dir import check_writable, write_atomically

        check_writable(out)
        with command_line.interruptible():
            text, said = merge(traces, out)
        write_atomically(out, text)
        typer.echo(f"{said}: {out}")


@app.command()
def export(state_dir: StateDir, out: Annotated[Path, typer.Argument(help="Folder to make.")]) -> None:
    """Write the newest checkpoint as a folder that transformers loads."""
    with command_line.guarded():
        from dtfm_coordinator.tools.export import export as write

        manifest = write(state_dir, out)
        typer.echo(f"wrote the model after step {manifest.step} to {out}")


@app.command()
def generate(
    state_dir: StateDir,
    prompt: Annotated[str, typer.Option(help="Text to go on from.")],
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Generate text from the newest checkpoint."""
    with command_line.guarded():
        from dtfm_coordinator.tools.generate import generate as sampled

        typer.echo(sampled(state_dir, prompt, tokens, temperature, seed))


@app.command()
def status(state_dir: StateDir, as_json: Json = False) -> None:
    """Say what is going on."""
    with command_line.guarded():
        from dtfm_coordinator.tools.status import read, show

        values = read(state_dir)
        if as_json:
            typer.echo(json.dumps(values))
        else:
            show(values)


def main() -> None:
    """Entry point of the console script."""
    command_line.command_line(app)
