"""The entry to a DHT: who does not answer at first is asked again, who never does is named."""

import asyncio
from typing import Any

import pytest
from hivemind.dht.protocol import ValidationError

from dtfm_protocol.discovery import dht_entry
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity

CANNOT_CALL = ValidationError("it cannot call this node")


class Calls:
    """The part of hivemind's protocol that is used, whose calls end as they are told to; the last end repeats."""

    def __init__(self, *ends: object) -> None:
        self._ends = list(ends)
        self.count = 0

    async def call_ping(self, peer: Any, *, validate: bool) -> object:
        assert validate, "a peer that cannot be called back is no member of the DHT"
        self.count += 1
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_entry, "PAUSE_SECONDS", 0.01)


def door() -> str:
    return f"/ip4/192.0.2.1/tcp/1/p2p/{Identity.generate().peer_id}"


@pytest.mark.parametrize("first", [None, CANNOT_CALL], ids=["lost", "not called back"])
async def test_a_call_that_fails_is_made_again(first: object) -> None:
    calls = Calls(first, first, "an id")
    async with asyncio.timeout(10):
        await dht_entry.enter(calls, [door()], patience=5.0)
    assert calls.count == 3


async def test_one_door_of_several_is_enough() -> None:
    calls = Calls(None, "an id", None)
    await dht_entry.enter(calls, [door(), door(), door()], patience=5.0)
    assert calls.count == 3


@pytest.mark.parametrize(
    ("end", "words"),
    [(None, "no DHT peer answers at {} for 0.1 s"), (CANNOT_CALL, "at {} for 0.1 s: a peer answers there, but it can")],
)
async def test_who_never_gets_in_hears_where_and_why(end: object, words: str) -> None:
    calls, there = Calls(end), door()
    with pytest.raises(UserError) as caught:
        await dht_entry.enter(calls, [there], patience=0.1)
    assert words.format(there) in str(caught.value)
    assert calls.count > 2
