"""Where a coordinator that comes back looks for those it knew."""

import socket
from pathlib import Path

import pytest

from dtfm_coordinator.membership.known_peers import MOST_PEERS, KnownPeers


def at(peer: str, port: int = 9) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"


def kept(folder: Path) -> str:
    return (folder / "peers.json").read_text()


async def test_those_who_still_answer_are_recalled(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_, socket.create_server(("127.0.0.1", 0)) as closed:
        here, gone = (at(peer, server.getsockname()[1]) for server, peer in ((open_, "a"), (closed, "b")))
        closed.close()
        KnownPeers(tmp_path).remember({"a": (here,), "b": (gone,), "d": ()})
        assert await KnownPeers(tmp_path).recall() == (here,)


@pytest.mark.parametrize(
    "address", [f"{at('b')}/p2p-circuit/p2p/a", at("b"), at("a", 99999), "nonsense", "", "/ip4/127.0.0.1/tcp/9"]
)
def test_what_is_no_address_of_its_peer_or_only_a_relays_is_not_kept(tmp_path: Path, address: str) -> None:
    KnownPeers(tmp_path).remember({"a": (address, at("a"))})
    assert address not in kept(tmp_path).split('"')[3:-1:2]
    assert at("a") in kept(tmp_path)


def test_nothing_is_written_where_nothing_is_new_or_nobody_is_left(tmp_path: Path) -> None:
    one = KnownPeers(tmp_path)
    one.remember({"a": (at("a"),)})
    (tmp_path / "peers.json").unlink()
    one.remember({"a": (at("a"),)})
    one.remember({})
    assert not (tmp_path / "peers.json").exists()


def test_who_was_here_in_an_earlier_life_is_kept_as_long_as_there_is_room(tmp_path: Path) -> None:
    KnownPeers(tmp_path).remember({"a": (at("a"),)})
    one = KnownPeers(tmp_path)
    one.remember({"b": (at("b"),)})
    assert at("a") in kept(tmp_path)
    assert at("b") in kept(tmp_path)
    names = "123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
    one.remember({(peer := first + "c" + second): (at(peer),) for first in names for second in names})
    assert kept(tmp_path).count("tcp") == MOST_PEERS
    assert at("a") not in kept(tmp_path)


@pytest.mark.parametrize("text", [None, "", "[", "[1]", '{"a": 1}', '{"a": ["nonsense", 7]}', '{"a": ["nonsense"]}'])
async def test_a_file_that_is_none_recalls_nobody(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "peers.json").write_text(text)
    assert await KnownPeers(tmp_path).recall() == ()


def test_a_disk_that_is_full_does_not_stop_a_coordinator(tmp_path: Path) -> None:
    KnownPeers(tmp_path / "not there").remember({"a": (at("a"),)})
