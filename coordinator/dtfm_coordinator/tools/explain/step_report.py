"""Report of the findings about a simulated step, as tables and lines for people."""

from rich.console import Console
from rich.table import Table

from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.simulated_timeline import Transfer
from dtfm_coordinator.tools.explain.critical_path import Bottleneck, by_cause
from dtfm_coordinator.tools.explain.idle_peers import IdlePeer
from dtfm_coordinator.tools.explain.next_node import NOTICEABLE, Growth
from dtfm_coordinator.tools.explain.single_changes import TriedChanges
from dtfm_coordinator.tools.explain.step_findings import BoundaryFindings, StageFindings, StepFindings
from dtfm_coordinator.tools.formatting import link_named, named, percent, seconds
from dtfm_protocol.process.quantities import bytes_in_words

MOST_LINKS = 10
"""Number of links that are listed."""
MOST_IDLE = 10
"""Number of idle peers that are listed."""
DIFFERENT = 0.01
"""Share by which the simulated total may differ from the one that the plan states before a line says so."""
WAITED = 0.01
"""Share of its own seconds that a message may have waited before a line says so."""


def parts(cost: PredictedSeconds) -> str:
    """Return a step's seconds and their parts, in one line."""
    said = (
        f"{seconds(cost.total)} a step: compute {seconds(cost.compute)} + pipeline {seconds(cost.pipeline)} "
        f"+ data parallel {seconds(cost.data_parallel)}"
    )
    return f"{said} + optimizer {seconds(cost.optimizer)}" if cost.optimizer else said


def bottleneck_line(found: Bottleneck, total: float) -> str:
    """Return the bottleneck, in one line."""
    if len(found.place) == 1:
        where = f"the compute of {named(found.place[0])}"
    elif len(found.by_direction) == 1:
        where = f"the link {link_named(*found.place)}"
    else:
        ways = " and ".join(f"{link_named(*place)} {seconds(taken)}" for place, taken in found.by_direction)
        where = f"the link between {named(found.place[0])} and {named(found.place[1])} ({ways})"
    causes = ", ".join(f"{cause} {seconds(taken)}" for cause, taken in found.by_cause)
    return (
        f"bottleneck: {where}, {seconds(found.seconds)} of the critical path, {percent(found.seconds, total)} of the "
        f"step ({causes}); the tables count also what nobody waits for"
    )


def difference_line(found: StepFindings) -> str | None:
    """Return a line if the plan states another total than is simulated here; else None."""
    total = found.cost.total
    if found.planned is None or abs(found.planned - total) <= DIFFERENT * total:
        return None
    return (
        f"the plan itself states {seconds(found.planned)}, {100 * (found.planned / total - 1):+.0f} % of what is "
        "simulated here: it was made for another view or another job"
    )


def what_if_line(as_it_is: float, total: float) -> str:
    """Return how a step of `total` seconds compares with one of the plan as it is, in one line."""
    return f"as the plan is, a step takes {seconds(as_it_is)}: {100 * (total / as_it_is - 1):+.1f} % by the change"


def show(
    out: Console,
    found: StepFindings,
    changes: TriedChanges | None,
    idle: tuple[IdlePeer, ...],
    next_node: Growth | None,
    *,
    asked_growth: bool,
    is_what_if: bool = False,
) -> None:
    """Print the findings to `out`.

    Args:
        is_what_if: whether wire or schedule are others than those for which the plan was searched.
    """
    total = found.cost.total
    out.print(parts(found.cost), style="bold", soft_wrap=True)
    different = difference_line(found)
    if different is not None:
        out.print(different, soft_wrap=True)
    out.print(bottleneck_line(found.bottleneck, total), soft_wrap=True)
    shares = (f"{cause} {seconds(taken)} ({percent(taken, total)})" for cause, taken in by_cause(found.path).items())
    out.print(f"critical path: {', '.join(shares)}", soft_wrap=True)
    out.print(_stage_table(found.stages))
    out.print(_peer_table(found))
    if found.links:
        out.print(_link_table(found))
    for line in change_lines(changes, total, is_what_if=is_what_if) if changes is not None else ():
        out.print(line, soft_wrap=True)
    for line in (*idle_lines(found.idle, idle, total), *(growth_lines(next_node, total) if asked_growth else ())):
        out.print(line, soft_wrap=True)


def _stage_table(stages: tuple[StageFindings, ...]) -> Table:
    table = Table(
        "stage", "layers", "peers", "a micro-batch to the next", "all-reduce", "its slowest link", title="stages",
        title_justify="left",
    )  # fmt: skip
    for stage in stages:
        slowest = stage.slowest_link
        table.add_row(
            str(stage.number + 1),
            f"{stage.layers[0] + 1} to {stage.layers[1]}" + (", recomputed" if stage.recomputes else ""),
            str(len(stage.peers)),
            boundary_message(stage.onward) if stage.onward is not None else "",
            seconds(stage.all_reduce) if slowest is not None else "none",
            reduction_message(slowest) if slowest is not None else "",
        )
    return table


def boundary_message(onward: BoundaryFindings) -> str:
    """Return what one micro-batch sends over a boundary: its codecs, and its bytes each way."""
    ahead, back = bytes_in_words(onward.ahead_bytes), bytes_in_words(onward.back_bytes)
    return f"{onward.wire}: {ahead} there, {back} back"


def reduction_message(message: Transfer) -> str:
    """Return a message of an all-reduce: its link, its size, how long it was on its way, and what it waited before."""
    shared = " of the embedding that first and last stage share" if message.kind == "tied all-reduce" else ""
    waited = message.start - message.ready
    behind = f", after {seconds(waited)} behind others" if waited > WAITED * (message.arrival - message.start) else ""
    return (
        f"{link_named(message.sender, message.receiver)}: {bytes_in_words(message.bytes)}{shared} in "
        f"{seconds(message.arrival - message.start)}{behind}"
    )


def _peer_table(found: StepFindings) -> Table:
    table = Table(
        "stage", "peer", "micro-batches", "computes", "of step", "waits: bubble", "transfer", "all-reduce, commit",
        "optimizer", "memory", title="peers", title_justify="left",
    )  # fmt: skip
    for stage in found.stages:
        for peer in stage.peers:
            there = "unknown" if peer.memory_there is None else bytes_in_words(peer.memory_there)
            table.add_row(
                str(peer.stage + 1), named(peer.peer), str(peer.micro_batches), seconds(peer.compute),
                percent(peer.compute, found.cost.total), seconds(peer.bubble), seconds(peer.transfer),
                seconds(peer.reduction), seconds(peer.optimizer) if peer.optimizer else "unknown",
                f"{bytes_in_words(peer.memory_needed)} of {there}",
            )  # fmt: skip
        table.add_section()
    return table


def _link_table(found: StepFindings) -> Table:
    more = len(found.links) - MOST_LINKS
    table = Table(
        "link", "carries", "bytes", "busy", "of step", "Gbit/s", "ms", title="links, busiest first",
        title_justify="left", caption=f"and {more} more" if more > 0 else None, caption_justify="left",
    )  # fmt: skip
    for link in found.links[:MOST_LINKS]:
        way = "" if link.way == "direct" else f", {link.way}"
        table.add_row(
            link_named(link.sender, link.receiver) + way, ", ".join(link.kinds), bytes_in_words(link.bytes),
            seconds(link.busy), percent(link.busy, found.cost.total), f"{link.gbps:.3g}", f"{link.latency_ms:.3g}",
        )  # fmt: skip
    return table


def change_lines(tried: TriedChanges, total: float, *, is_what_if: bool = False) -> list[str]:
    """Return lines about the best single changes of a plan whose step takes `total` seconds; `is_what_if` is that of
    `show`."""
    drawn = "" if tried.is_all else ", drawn from more"
    looked_at = f"the best of each kind among {tried.looked_at:,} single changes{drawn}"
    if not tried.best:
        return [f"why these peers: no single change that can be makes any difference ({looked_at})"]
    saved = total - tried.best[0].seconds
    if saved > 0:
        missed = "the search has missed it, `plan --budget SECONDS` searches longer"
        why = "the plan was searched for another wire or schedule" if is_what_if else missed
        first = (
            f"why these peers: a single change saves {seconds(saved)} a step ({percent(saved, total)}): {why} "
            f"({looked_at})"
        )
    else:
        first = f"why these peers: no single change shortens the step ({looked_at})"
    width = max(len(one.words) for one in tried.best)
    return [first, *(f"  {one.words:<{width}}  {_change(one.seconds, total)}" for one in tried.best)]


def _change(then: float, total: float) -> str:
    """Return what a step costs or saves beside one of `total` seconds."""
    return f"{'saves' if then < total else 'costs'} {seconds(abs(then - total))} ({100 * (then / total - 1):+.2g} %)"


def idle_lines(idle: tuple[str, ...], tried: tuple[IdlePeer, ...], total: float) -> list[str]:
    """Return lines about the idle peers, and what each could do at best."""
    if not idle:
        return ["idle: nobody"]
    lines = [f"idle: {len(idle)} of the view's peers"]
    for one in tried[:MOST_IDLE]:
        if one.stage is None:
            lines.append(f"  {named(one.peer)}: {one.obstacle}")
        else:
            ratio = one.seconds / total
            change = f"{ratio:.3g} times as long" if ratio >= 2 else f"{100 * (ratio - 1):+.1f} %"
            verdict = "the plan is better without it" if ratio >= 1 else "the plan misses that"
            lines.append(
                f"  {named(one.peer)}: as one more replica of stage {one.stage + 1} a step would take "
                f"{seconds(one.seconds)} ({change}): {verdict}"
            )
    untold = [named(peer) for peer in idle[len(tried[:MOST_IDLE]) :]]
    if untold:
        shown = ", ".join(untold[:MOST_IDLE]) + (f" and {len(untold) - MOST_IDLE} more" if untold[MOST_IDLE:] else "")
        lines.append(f"  not tried: {shown}")
    return lines


def growth_lines(found: Growth | None, total: float) -> list[str]:
    """Return lines about what a longer search and the next node would bring to a step of `total` seconds."""
    if found is None:
        return ["the next node: a view of one node has no links to say what another's would be"]
    lines = []
    if found.now < (1 - NOTICEABLE) * total:
        lines.append(f"a longer search finds {seconds(found.now)} a step for the same peers: `plan --budget SECONDS`")
    both = f"with one more like the median {seconds(found.then)}, without it {seconds(found.now)}"
    if found.is_noticeable:
        lines.append(f"the next node would bring {100 * found.gain:.1f} %: {both} (two short searches alike)")
    elif found.is_nothing:
        lines.append(f"the next node would bring nothing: {both} (two short searches alike)")
    else:
        lines.append(f"the next node: not to be told, short searches differ by more ({both}); give a larger --budget")
    return lines
