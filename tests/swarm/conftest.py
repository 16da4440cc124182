"""A swarm of real processes for each test that asks for one: started by console scripts, ended with the test."""

from collections.abc import AsyncIterator, Generator

import pytest

from tests.harness.jobs import TINY
from tests.harness.swarm import Swarm

LAST = 40
"""Lines of each process's log that are shown of a test that failed."""


@pytest.fixture
async def swarm() -> AsyncIterator[Swarm]:
    async with Swarm.running(TINY) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the processes said last where a test failed: their folder goes with the test."""
    report = yield
    made = getattr(item, "funcargs", {}).get("swarm")
    if report.when == "call" and report.failed and isinstance(made, Swarm):
        for path in sorted(made.folder.glob("*.log")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            report.sections.append((f"end of {path.name}", "\n".join(line[:200] for line in lines[-LAST:])))
    return report
