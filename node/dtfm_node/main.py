"""`dtfm-node`: the volunteer's command line."""

import asyncio
import contextlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from dtfm_node.commands.join_command import JoinCommand
from dtfm_node.commands.limit_options import (
    Disk,
    Download,
    GpuMemory,
    GpuShare,
    Memory,
    Nice,
    NotMetered,
    NotOnBattery,
    Upload,
    WhenIdle,
    WorkHours,
)
from dtfm_node.commands.recognition_commands import contribution, fetch_model
from dtfm_protocol.bounds import NICKNAME_LIMIT, nickname
from dtfm_protocol.process import command_line
from dtfm_protocol.process.logs import LogFormat, log, set_up
from dtfm_protocol.process.product_version import VersionOption

app = typer.Typer(
    help="Train a language model together with others.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

InviteSource = Annotated[
    str | None,
    typer.Argument(help="@FILE, - for standard input, or the text, which others here can see; else you are asked."),
]
StateDir = Annotated[Path, typer.Option("--state-dir", help="Where this node keeps its key, tokens and status.")]
JoinedStateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="The node's state folder (default: the only one there is).")
]
Yes = Annotated[bool, typer.Option("--yes", help="Agree, and ask nothing.")]
Device = Annotated[str, typer.Option("--device", help="What computes: auto, cpu, cuda, cuda:N or mps.")]
Devices = Annotated[
    str,
    typer.Option("--device", help="What computes: auto, cpu, cuda, cuda:N, mps; all GPUs: all; some: cuda:0,cuda:2."),
]


def _name(text: str) -> str:
    if nickname(text) != text:
        raise typer.BadParameter(f"letters, digits, spaces and -_.' only, at most {NICKNAME_LIMIT}")
    return text


Name = Annotated[
    str, typer.Option("--name", callback=_name, help="What others see this machine called (default: nothing).")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads for compute (default: torch's).")]


Format = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or one JSON object a line.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more, in the planner's words.")]


@app.callback()
def _begin(version: VersionOption = False) -> None:
    """Options of the program itself."""


@app.command(cls=JoinCommand)
def join(
    context: typer.Context,
    invite: InviteSource = None,
    config: Annotated[
        Path | None, typer.Option(help="Options in a file (default: dtfm-node.toml in the state folder).")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Where to keep key, text and model (default: a folder for each swarm)."),
    ] = None,
    yes: Yes = False,
    name: Name = "",
    device: Devices = "auto",
    announce: Annotated[
        str | None, typer.Option(help="HOST:PORT at which others reach this node, or HOST with --port.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Address to listen on for other peers.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on (default: --announce's, or any).")] = 0,
    lan: Annotated[bool, typer.Option("--lan", help="Also connect to peers in this machine's own network.")] = False,
    threads: Threads = None,
    memory: Memory = None,
    gpu_memory: GpuMemory = None,
    gpu_share: GpuShare = None,
    disk: Disk = None,
    upload: Upload = None,
    download: Download = None,
    hours: WorkHours = None,
    not_on_battery: NotOnBattery = False,
    when_idle: WhenIdle = False,
    not_metered: NotMetered = False,
    nice: Nice = 19,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, help="Seconds to wait for the coordinator (default: 30, fewer where it plainly is not there)."
        ),
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the model's layers with torch.compile.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a timeline of what this node does to this folder.")] = None,
    pace: Annotated[
        float | None, typer.Option(min=1e-6, help="For tests: be as slow as a device of so many GFLOP/s.")
    ] = None,
    log_format: Format = LogFormat.plain,
    log_file: Annotated[Path | None, typer.Option(help="Write the log there, 10 MB of it at most.")] = None,
    verbose: Verbose = False,
) -> None:
    """Join a swarm and train until its job is done. Without an invite: the swarm that this machine was in before."""
    with command_line.guarded():
        from dtfm_node.commands import kept_invite
        from dtfm_node.commands.chosen_limits import ChosenLimits
        from dtfm_node.commands.config_file import keep
        from dtfm_node.commands.consent import Consent
        from dtfm_node.commands.kept_options import keep_options
        from dtfm_node.commands.state_folders import default_folder, option_for
        from dtfm_node.commands.terms import terms_here
        from dtfm_node.devices.device_folders import keep_list
        from dtfm_node.devices.device_list import cuda_devices_here, devices_of, names_several
        from dtfm_node.doctor.closed_ports import look_ahead
        from dtfm_node.limits.work_priority import lower_priority
        from dtfm_protocol.identity.invite import Invite
        from dtfm_protocol.identity.invite_source import invite_text
        from dtfm_protocol.process.garbage_pause import without_collector
        from dtfm_protocol.process.state_dir import locked
        from dtfm_protocol.transport.multiaddress import announced

        announced(announce, port, "")  # refused now, not once the node has been let in
        parsed = Invite.decode(invite_text(invite))
        folder = state_dir or default_folder(parsed.swarm)
        consent = Consent(folder, parsed.swarm)
        command = cast(JoinCommand, context.command)
        limits = ChosenLimits.of(context.params, partial(command.called, context))
        devices = devices_of(device, cuda_devices_here) if names_several(device) else ()
        limits = replace(limits, device=",".join(devices) or device)
        rules, sends, receives = limits.rules, limits.upload, limits.download
        if not yes and not consent.obtain(
            lambda: terms_here(parsed.swarm, parsed.entrance, folder, option_for(state_dir), limits)
        ):
            raise typer.Exit(1)
        is_new = not folder.exists()
        with locked(folder), contextlib.ExitStack() as stack:
            consent.keep()
            kept_invite.keep(parsed, folder)
            keep(command.template(context), {}, folder)
            lower_priority(nice)  # before there are threads
            is_newcomer, has_new_key = not (folder / "credential.json").exists(), not (folder / "key").exists()
            if timeout is None and is_newcomer:
                asyncio.run(look_ahead(parsed, lan=lan))
                if not devices:  # else each device's node enrols
                    from dtfm_node.commands.early_enrolment import enrol

                    enrol(parsed, folder, is_new=is_new)
            if devices:
                from dtfm_node.commands.join_devices import DIVIDED, Asked, join_devices

                keep_options(command, context, limits, folder)
                others = command.given(context, DIVIDED)
                join_devices(
                    folder, Asked(devices, threads, memory, disk, sends, receives, port, announce, name, others)
                )
                return
            keep_list(folder, ())
            log.info("loading what training needs, which takes some seconds")
            with without_collector():  # a fifth of these seconds: what it would look through stays
                from dtfm_node.control.display import Display
                from dtfm_node.daemon import Daemon
                from dtfm_node.engine.process_limits import hold_memory, memory_of, share_of, surveyor
                from dtfm_node.node_options import NodeOptions

            survey = surveyor(stack)
            offered = memory_of(device, memory, gpu_memory)
            share = share_of(device, gpu_share)
            hold_memory(device, offered)
            display = stack.enter_context(Display(log_format.value))
            display.allowed, display.option = limits.in_words, option_for(state_dir)
            options = NodeOptions(
                device=device,
                announce=announce,
                listen=listen,
                port=port,
                threads=threads,
                memory_gb=offered,
                disk_gb=disk,
                upload=sends,
                download=receives,
                rules=rules,
                timeout=timeout,
                trace=trace,
                name=name,
                compiled=compiled,
                pace=None if pace is None else pace * 1e9,
                share=share,
                lan=lan,
                is_newcomer=is_newcomer,
                has_new_key=has_new_key,
            )
            accepted = partial(keep_options, command, context, limits, folder)
            daemon = Daemon(parsed, folder, options, display, surveyor=survey, accepted=accepted)
            command_line.run(daemon.run(), daemon.leave)


service = typer.Typer(
    help="Have the system start this machine's node by itself.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(service, name="service")


@service.command("install")
def service_install(state_dir: JoinedStateDir = None) -> None:
    """Start the node now and at each login, and again whenever it fails."""
    with command_line.guarded():
        from dtfm_node.commands.node_service import NodeService
        from dtfm_node.commands.state_folders import folder_of

        typer.echo(NodeService.of(folder_of(state_dir)).install())


@service.command("remove")
def service_remove(state_dir: JoinedStateDir = None) -> None:
    """Stop the node, and start it by itself no more."""
    with command_line.guarded():
        from dtfm_node.commands.node_service import NodeService
        from dtfm_node.commands.state_folders import folder_of

        typer.echo(NodeService.of(folder_of(state_dir)).remove())


@service.command("status")
def service_status(state_dir: JoinedStateDir = None) -> None:
    """Say whether the system starts the node, and whether it runs."""
    with command_line.guarded():
        from dtfm_node.commands.node_service import NodeService
        from dtfm_node.commands.state_folders import folder_of

        typer.echo(NodeService.of(folder_of(state_dir)).status())


@app.command()
def pause(
    state_dir: JoinedStateDir = None,
    span: Annotated[str | None, typer.Option("--for", help="How long: 2h, 90min (default: until `resume`).")] = None,
    at_once: Annotated[bool, typer.Option("--now", help="Do not wait until others have what the node holds.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it pauses.")] = 90.0,
) -> None:
    """Have a node stand still for a while. It stays a member, keeps its files, and computes and sends nothing."""
    with command_line.guarded():
        from dtfm_node.commands.pause import pause_all
        from dtfm_node.commands.state_folders import folder_of
        from dtfm_node.devices.device_folders import nodes_of
        from dtfm_node.limits.pause_order import seconds_of

        seconds = None if span is None else seconds_of(span)
        for line in pause_all(nodes_of(folder_of(state_dir, running=True)), seconds, timeout, at_once=at_once):
            typer.echo(line)


@app.command()
def resume(state_dir: JoinedStateDir = None) -> None:
    """Have a node that was paused take part again."""
    with command_line.guarded():
        from dtfm_node.commands.pause import resume_all
        from dtfm_node.commands.state_folders import folder_of
        from dtfm_node.devices.device_folders import nodes_of

        for line in resume_all(nodes_of(folder_of(state_dir))):
            typer.echo(line)


@app.command()
def leave(
    state_dir: JoinedStateDir = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it has left.")] = 90.0,
) -> None:
    """Have a node leave, once the others can do without it."""
    with command_line.guarded():
        from dtfm_node.commands.leave import leave as ask
        from dtfm_node.commands.state_folders import folder_of

        typer.echo(ask(folder_of(state_dir, running=True), timeout))


@app.command()
def remove(state_dir: JoinedStateDir = None, yes: Yes = False) -> None:
    """Delete what this machine keeps of a swarm that it has left."""
    with command_line.guarded():
        from dtfm_node.commands.node_service import check_not_installed
        from dtfm_node.commands.remove import Removal
        from dtfm_node.commands.state_folders import folder_of, option_for
        from dtfm_node.commands.yes_no_question import agreed

        folder = folder_of(state_dir)
        check_not_installed(folder)
        with Removal.of(folder, option_for(state_dir)) as removal:
            nobody = "this is no terminal to ask at: give --yes"
            if not yes and not agreed(removal.screen(), "Delete it?", nobody, "nothing was deleted"):
                raise typer.Exit(1)
            typer.echo(removal.carry_out())


app.command()(contribution)
app.command()(fetch_model)


@app.command()
def solo(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    state_dir: Annotated[Path, typer.Option("--state-dir", help="Where to keep metrics, checkpoints and tokens.")],
    device: Device = "auto",
    threads: Threads = None,
    amendments: Annotated[
        Path | None, typer.Option(help="Replay the changes of a run: its amendments.jsonl, beside its job.json.")
    ] = None,
    log_format: Format = LogFormat.plain,
) -> None:
    """Train a job in this process alone. It is the reference that every swarm is compared with."""
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.state_dir import locked

    set_up(log_format.value)
    with command_line.guarded():
        parsed = Job.load(job)
        with locked(state_dir):
            import torch

            from dtfm_node.commands.solo import run
            from dtfm_node.control.display import Display
            from dtfm_node.engine.device import choose

            if threads is not None:
                torch.set_num_threads(threads)
            with Display(log_format.value) as display:
                run(parsed, state_dir, choose(device), display, amendments)


@app.command()
def bench(
    device: Device = "auto",
    job: Annotated[
        Path | None,
        typer.Option(help="Measure this job's layer, and say which of its layers fit (default: a stated llama layer)."),
    ] = None,
    memory: Memory = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Measure how fast this device computes, as `join` does, and which layers of a job fit here."""
    with command_line.guarded():
        from dtfm_node.commands.bench import bench as run

        run(device, job, memory, threads, as_json)


@app.command()
def doctor(
    invite: InviteSource = None,
    state_dir: Annotated[Path | None, typer.Option("--state-dir", help="As with join.")] = None,
    device: Device = "auto",
    announce: Annotated[str | None, typer.Option(help="As with join: also tried from here.")] = None,
    listen: Annotated[str | None, typer.Option(help="As with join.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="As with join.")] = 0,
    lan: Annotated[bool, typer.Option("--lan", help="As with join.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Find out what keeps this machine from taking part. Says what to do; exits with 1 if something does."""
    with command_line.guarded():
        from dtfm_node.commands.kept_invite import given_or_kept
        from dtfm_node.commands.state_folders import folder_for
        from dtfm_node.doctor.command import run
        from dtfm_node.doctor.doctor_options import DoctorOptions

        text, _ = given_or_kept(invite, state_dir)
        options = DoctorOptions(folder_for(state_dir, text), device, announce, listen, port, lan)
        code = run(text, options, "json" if as_json else "plain")
    raise typer.Exit(code)


@app.command()
def status(
    state_dir: JoinedStateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also how long it waits for each peer.")] = False,
) -> None:
    """Say what this machine does for its swarm. Of several devices, what each does."""
    with command_line.guarded():
        from dtfm_node.commands.node_status import read_status, show_status
        from dtfm_node.commands.state_folders import folder_of
        from dtfm_node.devices.device_folders import nodes_of

        folder = folder_of(state_dir)
        nodes = nodes_of(folder)
        if nodes == [folder]:
            values = read_status(folder)
            typer.echo(json.dumps(values)) if as_json else show_status(values, verbose=verbose)
        elif as_json:
            typer.echo(json.dumps({"devices": {node.name: read_status(node) for node in nodes}}))
        else:
            for node in nodes:
                typer.echo(f"{node.name}:")
                show_status(read_status(node), verbose=verbose)


def main() -> None:
    """Entry point of the console script."""
    command_line.command_line(app)
