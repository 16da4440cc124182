"""The control plane's messages, and the one table of topics that carry them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dtfm_protocol.discovery.records import Limits, Link, Measured
from dtfm_protocol.identity.admission import MOST_BANS
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.enrolment import Certificate
from dtfm_protocol.identity.entry_token import TokenId
from dtfm_protocol.identity.keys import PeerName
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark, PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.schema import Schema

MOST_NEIGHBOURS = 512
"""Neighbours of which one report may tell."""
Text = Annotated[str, Field(max_length=500)]


class Presence(Schema):
    """A daemon's word that it is there, or gone. The broker publishes the offline one as the daemon's last will."""

    online: bool
    session: Annotated[str, Field(max_length=64)]
    """Random text of every start of a daemon, which tells a returning peer from a second one with the same key."""


class Phase(Schema):
    """The activity of the swarm as a whole, as the coordinator announces it."""

    name: Literal["waiting", "probing", "planning", "training", "done", "failed"]
    text: Text
    """The phase in one line for people."""


class Ledger(Schema):
    """The coordinator's account of what it has on disk."""

    recorded: int
    """The last step in `metrics.jsonl`: peers may forget rows up to here."""
    kept: int
    """The step of the newest whole checkpoint: peers need not hand in what is older."""
    safe: Mark = Mark()
    """The newest state of which every layer lies on disks of two peers, or of the coordinator: peers may delete what is
    older."""


class Epoch(Schema):
    """The coordinator's word on which plans are over and which one is in force. Peers answer with their `PeerState`."""

    called: int = 0
    """The version that the coordinator calls for: every plan below it is to end."""
    gently: bool = False
    """Whether a plan that is to end may finish the step under way: all is well, and a better plan is coming."""
    parked: bool = False
    """Whether no plan can follow for now: a checkpoint is to be handed in first."""
    in_force: int = 0
    """Version of the newest plan that most electors of the one before have taken."""
    started: int = 0
    """Version of the newest plan whose peers all hold its state: nobody needs what was held for it before."""


class Fan(Schema):
    """A star of peers whose centre measures what it can send to, and receive from, all the others at once."""

    centre: PeerName
    gbps: dict[PeerName, tuple[Measured, Measured]]
    """Gbit/s from the centre to each of the others, and back, as measured alone."""


class TokenUse(Schema):
    """A peer's entry with a token."""

    token: TokenId
    peer: PeerName
    at: float
    """Unix seconds."""


class MembershipNews(Schema):
    """The leading coordinator's word on who is a member: for all, whom not to let in any more; for standbys, which
    invites were used."""

    authorities: Annotated[tuple[Certificate, ...], Field(max_length=16)] = ()
    """Certificates of the coordinators that sign credentials."""
    bans: Annotated[tuple[Ban, ...], Field(max_length=MOST_BANS)] = ()
    revoked: Annotated[tuple[TokenId, ...], Field(max_length=4096)] = ()
    redeemed: Annotated[tuple[TokenUse, ...], Field(max_length=10_000)] = ()


class ProbeRound(Schema):
    """A round of measurements: disjoint pairs and groups that measure at the same time; the first of a pair acts."""

    id: int
    pairs: tuple[tuple[PeerName, PeerName], ...] = ()
    fans: tuple[Fan, ...] = ()
    addresses: dict[PeerName, tuple[str, ...]]
    """Multiaddresses at which the peers of the round are reached, by peer."""


class ProbeResult(Schema):
    """A peer's findings in a round of probes. Of whom is not said: the coordinator knows whom it has asked for."""

    round: Annotated[int, Field(ge=0, lt=1 << 63)]
    """The round in which the peer measured (`ProbeRound.id`)."""
    link: Link | None = None
    """The link to the other peer of its pair; None where it could not be measured, or was not asked for."""
    limits: Limits | None = None
    """Gbit/s that it can send and receive in all, as the centre of a fan; None where that could not be measured, or
    was not asked for."""


class Report(Schema):
    """A peer's progress, and metrics rows that the coordinator has not confirmed yet."""

    session: str
    state: Literal["measuring", "idle", "starting", "training", "stalled", "diverged", "finished"]
    """The peer's activity. idle: available, no tasklet; stalled: its step broke off, and it waits for a new plan."""
    plan_version: int = 0
    step: int = 0
    """The last step that is applied to this peer's state."""
    text: Text = ""
    lost: tuple[PeerName, ...] = ()
    """Peers whose streams broke."""
    standing: PeerState = PeerState()
    taken: Plan | None = None
    """The plan that this peer has taken last, where another coordinator than its author calls: that one may not know of
    it."""
    leaving: bool = False
    """Whether this peer wants to leave, and waits only until others have what it holds."""
    fetched_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of state that this peer has fetched for the plan that it is under."""
    busy_seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Seconds of compute in the last step, as measured: a peer that has become slow is not a dead one."""
    received_gbps: dict[PeerName, Measured] = Field(default={}, max_length=MOST_NEIGHBOURS)
    """Gbit/s from each neighbour in the last step, by its fastest frame: a link that became slow is measured anew."""
    probed: ProbeResult | None = None
    """The result of the last probe round in which this peer has acted: in every report, for any of them may be lost."""
    rows: tuple[StepMetrics, ...] = ()
    """Metrics of committed steps that the coordinator's ledger does not cover yet."""


class Challenge(Schema):
    """A call to whoever holds this identity to show itself: to publish its presence again."""

    session: str


@dataclass(frozen=True)
class Topic:
    """A kind of message: the name under which it travels, who may write it, and whether the broker keeps the last."""

    name: str
    author: Literal["coordinator", "peer"]
    """The writer; "peer": the topic ends in the writer's peer id, and only that peer may write it."""
    retained: bool
    schema: type[Schema]


JOB = Topic("job", "coordinator", True, ResolvedJob)
PLAN = Topic("plan", "coordinator", True, Plan)
PHASE = Topic("phase", "coordinator", True, Phase)
EPOCH = Topic("epoch", "coordinator", True, Epoch)
LEDGER = Topic("ledger", "coordinator", True, Ledger)
MEMBERSHIP = Topic("membership", "coordinator", True, MembershipNews)
PROBE = Topic("probe", "coordinator", False, ProbeRound)
PRESENCE = Topic("presence", "peer", True, Presence)
REPORT = Topic("report", "peer", False, Report)
CHALLENGE = Topic("challenge", "peer", False, Challenge)

TOPICS = {topic.name: topic for topic in (JOB, PLAN, PHASE, EPOCH, LEDGER, MEMBERSHIP, PROBE, PRESENCE, REPORT, CHALLENGE)}
"""Topics of a swarm, by name."""
