"""Who is there, how they are connected, and the best layout for them."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping

from dtfm_coordinator.allocator.shapes import NotEnoughNodes
from dtfm_coordinator.hearing import Hearing, Tools
from dtfm_coordinator.linkwatch import Pair
from dtfm_coordinator.members import Member
from dtfm_protocol.control import PROBE, ProbeRound
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity import short
from dtfm_protocol.logs import log
from dtfm_protocol.plan import Plan
from dtfm_protocol.records import LinkReport

SETTLE_SECONDS = 1.5
"""Nobody must have joined or left for so long before a plan is made, four times as long while somebody there
is not ready: volunteers arrive in bursts."""
QUICK_SECONDS = 0.2
"""The same in the middle of a run, where everyone waits, and who is there is known."""
HEAR_SECONDS = 5.0
"""Reports come every second."""
READ_SECONDS, QUICK_READ_SECONDS = 60.0, 0.5
"""For what peers have published of their links, after rounds of probes and without any. A lookup takes several round
trips, and peers whose links are not read count as unable to talk."""
ROUND_SECONDS = 75.0
"""A round of probes that takes longer goes on without the slow ones."""


READ_AGAIN_SECONDS, LOOK_AGAIN_SECONDS = 20.0, 1.0
"""For a record that does not have yet what its peer has just measured; and between two looks at it."""
RETRY_SECONDS = 60.0
"""After a view that no plan fits; sooner if somebody comes."""


class Gathering:
    """Makes layouts for those who are ready."""

    def __init__(self, tools: Tools, hearing: Hearing, min_nodes: int | None) -> None:
        self._tools, self._hearing, self._min_nodes = tools, hearing, min_nodes
        self._members, self._links = hearing.members, hearing.links

    async def layout(self) -> Plan:
        """Wait until enough nodes are ready for a plan; its layout."""
        # --min-nodes is for the start: a run that has lost a node goes on as soon as the others suffice.
        needed = self._tools.planner.fewest_nodes
        if self._hearing.plan is None and self._min_nodes is not None:
            needed = self._min_nodes
        why = ""
        while True:
            members = await self._gather(needed, why)
            if self._hearing.plan is not None:
                # A run that stands still does not wait for measurements if it can do without: who has just come back
                # is measured, and made use of, once it goes on.
                known = self._links.acquainted(members)
                if len(known) < len(members):
                    with contextlib.suppress(UserError):
                        return await self.plan_for(known)
            await self.probe(members, limits=self._hearing.plan is None)
            try:
                return await self.plan_for(members)
            except UserError as error:
                # A view that no plan fits may be followed by one that does: another node, or one with more memory.
                needed, why = len(members) + (error.missing if isinstance(error, NotEnoughNodes) else 1), str(error)

    async def plan_for(self, members: list[Member], horizon: float | None = None) -> Plan:
        """A layout for those of `members` that are still there.

        Args:
            horizon: see `Planner.plan`.

        Raises:
            UserError: none fits.
        """
        heard = {member.peer for member in self._members.ready()}
        members = self._links.reachable([member for member in members if member.peer in heard])
        if not members:
            raise UserError("no node is left, or none of them reaches another one: `dtfm-node doctor` says why")
        await self._hearing.say("planning", f"planning for {len(members)} nodes")
        view = self._links.view(members, self._tools.job.training.precision, self._hearing.pace.factors())
        plan = await asyncio.to_thread(self._tools.planner.plan, view, self._hearing.plan, horizon)
        view.save(self._tools.folder / "view.json")
        return plan

    async def _gather(self, needed: int, why: str) -> list[Member]:
        """Wait until at least `needed` nodes are ready and nobody has come or gone for a while.

        Args:
            why: what fewer nodes lack, where it is more than their number.
        """
        while True:
            if len(self._members.ready()) < needed:
                text = self._members.waiting_for(needed)
                await self._hearing.say("waiting", why or text)

                def told(text: str = text, needed: int = needed) -> bool:
                    return self._members.waiting_for(needed) != text

                if await self._hearing.wait(told, RETRY_SECONDS if why else None) or not why:
                    continue
                needed = min(needed, len(self._members.ready()))  # links that could not be measured may be well again
            ready = {member.peer for member in self._members.ready()}
            busy = len(self._members.online()) > len(ready)

            def moved(ready: set[str] = ready) -> bool:
                return {member.peer for member in self._members.ready()} != ready

            calm = SETTLE_SECONDS if self._hearing.plan is None else QUICK_SECONDS
            if not await self._hearing.wait(moved, calm * (4 if busy else 1)):
                return self._members.ready()

    async def hears_all(self, plan: Plan, unless: Callable[[], bool]) -> bool:
        """Wait until all of the plan's peers are heard of, as they are while it goes well; whether they were in time.

        Who is not would be left out of the next one. A moment of deafness, because this machine or the way to the
        broker was busy, must not cost a peer its place: whether it is gone is for others to say.

        Args:
            unless: ends the wait when it becomes true.
        """

        def heard() -> bool:
            return set(plan.peers) <= {member.peer for member in self._members.heard()}

        await self._hearing.wait(lambda: heard() or unless(), HEAR_SECONDS)
        return heard() and not unless()

    async def recall(self, peers: Collection[str]) -> None:
        """Take over what `peers` have measured for an earlier life of this coordinator, or for another one."""
        await self._read_all(peers, QUICK_READ_SECONDS)

    async def probe(self, members: list[Member], anew: Collection[Pair] = (), *, limits: bool = True) -> None:
        """Have all unknown links between `members` measured, in rounds of disjoint pairs, and those of `anew` again.

        Args:
            limits: whether what peers can send in all is measured, too: that takes seconds, and plans do without.
        """
        peers = [member.peer for member in members]
        before = {pair: self._links.gbps(*pair) or 0.0 for pair in anew}
        with contextlib.ExitStack() as undo:
            for pair in anew:
                undo.callback(self._links.forget_pair(*pair))
            await self._probe(peers, members, limits)
            undo.pop_all()  # who is interrupted knows what was known before
        self._hearing.link_watch.looked(before, before, {pair: self._links.gbps(*pair) or 0.0 for pair in before})

    async def _probe(self, peers: list[str], members: list[Member], limits: bool) -> None:
        addresses = {member.peer: member.profile.addresses for member in members if member.profile}
        rounds = list(self._links.rounds(peers))
        done: dict[str, int] = {}
        for number, pairs in enumerate(rounds, 1):
            await self._hearing.say("probing", f"measuring links: round {number} of {len(rounds)}")
            done |= await self._have_probed(ProbeRound(id=_now(), pairs=tuple(pairs), addresses=addresses))
            self._links.tried(pairs)
        await self._read_all(peers, READ_SECONDS if rounds else QUICK_READ_SECONDS, done)
        fans = list(self._links.fans(peers)) if limits else []
        for number, fanned in enumerate(fans, 1):
            await self._hearing.say("probing", f"measuring what nodes can send in all: round {number} of {len(fans)}")
            done |= await self._have_probed(ProbeRound(id=_now(), fans=tuple(fanned), addresses=addresses))
        if fans:
            await self._read_all(peers, READ_SECONDS, done)

    async def _have_probed(self, turn: ProbeRound) -> dict[str, int]:
        """Ask for a round of measurements, and wait for them; the round's id by peer that has finished its part."""
        await self._tools.control.publish(PROBE, turn)
        acting = [peer for peer, _ in turn.pairs] + [fan.centre for fan in turn.fans]

        def finished(peer: str) -> bool:
            return self._last_round(peer) == turn.id

        def awaited(peer: str) -> bool:
            member = self._members.get(peer)
            return member is not None and member.online and not finished(peer)

        if not await self._hearing.wait(lambda: not any(map(awaited, acting)), ROUND_SECONDS):
            log.warning("a round of link measurements was not finished in %.0f s", ROUND_SECONDS)
        return {peer: turn.id for peer in acting if finished(peer)}

    async def _read_all(self, peers: Collection[str], seconds: float, done: Mapping[str, int] | None = None) -> None:
        """Take over what peers have published of their links, measured on their own or not.

        A lookup waits for seconds where a DHT peer has fallen silent.

        Args:
            done: by peer, a round that it has finished: its record must have come so far, or to a later one.
        """
        reading = {asyncio.create_task(self._read(peer, (done or {}).get(peer))): peer for peer in peers}
        try:
            _, late = await asyncio.wait(reading, timeout=seconds) if reading else ((), ())
            if late and seconds >= READ_SECONDS:
                names = ", ".join(short(reading[task]) for task in late)
                log.warning("the links of %s could not be read from the DHT in %.0f s", names, seconds)
        finally:
            for task in reading:
                task.cancel()

    def _last_round(self, peer: str) -> int | None:
        """The round that a peer says it has finished last; a late one may come after the one that was waited for."""
        member = self._members.get(peer)
        return member.report.probed if member is not None and member.report is not None else None

    async def _read(self, peer: str, done: int | None) -> None:
        """Take over what a peer has published of its links; if round `done` is not in it yet, look again for a while.

        The DHT promises nothing about when a new record is found in place of an older one.
        """
        end = time.monotonic() + READ_AGAIN_SECONDS
        while True:
            report: LinkReport | None = None
            try:
                report = await self._tools.registry.links(self._tools.discovery, peer)
            except (OSError, RuntimeError) as error:
                log.warning("cannot read the links of %s: %s", short(peer), error)
            if report is not None:
                self._links.reported(peer, report)
            # Not by order: the clock that numbers rounds may have been set back.
            if done is None or (report is not None and report.probed in (done, self._last_round(peer))):
                return
            if time.monotonic() > end:
                log.warning("what %s has measured is not found in the DHT", short(peer))
                return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _now() -> int:
    """A number for a round, unique over restarts, too: nodes report the last one that they have finished."""
    return time.time_ns() // 1_000_000
