"""Both event loops with which the programs run: a test module that takes this fixture has each of its tests on both."""

import asyncio

import pytest
import uvloop


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Policy of the event loop on which a test runs."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy
