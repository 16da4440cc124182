"""A peer is dialled at its own addresses first: a relay that is nearer must not win, for streams would stay with it."""

import asyncio

import pytest

from dtfm_protocol.transport.dialling import dial_before_relays
from dtfm_protocol.wire.stream import Unreachable

OWN = "/ip4/192.0.2.1/tcp/7/p2p/x"
OVER_A_RELAY = "/ip4/198.51.100.1/tcp/7/p2p/r/p2p-circuit/p2p/x"


class Daemon:
    """A daemon that is asked to dial."""

    def __init__(self, *refused: tuple[str, ...], silent: tuple[str, ...] = ()) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._refused, self._silent = refused, silent

    async def dial(self, addresses: tuple[str, ...]) -> None:
        self.asked.append(addresses)
        if addresses == self._silent:
            await asyncio.Event().wait()
        if addresses in self._refused:
            raise Unreachable("nobody there")


async def test_a_peer_that_answers_at_its_own_addresses_is_not_dialled_over_a_relay() -> None:
    daemon = Daemon()
    await dial_before_relays(daemon.dial, (OVER_A_RELAY, OWN))
    assert daemon.asked == [(OWN,)]


async def test_a_relay_is_tried_at_once_where_nobody_answers() -> None:
    daemon = Daemon((OWN,))
    await dial_before_relays(daemon.dial, (OVER_A_RELAY, OWN), head_start=3600.0)
    assert daemon.asked == [(OWN,), (OVER_A_RELAY, OWN)]


async def test_a_relay_is_tried_beside_a_way_that_stays_silent() -> None:
    daemon = Daemon(silent=(OWN,))
    await dial_before_relays(daemon.dial, (OWN, OVER_A_RELAY), head_start=0.0)
    assert daemon.asked == [(OWN,), (OWN, OVER_A_RELAY)]


@pytest.mark.parametrize("addresses", [(OWN,), (OVER_A_RELAY,)])
async def test_addresses_of_one_kind_are_dialled_once(addresses: tuple[str, ...]) -> None:
    daemon = Daemon(addresses)
    with pytest.raises(Unreachable):
        await dial_before_relays(daemon.dial, addresses)
    assert daemon.asked == [addresses]
