"""Commands of a running swarm: serve a job, introduce a second coordinator, train on this machine alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtfm_coordinator.commands.option_types import Format, JobFile, Seed, StateDir, Verbose
from dtfm_coordinator.swarm.overview.news import advise
from dtfm_protocol.process import command_line
from dtfm_protocol.process.logs import LogFormat, log, set_up

if TYPE_CHECKING:
    from dtfm_coordinator.serve.web.page_address import PageOptions

OnEvent = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Run this when the run is done, fails or stalls, or a member is lost."),
]
Webhook = Annotated[str | None, typer.Option(metavar="URL", help="Post the same there, as JSON.")]
STALLED_MINUTES = 10.0
"""Minutes without a step after which a run is stalled, unless its owner says otherwise."""


def serve(
    job: JobFile,
    state_dir: StateDir,
    listen: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65534, help="Port for nodes; data takes the next one.")] = 7700,
    announce: Annotated[
        str | None, typer.Option(help="Host at which nodes reach this machine: the invite names it.")
    ] = None,
    broker: Annotated[
        str,
        typer.Option(envvar="DTFM_BROKER", help="Message broker: embedded, or mqtt[s]://[USER:PASSWORD@]HOST[:PORT]."),
    ] = "embedded",
    broker_ca: Annotated[Path | None, typer.Option(help="PEM certificate that signs the broker's own.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Use this file's layout, and search for none; a changed file is taken up.")
    ] = None,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Begin only when so many nodes are here.")] = None,
    exit_when_done: Annotated[bool, typer.Option("--exit-when-done", help="End after the last step.")] = False,
    without_quorum: Annotated[
        bool, typer.Option("--without-quorum", help="Go on though nodes are gone for good that the run waits for.")
    ] = False,
    card: Annotated[
        list[str] | None, typer.Option(help="A second coordinator, which may take over: what `card` prints.")
    ] = None,
    standby: Annotated[
        str | None, typer.Option(metavar="INVITE", help="Take over this swarm (@FILE, - or text) when nobody leads it.")
    ] = None,
    lan: Annotated[bool, typer.Option("--lan", help="Also connect to peers in this machine's own network.")] = False,
    web: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve the owner's page there; a port alone is for this machine."),
    ] = None,
    web_cert: Annotated[
        Path | None, typer.Option(help="PEM certificate of the page, with its key or --web-key.")
    ] = None,
    web_key: Annotated[Path | None, typer.Option(help="PEM key of that certificate.")] = None,
    on_event: OnEvent = None,
    webhook: Webhook = None,
    test_event: Annotated[
        bool, typer.Option("--test-event", help="Only tell --on-event and --webhook of a `test`, and end.")
    ] = False,
    stalled_after: Annotated[
        float, typer.Option(metavar="MINUTES", min=0.1, help="Minutes without a step after which a run is stalled.")
    ] = STALLED_MINUTES,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the metrics there for TensorBoard.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Log the metrics for Weights & Biases, on this machine.")
    ] = None,
    seed: Seed = 0,
    log_format: Format = LogFormat.plain,
    verbose: Verbose = False,
) -> None:
    """Serve a job to nodes that join. It prints an invite, plans for whoever joins, and keeps the result."""
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.state_dir import locked

    set_up(log_format.value, verbose)
    log.filters[:] = [advise]
    with command_line.guarded():
        parsed, page = Job.load(job), _page(web, announce, web_cert, web_key)
        if test_event:
            _try_notices(on_event, webhook, parsed.name)
            return
        with locked(state_dir):
            from dtfm_coordinator.serve.boards.board_feed import BoardOptions
            from dtfm_coordinator.serve.first_second import serve_job
            from dtfm_coordinator.serve.notices.notice_sender import NoticeOptions
            from dtfm_coordinator.serve.serve_options import ServeOptions
            from dtfm_protocol.identity.invite_source import invite_text

            notices, boards = NoticeOptions.parse(on_event, webhook, stalled_after), BoardOptions(tensorboard, wandb)
            boards.check()
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
                invite_text(standby) if standby is not None else None,
                lan,
                page,
                notices,
                boards,
            )
            command_line.run(
                serve_job(parsed, state_dir, options, _say_invite),
                waits_for="connections to the members and to the page to close",
            )


def _try_notices(on_event: str | None, webhook: str | None, job: str) -> None:
    """Tell the owner's command and webhook of nothing, so that they see whether that comes.

    Raises:
        UserError: there is neither, or an option cannot be used.
    """
    from dtfm_coordinator.serve.notices.notice_sender import NoticeOptions, NoticeSender
    from dtfm_protocol.errors import UserError

    options = NoticeOptions.parse(on_event, webhook, STALLED_MINUTES)
    if options is None:
        raise UserError("--test-event: say whom to tell, by --on-event COMMAND or --webhook URL")
    command_line.run(NoticeSender(options).try_out(job))
    log.info("A `test` was sent; without a warning above, it was taken.")


def card(
    state_dir: StateDir,
    listen: Annotated[str, typer.Option(help="Address that `serve --standby` will listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65534, help="Its port for nodes.")] = 7700,
    announce: Annotated[str | None, typer.Option(help="Host at which nodes reach this machine.")] = None,
    broker: Annotated[str, typer.Option(envvar="DTFM_BROKER", help="As with serve.")] = "embedded",
) -> None:
    """Introduce a second coordinator. What this prints is for `serve --card` on the first one's machine."""
    from dtfm_protocol.process.state_dir import locked

    with command_line.guarded(), locked(state_dir):
        from dtfm_coordinator.serve.appointment import card as made
        from dtfm_coordinator.serve.serve_options import ServeOptions

        typer.echo(made(state_dir, ServeOptions(listen, port, announce, broker)).encode())


def _page(web: str | None, announced: str | None, certificate: Path | None, key: Path | None) -> "PageOptions | None":
    from dtfm_coordinator.serve.web.page_address import PageAddress, PageOptions

    if web is None:
        return None
    return PageOptions(PageAddress.parse(web), announced.strip("[]") if announced else None, certificate, key)


def _say_invite(invite: str) -> None:
    log.info("Nodes can join now. Give this line to those whom you trust to take part:")
    typer.echo(f"dtfm-node join {invite}")


def swarm(
    job: JobFile,
    state_dir: StateDir,
    nodes: Annotated[int, typer.Option(min=1, help="How many node processes.")] = 2,
    plan: Annotated[Path | None, typer.Option(help="Use this file's layout, and search for none.")] = None,
    text: Annotated[Path | None, typer.Option(help="Train on this file instead of the job's text.")] = None,
    sample: Annotated[str | None, typer.Option(help="Generate from this prompt at the end.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Have the nodes write timelines to this folder.")] = None,
    on_event: OnEvent = None,
    webhook: Webhook = None,
    seed: Seed = 0,
    log_format: Format = LogFormat.plain,
    verbose: Verbose = False,
) -> None:
    """Serve a job and train it with N nodes on this machine."""
    from dtfm_coordinator.serve.start_check import check_start
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.state_dir import locked

    set_up(log_format.value, verbose)
    log.filters[:] = [advise]
    with command_line.guarded():
        parsed = Job.load(job)
        if text is not None:
            parsed = parsed.model_copy(update={"data": parsed.data.model_copy(update={"text": [str(text.resolve())]})})
        with locked(state_dir):
            check_start(parsed, state_dir, plan, nodes)
            from dtfm_coordinator.serve.finished_run import finished_run
            from dtfm_coordinator.serve.notices.notice_sender import NoticeOptions
            from dtfm_coordinator.serve.serve_options import ServeOptions
            from dtfm_coordinator.tools.local_swarm import run

            notices = NoticeOptions.parse(on_event, webhook, STALLED_MINUTES)
            if said := finished_run(parsed, state_dir):
                typer.echo(said)
            else:
                options = ServeOptions(
                    "127.0.0.1", 0, plan=plan, min_nodes=nodes, exit_when_done=True, seed=seed, notices=notices
                )
                command_line.run(
                    run(parsed, state_dir, nodes, options, trace),
                    waits_for="the nodes on this machine, which write down what they hold",
                )
            if sample is not None:
                from dtfm_coordinator.tools.generate import generate as sampled

                typer.echo(sampled(state_dir, sample, 200, 0.8, 0))
