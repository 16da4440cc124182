"""Shadow replication: copies of snapshots, given to the peers that the plan names to keep them (shadows), and taken
from others."""

import asyncio
import functools
import os

from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.snapshots import Snapshot, Snapshots
from dtfm_protocol.checkpoint.transfers import Deposit, Receipt, deposit, receive_file
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote, vote_of
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message, write_message

COPIES_A_STAGE = 8
"""Copies of one stage's snapshots that are kept for its peer, the newest: no peer fills another one's disk. More than
snapshots that may wait until the swarm has one of them whole (`UNSAFE_FILES`)."""


class ShadowReplication:
    """Both sides of the copies: `offer` has a snapshot given to the shadow of its stage, `take` keeps what is given.

    Args:
        most_bytes: bytes of the largest snapshot that is taken.
        signer: checks signatures in this swarm.
    """

    def __init__(
        self, plane: DataPlane, uplink: UplinkPacer, snapshots: Snapshots, most_bytes: int, signer: Signer
    ) -> None:
        self._plane, self._uplink, self._snapshots = plane, uplink, snapshots
        self._most_bytes, self._signer = most_bytes, signer
        self._plan: Plan | None = None
        self._offers: asyncio.Queue[tuple[Plan, str, Snapshot]] = asyncio.Queue()
        self._coming: set[str] = set()
        """Peers whose copies are coming in."""
        self.copied_bytes = 0
        """Bytes of snapshots that shadows have taken so far."""

    def serve(self, plan: Plan) -> None:
        """Keep copies, from now on, for the peers to which `plan` gives this node as their shadow."""
        self._plan = plan

    def offer(self, plan: Plan, stage: int, snapshot: Snapshot) -> None:
        """Have a snapshot given to the shadow that `plan` has for its stage, if there is one."""
        shadow = plan.shadow_of(stage)
        if shadow is not None:
            self._offers.put_nowait((plan, shadow, snapshot))

    async def run(self) -> None:
        """Give snapshots away until cancelled; only the newest, where they come faster than they go."""
        while True:
            plan, shadow, snapshot = await self._offers.get()
            if self._offers.empty():
                await self._give(plan, shadow, snapshot)

    async def _give(self, plan: Plan, shadow: str, snapshot: Snapshot) -> None:
        offer = Deposit(
            plan_version=plan.version,
            mark=snapshot.mark,
            layers=snapshot.layers,
            size=snapshot.bytes,
            sha256=snapshot.sha256,
            votes=snapshot.votes,
            commit=snapshot.commit,
        )
        turn = functools.partial(self._uplink.idle, shadow)
        try:
            receipt = await deposit(self._plane, shadow, offer, self._snapshots.path(snapshot), turn)
        except (ConnectionError, Refused, OSError) as error:
            log.info("%s did not get a copy of step %d: %s", short(shadow), snapshot.mark.step, error)
            return
        self.copied_bytes += snapshot.bytes if receipt.taken else 0
        log.debug("a copy of step %d at %s: %s", snapshot.mark.step, short(shadow), receipt.text)

    async def take(self, stream: Stream) -> None:
        """Answer a peer that offers a copy (`deposit`), and keep the copy if it is due here.

        Raises:
            Refused: what comes is not what was announced.
            StreamClosed: the stream ends before all has come.
        """
        offer = await read_message(stream, Deposit)
        plan = self._plan
        stage = plan.stage_of(stream.peer) if plan is not None else None
        if plan is None or stage is None or plan.shadow_of(stage) != self._plane.peer_id:
            await write_message(stream, Receipt(taken=False, text="this peer is no shadow of that one"))
            return
        if offer.layers != plan.stages[stage] or offer.size > self._most_bytes:
            raise Refused(f"{short(stream.peer)} offers a snapshot that is not of its stage")
        if why := self._objection(plan, offer):
            await write_message(stream, Receipt(taken=False, text=why))
            return
        if self._snapshots.has(offer.mark, offer.layers):
            await write_message(stream, Receipt(taken=False, text="it is here already"))
            return
        vote = vote_of(offer.votes, stream.peer, offer.mark, offer.layers, self._signer.swarm)
        if stream.peer in self._coming:
            await write_message(stream, Receipt(taken=False, text="another copy of this peer is on its way"))
            return
        self._coming.add(stream.peer)
        try:
            with self._snapshots.budget.claimed(offer.size, "a copy of another peer's state"):
                await write_message(stream, Receipt(taken=True, text="send it"))
                self._snapshots.add(await self._receive(stream, offer, vote))
            self._snapshots.keep_newest(offer.layers, COPIES_A_STAGE)
        except (OSError, UserError) as error:
            log.warning("cannot keep a copy for %s: %s", short(stream.peer), error)
            await write_message(stream, Receipt(taken=False, text="no room"))
        else:
            await write_message(stream, Receipt(taken=True, text="kept"))
        finally:
            self._coming.discard(stream.peer)

    def _objection(self, plan: Plan, offer: Deposit) -> str:
        """Return why no plan could go on from a copy of what is offered; "" if one could.

        Raises:
            Refused: it comes with a commit that its arbiter has not signed, or without one where it takes one.
        """
        chain, mark, commit = plan.chain, offer.mark, offer.commit
        if not chain.has(mark) or not chain.grants(self._plane.peer_id, mark, offer.layers, live=False):
            return "that state leads nowhere, or this peer kept no copies of it"
        maker = chain.maker(mark)
        if maker is None:
            return ""
        if commit is None:
            if chain.is_open(mark):
                raise Refused(f"a copy of {mark} without the commit that made it final")
        elif (commit.plan, commit.step) != (mark.plan, mark.step):
            raise Refused(f"a copy of {mark} with a commit of another state")
        else:
            commit.opened(maker.arbiter, self._signer.swarm, self._signer.check)
        return ""

    async def _receive(self, stream: Stream, offer: Deposit, vote: StateVote) -> Snapshot:
        """Receive a snapshot onto this node's disk, and return it; if that fails, nothing of it stays."""
        path = self._snapshots.folder / f".coming-{offer.mark.step}-{offer.layers[0]}"
        try:
            with path.open("wb") as file:
                await receive_file(stream, offer.size, file.write)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            return await asyncio.to_thread(self._snapshots.adopt, path, vote, offer.sha256, offer.commit)
        finally:
            path.unlink(missing_ok=True)
