"""Targets among control messages: their envelopes, and what a member or a coordinator signs, up to who acts on it."""

import base64
import functools
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from tests.coordinator.peers import JOB, Peers, plan_of

from benchmarks.fuzzing.swarm_sides import LAYERS, SWARM, TOKEN, Sides
from benchmarks.fuzzing.trial import Target
from dtfm_node.control.display import Display
from dtfm_node.control.inbox import Inbox
from dtfm_node.control.reporter import Reporter
from dtfm_protocol.bounds import Addresses
from dtfm_protocol.control.messages import (
    ANSWERS,
    CHALLENGE,
    EPOCH,
    LEDGER,
    MEMBERSHIP,
    PHASE,
    PLAN,
    PRESENCE,
    PROBE,
    REPORT,
    TOPICS,
    Answers,
    Challenge,
    Epoch,
    Fan,
    Ledger,
    MembershipNews,
    Phase,
    Presence,
    ProbeResult,
    ProbeRound,
    Report,
    TokenUse,
    Topic,
)
from dtfm_protocol.control.messages import JOB as RESOLVED
from dtfm_protocol.discovery.records import Limits, Link, Profile
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.envelope import read_body
from dtfm_protocol.identity.freshness import Freshness
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.peer_state import Holding, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Cost, Plan, Resume, Source
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.voted_step import VotedStep
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.view import LayerSeconds

Reader = Callable[[str, Any], Any]
_NUMBERS = count(1)

ROW = StepMetrics(
    step=7, loss=2.5, tokens=512, seconds=0.25, plan_version=1, learning_rate=1e-3, grad_norm=1.25,
    predicted_seconds=0.2, bytes_sent=1000, eval_loss=2.25,
)  # fmt: skip
LINK = Link(round_trip_ms=20.0, sent_gbps=1.5, received_gbps=0.5, way="punched", is_least=True, round=3)


def message_targets(sides: Sides) -> Iterator[Target]:
    """Yield the envelope, and each topic's body in an envelope that its author has signed."""
    bodies, plan = _bodies(sides), _plan(sides)
    sealed = sides.posts[sides.liar.peer_id].seal(REPORT.name, bodies[REPORT.name])
    yield Target("envelope", functools.partial(_opened, sides), (sealed,))
    # What is refused by its signature tells little: from here on whoever lies signs what it says.
    payload = json.loads(sealed)["payload"].encode()
    yield Target("envelope's payload, signed", functools.partial(_opened_payload, sides), (payload,))
    node, coordinator = _readers_of_a_node(sides), _readers_of_a_coordinator(sides)
    for name, body in bodies.items():
        topic = TOPICS[name]
        author, readers = (sides.owner, node) if topic.author == "coordinator" else (sides.liar, coordinator)
        parse = functools.partial(heard, sides, topic, author, readers[name])
        seeds = (body, ProbeRound(id=4, addresses={}, coming=plan)) if topic is PROBE else (body,)
        yield Target(f"control message `{name}`", parse, tuple(one.model_dump_json().encode() for one in seeds))


def signed_payload(identity: Identity, payload: str) -> bytes:
    """Return an envelope around a payload, which `identity` signs whatever it says."""
    signature = identity.sign(b"dtfm/1/envelope:" + payload.encode(errors="replace"))
    outer = {"sender": identity.peer_id, "payload": payload, "signature": base64.b64encode(signature).decode()}
    return json.dumps(outer, ensure_ascii=False).encode(errors="replace")


def signed_body(identity: Identity, kind: str, body: bytes) -> bytes:
    """Return an envelope around a body that may be anything."""
    head = json.dumps({"swarm": SWARM, "kind": kind, "at": 1.7e9, "counter": next(_NUMBERS), "will": 1})
    return signed_payload(identity, f'{head[:-1]},"body":{body.decode(errors="replace")}}}')


class _Subscriptions:
    """A control plane that knows who reads what, and says nothing."""

    def __init__(self) -> None:
        self.readers: dict[str, Reader] = {}

    def on(self, topic: Topic, reader: Reader) -> None:
        self.readers[topic.name] = reader

    async def publish(self, topic: Topic, body: Schema) -> None:
        """Say nothing."""


def _readers_of_a_node(sides: Sides) -> dict[str, Reader]:
    """Return who acts on what coordinators say."""
    display, control = Display("plain"), _Subscriptions()
    inbox = Inbox(sides.invite(), sides.node.peer_id, display, Reporter("one", sides.folder / "status", display))
    inbox.knows(sides.admission())
    inbox.read(control)  # type: ignore[arg-type]
    take_round = control.readers[PROBE.name]

    async def measures(sender: str, turn: ProbeRound) -> None:
        await take_round(sender, turn)
        (inbox.rounds if turn.coming is None else inbox.comings).get_nowait()

    return {**control.readers, PROBE.name: measures}


def _readers_of_a_coordinator(sides: Sides) -> dict[str, Reader]:
    """Return who acts on what members say, under a plan in which the liar has a part."""
    folder = sides.folder / "coordinator"
    folder.mkdir()
    peers = Peers(folder)
    peers.listen(lambda peer, standing, taken: None, lambda plan: False)
    peers.state.plan = plan_of(sides.liar.peer_id, sides.node.peer_id, version=3)
    return peers.control.readers


def _opened(sides: Sides, data: bytes) -> object:
    return sides.posts[sides.node.peer_id].open(data, REPORT.name)


def _opened_payload(sides: Sides, data: bytes) -> object:
    return _opened(sides, signed_payload(sides.liar, data.decode(errors="replace")))


def heard(sides: Sides, topic: Topic, author: Identity, reader: Reader, data: bytes) -> object:
    """Do what `ControlPlane` does with a message."""
    letter = sides.posts[sides.node.peer_id].open(signed_body(author, topic.name, data), topic.name, topic.limit)
    body = read_body(letter, topic.schema)
    Freshness().admit(letter.sender, letter.kind, letter.counter)
    if isinstance(body, Plan):
        used(body)
    done = reader(letter.sender, body)
    return sides.wait(done) if done is not None else None


def used(plan: Plan) -> None:
    """Do with a plan what all who take one do."""
    for peer in (*plan.electors, ""):
        plan.micro_batches(peer)
        plan.stage_of(peer)
    for stage in range(len(plan.stages)):
        plan.replicas(stage)
        plan.shadow_of(stage)
    plan.model_dump_json()


def _plan(sides: Sides) -> Plan:
    """Return a plan with as much in it as there can be."""
    owner, peers = sides.owner, (sides.liar.peer_id, sides.node.peer_id)
    final = SignedCommit.made(owner, SWARM, 2, 6, Commit(grad_norm=1.0))
    return Plan(
        version=3,
        stages=((0, 2), (2, LAYERS)),
        routes=(peers, peers),
        idle=(owner.peer_id,),
        recompute=(1,),
        resume=Resume(mark=Mark(step=6, plan=2), commit=final, sources=(Source(peer=peers[0], layers=((0, 2),)),)),
        shadows=(owner.peer_id, None),
        cost=Cost(kind="makespan", total=1.0, data_parallel=0.2, pipeline=0.8, compute=0.5, optimizer=0.1),
        seed=5,
        evaluations=100,
        seconds=0.5,
        reason="two are faster than one",
        history=((0.1, 2.0), (0.2, 1.0)),
    ).signed(owner, SWARM)


def _bodies(sides: Sides) -> dict[str, Schema]:
    """Return a valid body of each topic, with as much in it as there can be."""
    owner, peers = sides.owner, (sides.liar.peer_id, sides.node.peer_id)
    final = SignedCommit.made(owner, SWARM, 2, 6, Commit(grad_norm=1.0))
    plan = _plan(sides)
    standing = PeerState(
        promise=Promise(version=4, to=owner.peer_id, accepted=3),
        holdings=(
            Holding(mark=Mark(step=6, plan=2), layers=(0, 2), live=True, commit=final, prepared=Mark(step=7, plan=3)),
            Holding(mark=Mark(step=5, plan=2), layers=(0, 2)),
        ),
    )
    probed = ProbeResult(round=3, link=LINK, limits=Limits(up_gbps=1.0, down_gbps=2.0))
    profile = Profile(
        device="cpu", flops={"fp32": 1e11}, layer_seconds=LayerSeconds(forward=0.1, backward=0.2), memory_bytes=1e9,
        addresses=(f"/ip4/192.0.2.1/tcp/7/p2p/{peers[0]}",), version="0.1", session="one",
    )  # fmt: skip
    fan = Fan(centre=peers[0], gbps={peers[1]: (1.0, 2.0)})
    where: dict[str, Addresses] = {peer: (f"/ip4/192.0.2.1/tcp/7/p2p/{peer}",) for peer in peers}
    return {
        RESOLVED.name: JOB,
        PLAN.name: plan,
        PHASE.name: Phase(name="training", text="it goes on", session="one", called=3),
        EPOCH.name: Epoch(called=4, gently=True, parked=False, in_force=3, started=3),
        LEDGER.name: Ledger(recorded=7, kept=6, safe=Mark(step=6, plan=2)),
        MEMBERSHIP.name: MembershipNews(
            authorities=(sides.authority.hex(),),
            bans=(Ban.of(owner, SWARM, f"peer:{owner.peer_id}"),),
            rulings=(BanRuling.of(owner, SWARM, f"peer:{owner.peer_id}", 5, holds=False),),
            revoked=(TOKEN,),
            redeemed=(TokenUse(token=TOKEN, peer=peers[0], at=1.7e9),),
        ),
        PROBE.name: ProbeRound(id=3, pairs=(peers,), fans=(fan,), addresses=where),
        ANSWERS.name: Answers(to=("one", "two"), session="three"),
        PRESENCE.name: Presence(online=True, session="one", profile=profile),
        CHALLENGE.name: Challenge(session="one"),
        REPORT.name: Report(
            session="one", state="training", plan_version=3, step=7, text="well", lost=(peers[1],), standing=standing,
            voted=VotedStep(plan=3, step=7, votes=("0" * 192, "a" * 192)),
            taken=plan, leaving=False, fetched_bytes=10, busy_seconds=0.1, received_gbps={peers[1]: 1.0},
            sent_gbps={peers[1]: 1.0}, coming=4, is_ahead=True, probed=probed, rows=(ROW,),
        ),
    }  # fmt: skip
