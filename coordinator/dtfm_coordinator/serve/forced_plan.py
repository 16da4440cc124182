"""Plan that the owner forces: its file is read at the start, and again whenever it is written."""

import asyncio
from pathlib import Path

from dtfm_coordinator.leader.planner import Planner
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log

FILE_LOOK_SECONDS = 0.5
"""How often the file is looked at."""


async def follow_forced_plan(path: Path, planner: Planner) -> None:
    """Take up what the owner writes to the file of a forced plan, until cancelled."""

    def written() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    seen = written()
    while True:
        await asyncio.sleep(FILE_LOOK_SECONDS)
        if (now := written()) not in (0, seen):
            seen = now
            try:
                planner.force(Plan.load(path))
            except UserError as error:
                log.warning("The layout that you wrote is not taken up, and the one before stays: %s", error)
