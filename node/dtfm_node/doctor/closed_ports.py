"""Closed ports of a coordinator, noticed while a node waits to get in: within seconds it says what the doctor would."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dtfm_node.doctor.host_lookup import Host, closed_because, host_and_port, visit
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.transport.dialling import multiaddresses_to_dial, rule_around

T = TypeVar("T")
Port = tuple[str, int]
"""Host and port of a coordinator."""
Look = Callable[[str, int], Awaitable[Host]]
Pause = Callable[[float], Awaitable[None]]

PATIENCE_SECONDS = 1.5
"""Seconds before a port is looked at, and between two looks: who listens usually answers sooner, and a coordinator that
is being started again is not given up at the first look."""


async def advice_once_closed(ports: Sequence[Port], look: Look = visit, pause: Pause = asyncio.sleep) -> str:
    """Return what is wrong with `ports` and what to do, in one line, once none of them has been open twice in a row.

    While one of them is open this looks again, until cancelled.
    """
    was_closed = False
    while True:
        await pause(PATIENCE_SECONDS)
        closed = await _closed(ports, look)
        if closed is not None and was_closed:
            return _advice(closed)
        was_closed = closed is not None


async def unless_closed(
    waiting: Awaitable[T],
    ports: Sequence[Port],
    tell: Callable[[str], None] | None = None,
    look: Look = visit,
    pause: Pause = asyncio.sleep,
) -> T:
    """Return what `waiting` comes to, unless it is plain before that nobody can answer at `ports`.

    Args:
        tell: told the advice then, while the waiting goes on; None: the waiting ends with it.

    Raises:
        UserError: all ports are closed, with what to do, where `tell` is None.
    """
    work = asyncio.ensure_future(waiting)
    watch = asyncio.ensure_future(advice_once_closed(ports, look, pause))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            if tell is None:
                raise UserError(f"no coordinator answers: {watch.result()}")
            tell(watch.result())
        return await work
    finally:
        watch.cancel()
        work.cancel()
        await asyncio.wait({work, watch})


async def check_data_ports(doors: Sequence[str], look: Look = visit, pause: Pause = asyncio.sleep) -> None:
    """Check that one of the multiaddresses `doors` can be connected to, before the libp2p daemon is given them.

    Raises:
        UserError: none can; with what to do.
    """
    ports = [found[:2] for door in doors if (found := host_and_port(door)) is not None]
    if not ports or await _closed(ports, look) is None:
        return
    await pause(PATIENCE_SECONDS)
    closed = await _closed(ports, look)
    if closed is not None:
        raise UserError(
            f"the coordinator's entrance answers, but not its data port: {_advice(closed)}; it is the port after the "
            "entrance's, unless the owner has chosen others"
        )


async def look_ahead(invite: Invite, *, lan: bool, look: Look = visit, pause: Pause = asyncio.sleep) -> None:
    """Look at the ports of an invite's coordinators before the seconds of importing that training needs.

    Args:
        lan: whether addresses in this machine's own network are dialled on others' word.

    Raises:
        UserError: it is plain that nobody can be joined there; with what to do.
    """
    entrances = [split(invite.entrance), *(split(standby.card.entrance) for standby in invite.standbys)]
    if await _closed(entrances, look) is not None:
        await pause(PATIENCE_SECONDS)
        if (closed := await _closed(entrances, look)) is not None:
            raise UserError(f"no coordinator answers: {_advice(closed)}")
    rule = await rule_around(entrances[0][0], lan=lan)
    await check_data_ports(await multiaddresses_to_dial(invite.doors, rule), look, pause)


def split(entrance: str) -> Port:
    """Split HOST:PORT."""
    host, _, port = entrance.rpartition(":")
    return host.strip("[]"), int(port)


async def _closed(ports: Sequence[Port], look: Look) -> list[Host] | None:
    """Look at all ports at once; return them if none is open. The first open one is waited for, and no other."""
    looks = [asyncio.ensure_future(look(*port)) for port in dict.fromkeys(ports)]
    try:
        for first in asyncio.as_completed(looks):
            if (await first).open:
                return None
        return [one.result() for one in looks]
    finally:
        for one in looks:
            one.cancel()


def _advice(hosts: Sequence[Host]) -> str:
    """Return what was seen and what to do, of the first host: a standby's closed port is no other matter."""
    seen, todo = closed_because(hosts[0])
    return f"{seen}; {todo}"
