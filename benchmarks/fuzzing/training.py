"""Targets among what peers of a plan say to each other while they train: frames, tensors, votes, pulses, probes."""

import functools
import itertools
from collections.abc import Iterator

import torch

from benchmarks.fuzzing.messages import LINK
from benchmarks.fuzzing.swarm_sides import SWARM, SaidBefore, Sides, at_once, sized
from benchmarks.fuzzing.trial import Target
from dtfm_node.engine.exchange import Hello
from dtfm_node.engine.failure_detector import FailureDetector
from dtfm_node.engine.heartbeat import Heartbeat
from dtfm_node.engine.link_rates import LinkRates
from dtfm_node.engine.mailbox import Mailbox
from dtfm_node.engine.receiver import Receiver
from dtfm_node.links.timed_transfers import ProbeRequest, Queued, Swallowed
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.plan.ballot import Ballot, Commit, SetSums, Vote, read_ballot
from dtfm_protocol.plan.signed_commit import COMMIT_LIMIT, SignedCommit, statement
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.simultaneous_open import OUTSIDE_LIMIT, OutsideAddress
from dtfm_protocol.transport.tls_connections import Endpoint
from dtfm_protocol.wire.codecs import decode, encode, from_bytes, to_bytes
from dtfm_protocol.wire.frames import FrameHeader, Key, Kind
from dtfm_protocol.wire.stream import MESSAGE_LIMIT, StreamClosed, read_message

ENDS_EARLY = (Refused, StreamClosed)
CODECS: tuple[CodecName, ...] = ("fp32", "bf16", "fp16", "int8")
SHAPE = (3, 50)
PAYLOAD = b"a payload of some bytes"
VERSION = 3


def training_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    header = FrameHeader(VERSION, Key(Kind.PART, 7, 1, 2), len(PAYLOAD)).pack()
    yield Target("frame's header", FrameHeader.parse, (header,))
    yield Target("training stream", functools.partial(_received, sides), (_frames(),), ENDS_EARLY)
    pulses = b"".join(FrameHeader(VERSION, Key(Kind.PULSE, 0, index), 0).pack() for index in (0, 17, 1 << 31))
    yield Target("pulses", functools.partial(_pulses, sides), (pulses,), ENDS_EARLY)
    tensor = torch.linspace(-2, 2, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    for codec in CODECS:
        seed = bytes(to_bytes(encode(tensor, codec)))
        yield Target(f"tensor in {codec}", functools.partial(_decoded, codec), (seed,))
    vote = Vote(losses={0: 2.5, 3: 2.25}, sum_squares={0: 1.5, 1: 0.0}, bytes_sent=100)
    commit = Commit(loss=2.5, grad_norm=1.0, seconds=0.2, bytes_sent=200, last=False, kept=True)
    votes = vote, Vote(losses={0: 2.5, 3: 2.25}, right={0: 3, 3: 0}), Vote(durations=(1000, 2000, 900))
    sets = SetSums(loss=1.5, right=3), SetSums(loss=1.0, right=0)
    commits = commit, Commit(loss=2.5, sets=sets), Commit(durations=((0, (1000, 2000)), (7, (3000, 4000))))
    yield Target("vote", lambda data: read_ballot(data, Vote), tuple(one.model_dump_json().encode() for one in votes))
    yield Target(
        "commit", lambda data: read_ballot(data, Commit), tuple(one.model_dump_json().encode() for one in commits)
    )
    signed = SignedCommit.made(sides.owner, SWARM, VERSION, 7, commit)
    yield Target("commit, signed", functools.partial(_opened, sides), (signed.text.encode(),))
    for message, limit in (
        (Hello(plan_version=VERSION, pulses=True), MESSAGE_LIMIT),
        (ProbeRequest(kind="send", size=1 << 20, pace=1e6, gbps=1.0, round_trip=0.1), MESSAGE_LIMIT),
        (Swallowed(seconds=1.0, others=1 << 20), MESSAGE_LIMIT),
        (Queued(seconds=0.5, others=1 << 20), MESSAGE_LIMIT),
        (LINK, MESSAGE_LIMIT),
        (OutsideAddress(host="192.0.2.7", port=4711), OUTSIDE_LIMIT),
        (Endpoint(hosts=("192.0.2.7", "2001:db8::1", "host.example"), port=4711), 16 << 10),
    ):
        yield on_a_stream(sides, message, limit)


def on_a_stream(sides: Sides, message: Schema, limit: int = MESSAGE_LIMIT) -> Target:
    """Return the target of a message on a stream, as it is read everywhere; its length is always right."""

    def read(data: bytes) -> object:
        stream = SaidBefore(sides.liar.peer_id, sized(data))
        return at_once(read_message(stream, type(message), limit))

    return Target(f"message {type(message).__name__}", read, (message.model_dump_json().encode(),), ENDS_EARLY)


def _frames() -> bytes:
    """Return what a peer sends of a step: a frame of each kind that is due."""
    return b"".join(FrameHeader(VERSION, key, len(PAYLOAD)).pack() + PAYLOAD for key in _due())


def _due() -> list[Key]:
    kinds = (Kind.ACTIVATION, Kind.GRADIENT, Kind.PART, Kind.REDUCED, Kind.EVALUATION, Kind.VOTE, Kind.COMMIT)
    return [Key(kind, 7, index, group) for kind, index, group in itertools.product(kinds, (0, 1), (0,))]


def _received(sides: Sides, data: bytes) -> None:
    """Take frames in as a node that trains does; it ends with the stream."""
    mailbox = Mailbox(VERSION)
    receiver = Receiver(mailbox, LinkRates(), MonotonicClock(), lambda peer, key, begun: None)
    for key in _due():
        mailbox.post(sides.liar.peer_id, key, len(PAYLOAD), exact=key.kind not in (Kind.VOTE, Kind.COMMIT))
    try:
        at_once(receiver.serve(SaidBefore(sides.liar.peer_id, data)))
    except StreamClosed:
        for key in _due():
            if mailbox.is_decided(sides.liar.peer_id, key):
                mailbox.take(sides.liar.peer_id, key)


def _pulses(sides: Sides, data: bytes) -> None:
    clock = MonotonicClock()
    heartbeat = Heartbeat(
        VERSION, _nowhere, lambda work: work.close(), clock, lambda peer: 0.0, (), lambda lost: None, lambda: 0.0
    )
    heartbeat.patience[sides.liar.peer_id] = FailureDetector(clock.now())
    at_once(heartbeat.answer(SaidBefore(sides.liar.peer_id, data)))


async def _nowhere(peer: str) -> SaidBefore:
    return SaidBefore(peer, b"")


def _decoded(codec: CodecName, data: bytes) -> object:
    found = decode(from_bytes(data), codec, SHAPE)
    if not torch.isfinite(found).all():
        raise AssertionError("what is not finite has come through")
    return found


def _opened(sides: Sides, data: bytes) -> object:
    """Open a commit whose arbiter signs whatever it says."""
    text = data.decode(errors="replace")[:COMMIT_LIMIT]
    signature = sides.owner.sign(statement("commit", SWARM, VERSION, Ballot.STEP, 7, text.encode())).hex()
    return SignedCommit(plan=VERSION, step=7, text=text, signature=signature).opened(sides.owner.peer_id, SWARM)
