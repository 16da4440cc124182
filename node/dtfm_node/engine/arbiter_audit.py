"""Audit of the arbiter by the peers that it answers: now and then one asks for all votes on a step, and checks that the
commit follows from them.

An arbiter cannot know which steps a peer will look at: the peer's own signature decides, which nobody else can make.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.signed_ballots import SignedBallots
from dtfm_node.engine.step_arbiter import Arbiter, Disputed
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.step_messages import arbiter_of, durations_due, losses_due, replicas_of
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import root_of_votes
from dtfm_protocol.wire.stream import Bytes

ONE_IN = 8
"""Of so many steps a peer audits one, on average."""
AT_ONCE = 8
"""Audits of one peer that go on at a time; the others wait, and none is left out: an arbiter that answers slowly would
else know when nobody looks."""
RETRY_SECONDS = 0.5
"""Pause between two attempts to reach the arbiter."""


@dataclass(frozen=True)
class Answered:
    """What a peer knows of a step that the arbiter has answered."""

    step: int
    commit: Commit
    vote: Bytes
    """The peer's own vote, its signature and text."""
    follows: str
    """Digest of the commit that it follows."""
    micro_batches: int
    """Number of micro-batches whose losses all votes together brought; 0 where nothing was learned."""


def is_drawn(signer: Signer, plan: int, step: int) -> bool:
    """Whether the peer of `signer` audits a step: of `ONE_IN` steps about one, and only itself knows which."""
    drawn = signer.sign(f"dtfm/1/audit:{signer.swarm}:{plan}:{step}".encode())
    return hashlib.sha256(drawn).digest()[0] < 256 // ONE_IN


def audit(plan: Plan, me: str, answered: Answered, votes: Sequence[Bytes], signed: SignedBallots) -> None:
    """Check that the commit on a step of peer `me` follows from all votes on it, in the plan's order.

    Raises:
        Refused: it does not; the arbiter should not have made it.
    """
    commit, step = answered.commit, answered.step
    if root_of_votes(votes) != commit.votes:
        raise Refused("votes that the commit has not been made of")
    if bytes(votes[plan.peers.index(me)]) != bytes(answered.vote):
        raise Refused("a vote of this peer that it has not sent")
    due, learned = losses_due(plan, answered.micro_batches), answered.micro_batches > 0
    arbiter = Arbiter(due, replicas_of(plan), answered.follows, durations=durations_due(plan), learned=learned)
    made: Commit | None = None
    try:
        for peer, vote in zip(plan.peers, votes, strict=True):
            made = arbiter.take(peer, signed.opened(peer, Ballot.STEP, step, vote, Vote))
    except Disputed as dispute:
        raise Refused(f"votes that allow no commit: {dispute}") from None
    assert made is not None, "all have voted"
    if (made.loss, made.grad_norm, made.bytes_sent) != (commit.loss, commit.grad_norm, commit.bytes_sent):
        raise Refused("a commit with sums that are not those of the votes")


class Auditor:
    """Auditor of one peer under one plan; an audit goes on beside training, and ends with the plan.

    Args:
        always: tells the steps that are audited in any case.
    """

    def __init__(
        self, plan: Plan, me: str, exchange: Exchange, evidence: StepEvidence, always: Callable[[int], bool]
    ) -> None:
        self._plan, self._me, self._exchange, self._evidence, self._always = plan, me, exchange, evidence, always
        self._signed = SignedBallots(evidence.signer, plan.version)
        self._arbiter = arbiter_of(plan)
        self._room = asyncio.Semaphore(AT_ONCE)

    def hear(self, answered: Answered) -> None:
        """Begin an audit of a step, if it is to be audited."""
        step = answered.step
        if self._always(step) or is_drawn(self._evidence.signer, self._plan.version, step):
            self._exchange.beside(self._audit(answered))

    async def _audit(self, answered: Answered) -> None:
        limit = self._evidence.answer_seconds
        try:
            async with self._room:
                async with asyncio.timeout(limit):
                    votes = await self._votes(answered.step)
                await asyncio.to_thread(audit, self._plan, self._me, answered, votes, self._signed)
        except TimeoutError:
            why = f"it has not given the votes on step {answered.step} for {limit:g} s"
            self._exchange.lose(PeerLost(self._arbiter, why))
        except Refused as error:
            self._exchange.refuse(self._arbiter, FrameFault.CONTENT, f"a commit on step {answered.step}: {error}")

    async def _votes(self, step: int) -> list[Bytes]:
        while True:
            try:
                return await self._evidence.votes_of(self._arbiter, self._plan, step)
            except ConnectionError:
                await asyncio.sleep(RETRY_SECONDS)  # whether it is gone others find out
