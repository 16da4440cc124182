"""The page of a report: numbers, charts and tables as one HTML file that needs nothing else. Pure.

All text goes through `escape`: names, devices and reasons are others' words.
"""

import time
from collections.abc import Iterable, Sequence
from html import escape

from dtfm_coordinator.owner.amending import described
from dtfm_coordinator.owner.owner_acts import told_wish
from dtfm_coordinator.records.step_history import RECENT
from dtfm_coordinator.swarm.overview.owner_words import reason_in_words, with_names
from dtfm_coordinator.swarm.overview.step_pace import pace_in_words
from dtfm_coordinator.tools.formatting import amount, duration
from dtfm_coordinator.tools.model_card import OPTIMIZERS
from dtfm_coordinator.tools.report.curve_chart import Curve, chart
from dtfm_coordinator.tools.report.run_facts import RunFacts
from dtfm_protocol.bounds import printable
from dtfm_protocol.identity.keys import called
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.process.quantities import bytes_in_words

MOST_ROWS = 500
"""Lines of a table that are shown; of more, the newest."""
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --line: #d9dee5; --back: #fff; --soft: #f4f6f8;
  --train: #2563a8; --eval: #c2410c; --ok: #2f7d4f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #9aa5b4; --line: #323b47; --back: #14181e;
  --soft: #1c222a; --train: #6ea8e6; --eval: #f2955c; --ok: #6cc490; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 940px; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .2rem; font-size: 1.7rem; } h2 { margin: 2.4rem 0 .6rem; font-size: 1.15rem; }
.said, .none, footer { color: var(--dim); } .said { margin: 0 0 1.4rem; }
dl.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: .7rem; margin: 0; }
dl.numbers div { padding: .7rem .9rem; border-radius: 8px; background: var(--soft); }
dt { color: var(--dim); font-size: .82rem; } dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } table { width: 100%; border-collapse: collapse; font-size: .88rem; }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  min-width: 4rem; }
th { color: var(--dim); font-weight: 500; white-space: nowrap; } td { overflow-wrap: break-word; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.d { white-space: nowrap; } td.w { min-width: 12rem; }
figure { margin: 0; }
figcaption { display: flex; gap: .5rem; align-items: center; color: var(--dim); font-size: .85rem; }
figcaption span { width: 18px; height: 3px; border-radius: 2px; }
figcaption em { margin-left: auto; font-style: normal; }
figcaption span.train { background: var(--train); } figcaption span.eval { background: var(--eval); }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 12px; }
line.grid { stroke: var(--line); } line.mark { stroke: var(--dim); stroke-dasharray: 2 4; opacity: .6; }
polyline { fill: none; stroke-width: 1.6; }
polyline.train { stroke: var(--train); } polyline.eval { stroke: var(--eval); }
circle.train, path.train { fill: var(--train); } circle.eval, path.eval { fill: var(--eval); }
@media (max-width: 600px) { svg text { font-size: 24px; } .wide table { width: max-content; min-width: 100%; }
  td.w { max-width: 16rem; } }
footer { margin-top: 3rem; font-size: .82rem; }
"""


def page(facts: RunFacts, made_at: float) -> str:
    """Return the report of a run as an HTML document.

    Args:
        facts: the run.
        made_at: Unix seconds at which it is made.
    """
    job, said = facts.job, _how_it_is(facts)
    if facts.events:
        said = f"Begun {_moment(facts.events[0].called_at)}. {said}"
    starts = [float(event.step) for event in facts.events[1:]]
    evaluated = Curve("on the evaluation's text", "eval", facts.eval_losses, dotted=len(facts.eval_losses) <= 60)
    losses = [Curve("in training", "train", [(row.step, row.loss) for row in facts.rows if row.tokens]), evaluated]
    predicted = [(row.step, row.predicted_seconds) for row in facts.rows if row.predicted_seconds is not None]
    taken = [
        Curve("measured", "train", [(row.step, row.seconds) for row in facts.rows]),
        Curve("predicted by the plan", "eval", predicted),
    ]
    pace = pace_in_words(facts.rows[-RECENT:], is_over=facts.is_over)
    parts = [
        f"<h1>{_text(job.name)}</h1><p class=said>{_text(said)}</p>",
        _numbers(facts),
        _section("Loss", chart("Loss over steps", "nats a token; dotted: another plan", losses, starts)),
        *_sets(facts),
        _section("Time a step takes", chart("Seconds a step over steps", "seconds", taken, starts, cuts=True), pace),
        _section("Plans", _plans(facts)),
        _section("Members", _members(facts)),
        _section("Checkpoints", _checkpoints(facts)),
        _section("What the owner has done", _acts(facts)),
        _section("Job", _job(facts)),
        f"<footer>Made {_moment(made_at)} by dtfm-coordinator report.</footer>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(job.name)}: report of a training run</title><style>{STYLE}</style></head>\n<body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _how_it_is(facts: RunFacts) -> str:
    """Return how the run is, or was when its coordinator ended, in a sentence or two."""
    overview = facts.overview
    if overview is None:
        return "Not begun yet."
    is_current = facts.is_live or facts.is_over
    return f"{'' if is_current else 'The coordinator is not running; what it said last: '}{overview.health.sentence}"


def _numbers(facts: RunFacts) -> str:
    last = facts.rows[-1] if facts.rows else None
    evaluated, speed = facts.eval_losses, facts.tokens_a_second
    shown = {
        "Steps": f"{last.step if last else 0:,} of {facts.timeline.last_step:,}",
        "Tokens": amount(facts.tokens),
        "Loss": f"{last.loss:.4f}" if last else "",
        "Evaluation loss": f"{evaluated[-1][1]:.4f}" if evaluated else "",
        "Parameters": amount(facts.parameters) if facts.parameters else "",
        "Tokens a second": amount(speed) if speed else "",
        "Time in steps": duration(facts.training_seconds) if facts.rows else "",
        "Sent between nodes": bytes_in_words(sum(row.bytes_sent for row in facts.rows)) if facts.rows else "",
        "Members": f"{len(facts.ledger.members):,}" if facts.ledger.members else "",
        "Plans": f"{len(facts.events):,}" if facts.events else "",
    }
    cells = (f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in shown.items() if value)
    return f"<dl class=numbers>{''.join(cells)}</dl>"


def _sets(facts: RunFacts) -> list[str]:
    """Return the section on the job's sets; none where it has none, or none were evaluated yet."""
    newest = next((row for row in reversed(facts.rows) if row.sets), None)
    if newest is None:
        return []
    rows = [
        (one.name, f"{one.loss:.4f}", f"{one.perplexity:,.4g}", f"{one.accuracy:.1%}", f"{one.tokens:,}")
        for one in newest.sets
    ]
    table = _table(("set", "loss:n", "perplexity:n", "tokens foretold:n", "target tokens:n"), rows)
    return [_section(f"Sets after step {newest.step:,}", table)]


def _plans(facts: RunFacts) -> str:
    rows = (
        (
            str(event.plan),
            _moment(event.called_at),
            with_names(reason_in_words(event.why) or event.why, facts.names),
            f"{event.step:,}",
            f"{event.repeated:,}",
            bytes_in_words(event.moved_bytes),
            duration(event.started_at - event.called_at) if event.started_at else "",
        )
        for event in facts.events
    )
    return _table(
        ("plan:n", "made:d", "why:w", "from step:n", "run again:n", "state moved:n", "until training:n"), rows
    )


def _members(facts: RunFacts) -> str:
    """Who has entered or contributed, and how much, also of those who have left; of those who are here now, what they
    do."""
    plan, ledger = facts.plan, facts.ledger
    seen = facts.overview.members if facts.overview is not None else {}
    rows = []
    for peer in dict.fromkeys([*ledger.members, *facts.shares, *seen]):
        entry, view = ledger.members.get(peer), seen.get(peer)
        invite = ledger.invited.get(entry.token) if entry is not None else None
        stage = plan.stage_of(peer) if plan is not None else None
        layers = _layers(*plan.stages[stage]) if plan and stage is not None else ""
        share = f"{len(plan.micro_batches(peer))} of {len(plan.routes)}" if plan and stage is not None else ""
        does = view.does if view is not None and facts.is_live else ""
        rows.append(
            (
                called(peer, facts.nicknames.get(peer, "")),
                invite.name if invite else "",
                _moment(ledger.entered[entry.token, peer]) if entry is not None else "",
                (view.device if view is not None else "") or "not known",
                layers,
                share,
                f"{facts.shares[peer]:.1%}" if peer in facts.shares else "",
                "banned" if entry is not None and ledger.is_banned(peer, entry.token) else does,
            )
        )
    head = (
        "member", "invited as", "entered:d", "device", "layers:d", "micro-batches:n", "share of all work:n", "now:w"
    )  # fmt: skip
    return _table(head, rows)


def _checkpoints(facts: RunFacts) -> str:
    rows = (
        (
            f"{one.step:,}",
            _moment(one.at) if one.at is not None else "",
            bytes_in_words(one.bytes),
            f"{one.eval_loss:.4f}" if one.eval_loss is not None else "",
            one.fault or ("for good" if one.for_good else "until newer ones come"),
        )
        for one in facts.checkpoints
    )
    return _table(("step:n", "written:d", "size:n", "evaluation loss:n", "kept:w"), rows)


def _acts(facts: RunFacts) -> str:
    rows = [(_moment(one.at), with_names(one.text, facts.names)) for one in facts.acts]
    rows += [(_moment(wish.at), told_wish(wish)) for wish in facts.wishes.unanswered.values()]
    return _table(("when:d", "what:w"), rows)


def _job(facts: RunFacts) -> str:
    """The job as it is for the newest step, and how it came to be so."""
    job, timeline = facts.job, facts.timeline
    settings = timeline.settings_at(facts.rows[-1].step if facts.rows else 1)
    training, config = settings.training, job.config
    changes = described(JobTimeline(job), timeline)
    layers = config.get("num_hidden_layers", config.get("n_layer", "?"))
    pairs = {
        "Model": f"{config.get('model_type', '')}, {layers} layers",
        "Text": f"{amount(job.corpus.tokens)} tokens, {job.corpus.vocab_size:,} words in the vocabulary",
        "Batch": f"{training.global_batch} sequences of {training.sequence_length} tokens, in micro-batches of "
        f"{training.micro_batch}",
        "Learning rate": f"{training.learning_rate:g}, after {training.warmup_steps} steps of warm-up; "
        f"{training.schedule}",
        "Optimizer": OPTIMIZERS[training.optimizer],
        "Weight decay": f"{training.weight_decay:g}",
        "Gradients clipped at": f"{training.clip_norm:g}" if training.clip_norm else "no clipping",
        "Arithmetic": f"{training.precision}, weights kept in {training.weights}",
        "Sent as": _sent_as(settings.plan),
        "Seed": str(training.seed),
    }
    changed = (("changed" if not turn else "", line) for turn, line in enumerate(changes))
    return _table((":d", ":w"), (*pairs.items(), *changed))


def _sent_as(planning: Planning) -> str:
    over_slow = "" if planning.slow_wire == "none" else f"; over slow boundaries it may be {planning.coarse_wire}"
    return f"{planning.wire}{over_slow}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the name of a column ends in `:n` where it has numbers, `:d` where it has what is not to be
    broken into lines, `:w` where it has sentences."""
    found = list(rows)
    if not found:
        return '<p class="none">None yet.</p>'
    names, kinds = [name.partition(":")[0] for name in head], [name.partition(":")[2] for name in head]
    kinds = [f' class="{kind}"' if kind else "" for kind in kinds]
    top = "".join(f"<th{kind}>{_text(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    lines = (
        "".join(f"<td{kind}>{_text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        for row in found[-MOST_ROWS:]
    )
    more = f'<p class="none">and {len(found) - MOST_ROWS:,} earlier ones.</p>' if len(found) > MOST_ROWS else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    titles = f"<thead><tr>{top}</tr></thead>" if any(names) else ""
    return f'<div class="wide"><table>{titles}<tbody>{body}</tbody></table></div>{more}'


def _section(title: str, content: str, said: str = "") -> str:
    below = f"<p class=said>{_text(said)}</p>" if said else ""
    return f"<section><h2>{_text(title)}</h2>{content}{below}</section>"


def _layers(first: int, end: int) -> str:
    return f"{first + 1} to {end}" if end > first + 1 else str(end)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _text(value: str) -> str:
    return escape(printable(value))
