"""How a daemon enters a swarm whose coordinator is starting."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtfm_node.control.display import Display
from dtfm_node.daemon import Daemon, NodeOptions
from dtfm_protocol.control.messages import Topic
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema
from tests.coordinator.peers import JOB
from tests.harness.manual_clock import settle
from tests.harness.membership import invite_of

INVITE = invite_of()


class Control:
    """A broker's side of the control plane."""

    last_error = ""
    clock_ahead = None

    def __init__(self, connected: bool) -> None:
        self.connected = asyncio.Event()
        if connected:
            self.connected.set()
        self.said: list[str] = []

    async def publish(self, topic: Topic, _: Schema) -> None:
        self.said.append(topic.name)


def entering(folder: Path, connected: bool, timeout: float) -> tuple[Daemon, Control, Any]:
    quick = replace(TIMEOUTS, identity_challenge=0.0)
    daemon = Daemon(INVITE, folder, NodeOptions(timeout=timeout), Display("plain"), quick)
    control: Any = Control(connected)
    return daemon, control, daemon._enter(control)


async def test_a_node_asks_for_nothing_until_a_coordinator_serves(tmp_path: Path) -> None:
    """Its broker may be there long before it is: a question would be heard by nobody."""
    daemon, control, entry = entering(tmp_path, True, 30.0)
    task = asyncio.create_task(entry)
    await settle()
    assert control.said == []
    daemon._inbox._take_job("", JOB)
    await asyncio.wait_for(task, 30)
    assert control.said == ["challenge"]


@pytest.mark.parametrize(("connected", "why"), [(False, "did not let this node in"), (True, "nobody has said")])
async def test_a_node_gives_up_where_nobody_leads_and_says_what_is_missing(
    tmp_path: Path, connected: bool, why: str
) -> None:
    _, control, entry = entering(tmp_path, connected, 0.05)
    with pytest.raises(UserError, match=f"no coordinator: its broker .*{why}"):
        await asyncio.wait_for(entry, 30)
    assert control.said == []
