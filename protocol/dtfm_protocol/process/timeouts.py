"""Table of timeouts that a person may want to change: how long anyone waits, how often anyone looks, and why.

What follows from a protocol of others, from an algorithm, or is only a turn of a loop, stands beside its use. The rows
of `docs/explanation/guarantees.md` about waiting are held to this table.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts and intervals of all programs, in seconds.

    Raises:
        ValueError: one is negative, or two do not fit together; the message says why they must.
    """

    # -- the broker

    broker_keep_alive: int = 10
    """Silence after which a member says to the broker that it lives; the broker takes one for dead after one and a half
    of these."""
    broker_retry_shortest: float = 0.2
    """Pause before a broker that was just lost is tried again, give or take half: a hiccup costs no more than that."""
    broker_retry_longest: float = 4.0
    """Pause before a broker that is away for long is tried again; in between, a tenth of the time that it is away. No
    shorter than `broker_retry_shortest`."""
    broker_answer: float = 10.0
    """Limit of the broker's answer to each thing that it is asked: long enough for a line that training fills."""
    broker_login: float = 15.0
    """Limit of the broker's letting a coordinator in when that starts: it may have been started at the same time."""

    # -- who is there, for the coordinator

    report: float = 1.0
    """Interval of a node's reports: what `dtfm-node status` shows is no older."""
    report_paused: float = 30.0
    """Interval of the reports of a node that pauses, by which a coordinator that was started anew learns of it. Longer
    than `report`."""
    report_silence: float = 4.0
    """Time without a report after which a node is given no work: several `report`s, for one may be lost or late."""
    report_return: float = 5.0
    """Time that peers that train are waited for, should one be silent, before a better plan is made without it: longer
    than a `report`, and a moment of deafness must not cost a peer its place."""
    cut_off: float = 20.0
    """Time without a report after which a trainer is cut off from here, though its connection to the broker stands:
    longer than `report_silence`, and than two pauses of `broker_retry_longest`, which a restart of broker or
    coordinator takes."""

    # -- who is there, for the other peers of a plan

    pulse: float = 0.25
    """Interval of the pulses by which peers of a plan say that they live."""
    silence_shortest: float = 3.0
    """Silence that is never taken for death, at least four `pulse`s: links become slower within a pulse, what waits for
    them then takes as many times longer, and round trips of seconds are usual behind a home's router. A process that
    ends is noticed at once, by its connections."""
    silence_longest: float = 30.0
    """Silence after which a peer is gone, whatever was measured of it: as long as a connection's own keep-alive takes
    to notice. No shorter than `silence_shortest`."""
    evidence: float = 30.0
    """Limit of a peer's answer that proves what was said of a step, its votes or its receipts: nobody waits for it but
    in a dispute, and bulk may be ahead of it on a slow line. No shorter than `silence_longest`: who is gone is found to
    be gone first."""
    action_shortest: float = 20.0
    """Time that any action may take before a peer counts as stuck: the first ones compile, allocate, and read disks."""

    # -- coming and going

    leave: float = 60.0
    """Time that a node that wants to leave waits for a plan without it: longer than a plan may wait for the `step_end`,
    and no shorter than a checkpoint is waited for (`park`)."""
    availability_look: float = 1.0
    """Interval at which a node looks whether it may work: its person's order to pause, and the limits that were set."""
    leave_alone: float = 1.0
    """Time that it waits where the broker is gone, too: nobody hears that it wants to leave."""
    identity_challenge: float = 1.0
    """Time that a live daemon with the same identity has to answer when a node joins, but for one that has just made
    its key: a round trip, and more."""
    clock_answer: float = 5.0
    """Time that a coordinator may take beyond that to say what time it is: a busy one is late, and without its word a
    clock that is off keeps a node out of the DHT."""
    job_survey: float = 60.0
    """Limit, in a processor's seconds, of a node's look at what a job would take: one or two are usual, and a model
    that takes longer merely to be laid out is none that can be trained."""
    comeback: float = 20.0
    """Time that a returning coordinator waits for the peers of its last plan before it plans anew: longer than two
    pauses of `broker_retry_longest`, for where there are two brokers they are tried in turn."""
    takeover: float = 15.0
    """Time without word of a coordinator after which another one takes over: longer than two pauses of
    `broker_retry_longest`, after which one that lives is heard again."""
    first_look: float = 4.0
    """Time that the first coordinator, when it starts, looks whether another one has taken over: shorter than
    `takeover`, so that the second one does not become impatient meanwhile."""
    contribution: float = 5.0
    """Limit of a node's request for the signed record of what it has contributed; a node that goes waits no longer for
    it. Shorter than `goodbye`: a coordinator that is done is to be there still."""
    contribution_pause: float = 60.0
    """Pause between two such requests, which follow checkpoints: these may come every second."""
    goodbye: float = 15.0
    """Time that a coordinator that is done waits for the nodes to hear so and leave."""

    # -- from one plan to the next

    settle: float = 1.5
    """Time in which nobody must have joined or left before the first plan, four times as long while somebody there is
    not ready: volunteers arrive in bursts."""
    arrival: float = 60.0
    """Time since it came after which a node that is ready is made use of, though others are not ready yet: before that
    they may be of one burst, and are measured together."""
    settle_in_run: float = 0.2
    """Time in which nobody must have joined or left before a plan in the middle of a run, where everyone waits, and who
    is there is known: no longer than `settle`."""
    fewer_nodes: float = 20.0
    """Time that a run which has lost nodes waits for as many as its job's `[plan]` fixes before it goes on with those
    that are left: who was merely started anew is back by then."""
    layout_retry: float = 60.0
    """Pause after a view that no plan fits; sooner if somebody comes: links may be well again."""
    broken_plan_pause: float = 30.0
    """Longest pause after plans that broke before their first step; it doubles from half a second."""
    late_promise: float = 3.0
    """Time that peers that are heard of may take to promise once enough have: whoever is late brings no state. Shorter
    than `report_silence`, after which they are not waited for anyway."""
    promise_look: float = 1.0
    """Interval of looks at who may have promised, or ended, while there are too few."""
    step_end: float = 30.0
    """Time that the step under way may take to end before a plan is ended in the middle of it, longer where steps are;
    and that peers may take to take a plan."""
    park: float = 60.0
    """Time that a checkpoint is waited for before a peer leaves without which there is no plan."""
    early_stream: float = 120.0
    """Time that another peer's stream may be ahead of the plan that it belongs to: plans reach peers one by one, over
    a broker that may be away."""

    # -- measuring and publishing

    probe: float = 60.0
    """Limit of one node's part of a round: the longest search for a rate, waits for queues to drain, and a start over
    a relay."""
    round_trips: float = 3.0
    """Limit of one node's round trips to a few others, which it takes all at once: who is slower to connect to is
    looked at by itself. No longer than a `probe`."""
    echo_round: float = 5.0
    """Limit of a round of round trips, after which delays are estimated without those that are missing: longer than
    `round_trips`, and a node of an older version does not answer."""
    probe_round: float = 75.0
    """Limit of a round of probes, after which it goes on without the slow ones: longer than a `probe`, whose failure is
    to be heard."""
    frames_held: float = 30.0
    """Longest time for which tensors wait for a link to be measured, for a peer that says it measures could hold them
    back: no longer than a `probe`."""
    links_read: float = 0.5
    """Limit of reading what peers have published of their links: it is no more than what is known already, or can be
    measured."""
    spare_look: float = 60.0
    """Time for which all must have been well before links that a better plan might use are measured beside training:
    much longer than measuring a few takes, which slows a step."""
    links_calm: float = 3.0
    """Time in which no round of probes must have come before what was found is published: rounds follow each other, and
    the DHT's messages would disturb the next one. The coordinator, which has it by then, does not wait."""
    calm: float = 10.0
    """Time in which no round of probes must have come before a node works out ahead what plans ask for, where none is
    being made: that keeps its processor busy, and links would seem slower. Longer than most rounds."""
    publish_look: float = 20.0
    """Interval of looks at whether something is to be published: shorter than a third of `profile_lifetime`."""
    profile_lifetime: float = 180.0
    """Time that a profile stays in the DHT; its writer refreshes it three times as often."""
    links_lifetime: float = 600.0
    """Time that links stay in the DHT: they are long in a large swarm, and say nothing of who is here. No shorter than
    `profile_lifetime`."""
    dht_answer: float = 5.0
    """Limit of a DHT peer's answer: half a world away, over a line that is being measured, one takes longer than
    hivemind's 3 s; who takes longer than allowed is not asked again for a while."""
    dht_entry: float = 20.0
    """Time in which the peers by which a DHT is entered are asked again, where none has answered: the machine that has
    them may be busy with others who come."""
    dht_joining: float = 0.5
    """Time that the start waits, once the peer by which a DHT is entered has answered, until this one knows the others
    near it: half a world away that takes seconds, and goes on meanwhile."""
    dht_greeting: float = 2.0
    """Limit of connecting to the DHT peers of an earlier life."""

    # -- connections

    detour: float = 60.0
    """Time that a peer that could not be connected to is not dialled again: streams take the relay meanwhile."""
    circuit_request: float = 10.0
    """Limit of each message until a circuit over a relay stands."""
    relay_retry: float = 5.0
    """Time that the start waits for a relay; and the pause between attempts to be the guest of one that is away."""
    tcp_connect: float = 1.0
    """Limit of a host's answer at a port, by which a process that has ended is told from one that is cut off."""

    # -- state, tokens and disks

    catalogue: float = 60.0
    """Limit of a source's hashing of what it has."""
    piece: float = 60.0
    """Limit of each piece of a state, or of a shard of tokens, from a source; then another one is asked."""
    state_ahead: float = 600.0
    """Time that peers may take to fetch, ahead of a better plan, what they lack for it: others train on meanwhile, so
    that only the plan is late by it. No shorter than a `piece`."""
    parcel: float = 3.0
    """Silence of a source that gives a state ahead after which the begin of a plan does not wait for the rest: it
    fetches that anew. Much longer than a gradient that has come about takes to be sent."""
    state_redo: float = 10.0
    """Time that a state that this node is to have may take until it has it: the new plan reaches peers one by one."""
    checkpoint_confirm: float = 15.0
    """Time that the coordinator may take to say that a checkpoint is whole before it is handed in again: longer than
    `upload_retry`."""
    checkpoint_share: float = 600.0
    """Time that a peer of the plan may owe its share of a checkpoint that another one has handed in, beside the time
    that its file is on its way: a replica that writes its stage takes that much longer than one that only hashes it,
    some minutes for ten GB on a slow disk. Longer than `checkpoint_confirm`, after which a share is handed in again
    that a restart of the coordinator has lost."""
    upload_retry: float = 2.0
    """Pause between two attempts to reach a coordinator that is away."""
    snapshot_retry: float = 2.0
    """Pause between two attempts to write a state that no step follows, while there is no room for it."""
    disk_retry: float = 1.0
    """Pause between two looks at whether a full disk has room again for a promise or a plan: everyone waits for it."""
    tokens_retry: float = 1.0
    """Pause between two attempts to fetch a shard of tokens that nobody could give."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"timeouts: {field.name} is {getattr(self, field.name):g} s: it cannot be negative")
        two_pauses = 2 * 1.5 * self.broker_retry_longest
        for fits, what, why in (
            (
                self.broker_retry_shortest <= self.broker_retry_longest,
                "broker_retry_shortest is longer than broker_retry_longest",
                "pauses grow from one to the other",
            ),
            (
                2 * self.report < self.report_silence,
                "report_silence is no longer than two of report",
                "one lost report must not cost a node its work",
            ),
            (self.report < self.report_paused, "report_paused is no longer than report", "who pauses is to say little"),
            (self.report < self.report_return, "report_return is no longer than report", "nobody could be heard"),
            (
                self.report_silence < self.cut_off,
                "cut_off is no longer than report_silence",
                "who is given no work may still train",
            ),
            (
                two_pauses < self.cut_off,
                "cut_off is no longer than two pauses before a broker is tried",
                "who reconnects would be cut off",
            ),
            (
                two_pauses < self.comeback,
                "comeback is no longer than two pauses before a broker is tried",
                "peers that are coming back would be given up",
            ),
            (
                two_pauses < self.takeover,
                "takeover is no longer than two pauses before a broker is tried",
                "a coordinator that reconnects would be replaced",
            ),
            (
                self.first_look < self.takeover,
                "first_look is no shorter than takeover",
                "the second coordinator would take over from the first one's restart",
            ),
            (
                4 * self.pulse <= self.silence_shortest,
                "silence_shortest is shorter than four of pulse",
                "a lost pulse would be taken for a lost peer",
            ),
            (
                self.silence_shortest <= self.silence_longest,
                "silence_shortest is longer than silence_longest",
                "the limit of silence lies between them",
            ),
            (
                self.silence_longest <= self.evidence,
                "evidence is shorter than silence_longest",
                "who is gone is not to be taken for somebody who hides something",
            ),
            (
                self.late_promise < self.report_silence,
                "late_promise is no shorter than report_silence",
                "who is silent is not waited for",
            ),
            (self.step_end < self.leave, "leave is no longer than step_end", "a plan may wait for the step to end"),
            (
                self.contribution < self.goodbye,
                "contribution is no shorter than goodbye",
                "a coordinator that is done would be gone",
            ),
            (self.park <= self.leave, "leave is shorter than park", "the checkpoint needs who wants to leave"),
            (
                self.settle_in_run <= self.settle,
                "settle_in_run is longer than settle",
                "everyone waits in the middle of a run",
            ),
            (
                self.probe < self.probe_round,
                "probe_round is no longer than probe",
                "a probe that fails must be heard before its round is over",
            ),
            (
                self.round_trips <= self.probe,
                "round_trips is longer than probe",
                "they are the smaller part of what is measured",
            ),
            (
                self.round_trips < self.echo_round,
                "echo_round is no longer than round_trips",
                "the slowest answer must be heard before its round is over",
            ),
            (self.frames_held <= self.probe, "frames_held is longer than probe", "a measurement is over by then"),
            (
                3 * self.publish_look <= self.profile_lifetime,
                "publish_look is longer than a third of profile_lifetime",
                "a profile would expire before it is published again",
            ),
            (
                self.profile_lifetime <= self.links_lifetime,
                "links_lifetime is shorter than profile_lifetime",
                "who is found must be found with its links",
            ),
            (self.piece <= self.state_ahead, "state_ahead is shorter than piece", "no source could give anything"),
            (
                self.upload_retry < self.checkpoint_confirm,
                "checkpoint_confirm is no longer than upload_retry",
                "it could not be confirmed before it is handed in again",
            ),
            (
                self.checkpoint_confirm < self.checkpoint_share,
                "checkpoint_share is no longer than checkpoint_confirm",
                "who hands in again what a restart has lost would be late",
            ),
        ):
            if not fits:
                raise ValueError(f"timeouts: {what}: {why}")


TIMEOUTS = Timeouts()
"""Timeouts that hold where nobody passes others."""
