"""A swarm of real processes for each test that asks for one: started by console scripts, ended with the test."""

from collections.abc import AsyncIterator

import pytest

from tests.harness.jobs import TINY
from tests.harness.swarm import Swarm


@pytest.fixture
async def swarm() -> AsyncIterator[Swarm]:
    async with Swarm.running(TINY) as made:
        yield made
