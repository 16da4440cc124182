"""Screen of the findings about a job file: a few lines and two tables of 80 columns."""

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dtfm_coordinator.tools.check.forecast import Forecast
from dtfm_coordinator.tools.check.job_findings import Boundary, JobFindings, ModelFindings, TextFindings, times
from dtfm_coordinator.tools.formatting import amount, duration, seconds
from dtfm_protocol.bounds import printable
from dtfm_protocol.data.set_sizes import SetSize
from dtfm_protocol.data.text_size import LayoutSize
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.process.quantities import bytes_in_words

WIDTH = 80
"""Columns of the screen at the most."""
DEVICES_GB = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 141, 192, 288)
"""Gigabytes of memory that devices are sold with."""
FREE_PART = 0.9
"""Part of a device's memory that is free for training, as on the made-up home machines."""


def device_gb(needed: float) -> int | None:
    """Return the gigabytes of the smallest device on which so many bytes are free; None: there is none so large."""
    return next((gigabytes for gigabytes in DEVICES_GB if needed <= gigabytes * 1e9 * FREE_PART), None)


def show(out: Console, found: JobFindings, forecasts: tuple[Forecast, ...], machine: str) -> None:
    """Print the findings for people.

    Args:
        machine: what each machine of the forecasts is, in words.
    """
    out.width = min(out.width, WIDTH)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    if found.model is not None:
        facts.add_row("model", _model_words(found, found.model))
    if found.text is not None:
        for name, words in _text_words(found, found.text):
            facts.add_row(name, words)
    for one in found.sets or ():
        facts.add_row("held out", _set_words(one))
    verdict = "can be served" if not found.mistakes else f"cannot be served: {_mistakes_words(len(found.mistakes))}"
    out.print(Text.assemble((printable(found.job.name), "bold"), f": {verdict}"))
    out.print(facts)
    if found.model is not None:
        out.print()
        _show_stages(out, found, found.model)
    if forecasts:
        out.print()
        _show_forecasts(out, found, forecasts, machine)
    if found.notes or found.mistakes:
        out.print()
    for line in found.notes:
        out.print(_hanging("note", printable(line), "yellow"))
    for line in found.mistakes:
        out.print(_hanging("mistake", printable(line), "bold red"))


def _model_words(found: JobFindings, model: ModelFindings) -> str:
    training = found.job.training
    layers = "1 layer" if model.layers == 1 else f"{model.layers} layers"
    kept = "" if training.weights == "fp32" else f", weights kept in {training.weights}"
    part = ""
    if model.trained < model.parameters:
        part = f", of which {model.trained:,} are trained ({training.method})"
    how = f"trained in {training.precision}{kept} by {training.optimizer}"
    return f"{model.architecture}, {model.parameters:,} parameters in {layers}{part}, {how}"


def _text_words(found: JobFindings, text: TextFindings) -> list[tuple[str, str]]:
    training, measured = found.job.training, text.size
    tokenizer = found.job.data.tokenizer
    name = tokenizer if found.job.data.tokenizer_folder is None else "the tokenizer's folder"
    sources = found.job.data.sources
    noun = "conversation" if sources and all(one.kind == "messages" for one in sources) else "document"
    documents = f"1 {noun}" if measured.documents == 1 else f"{measured.documents:,} {noun}s"
    counted = f", estimated {measured.how}" if measured.how else ""
    about = "about " if measured.how else ""
    if sources is not None:
        documents = f"{about}{documents}"
    lines = [
        (
            "text",
            f"{documents}, {bytes_in_words(measured.bytes)}: {about}{measured.tokens:,} tokens by {name}{counted}",
        ),
        (
            "training",
            f"{training.steps:,} steps of {training.global_batch:,} x {training.sequence_length:,} tokens: "
            f"{amount(text.trained_tokens)} tokens" + (f", {times(text.epochs)} epochs" if text.epochs else ""),
        ),
    ]
    if measured.layout is not None:
        lines.insert(1, ("learned", _layout_words(measured.layout, measured.tokens, about)))
    if text.held_out_tokens:
        lines.append(("held out", f"{text.held_out_tokens:,} tokens at the text's end, for evaluation"))
    return lines


def _set_words(one: SetSize) -> str:
    of = f"{printable(one.name)}, {bytes_in_words(one.bytes)}"
    if one.sequences is None or one.targets is None:
        return f"{of}: counted once the tokenizer is made"
    sequences = "1 sequence" if one.sequences == 1 else f"{one.sequences:,} sequences"
    return f"{of}: {sequences} with {one.targets:,} targets"


def _layout_words(layout: LayoutSize, tokens: int, about: str) -> str:
    said = (
        f"{about}{layout.targets:,} of {tokens:,} tokens are targets; {100 * layout.padding:.0f} % fill sequences up; "
        f"{layout.cut:,} conversations or completions are cut off"
    )
    return f"{said}; of {layout.left_out:,} documents nothing is learned" if layout.left_out else said


def _show_stages(out: Console, found: JobFindings, model: ModelFindings) -> None:
    fixed, wire = found.job.plan.stages, found.job.plan.wire
    chosen = "" if fixed == "auto" else f" (the job fixes {fixed} stages)"
    out.print(f"A stage, by the pipeline's depth{chosen}", style="bold")
    table = _table()
    for name in ("stages", "layers", "parameters", "memory", "recomputing", "device", "state", "gradients"):
        table.add_column(name, justify="right")
    for needs in model.by_depth:
        device = device_gb(needs.recomputed_bytes)
        table.add_row(
            str(needs.stages),
            str(needs.layers),
            amount(needs.parameters),
            bytes_in_words(needs.memory_bytes),
            bytes_in_words(needs.recomputed_bytes),
            "none" if device is None else f"{device} GB",
            bytes_in_words(needs.state_bytes),
            bytes_in_words(needs.gradient_bytes),
            style="bold" if needs.stages == fixed else None,
        )
    out.print(table)
    smallest = device_gb(model.smallest_stage_bytes)
    fits = "" if smallest is None else f": a device of {smallest} GB"
    tied, shares = bytes_in_words(model.tied_gradient_bytes), model.tied_gradient_bytes > 0
    for line in (
        "Of the stage that needs most; the device holds it recomputing.",
        *([_beside(model)] if any(needs.host_bytes for needs in model.by_depth) else ()),
        "Whoever takes a lost peer's place fetches the stage's state.",
        f"The smallest stage of all, one layer, needs {bytes_in_words(model.smallest_stage_bytes)}{fits}.",
        f"A step sends {bytes_in_words(model.boundary.ahead_bytes)} ahead and "
        f"{bytes_in_words(model.boundary.back_bytes)} back over each boundary, in {wire}.",
        *([_coarse(model.coarse_boundary, found.job.plan)] if model.coarse_boundary is not None else ()),
        "Each of R replicas of a stage sends 2 (R - 1) / R times its gradients.",
        *([f"First and last stage share an embedding: all their peers reduce its {tied} besides."] if shares else ()),
    ):
        out.print(Padding(line, (0, 0, 0, 1)))


def _beside(model: ModelFindings) -> str:
    whole = model.by_depth[0]
    return (
        f"A GPU leaves what the optimizer keeps in the machine's memory: {bytes_in_words(whole.host_bytes)} of "
        f"{bytes_in_words(whole.memory_bytes)} where one has all layers."
    )


def _coarse(boundary: Boundary, planning: Planning) -> str:
    return (
        f"Over slow ones it may be {bytes_in_words(boundary.ahead_bytes)} and {bytes_in_words(boundary.back_bytes)}, "
        f"in {planning.coarse_wire}."
    )


def _show_forecasts(out: Console, found: JobFindings, forecasts: tuple[Forecast, ...], machine: str) -> None:
    tokens = found.job.training.tokens
    out.print("On home machines", style="bold")
    table = _table()
    for name in ("machines", "used", "stages", "step", "tokens/s", "whole job"):
        table.add_column(name, justify="right")
    for one in forecasts:
        if one.why_none:
            table.add_row(str(one.machines), "-", "-", "-", "-", "no plan")
        else:
            table.add_row(
                str(one.machines),
                str(one.used),
                str(one.stages),
                seconds(one.step_seconds),
                f"{tokens / one.step_seconds:,.0f}",
                duration(3600 * one.hours) if 60 * one.hours >= 1 else "under a minute",
            )
    out.print(table)
    for one in forecasts:
        if one.why_none:
            out.print(Padding(printable(f"{one.machines}: {one.why_none}"), (0, 0, 0, 1)))
    out.print(Padding(f"Each: {machine}.", (0, 0, 0, 1)))


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))


def _mistakes_words(count: int) -> str:
    return "1 mistake" if count == 1 else f"{count} mistakes"


def _hanging(label: str, line: str, style: str) -> Table:
    """Return a labelled line whose second row begins below the first one's text."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style=style)
    made.add_column()
    made.add_row(label, line)
    return made
