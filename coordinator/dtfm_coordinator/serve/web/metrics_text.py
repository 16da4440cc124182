"""Figures of an overview in the text format of Prometheus, in base units. Pure."""

from collections.abc import Iterator

from dtfm_coordinator.swarm.overview.overview import MemberView, Overview
from dtfm_protocol.identity.keys import short

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_MEMBERS = 1000
"""Members that have rows of their own: the first ones that are here."""
PHASES = ("preparing", "standing-by", "waiting", "probing", "planning", "training", "done", "failed")
ROLES = (
    "trains",
    "starting",
    "spare",
    "measuring",
    "joining",
    "leaving",
    "paused",
    "silent",
    "stalled",
    "gone",
)
Sample = tuple[dict[str, str], float | None]


def metrics_text(overview: Overview) -> str:
    """Return the figures of an overview; those that are not known are left out."""
    lines = list[str]()
    for name, kind, text, samples in _families(overview):
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _families(overview: Overview) -> Iterator[tuple[str, str, str, list[Sample]]]:
    progress, figures, plan = overview.progress, overview.figures, overview.plan
    info = {"swarm": overview.swarm, "job": overview.job}
    yield "dtfm_run_info", "gauge", "The run, in labels.", [(info, 1)]
    yield "dtfm_phase", "gauge", "1 for the phase of the run.", [({"phase": p}, p == overview.phase) for p in PHASES]
    ok = overview.health.level not in {"warn", "bad"}
    for name, text, value in (
        ("dtfm_healthy", "1 while nothing needs the owner, 0 where something does.", float(ok)),
        ("dtfm_step", "The newest step that is recorded.", progress.step),
        ("dtfm_steps", "Steps of the whole run.", progress.steps),
        ("dtfm_tokens", "Tokens that the state of the run was trained on.", progress.tokens),
        ("dtfm_remaining_seconds", "Seconds until the last step at the pace of late.", progress.seconds_left),
        ("dtfm_loss", "Training loss of the newest step, in nats.", figures.loss),
        ("dtfm_evaluation_loss", "Loss of the newest evaluation, in nats.", figures.eval_loss),
        ("dtfm_evaluation_step", "Step of the newest evaluation.", figures.eval_step),
        ("dtfm_learning_rate", "Learning rate of the newest step.", figures.learning_rate),
        ("dtfm_gradient_norm", "Norm of the newest step's gradient before clipping.", figures.grad_norm),
        ("dtfm_tokens_per_second", "Tokens a second over the newest steps.", figures.tokens_per_second),
        ("dtfm_step_seconds", "Seconds of the newest step.", figures.seconds),
        ("dtfm_predicted_step_seconds", "Seconds of a step as the plan predicts them.", figures.predicted_seconds),
        ("dtfm_step_sent_bytes", "Bytes that all members sent for the newest step.", figures.sent_bytes),
        ("dtfm_plan_version", "Version of the plan in force.", plan.version if plan else None),
        ("dtfm_plan_stages", "Stages of the plan in force.", len(plan.stages) if plan else None),
        ("dtfm_plan_pipelines", "Pipelines of the plan in force.", len(plan.pipelines) if plan else None),
        ("dtfm_disk_free_bytes", "Room on the disk of the state folder.", overview.storage.free_bytes),
    ):
        yield name, "gauge", text, [({}, value)]
    for name, text, values in (
        (
            "dtfm_evaluation_set_loss",
            "Loss of a set in the newest evaluation, in nats.",
            [s.loss for s in figures.sets],
        ),
        ("dtfm_evaluation_set_perplexity", "The same as perplexity.", [s.perplexity for s in figures.sets]),
        (
            "dtfm_evaluation_set_accuracy_ratio",
            "Share of a set's target tokens that were foretold as the likeliest, from 0 to 1.",
            [s.accuracy for s in figures.sets],
        ),
    ):
        yield name, "gauge", text, [({"set": s.name}, v) for s, v in zip(figures.sets, values, strict=True)]
    newest = next(iter(overview.storage.checkpoints), None)
    if newest is not None:
        yield "dtfm_checkpoint_step", "gauge", "Step of the newest checkpoint.", [({}, newest.step)]
        yield "dtfm_checkpoint_timestamp_seconds", "gauge", "Unix time of the newest checkpoint.", [({}, newest.at)]
        yield "dtfm_checkpoint_bytes", "gauge", "Bytes of the newest checkpoint.", [({}, newest.size)]
    yield from _member_families(overview.members)


def _member_families(members: dict[str, MemberView]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    counts = dict.fromkeys(ROLES, 0)
    for one in members.values():
        counts[one.role] += 1
    yield "dtfm_members", "gauge", "Members by what they do.", [({"role": r}, n) for r, n in counts.items()]
    here = [(peer, one) for peer, one in members.items() if one.role != "gone"][:MOST_MEMBERS]
    labels = [({"member": short(peer)}, one) for peer, one in here]
    yield (
        "dtfm_member_info", "gauge", "A member, in labels.",
        [(at | {"peer": peer, "name": one.name, "version": one.version}, 1)
         for (at, one), (peer, _) in zip(labels, here, strict=True)],
    )  # fmt: skip
    yield (
        "dtfm_member_tokens", "gauge", "Tokens of the run's state that went through a member's layers.",
        [(at, one.tokens) for at, one in labels],
    )  # fmt: skip
    yield (
        "dtfm_member_work_ratio", "gauge", "A member's part of all that was computed, from 0 to 1.",
        [(at, one.share) for at, one in labels],
    )  # fmt: skip
    yield (
        "dtfm_member_healthy",
        "gauge",
        "0 for a member that needs a look.",
        [(at, float(one.level not in {"warn", "bad"})) for at, one in labels],
    )


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
