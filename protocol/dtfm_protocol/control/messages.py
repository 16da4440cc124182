"""The control plane's messages, and the one table of topics that carry them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dtfm_protocol.bounds import (
    MOST_PEERS,
    SEEN_LIMIT,
    Addresses,
    Count,
    Nickname,
    PeerName,
    Port,
    ProductVersion,
    Session,
    Step,
    Text,
    Time,
    Version,
)
from dtfm_protocol.discovery.records import MOST_NEIGHBOURS, Limits, Link, Measured, Profile
from dtfm_protocol.identity.admission import MOST_AUTHORITIES
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_list import MOST_BANS, MOST_RULINGS
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.enrolment import Certificate
from dtfm_protocol.identity.entry_token import MOST_USES, TokenId
from dtfm_protocol.identity.envelope import LIMIT
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark, PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import Votes
from dtfm_protocol.plan.voted_step import VotedStep
from dtfm_protocol.schema import Fallback, Message, Schema

ROWS_LIMIT = 128
"""Rows of metrics in one report."""
LOST_LIMIT = 512
"""Peers that one report may name as lost."""
KICKS_LIMIT = 64
"""Kicks of which the swarm is told."""
FAN_LIMIT = 16
"""Peers to which one sends at the same time in a probe."""
ECHO_LIMIT = 16
"""Peers to which one takes round trips in a probe."""
Pair = tuple[PeerName, PeerName]


class Presence(Message):
    """A daemon's word that it is there, or gone. The broker publishes the offline one as the daemon's last will."""

    online: bool
    session: Session
    """Random text of every start of a daemon, which tells a returning peer from a second one with the same key."""
    name: Nickname = ""
    """What its person calls the machine; "": it has no name. Others may take the same."""
    version: ProductVersion = ""
    """Version of its program."""
    profile: Profile | None = None
    """What its machine can do, and where it is reached, as it publishes it, too; null: it is to be looked up there."""


class Phase(Message):
    """The activity of the swarm as a whole, as the coordinator announces it."""

    name: Annotated[Literal["waiting", "probing", "planning", "training", "done", "failed"], Fallback("waiting")]
    text: Text
    """The phase in one line for people."""
    paused: bool = False
    """Whether the owner has paused the run: whoever leads next keeps it so."""
    session: Session = ""
    """Random text of every start of a coordinator: a phase that ends the swarm counts only if this one lives."""
    called: Version = 0
    """The version that the coordinator had called for (`Epoch`): a phase of an earlier epoch ends nothing."""


class Ledger(Message):
    """The coordinator's account of what it has on disk."""

    recorded: Step
    """The last step in `metrics.jsonl`: peers may forget rows up to here."""
    kept: Step
    """The step of the newest whole checkpoint: peers need not hand in what is older."""
    safe: Mark = Mark()
    """The newest state of which every layer lies on disks of two peers, or of the coordinator: peers may delete what is
    older."""


class Epoch(Schema):
    """The coordinator's word on which plans are over and which one is in force. Peers answer with their `PeerState`."""

    called: Version = 0
    """The version that the coordinator calls for: every plan below it is to end."""
    gently: bool = False
    """Whether a plan that is to end may finish the step under way: all is well, and a better plan is coming."""
    parked: bool = False
    """Whether no plan can follow for now: a checkpoint is to be handed in first."""
    in_force: Version = 0
    """Version of the newest plan that most electors of the one before have taken."""
    started: Version = 0
    """Version of the newest plan whose peers all hold its state: nobody needs what was held for it before."""


class Fan(Message):
    """A star of peers whose centre measures what it can send to, and receive from, all the others at once."""

    centre: PeerName
    gbps: Annotated[dict[PeerName, tuple[Measured, Measured]], Field(max_length=FAN_LIMIT)]
    """Gbit/s from the centre to each of the others, and back, as measured alone."""


class TokenUse(Message):
    """A peer's entry with a token."""

    token: TokenId
    peer: PeerName
    at: Time
    """Unix seconds."""
    uses: Annotated[int, Field(ge=0, le=MOST_USES)] = 0
    """Nodes that the token is for; 0: not known."""


class Kick(Message):
    """The owner's word that a peer is to leave; it may come back."""

    peer: PeerName
    at: Time
    """Unix seconds."""


class MembershipNews(Message):
    """The leading coordinator's word on who is a member: for all, whom not to let in any more; for standbys, which
    invites were used."""

    authorities: Annotated[tuple[Certificate, ...], Field(max_length=MOST_AUTHORITIES)] = ()
    """Certificates of the coordinators that sign credentials, or have signed some that count; they say whose places
    those have taken."""
    bans: Annotated[tuple[Ban, ...], Field(max_length=MOST_BANS)] = ()
    rulings: Annotated[tuple[BanRuling, ...], Field(max_length=MOST_RULINGS)] = ()
    """On bans that hold no more, or again."""
    revoked: Annotated[tuple[TokenId, ...], Field(max_length=4096)] = ()
    redeemed: Annotated[tuple[TokenUse, ...], Field(max_length=10_000)] = ()
    kicked: Annotated[tuple[Kick, ...], Field(max_length=KICKS_LIMIT)] = ()
    """Peers that were kicked most lately, whose streams are to end."""


class ProbeRound(Message):
    """A round of measurements: disjoint pairs and groups that measure at the same time; the first of a pair acts, and
    the second tells what it sees."""

    id: Count
    pairs: Annotated[tuple[Pair, ...], Field(max_length=MOST_PEERS)] = ()
    fans: Annotated[tuple[Fan, ...], Field(max_length=MOST_PEERS)] = ()
    echoes: Annotated[
        dict[PeerName, Annotated[tuple[PeerName, ...], Field(max_length=ECHO_LIMIT)]], Field(max_length=MOST_PEERS)
    ] = Field(default={})
    """Peers that take round trips to others, all at once, by peer."""
    quick: bool = False
    """Whether rates are to be found in a second or two each way, to within a tenth or two."""
    addresses: Annotated[dict[PeerName, Addresses], Field(max_length=MOST_PEERS)]
    """Multiaddresses at which the peers of the round are reached, by peer."""
    ports: Annotated[dict[PeerName, Port], Field(max_length=MOST_PEERS)] = Field(default={})
    """Ports at which they take direct connections, by their own word, at the hosts of these addresses; of who is
    missing that is not known."""
    next: Annotated[tuple[Pair, ...], Field(max_length=MOST_PEERS)] = ()
    """Pairs of the round after this one, as far as they are known by now: the first of a pair may open its streams
    meanwhile."""
    coming: Plan | None = None
    """The layout that is about to follow the plan in force, for peers to fetch ahead what they lack for it, while they
    train on: neither signed nor promised for. In such a round nothing is measured. None: nobody is to fetch
    anything."""


class ProbeResult(Message):
    """A peer's findings in a round of probes. Of whom is not said: the coordinator knows whom it has asked for."""

    round: Count
    """The round in which the peer measured (`ProbeRound.id`)."""
    link: Link | None = None
    """The link to the other peer of its pair, measured, or as seen while that one measured; None where it could not be
    measured, or was not asked for."""
    limits: Limits | None = None
    """Gbit/s that it can send and receive in all, as the centre of a fan; None where that could not be measured, or
    was not asked for."""
    echoes: Annotated[dict[PeerName, Measured], Field(max_length=ECHO_LIMIT)] = Field(default={})
    """Milliseconds of the round trips that it was asked for; who did not answer is missing."""


class Report(Message):
    """A peer's progress, and metrics rows that the coordinator has not confirmed yet."""

    session: Session
    state: Annotated[
        Literal["measuring", "idle", "starting", "training", "stalled", "diverged", "paused", "finished"],
        Fallback("paused"),
    ]
    """The peer's activity. idle: available, no tasklet; stalled: its step broke off, and it waits for a new plan;
    paused: it stays a member, and computes, holds and gives nothing for now, as in a state that only it knows."""
    plan_version: Version = 0
    step: Step = 0
    """The last step that is applied to this peer's state."""
    text: Text = ""
    lost: Annotated[tuple[PeerName, ...], Field(max_length=LOST_LIMIT)] = ()
    """Peers whose streams broke."""
    refused: PeerName = ""
    """The one of them whose frame this peer has refused: it has sent what no honest peer sends. "": none."""
    evidence: Votes = ()
    """Two votes on one part of a state that contradict each other, for which this peer, an arbiter, has ended the plan:
    signed, so that nobody's word is needed for it."""
    standing: PeerState = PeerState()
    voted: VotedStep | None = None
    """Proof that all voted on the newest step that this peer, the arbiter of a plan of one stage, has made final: so
    it need not be believed where nobody else is left who knows. None: none, or others are there to say it."""
    taken: Plan | None = None
    """The plan that this peer has taken last, where the coordinator that calls may not know of it: it is not its
    author, or does not name it as in force."""
    leaving: bool = False
    """Whether this peer wants to leave, or to pause, and waits only until others have what it holds."""
    fetched_bytes: Count = 0
    """Bytes of state that this peer has fetched for the plan that it is under."""
    sent_bytes: Count = 0
    """Bytes that this peer has sent to others since its program began."""
    received_bytes: Count = 0
    """Bytes that it has received from others since then."""
    busy_seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Seconds of compute in the last step, as measured: a peer that has become slow is not a dead one."""
    received_gbps: dict[PeerName, Measured] = Field(default={}, max_length=MOST_NEIGHBOURS)
    """Gbit/s from each neighbour in the last step, by its fastest frame: a link that became slow is measured anew."""
    sent_gbps: dict[PeerName, Measured] = Field(default={}, max_length=MOST_NEIGHBOURS)
    """Gbit/s to each neighbour to which frames were under way for most of the last seconds, as this peer's kernel has
    timed them: a link that fails is told before its frames are through."""
    coming: Count = 0
    """The newest round (`ProbeRound.id`) with a layout to come of which this peer has heard."""
    is_ahead: bool = False
    """Whether it has all that it lacks for that layout, as of about now, or cannot have it ahead."""
    probed: ProbeResult | None = None
    """The result of the last probe round in which this peer has acted: in every report, for any of them may be lost."""
    rows: Annotated[tuple[StepMetrics, ...], Field(max_length=ROWS_LIMIT)] = ()
    """Metrics of committed steps that the coordinator's ledger does not cover yet."""


class Challenge(Message):
    """A call to whoever holds this identity to show itself, by publishing its presence again; and to the coordinator
    that leads to show that it lives (`Answers`)."""

    session: Session
    """The session of who calls: random text that nobody can have answered before."""


class Answers(Message):
    """A coordinator's answer to challenges: proof that it lives, and did not merely once say what is heard of it."""

    to: Annotated[tuple[Session, ...], Field(max_length=SEEN_LIMIT)]
    """The sessions of those who called."""
    session: Session
    """The coordinator's own, as in its `Phase`."""
    version: ProductVersion = ""
    """Version of its program. It is said here, for nobody can have kept this message from an earlier run."""


@dataclass(frozen=True)
class Topic:
    """A kind of message: the name under which it travels, who may write it, and whether the broker keeps the last."""

    name: str
    author: Literal["coordinator", "peer"]
    """The writer; "peer": the topic ends in the writer's peer id, and only that peer may write it."""
    retained: bool
    schema: type[Schema]
    limit: int = 1 << 13
    """Bytes of the largest message in its envelope."""


JOB = Topic("job", "coordinator", True, ResolvedJob, LIMIT)
PLAN = Topic("plan", "coordinator", True, Plan, LIMIT)
PHASE = Topic("phase", "coordinator", True, Phase)
EPOCH = Topic("epoch", "coordinator", True, Epoch)
LEDGER = Topic("ledger", "coordinator", True, Ledger)
MEMBERSHIP = Topic("membership", "coordinator", True, MembershipNews, LIMIT)
PROBE = Topic("probe", "coordinator", False, ProbeRound, LIMIT)
ANSWERS = Topic("answers", "coordinator", False, Answers, 1 << 16)
PRESENCE = Topic("presence", "peer", True, Presence)
REPORT = Topic("report", "peer", False, Report, LIMIT)
CHALLENGE = Topic("challenge", "peer", False, Challenge)

TOPICS = {
    topic.name: topic
    for topic in (JOB, PLAN, PHASE, EPOCH, LEDGER, MEMBERSHIP, PROBE, ANSWERS, PRESENCE, REPORT, CHALLENGE)
}
"""Topics of a swarm, by name."""
