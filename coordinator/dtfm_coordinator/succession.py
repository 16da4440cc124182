"""How one plan follows another: a call that ends the old one, promises, the new plan, its taking, and its coming into
force. Two coordinators may try at once; one plan a version comes of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from pydantic import Field

from dtfm_coordinator.doors import door_of, knock
from dtfm_coordinator.members import Members
from dtfm_coordinator.recovery import has_quorum
from dtfm_protocol.control import Epoch
from dtfm_protocol.errors import UserError
from dtfm_protocol.faults import point
from dtfm_protocol.identity import short
from dtfm_protocol.logs import log
from dtfm_protocol.plan import Plan
from dtfm_protocol.schema import Schema
from dtfm_protocol.standing import Standing
from dtfm_protocol.statedir import write_atomically

LATE_SECONDS = 3.0
"""How long peers that are heard of may take to promise once enough have: whoever is late brings no state."""
GENTLY_SECONDS = 30.0
"""How long the step under way may take to end before a plan is ended in the middle of it; longer where steps are."""
LOOK_SECONDS = 1.0
PEERS_AT_ONCE = 32
"""Whose doors are knocked at: each is a socket, of which a process has a thousand."""

FILE = "epoch.json"
Wait = Callable[[Callable[[], bool], float | None], Awaitable[bool]]


class Record(Schema):
    """What a coordinator must not forget."""

    epoch: Epoch = Epoch()
    promised: dict[str, int] = Field(default_factory=dict)
    """The newest version that each peer has promised to this coordinator."""
    doors: dict[str, tuple[tuple[str, int], ...]] = Field(default_factory=dict)
    """Addresses at which peers of plan `doors_of` took connections: one that is refused there later tells that the
    process has ended."""
    doors_of: int = 0

    @classmethod
    def of(cls, folder: Path) -> Self:
        """What an earlier life has written to `folder`.

        Raises:
            UserError: it cannot be read.
        """
        path = folder / FILE
        return cls.read(_json(path), str(path)) if path.exists() else cls()

    def save(self, folder: Path) -> None:
        """Write it down.

        Raises:
            UserError: there is no room.
        """
        write_atomically(folder / FILE, self.model_dump_json(), lasting=True)


class Succession:
    """One coordinator's part in it."""

    def __init__(
        self,
        folder: Path,
        me: str,
        members: Members,
        publish: Callable[[Epoch], Awaitable[None]],
        wait: Wait,
        say: Callable[[str], Awaitable[None]],
        *,
        is_genuine: Callable[[Plan], bool],
        alone: bool,
        without_quorum: bool,
    ) -> None:
        self._folder = folder
        self._me, self._members, self._publish, self._wait, self._say = me, members, publish, wait, say
        self._is_genuine, self._alone, self._without_quorum = is_genuine, alone, without_quorum
        self._record = Record.of(folder)
        self._ended: set[str] = set()
        self._bases: list[tuple[Plan, set[str]]] = []
        """What the next plan follows, as far as peers tell, and whose processes under it have ended."""

    @property
    def epoch(self) -> Epoch:
        """What was last said to peers."""
        return self._record.epoch

    async def repeat(self) -> None:
        """Say it again."""
        await self._publish(self.epoch)

    async def call(self, before: Plan | None, *, gently: bool = False, parked: bool = False) -> int:
        """End every plan so far; the version of the next one."""
        newest = max(self.epoch.called, self.epoch.in_force, before.version if before else 0)
        others = [member.report.standing.promise.version for member in self._members.online() if member.report]
        version = max([newest, *others]) + 1
        await self._tell(self.epoch.model_copy(update={"called": version, "gently": gently, "parked": parked}))
        point("after-call")
        if gently and before is not None:
            step = before.cost.total if before.cost is not None else 0.0
            if not await self._wait(lambda: self._all_promised(before, version), max(GENTLY_SECONDS, 5 * step)):
                log.info("the step under way does not end: going on without waiting for it")
                await self._tell(self.epoch.model_copy(update={"gently": False}))
        return version

    async def agree(self, before: Plan | None, version: int) -> dict[str, Standing]:
        """Wait until plan `version` can be the only one to follow `before`; where all who answer stand then.

        Where a peer that answers has taken a later plan, another coordinator's, that one may be in force: then the new
        plan must be the only one to follow that one, too.
        """
        self._bases = []
        base = before
        while base is not None:
            await self._gain(base, version)
            self._bases.append((base, self._ended))
            base = self._taken_after(base, version)
        return {
            member.peer: member.report.standing
            for member in self._members.heard()
            if member.report and self._promises(member.report.standing, version)
        }

    async def _gain(self, before: Plan, version: int) -> None:
        """Wait until the quorum of one plan has promised."""
        self._ended = set()  # what was true of an earlier plan's processes says nothing of this one's
        while not self._has_quorum(before, version):
            self._ended = await self._find_ended(before)
            if self._has_quorum(before, version):
                break
            await self._say(self._lacking(before, version))
            await self._wait(lambda: self._has_quorum(before, version), LOOK_SECONDS)
        await self._wait(lambda: self._all_promised(before, version), LATE_SECONDS)

    def _taken_after(self, before: Plan, version: int) -> Plan | None:
        """The newest plan after `before` that a peer which has promised had taken."""
        found = [
            member.report.taken
            for member in self._members.heard()
            if member.report and member.report.taken is not None and self._promises(member.report.standing, version)
        ]
        later = [plan for plan in found if before.version < plan.version < version and self._is_genuine(plan)]
        return max(later, key=lambda plan: plan.version, default=None)

    async def establish(self, plan: Plan, hold: Callable[[Plan], None]) -> bool:
        """Wait until most electors of the plan before have taken `plan`, and put it in force; whether they have.

        Args:
            hold: writes the plan down; a coordinator that returns must not believe in one before it.
        """
        point("after-plan")

        def taken() -> bool:
            standings = {m.peer: m.report.standing for m in self._members.heard() if m.report}
            took = {peer for peer, standing in standings.items() if standing.promise.accepted == plan.version}
            all_new = all(peer in took for peer in plan.peers)
            enough = all(has_quorum(base, took | {self._me}, over, alone=self._alone) for base, over in self._bases)
            return all_new and (enough or self._without_quorum)

        def gone() -> bool:
            return not {member.peer for member in self._members.heard()}.issuperset(plan.peers)

        await self._wait(lambda: taken() or gone(), GENTLY_SECONDS)
        if not taken():
            return False
        await self._written(lambda: hold(plan))
        point("before-in-force")
        await self._tell(self.epoch.model_copy(update={"in_force": plan.version}))
        return True

    async def started(self, plan: Plan) -> bool:
        """All peers of `plan` hold its state; whether that is news."""
        news = self.epoch.started < plan.version
        if news:
            await self._tell(self.epoch.model_copy(update={"started": plan.version}))
            doors = await self._find_doors(plan)  # meanwhile a plan may be called
            self._record = self._record.model_copy(update={"doors": doors, "doors_of": plan.version})
            await self._keep()
        return news

    async def heard(self, peer: str, standing: Standing) -> None:
        """A peer said where it stands; a promise holds whatever becomes of who gave it."""
        version = standing.promise.version
        if standing.promise.to == self._me and version > self._record.promised.get(peer, 0):
            self._record = self._record.model_copy(update={"promised": self._record.promised | {peer: version}})
            await self._keep()

    def _promises(self, standing: Standing, version: int) -> bool:
        return standing.promise.version == version and standing.promise.to == self._me

    def _promised(self, version: int) -> set[str]:
        return {self._me} | {peer for peer, given in self._record.promised.items() if given >= version}

    def _has_quorum(self, before: Plan, version: int) -> bool:
        if self._without_quorum:
            return True
        return has_quorum(before, self._promised(version), self._ended, alone=self._alone)

    def _all_promised(self, before: Plan, version: int) -> bool:
        """Whether all who train under `before`, and are heard of, have promised."""
        promised = self._promised(version)
        return all(m.peer in promised for m in self._members.heard() if before.stage_of(m.peer) is not None)

    def _lacking(self, before: Plan, version: int) -> str:
        answered = len(self._promised(version) & set(before.electors))
        return (
            f"waiting: {answered} of the {len(before.electors)} that decide on what follows plan {before.version} have "
            "answered, and the others may be training; if they are gone for good, start with --without-quorum"
        )

    async def _tell(self, epoch: Epoch) -> None:
        self._record = self._record.model_copy(update={"epoch": epoch})
        await self._keep()
        await self._publish(self.epoch)  # what was said while this one was written is not to be taken back

    def _save(self) -> None:
        self._record.save(self._folder)

    async def _keep(self) -> None:
        await self._written(self._save)

    async def _written(self, write: Callable[[], None]) -> None:
        """Have on the disk, once there is room, what must be there before anything follows from it."""
        while True:
            try:
                write()
            except UserError as error:
                await self._say(f"waiting for room: {error}")
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return

    async def _find_doors(self, plan: Plan) -> dict[str, tuple[tuple[str, int], ...]]:
        """The addresses at which the plan's peers take connections now."""
        gate = asyncio.Semaphore(PEERS_AT_ONCE)

        async def of(peer: str) -> tuple[tuple[str, int], ...]:
            member = self._members.get(peer)
            addresses = member.profile.addresses if member is not None and member.profile is not None else ()
            doors = [door for address in addresses if (door := door_of(address)) is not None]
            async with gate:
                taken = await asyncio.gather(*(knock(*door) for door in doors))
            return tuple(door for door, answer in zip(doors, taken, strict=True) if answer is True)

        # Many at once: nothing else is heard meanwhile.
        return dict(zip(plan.peers, await asyncio.gather(*map(of, plan.peers)), strict=True))

    async def _find_ended(self, plan: Plan) -> set[str]:
        """Peers whose process has ended, as every address tells at which it took connections before."""
        ended: set[str] = set()
        if self._record.doors_of != plan.version:
            return ended
        for peer in plan.electors:
            member, doors = self._members.get(peer), self._record.doors.get(peer, ())
            if doors and not (member is not None and member.online):
                answers = await asyncio.gather(*(knock(*door) for door in doors))
                if all(answer is False for answer in answers):
                    ended.add(peer)
        if new := ended - self._ended:
            log.info("%s: the process has ended", ", ".join(map(short, sorted(new))))
        return ended


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; without it plans could contradict each other") from None
