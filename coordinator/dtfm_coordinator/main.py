"""`dtfm-coordinator`: the owner's command line."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dtfm_protocol import program
from dtfm_protocol.errors import UserError
from dtfm_protocol.logs import LogFormat, set_up

app = typer.Typer(
    help="Have a community train a language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JobFile = Annotated[Path, typer.Argument(help="The job file (TOML).")]
StateDir = Annotated[Path, typer.Option("--state-dir", help="Where key, invite, metrics and checkpoints are kept.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the allocator's search.")]


Format = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or one JSON object a line.")]


class Algorithm(StrEnum):
    """How a placement is found."""

    evolutionary = "evolutionary"
    random = "random"
    in_order = "in-order"


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
    plan: Annotated[Path | None, typer.Option(help="Force this layout.")] = None,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Wait for so many nodes.")] = None,
    exit_when_done: Annotated[bool, typer.Option("--exit-when-done", help="End after the last step.")] = False,
    seed: Seed = 0,
    log_format: Format = LogFormat.plain,
) -> None:
    """Serve a job: print an invite, plan for whoever joins, keep the result."""
    from dtfm_protocol.job import Job
    from dtfm_protocol.statedir import locked

    set_up(log_format.value)
    with program.guarded():
        parsed = Job.load(job)
        with locked(state_dir):
            from dtfm_coordinator.service import Coordinator, Options

            options = Options(listen, port, announce, broker, broker_ca, plan, min_nodes, exit_when_done, seed)
            program.run(Coordinator(parsed, state_dir, options).run(_say_invite))


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
    seed: Seed = 0,
    log_format: Format = LogFormat.plain,
) -> None:
    """Serve a job and train it with N nodes on this machine."""
    from dtfm_protocol.job import Job
    from dtfm_protocol.statedir import locked

    set_up(log_format.value)
    with program.guarded():
        parsed = Job.load(job)
        if text is not None:
            parsed = parsed.model_copy(update={"data": parsed.data.model_copy(update={"text": [str(text.resolve())]})})
        with locked(state_dir):
            from dtfm_coordinator.service import Options
            from dtfm_coordinator.swarm import run

            options = Options("127.0.0.1", 0, plan=plan, min_nodes=nodes, exit_when_done=True, seed=seed)
            program.run(run(parsed, state_dir, nodes, options))
            if sample is not None:
                from dtfm_coordinator.generate import generate as sampled

                typer.echo(sampled(state_dir, sample, 200, 0.8, 0))


@app.command()
def plan(
    view: Annotated[Path, typer.Argument(help="A saved view (JSON).")],
    stages: Annotated[int, typer.Option(min=1, help="Pipeline stages.")],
    activation_bytes: Annotated[float, typer.Option(min=0, help="Bytes a pipeline's share sends over a boundary.")],
    gradient_bytes: Annotated[float, typer.Option(min=0, help="Bytes of a stage's gradients.")],
    cost: Annotated[str, typer.Option(help="paper.")] = "paper",
    algorithm: Annotated[Algorithm, typer.Option(help="How the placement is found.")] = Algorithm.evolutionary,
    seed: Seed = 0,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds of search.")] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Placements to look at, instead of seconds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the plan is written (default: standard output).")] = None,
) -> None:
    """Run the allocator alone on a saved view."""
    with program.guarded():
        from dtfm_coordinator.allocator.allocate import allocate_paper
        from dtfm_protocol.statedir import write_atomically
        from dtfm_protocol.view import View

        if cost != "paper":
            raise UserError(f"--cost {cost}: the only cost here is paper")
        if budget is not None and evaluations is not None:
            raise UserError("--budget and --evaluations exclude each other: give one")
        found = allocate_paper(
            View.load(view), stages, activation_bytes, gradient_bytes, algorithm.value, seed, budget, evaluations
        )
        text = found.model_dump_json(indent=1)
        if out is None:
            typer.echo(text)
            return
        write_atomically(out, text + "\n")
        assert found.cost is not None
        typer.echo(
            f"{found.cost.total:.3f} s (data parallel {found.cost.data_parallel:.3f}, pipeline "
            f"{found.cost.pipeline:.3f}) after {found.evaluations} evaluations in {found.seconds:.2f} s: {out}"
        )


@app.command()
def export(state_dir: StateDir, out: Annotated[Path, typer.Argument(help="Folder to make.")]) -> None:
    """Write the newest checkpoint as a folder that transformers loads."""
    with program.guarded():
        from dtfm_coordinator.export import export as write

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
    with program.guarded():
        from dtfm_coordinator.generate import generate as sampled

        typer.echo(sampled(state_dir, prompt, tokens, temperature, seed))


@app.command()
def status(state_dir: StateDir, as_json: Json = False) -> None:
    """Say what is going on."""
    with program.guarded():
        from dtfm_coordinator.status import read, show

        values = read(state_dir)
        if as_json:
            typer.echo(json.dumps(values))
        else:
            show(values)


def main() -> None:
    """Entry point of the console script."""
    program.command_line(app)
