"""Views of members: what each of them does, in plain words, and why if nothing. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field

from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.records.member_records import Contribution
from dtfm_coordinator.swarm.overview.overview import Level, MemberRole, MemberView
from dtfm_coordinator.swarm.overview.spoken_numbers import duration
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.version_agreement import Distance, distance, told_to_coordinator


@dataclass(frozen=True)
class Around:
    """What there is around a member: the same for all of them."""

    plan: Plan | None
    """Plan in force."""
    stages: dict[str, int]
    """Index of the stage of each peer of the plan."""
    shares: dict[str, int]
    """Micro-batches of each peer of the plan."""
    heard: frozenset[str]
    """Peers whose reports come."""
    slow: frozenset[str]
    """Peers that have become slow."""
    doubted: frozenset[str]
    """Peers without which plans are made where they can."""
    unreached: frozenset[str]
    """Peers that no other one reaches, though it was tried."""
    phase: str
    version: str = ""
    """This coordinator's version; "": all versions fit."""

    @classmethod
    def of(
        cls,
        plan: Plan | None,
        heard: Collection[str] = (),
        slow: Collection[str] = (),
        doubted: Collection[str] = (),
        unreached: Collection[str] = (),
        phase: str = "training",
        version: str = "",
    ) -> "Around":
        """Return what there is around the members of a swarm with this plan in force."""
        stages = {peer: stage for route in plan.pipelines for stage, peer in enumerate(route)} if plan else {}
        shares = plan.shares() if plan else {}
        return cls(
            plan,
            stages,
            shares,
            frozenset(heard),
            frozenset(slow),
            frozenset(doubted),
            frozenset(unreached),
            phase,
            version,
        )


@dataclass(frozen=True)
class Known:
    """What else is known of one member."""

    name: str = ""
    """Whom its invite was for, and what its person calls the machine, as far as either was said."""
    contribution: Contribution = field(default_factory=Contribution)
    share: float = 0.0
    """Its part of all that was computed, from 0 to 1."""
    limits: Limits = field(default_factory=Limits)
    line_spread: float | None = None
    """Factor by which `limits` may be off, where they are estimated."""
    seen_at: float = 0.0
    """Unix seconds of its last report; 0: there was none."""
    now: float = 0.0
    """Unix seconds."""
    is_banned: bool = False
    """Whether the owner has banned it."""


def member_view(member: Member, around: Around, known: Known) -> MemberView:
    """Return what is shown of a member."""
    report, profile, plan = member.report, member.profile, around.plan
    stage = around.stages.get(member.peer)
    layers = (plan.stages[stage][0] + 1, plan.stages[stage][1]) if plan is not None and stage is not None else None
    role, does, level = _doing(member, around, known, layers)
    return MemberView(
        name=known.name,
        device=profile.device if profile else "",
        role=role,
        does=does,
        level=level,
        stage=stage,
        layers=layers,
        micro_batches=around.shares.get(member.peer, 0),
        step=report.step if report else 0,
        tokens=round(known.contribution.tokens),
        share=round(known.share, 5),
        seconds=round(known.contribution.seconds, 1),
        seen_at=None if member.peer in around.heard else known.seen_at or None,
        sent_bytes=report.sent_bytes if report else 0,
        received_bytes=report.received_bytes if report else 0,
        version=member.version,
        is_banned=known.is_banned,
        up_gbps=known.limits.up_gbps,
        down_gbps=known.limits.down_gbps,
        line_spread=None if known.line_spread is None else round(known.line_spread, 2),
    )


Doing = tuple[MemberRole, str, Level]


def _doing(member: Member, around: Around, known: Known, layers: tuple[int, int] | None) -> Doing:
    """Return a member's role, what it does in words, and how well that is."""
    report = member.report
    if known.is_banned:
        return "gone", "is banned by the owner; its work so far counts", "wait"
    if member.kicked and member.kicked == member.session:
        return "gone", "was sent away by the owner, until its person joins again", "wait"
    if not member.is_here:
        if around.phase == "done":
            return "gone", "has left; its work counts", "done"
        is_missed = layers is not None and around.phase != "failed"
        return "gone", "has left; its work so far counts", "warn" if is_missed else "wait"
    if distance(around.version, member.version) is Distance.FAR:
        return "spare", told_to_coordinator(around.version, member.version), "warn"
    if report is None:
        return "joining", "has just come, and has said nothing yet", "wait"
    if member.is_paused:
        return "paused", f"does nothing for now, and stays a member ({report.text})", "wait"
    if member.peer not in around.heard:
        silent = f" for {duration(max(0.0, known.now - known.seen_at))}" if known.seen_at else ""
        return "silent", f"has said nothing{silent}: asleep, busy, or without a network", "warn"
    if report.leaving:
        return "leaving", "leaves or pauses as soon as others have what it holds", "wait"
    if report.state == "measuring":
        return "measuring", "measures how fast it computes", "wait"
    if report.state in {"stalled", "diverged"}:
        return "stalled", f"its step broke off, and it waits for the next plan ({report.text})", "warn"
    if layers is None or around.plan is None:
        return (
            ("joining", "is being looked up by the others", "wait") if not member.is_listed else _spare(member, around)
        )
    return _at_work(member, around, layers)


def _spare(member: Member, around: Around) -> Doing:
    """Return what a member without work does, and why it has none."""
    if around.phase in {"done", "failed"}:
        return "spare", "nothing: the run is over", "done"
    if member.peer in around.unreached:
        return "spare", "is left out of plans: no other machine reaches it (`dtfm-node doctor` there says why)", "warn"
    if around.plan is None:
        return "spare", "waits for the first plan", "wait"
    if member.peer in around.doubted:
        return "spare", "is left out of plans: others accuse it, or it hands in nothing (see what has happened)", "warn"
    if member.peer in around.plan.idle:
        return (
            "spare",
            "ready as a spare: steps are faster without it, and it takes over when another one leaves",
            "good",
        )
    return "spare", "new: it is measured, and has work with the next plan if that makes steps faster", "wait"


def _at_work(member: Member, around: Around, layers: tuple[int, int]) -> Doing:
    assert around.plan is not None
    assert member.report is not None
    first, last = layers
    span = f"layer {first}" if first == last else f"layers {first}-{last}"
    part = around.shares.get(member.peer, 0), len(around.plan.routes)
    some = "" if part[0] == part[1] else f", for {part[0]} of {part[1]} parts of each batch"
    work = f"computes {span} of {around.plan.layers}{some}"
    if member.report.plan_version != around.plan.version or member.report.state == "starting":
        return "starting", f"takes up its part: it {work}", "wait"
    if member.report.state == "finished" or around.phase == "done":
        return "trains", f"has finished: it {work.replace('computes', 'computed')}", "done"
    if member.peer in around.slow:
        return "trains", f"{work}; has become much slower than it was", "warn"
    return "trains", work, "good"
