"""Making of a new layout: who is there, how they are connected, and the best layout for them."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterator

from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.faults.accusations import Quarrel
from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.links.link_degradation import Pair
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.control.messages import PROBE, ProbeRound
from dtfm_protocol.discovery.records import LinkReport
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts


class LayoutMaker:
    """Maker of layouts for the peers that are ready."""

    def __init__(
        self,
        context: LeadContext,
        state: SwarmState,
        say: Callable[[str, str], Awaitable[None]],
        min_nodes: int | None,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        self._timeouts = timeouts
        self._context, self._state, self._say, self._min_nodes = context, state, say, min_nodes
        self._members, self._links = state.members, state.links

    async def layout(self) -> Plan:
        """Wait until enough nodes are ready for a plan, and return its layout."""
        # --min-nodes is for the start: a run that has lost a node goes on as soon as the others suffice.
        needed = self._context.planner.fewest_nodes
        if self._state.plan is None and self._min_nodes is not None:
            needed = self._min_nodes
        if self._state.plan is not None:
            needed = await _enough_in_run(self._context.planner, self._state, needed, self._say, self._timeouts)
        why = ""
        while True:
            members = await self._gather(needed, why)
            if self._state.plan is not None:
                # A run that stands still does not wait for measurements if it can do without: who has just come back
                # is measured, and made use of, once it goes on.
                known = self._links.acquainted(members)
                if len(known) < len(members):
                    with contextlib.suppress(UserError):
                        return await self.plan_for(known)
            await self.probe(members, limits=self._state.plan is None)
            try:
                return await self.plan_for(members)
            except UserError as error:
                # A view that no plan fits may be followed by one that does: another node, or one with more memory.
                needed, why = len(members) + (error.missing if isinstance(error, NotEnoughNodes) else 1), str(error)

    async def plan_for(self, members: list[Member], horizon: float | None = None, standstill: float = 0.0) -> Plan:
        """Return a layout for those of `members` that are still there.

        Args:
            horizon: seconds within which a move must pay back, if that is less than the job allows.
            standstill: seconds that a change takes besides moving state.

        Raises:
            UserError: no layout fits.
        """
        heard = {member.peer for member in self._members.ready()}
        members = self._links.reachable([member for member in members if member.peer in heard])
        if not members:
            raise UserError("no node is left, or none of them reaches another one: `dtfm-node doctor` says why")
        for some, apart in self._doubting(members):
            with contextlib.suppress(UserError):
                return await self._placed(some, horizon, standstill, apart)
        return await self._placed(members, horizon, standstill)

    def _doubting(self, members: list[Member]) -> Iterator[tuple[list[Member], frozenset[Quarrel]]]:
        """Yield what to try before all of `members` as they are: who is to take part, and who is kept apart."""
        here, doubted = {member.peer for member in members}, self._state.doubted
        trusted = [member for member in members if member.peer not in doubted]
        apart = frozenset(quarrel for quarrel in self._state.accusations.apart if quarrel <= here)
        if trusted and apart:
            yield trusted, apart
        if 0 < len(trusted) < len(members):
            yield trusted, frozenset()
            if apart:
                yield members, apart

    async def _placed(
        self, members: list[Member], horizon: float | None, standstill: float, apart: Collection[Quarrel] = frozenset()
    ) -> Plan:
        """Return a layout for `members`, where the pairs of `apart` have nothing to do with each other.

        Raises:
            UserError: no layout fits.
        """
        await self._say("planning", f"planning for {len(members)} nodes")
        view = self._links.view(members, self._context.job.training.precision, self._state.pace.factors(), apart)
        plan = await asyncio.to_thread(self._context.planner.plan, view, self._state.plan, horizon, standstill)
        view.save(self._context.folder / "view.json")
        return plan

    async def _gather(self, needed: int, why: str) -> list[Member]:
        """Wait until at least `needed` nodes are ready and nobody has come or gone for a while.

        Args:
            why: what fewer nodes lack beside their number, for people; "": nothing.
        """
        while True:
            if len(self._members.ready()) < needed:
                text = self._members.waiting_for(needed)
                await self._say("waiting", why or text)

                def told(text: str = text, needed: int = needed) -> bool:
                    return self._members.waiting_for(needed) != text

                if await self._state.wait(told, self._timeouts.layout_retry if why else None) or not why:
                    continue
                needed = min(needed, len(self._members.ready()))  # links that could not be measured may be well again
            ready = {member.peer for member in self._members.ready()}
            busy = len(self._members.online()) - len(self._members.paused()) > len(ready)

            def moved(ready: set[str] = ready) -> bool:
                return {member.peer for member in self._members.ready()} != ready

            calm = self._timeouts.settle if self._state.plan is None else self._timeouts.settle_in_run
            if not await self._state.wait(moved, calm * (4 if busy else 1)):
                return self._members.ready()

    async def hears_all(self, plan: Plan, unless: Callable[[], bool]) -> bool:
        """Wait until all of the plan's peers are heard of, as they are while it goes well; False if they were not in
        time.

        A peer that is not would be left out of the next plan. A moment of deafness, because this machine or the way to
        the
        broker was busy, must not cost a peer its place: whether it is gone is for others to say.

        Args:
            unless: condition that ends the wait when it becomes true.
        """

        def heard() -> bool:
            return set(plan.peers) <= {member.peer for member in self._members.heard()}

        await self._state.wait(lambda: heard() or unless(), self._timeouts.report_return)
        return heard() and not unless()

    async def recall(self, peers: Collection[str]) -> None:
        """Take over what `peers` have measured for an earlier process of this coordinator, or for another one."""
        await self._read_all(peers, self._links.reported)

    async def probe(self, members: list[Member], anew: Collection[Pair] = (), *, limits: bool = True) -> None:
        """Have all unknown links between `members` measured in rounds of disjoint pairs, and the links `anew` once
        more.

        Args:
            limits: whether what peers can send in all is measured, too: that takes seconds, and plans do without.
        """
        peers = [member.peer for member in members]
        before = {pair: self._links.gbps(*pair) or 0.0 for pair in anew}
        await self._read_all(self._links.reporters(peers), self._links.published)
        with contextlib.ExitStack() as undo:
            for pair in anew:
                undo.callback(self._links.forget_pair(*pair))
            await self._probe(peers, members, limits)
            undo.pop_all()  # who is interrupted knows what was known before
        self._state.link_watch.looked(before, before, {pair: self._links.gbps(*pair) or 0.0 for pair in before})

    async def _probe(self, peers: list[str], members: list[Member], limits: bool) -> None:
        addresses = {member.peer: member.profile.addresses for member in members if member.profile}
        rounds = list(self._links.rounds(peers))
        for number, pairs in enumerate(rounds, 1):
            await self._say("probing", f"measuring links: round {number} of {len(rounds)}")
            await self._have_probed(ProbeRound(id=_now(), pairs=tuple(pairs), addresses=addresses))
            self._links.tried(pairs)
        fans = list(self._links.limits.fans(peers, self._links.gbps)) if limits else []
        for number, fanned in enumerate(fans, 1):
            await self._say("probing", f"measuring what nodes can send in all: round {number} of {len(fans)}")
            await self._have_probed(ProbeRound(id=_now(), fans=tuple(fanned), addresses=addresses))

    async def _have_probed(self, turn: ProbeRound) -> None:
        """Ask for a round of measurements, and wait until the peers that are there have reported what they found."""
        acting = [peer for peer, _ in turn.pairs] + [fan.centre for fan in turn.fans]
        self._links.requests.ask(turn)
        await self._context.control.publish(PROBE, turn)

        def awaited(peer: str) -> bool:
            member = self._members.get(peer)
            return member is not None and member.online and self._links.requests.awaits(peer, turn.id)

        if not await self._state.wait(lambda: not any(map(awaited, acting)), self._timeouts.probe_round):
            log.warning("Measuring the connections took %.0f s, and goes on without.", self._timeouts.probe_round)

    async def _read_all(self, peers: Collection[str], take: Callable[[str, LinkReport], None]) -> None:
        """Look up once what `peers` have published of their links, and have it taken.

        A lookup waits for seconds where a DHT peer has fallen silent: who is not read in `links_read` seconds is left
        out.
        """
        reading = [asyncio.create_task(self._read(peer, take)) for peer in peers]
        try:
            if reading:
                with contextlib.suppress(TimeoutError):
                    async with self._state.clock.timeout(self._timeouts.links_read):
                        await asyncio.wait(reading)
        finally:
            for task in reading:
                task.cancel()

    async def _read(self, peer: str, take: Callable[[str, LinkReport], None]) -> None:
        try:
            record = await self._context.registry.links(self._context.discovery, peer)
        except (OSError, RuntimeError) as error:
            log.warning("What %s has measured cannot be looked up: %s", short(peer), error)
            return
        if record is not None:
            take(peer, record)


async def _enough_in_run(
    planner: Planner,
    state: SwarmState,
    needed: int,
    say: Callable[[str, str], Awaitable[None]],
    timeouts: Timeouts,
) -> int:
    """Return the number of nodes to wait for in the middle of a run: `needed`, unless fewer will do, and others have
    not come for a while."""

    def are_here() -> bool:
        return len(state.members.ready()) >= needed

    if planner.fewest_in_run >= needed or are_here():
        return needed
    seconds = timeouts.fewer_nodes
    missing = state.members.waiting_for(needed)
    await say("waiting", f"{missing}; after {seconds:.0f} s the run goes on with those that are here")
    return needed if await state.wait(are_here, seconds) else planner.fewest_in_run


def _now() -> int:
    """Return a number for a round, unique also over restarts: nodes send it with what they found."""
    return time.time_ns() // 1_000_000
