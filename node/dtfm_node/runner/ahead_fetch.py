"""Fetch, ahead of a plan that is to come, of what this node lacks for it, while the plan in force is trained on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from dtfm_node.control.reporter import Reporter
from dtfm_node.engine.training_stage import trained_shapes
from dtfm_node.state.ahead_copy import AheadCopy
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.checkpoint.transfers import STATE, Parcel, WantCatalogue
from dtfm_protocol.control.messages import ProbeRound
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import DataPlane, read_message, write_message

Shapes = dict[str, tuple[int, ...]]


class AheadFetch:
    """Fetcher of what layouts to come give to this node, one layout after the other. It says when it has all of it, or
    cannot have it: nobody is held up by that, and what is not here when the plan begins is fetched then."""

    def __init__(
        self,
        job: ResolvedJob,
        plane: DataPlane,
        holdings: Inventory,
        reporter: Reporter,
        plan: Callable[[], Plan | None],
        spare: Callable[[], float],
        serve: Callable[[Plan], Awaitable[None]],
        files: Callable[[Plan, Plan, int], Awaitable[None]],
    ) -> None:
        """Nothing is fetched yet.

        Args:
            plan: returns the plan in force, as far as this node has heard.
            spare: returns the bytes of memory that may be taken for it.
            serve: has this node give to others what the layout to come gives to them.
            files: fetches what the first layout, which is to follow the second, has this node read for a step.
        """
        self._job, self._plane, self._holdings, self._reporter = job, plane, holdings, reporter
        self._plan, self._spare, self._serve, self._files = plan, spare, serve, files

    async def run(self, comings: asyncio.Queue[ProbeRound]) -> NoReturn:
        """Fetch for each layout that comes, until the next one does, or this is cancelled."""
        turn = await comings.get()
        while True:
            assert turn.coming is not None, "a round without a layout to come"
            await self._serve(turn.coming)
            self._reporter.note(coming=turn.id, is_ahead=False)
            self._reporter.hurry()
            fetching = asyncio.create_task(self._fetch(turn.coming))
            try:
                turn = await comings.get()
            finally:
                fetching.cancel()
                await asyncio.wait({fetching})
            if not fetching.cancelled():
                fetching.result()

    async def _fetch(self, layout: Plan) -> None:
        plan, copy = self._plan(), None
        shares = await asyncio.to_thread(self._shares, plan, layout) if plan is not None else {}
        if shares and plan is not None:
            shapes = {name: shape for share in shares.values() for name, shape in share.items()}
            copy = AheadCopy(shapes, JobTimeline(self._job, plan.amendments).training_at)
            if copy.bytes > self._spare():
                log.info("there is no memory to fetch ahead what the next plan is to give to this machine")
                copy = None
        if plan is None or copy is None:
            self._is_ahead()
            return
        self._holdings.ahead, copy.sources = copy, len(shares)
        async with asyncio.TaskGroup() as tasks:
            lacking, has_all = set(shares), asyncio.Event()

            def given(peer: str) -> None:
                """Take note that a source has given all of now, or gives nothing more."""
                lacking.discard(peer)
                if not lacking:
                    has_all.set()

            for peer, share in shares.items():
                tasks.create_task(self._pull(peer, share, copy, given))
            await has_all.wait()
            try:
                await self._files(layout, plan, copy.step + 1)
            except (ConnectionError, Refused) as error:
                log.info("not all that the next plan has this machine read comes ahead: %s", error)
            self._is_ahead()

    def _is_ahead(self) -> None:
        self._reporter.note(is_ahead=True)
        self._reporter.hurry()

    def _shares(self, plan: Plan, layout: Plan) -> dict[str, Shapes]:
        """Return which parameters this node lacks for `layout` each peer of `plan` is to give, with their shapes."""
        me, live = self._plane.peer_id, self._holdings.live
        stage = layout.stage_of(me)
        # Of more micro-batches than a step has, there are none to read tokens for.
        if stage is None or layout.layers != plan.layers or len(layout.routes) > len(plan.routes):
            return {}
        training = self._job.training
        lacking = trained_shapes(self._job.config, layout.stages[stage], training)
        if live is not None and plan.stage_of(me) is not None:
            lacking = {name: shape for name, shape in lacking.items() if name not in live.parameters}
        shares: dict[str, Shapes] = {}
        for number, layers in enumerate(plan.stages):
            there = sorted(lacking.keys() & trained_shapes(self._job.config, layers, training).keys())
            givers = [peer for peer in plan.replicas(number) if peer != me]
            for turn, name in enumerate(there if givers else ()):
                shares.setdefault(givers[turn % len(givers)], {})[name] = lacking.pop(name)
        return shares

    async def _pull(self, peer: str, share: Shapes, copy: AheadCopy, given: Callable[[str], None]) -> None:
        """Take what a peer gives until it gives nothing more."""
        size = 0
        try:
            stream = await self._plane.open(peer, STATE)
            try:
                await write_message(stream, WantCatalogue(mark=Mark(), ahead=tuple(share)))
                while not copy.is_closed:
                    parcel = await read_message(stream, Parcel)
                    if parcel.name not in share:
                        raise Refused(f"{short(peer)} gives {parcel.name} ahead, which it was not asked for")
                    copy.check(parcel)
                    data = await stream.read(parcel.size) if parcel.size else b""
                    await asyncio.to_thread(copy.take, parcel, data)
                    size += parcel.size
                    copy.came()
                    if not parcel.left:
                        given(peer)
            finally:
                await stream.close()
        except (ConnectionError, Refused, TimeoutError) as error:
            log.debug("%s gives nothing more ahead, after %d bytes: %s", short(peer), size, error)
        finally:
            copy.sources -= 1
            copy.came()
            given(peer)
