"""The owner hears in one line whom the invite's address lets in, and whether it leads here."""

import asyncio

import pytest

from dtfm_coordinator.serve.announced_address import (
    Arrival,
    InviteAddress,
    announced_words,
    arrival_at,
    look_at_announced,
)
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_protocol.identity.keys import Identity
from tests.harness.entrances import HOST, free_port, open_entrance

pytestmark = pytest.mark.unit
OWN = ("192.168.1.20", "100.64.0.7", "2001:db8::7", "8.8.4.4")


def known(
    host: str, *addresses: str, is_chosen: bool = False, here_only: bool = False, own: tuple[str, ...] = OWN
) -> InviteAddress:
    return InviteAddress(host, 7700, is_chosen, here_only, addresses or (host,), own)


@pytest.mark.parametrize(
    ("announced", "arrival", "words"),
    [
        (known("127.0.0.1"), "here", ["names 127.0.0.1: only nodes on this machine", "`--announce 192.168.1.20`"]),
        (known("127.0.0.1", here_only=True), "here", ["without --listen"]),
        (known("127.0.0.1", own=()), "here", ["look whether its network is up"]),
        (known("8.8.4.4", here_only=True), "nowhere", ["--listen has this machine alone reach port 7700"]),
        (known("192.168.1.20"), "here", ["inside your own network", "7700 to 7702", "--announce and your public"]),
        (
            InviteAddress("a.example", 7700, True, False, (), OWN),
            "no such name",
            ["--announce a.example: no such name"],
        ),
        (known("a.example", "8.8.4.4", is_chosen=True), "elsewhere", ["leads to another program or machine"]),
        (known("a.example", "8.8.4.4", is_chosen=True), "nowhere", ["Nobody answers at a.example port 7700"]),
    ],
)
def test_what_stands_in_the_way_of_nodes_is_said_in_one_line(
    announced: InviteAddress, arrival: Arrival, words: list[str]
) -> None:
    said = announced_words(announced, arrival)
    assert "\n" not in said
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    "announced",
    [known("8.8.4.4"), known("a.example", "8.8.4.4", is_chosen=True), known("192.168.1.20", is_chosen=True)],
)
def test_an_address_that_leads_here_and_was_chosen_or_is_everybodys_is_no_news(announced: InviteAddress) -> None:
    assert announced_words(announced, "here") == ""


def test_addresses_that_reach_more_are_offered_first() -> None:
    said = announced_words(known("127.0.0.1"), "here")
    assert said.index("8.8.4.4` for everybody") < said.index("192.168.1.20` for machines in your own network")


async def test_where_a_connection_arrives_is_found_out() -> None:
    me, other = Identity.generate(), Identity.generate()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 a mail server\r\n")
        writer.close()

    async with open_entrance(me) as (door, _), await asyncio.start_server(greet, HOST) as strange:
        assert await arrival_at(HOST, door.port, me.peer_id) == ("here", (HOST,))
        assert (await arrival_at(HOST, door.port, other.peer_id))[0] == "elsewhere"
        assert (await arrival_at(HOST, strange.sockets[0].getsockname()[1], me.peer_id))[0] == "elsewhere"
    assert (await arrival_at(HOST, free_port(), me.peer_id))[0] == "nowhere"
    assert await arrival_at("no-such-host.invalid", 7700, me.peer_id) == ("no such name", ())


@pytest.mark.parametrize("listen", [HOST, "localhost"])
async def test_an_address_of_this_machine_alone_is_a_warning_in_one_line(
    caplog: pytest.LogCaptureFixture, listen: str
) -> None:
    me = Identity.generate()
    async with open_entrance(me) as (door, _):
        with caplog.at_level("WARNING", logger="dtfm"):
            ends = Endpoints(door.port, door.port + 1, f"{HOST}:{door.port}", None)
            await look_at_announced(ends, ServeOptions(listen, door.port), me.peer_id)
    (said,) = caplog.messages
    assert "only nodes on this machine can join" in said
