"""Measuring of links before plans are made: asks nodes for rounds of measurements, and waits for what they find."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypedDict

from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.links.chosen_pairs import FEW
from dtfm_coordinator.links.link_degradation import Pair
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.control.messages import ECHO_LIMIT, PROBE, ProbeRound
from dtfm_protocol.discovery.records import LinkReport
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts


class Places(TypedDict):
    """Where peers are reached, as rounds say it."""

    addresses: dict[str, tuple[str, ...]]
    ports: dict[str, int]


class LinkMeasuring:
    """Measuring of the links between peers; what is found is in the state's link table."""

    def __init__(
        self,
        context: LeadContext,
        state: SwarmState,
        say: Callable[[str, str], Awaitable[None]],
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        self._context, self._state, self._say, self._timeouts = context, state, say, timeouts
        self._members, self._links = state.members, state.links

    async def recall(self, peers: Collection[str]) -> None:
        """Take over what `peers` have measured for an earlier process of this coordinator, or for another one."""
        await self._read_all(peers, self._links.recalled)
        self._links.estimate_lines([*peers])

    async def probe(
        self,
        members: list[Member],
        anew: Collection[Pair] = (),
        *,
        limits: bool = True,
        busy: Collection[str] = frozenset(),
    ) -> None:
        """Have so many links between `members` measured, in rounds of disjoint pairs, that the others can be estimated,
        and the links `anew` once more.

        Args:
            limits: whether what peers can send in all is measured, too: that takes seconds, and plans do without.
            busy: peers that train meanwhile, whose whole lines are not taken for a newcomer's sake.
        """
        peers = [member.peer for member in members]
        before = {link: self._links.gbps(*link) or 0.0 for pair in anew for link in (pair, pair[::-1])}
        reading = asyncio.create_task(self._read_all(self._links.reporters(peers), self._links.published))
        try:
            if anew:
                await reading  # what is to be forgotten must not come after that
            with contextlib.ExitStack() as undo:
                for pair in anew:
                    undo.callback(self._links.forget_pair(*pair))
                await self._probe(peers, members, anew, limits, busy, reading)
                undo.pop_all()  # who is interrupted knows what was known before
        finally:
            reading.cancel()
        now = {pair: self._links.gbps(*pair) or 0.0 for pair in before}
        for pair in self._state.link_watch.looked(before, before, now):
            self._links.failing(pair, before[pair])

    async def _probe(
        self,
        peers: list[str],
        members: list[Member],
        anew: Collection[Pair],
        limits: bool,
        busy: Collection[str],
        reading: Awaitable[None],
    ) -> None:
        places, doubted = _places(members), {frozenset(pair) for pair in anew}

        def disturbs(pairs: list[Pair]) -> bool:
            return any({*pair} & {*busy} and frozenset(pair) not in doubted for pair in pairs)

        if echoes := self._links.echoes(peers):
            first = self._links.first_pairs(peers, echoes)
            await self._say("probing", "measuring how far nodes are from each other")
            await self._measure(first, places, quick=not disturbs(first), echoes=echoes)
        await reading
        rounds: Iterable[list[Pair]] = self._links.rounds(peers, anew)
        if len(peers) <= FEW:
            rounds = [*rounds]  # all pairs, whatever is found
        for number, (pairs, following) in enumerate(_with_next(rounds), 1):
            await self._say("probing", f"measuring links: round {number}")
            await self._measure(pairs, places, quick=not disturbs(pairs), following=following)
        if not limits:
            self._links.estimate_lines(peers)
            return
        for number, fanned in enumerate(self._links.fans(peers), 1):
            await self._say("probing", f"measuring what nodes can send in all: round {number}")
            await self._have_probed(ProbeRound(id=_now(), fans=tuple(fanned), **places))

    async def rounds_of_plan(self, rounds: list[list[Pair]], members: list[Member]) -> None:
        """Have rounds of disjoint pairs of `members` measured, which a plan is about to use."""
        for number, (pairs, following) in enumerate(_with_next(rounds), 1):
            await self._say("probing", f"measuring links of the plan: round {number} of {len(rounds)}")
            told = {pair: [self._links.gbps(*link) for link in (pair, pair[::-1])] for pair in pairs}
            doubted = {pair: rates for pair, rates in told.items() if None not in rates}
            with contextlib.ExitStack() as undo:
                for pair in doubted:
                    undo.callback(self._links.forget_pair(*pair))  # who does not answer the other end proves nothing
                await self._measure(pairs, _places(members), following=following)
                undo.pop_all()
            for pair, rates in doubted.items():
                if self._links.contradicted(pair, [rate or 0.0 for rate in rates]):
                    log.warning(
                        "%s has told much more of its link with %s than that one finds: it is believed up to what "
                        "others find.", short(pair[1]), short(pair[0]),
                    )  # fmt: skip

    async def doors_of_plan(self, doors: Mapping[str, tuple[str, ...]], members: list[Member]) -> None:
        """Have each of `doors` take round trips to the others that are named with it, all at once."""
        most = max(map(len, doors.values()))
        for first in range(0, most, ECHO_LIMIT):
            some = {peer: others[first : first + ECHO_LIMIT] for peer, others in doors.items() if len(others) > first}
            await self._say("probing", "trying who can talk to whom")
            await self._have_probed(ProbeRound(id=_now(), echoes=some, **_places(members)))

    async def beside(self, pairs: list[Pair], members: list[Member]) -> None:
        """Have disjoint pairs of `members` measured that no plan uses, while training goes on; nobody is told, for
        nobody waits. Where training's frames have shared their lines, what was found is what they carry at least. So it
        is not done as quickly as can be: that takes a whole line, and does not tell whether others used it."""
        await self._measure(pairs, _places(members), quick=False)
        for pair in pairs:
            self._links.beside(pair)

    async def _measure(
        self,
        pairs: list[Pair],
        places: Places,
        *,
        quick: bool = True,
        echoes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        following: Sequence[Pair] = (),
    ) -> None:
        """Have disjoint pairs measured, while others take round trips; `following` are those of the next round, as far
        as they are known."""
        after = tuple(following) if quick else ()
        turn = ProbeRound(id=_now(), pairs=tuple(pairs), quick=quick, echoes=dict(echoes), next=after, **places)
        here = {peer: self._links.departures(peer) for pair in pairs for peer in pair if self._is_online(peer)}
        await self._have_probed(turn)
        # Who was away meanwhile was not tried, and may be reached once it is back.
        stayed = {peer for peer, before in here.items() if self._links.departures(peer) == before}
        self._links.tried([pair for pair in pairs if stayed.issuperset(pair)])

    async def _have_probed(self, turn: ProbeRound) -> None:
        """Ask for a round of measurements, and wait until the peers that are there have reported what they found, for
        so many seconds at most as their part of it may take."""
        self._links.requests.ask(turn)
        await self._context.control.publish(PROBE, turn)
        acting = [peer for peer, _ in turn.pairs] + [fan.centre for fan in turn.fans]
        await self._until_reported(turn.echoes, turn.id, self._timeouts.echo_round, "how far nodes are from each other")
        await self._until_reported(acting, turn.id, self._timeouts.probe_round, "the connections")

    async def _until_reported(self, peers: Collection[str], number: int, limit: float, what: str) -> None:
        def awaited(peer: str) -> bool:
            return self._is_online(peer) and self._links.requests.awaits(peer, number)

        if not await self._state.wait(lambda: not any(map(awaited, peers)), limit):
            log.warning("Measuring %s took %.0f s, and goes on without those that have not answered.", what, limit)

    def _is_online(self, peer: str) -> bool:
        member = self._members.get(peer)
        return member is not None and member.online

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


def _with_next(rounds: Iterable[list[Pair]]) -> Iterator[tuple[list[Pair], Sequence[Pair]]]:
    """Yield each round, and the one after it where that does not follow from what is found, as in a list."""
    known = rounds if isinstance(rounds, list) else []
    yield from zip(rounds, itertools.chain(known[1:], itertools.repeat(())), strict=False)


def _places(members: list[Member]) -> Places:
    """Return where those are reached of whom that is known."""
    known = [(member.peer, member.profile) for member in members if member.profile]
    return {
        "addresses": {peer: profile.addresses for peer, profile in known},
        "ports": {peer: profile.port for peer, profile in known if profile.port is not None},
    }


def _now() -> int:
    """Return a number for a round, unique also over restarts: nodes send it with what they found."""
    return time.time_ns() // 1_000_000
