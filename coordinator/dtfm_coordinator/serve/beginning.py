"""Beginning of a service as people see it, on the page and in `status`: what is done before its coordinator leads."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from dtfm_coordinator.owner.owner_acts import OwnerActs
from dtfm_coordinator.records.step_history import StepHistory
from dtfm_coordinator.swarm.overview.news import NewsBoard, WarningListener
from dtfm_coordinator.swarm.overview.overview import Figures, Health, Overview, Progress
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed
from dtfm_coordinator.swarm.overview.overview_maker import recall
from dtfm_coordinator.swarm.overview.storage_watch import StorageWatch
from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.command_line import find_user_error
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

PREPARING, STANDING_BY, FAILED = "preparing", "standing-by", "failed"
"""Phases of a run that nobody here leads yet."""
TEXT_CHARACTERS = 480
"""Characters that are told of a phase in the overview's own field, as of all phases."""
TOLD_SECONDS = 1.0
"""How often those who look are told anew."""
GOODBYE_SECONDS = 1.0
"""Time in which those who look are told why the service ends."""
FIRST_ADVICE = "Nodes can join as soon as this is done; it is done once, and kept."


class Beginning:
    """Beginning of a service, and what has become of it; nothing more is told of it once the coordinator leads."""

    def __init__(self, job: str, steps: int, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Read what an earlier life of the coordinator has written.

        Args:
            job: the job's name.
            steps: number of its steps.
            folder: the state folder.
            clock: gives Unix seconds.
        """
        self._job, self._steps, self._folder, self._clock = job, steps, folder, clock
        self._history, self._storage = StepHistory(folder / "metrics.jsonl"), StorageWatch(folder)
        self.board = NewsBoard(clock)
        """What has happened, for the whole service."""
        self.acts = OwnerActs(folder)
        """What the owner has done, as far as the board does not have it."""
        recall(self.board, folder, self.acts.take_up)
        self.feed = OverviewFeed(self._history)
        """Overviews for whoever looks, for the whole service."""
        self.swarm = ""
        """The swarm's id; "": not known yet."""
        self._phase, self._health = PREPARING, Health(sentence="The coordinator is starting.")
        self._is_over = False

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Tell of it, and of the log's warnings, within the block; also why that ends, where an error is its end."""
        listener = WarningListener(self.board)
        log.addHandler(listener)
        telling = asyncio.create_task(self._tell())
        try:
            yield
        except UserError as error:
            await self._fail(error)
            raise
        except BaseExceptionGroup as group:
            if (found := find_user_error(group)) is not None:
                await self._fail(found)
            raise
        finally:
            telling.cancel()
            log.removeHandler(listener)

    def say(self, sentence: str) -> None:
        """Tell, in the log as well, what is being prepared."""
        log.info("%s", sentence)
        self.show(PREPARING, Health(sentence=sentence, advice=FIRST_ADVICE))

    def show(self, phase: str, health: Health) -> None:
        """Tell how things stand."""
        if (phase, health) != (self._phase, self._health):
            self._phase, self._health = phase, health
            self._put()

    def over(self) -> tuple[OverviewFeed, NewsBoard, OwnerActs]:
        """Tell nothing more: the coordinator leads, and tells the rest by what is returned."""
        self._is_over = True
        return self.feed, self.board, self.acts

    async def _tell(self) -> None:
        """Tell how things stand, again and again: those who look know by that that the coordinator lives."""
        while True:
            self._put()
            await asyncio.sleep(TOLD_SECONDS)

    async def _fail(self, fault: UserError) -> None:
        """Tell why the service ends, unless the coordinator that led has said so."""
        newest = self.feed.newest
        if self._is_over and newest is not None and newest.phase == FAILED:
            return
        self._is_over, self._phase = False, FAILED
        self._health = Health(
            level="bad",
            sentence=f"The coordinator has stopped: {' '.join(str(fault).split())}",
            advice="Mend that, then start `dtfm-coordinator serve` again on the same state folder: what was done so "
            "far is kept.",
        )
        self._put(at_once=True)
        if self.feed.viewers:
            await asyncio.sleep(GOODBYE_SECONDS)

    def _put(self, *, at_once: bool = False) -> None:
        if self._is_over:
            return
        overview = self._overview()
        values = overview.model_dump(mode="json")
        self.feed.put(overview, values, at_once=at_once)
        status: dict[str, Any] = {
            "at": overview.at,
            "tasks": len(asyncio.all_tasks()),
            "swarm": self.swarm,
            "phase": self._phase,
            "text": overview.text,
            "paused": False,
            "step": overview.progress.step,
            "steps": self._steps,
            "checkpoint": 0,
            "plan_version": None,
            "refused_claims": {},
            "dropped": {"records": {}, "messages": {}},
            "nodes": [],
            "overview": values,
        }
        with contextlib.suppress(UserError):  # a full disk is said where more depends on it
            write_atomically(self._folder / "status.json", json.dumps(status, indent=1))

    def _overview(self) -> Overview:
        self._history.take_up()
        for item in self.acts.take_up():
            self.board.put(item)
        step = self._history.last.step if self._history.last else 0
        return Overview(
            at=self._clock(),
            swarm=self.swarm,
            job=self._job,
            phase=self._phase,
            text=printable(self._health.sentence)[:TEXT_CHARACTERS],
            health=self._health,
            figures=Figures(),
            progress=Progress(step=step, steps=self._steps, tokens=self._history.tokens),
            plan=None,
            members={},
            news=self.board.items,
            storage=self._storage.look(step),
        )
