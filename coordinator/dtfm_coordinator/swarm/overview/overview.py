"""Overview of a run: one plain value for people, which `status`, the owner's page and its metrics all show.

It holds no addresses, invites or tokens, so that whoever may look may see all of it.
"""

from typing import Literal

from dtfm_protocol.bounds import Label, PeerName, Text
from dtfm_protocol.job.step_metrics import SetMetrics
from dtfm_protocol.schema import Schema

Level = Literal["good", "wait", "warn", "bad", "done"]
"""How well something is. wait: nothing is wrong, and nothing is done yet; warn: somebody should look; bad: it has
failed."""

MemberRole = Literal[
    "trains", "starting", "spare", "measuring", "joining", "leaving", "paused", "silent", "stalled", "gone"
]
"""What a member does, in one word."""


class Health(Schema):
    """The answer to whether the run is going well."""

    level: Level = "wait"
    sentence: str = ""
    """The answer in one plain sentence."""
    advice: str = ""
    """What to do; "": nothing."""


class Progress(Schema):
    """The way that a run has come, and has before it."""

    step: int = 0
    """The newest step that is recorded."""
    steps: int = 0
    """Steps of the whole run."""
    tokens: int = 0
    """Tokens that were trained on so far."""
    step_seconds: float | None = None
    """Seconds of a step, the median of the newest ones; evaluations left out. None before the first step."""
    seconds_left: float | None = None
    """Seconds until the last step, at that pace; None: not known."""
    ends_at: float | None = None
    """Unix seconds of the end, at that pace; None: not known, or nobody trains."""


class Figures(Schema):
    """The figures of the newest step; None before the first."""

    loss: float | None = None
    """In nats."""
    eval_loss: float | None = None
    """Of the newest evaluation, in nats."""
    eval_step: int | None = None
    sets: tuple[SetMetrics, ...] = ()
    """Of the newest evaluation, each set of the job; none where it has none."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    """Over the newest steps."""
    seconds: float | None = None
    predicted_seconds: float | None = None
    """What the plan said that this step would take."""
    pace: str = ""
    """What is to be said of the two, in plain sentences; "": nothing."""
    sent_bytes: int | None = None
    """Bytes that all members together sent for this step."""


class StageView(Schema):
    """A stage of the plan in force."""

    first: int
    """Its first decoder layer, from 1."""
    last: int
    """Its last decoder layer."""
    members: tuple[PeerName, ...]


class PipelineView(Schema):
    """A pipeline of the plan in force."""

    members: tuple[PeerName, ...]
    """By stage."""
    micro_batches: int
    """Micro-batches of a step that take this way."""


class HopView(Schema):
    """A link that pipelines use."""

    sender: PeerName
    receiver: PeerName
    gbps: float | None
    """Gbit/s as measured; None: not measured."""
    latency_ms: float | None
    """Milliseconds one way."""
    way: str = "direct"
    """How the two reach each other: "direct", or through whom."""


class PlanView(Schema):
    """The plan in force."""

    version: int
    resumed: int = 0
    """Step of the state with which it began."""
    reason: Text
    """What is to be said of it, in plain sentences."""
    layers: int
    """Decoder layers of the model."""
    micro_batches: int
    """Micro-batches of a step."""
    stages: tuple[StageView, ...]
    pipelines: tuple[PipelineView, ...]
    hops: tuple[HopView, ...]
    """Links from stage to stage; of a very large plan the first ones."""


class MemberView(Schema):
    """A member of the swarm."""

    name: Label
    """What it calls itself, or whom its invite was for; "": nothing is known."""
    device: Label
    role: MemberRole
    does: str
    """What it does in a plain sentence, and why if nothing."""
    level: Level
    stage: int | None
    """Index of its stage, from 0; None: it has none."""
    layers: tuple[int, int] | None
    """First and last decoder layer, from 1."""
    micro_batches: int
    step: int
    tokens: float
    """Tokens that went through its layers, in the whole run."""
    share: float
    """Its part of all that was computed in the run, from 0 to 1."""
    seconds: float
    """Seconds of the steps in which it took part."""
    seen_at: float | None
    """Unix seconds of its last word; None: it is there now."""
    sent_bytes: int
    """Bytes that it says to have sent to others since its program began."""
    received_bytes: int
    version: Label
    is_banned: bool = False
    """Whether the owner has banned it."""
    up_gbps: float | None
    """Gbit/s that it can send in all; None: its links together are no faster."""
    down_gbps: float | None
    line_spread: float | None = None
    """Factor by which both may be off in nine of ten cases, where they are estimated; None: they are not."""


class NewsItem(Schema):
    """Something that has happened."""

    at: float
    """Unix seconds."""
    level: Level
    text: str
    advice: str = ""
    """What to do; "": nothing."""


class CheckpointView(Schema):
    """A checkpoint on the coordinator's disk."""

    step: int
    at: float
    """Unix seconds when it became whole."""
    size: int
    """In bytes."""


class Storage(Schema):
    """What the run has stored with the coordinator."""

    checkpoints: tuple[CheckpointView, ...] = ()
    """Newest first."""
    free_bytes: int | None = None
    """Room on the disk of the state folder; None: not known."""


class Overview(Schema):
    """All that is shown of a run."""

    at: float
    """Unix seconds."""
    swarm: str
    version: Label = ""
    """Version of the coordinator's program."""
    job: Label
    phase: str
    """The coordinator's phase in one word."""
    text: Text
    """The phase in the coordinator's own words."""
    is_paused: bool = False
    """Whether the owner has paused the run."""
    has_diverged: bool = False
    """Whether the loss or a gradient is not finite any more, and that is believed."""
    loss_rises: bool = False
    """Whether the loss has risen far above the lowest that there was."""
    health: Health
    progress: Progress
    figures: Figures
    plan: PlanView | None
    members: dict[PeerName, MemberView]
    """Those who are here, and those who have contributed or left of late, by peer id."""
    news: dict[str, NewsItem]
    """What has happened of late, by a running number."""
    storage: Storage

    @property
    def stands_still(self) -> bool:
        """Whether nothing is trained for good reason: the run is over, or its owner has paused it."""
        return self.is_paused or self.phase in {"done", "failed"}
