"""Where a coordinator that comes back looks for those it knew."""

import socket
from pathlib import Path

import pytest

from dtfm_coordinator.acquaintances import MOST_PEERS, Acquaintances


async def test_those_who_still_answer_are_recalled(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_, socket.create_server(("127.0.0.1", 0)) as closed:
        here, gone = (
            f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{peer}"
            for server, peer in zip((open_, closed), "ab", strict=True)
        )
        closed.close()
        Acquaintances(tmp_path).remember({"a": (here,), "b": (gone,), "c": (f"{here}/p2p-circuit/p2p/c",), "d": ()})
        assert await Acquaintances(tmp_path).recall() == (here,)


async def test_nothing_is_written_where_nothing_is_new_or_nobody_is_left(tmp_path: Path) -> None:
    one = Acquaintances(tmp_path)
    one.remember({"a": ("/ip4/127.0.0.1/tcp/9/p2p/a",)})
    kept = (tmp_path / "peers.json").read_text()
    (tmp_path / "peers.json").unlink()
    one.remember({"a": ("/ip4/127.0.0.1/tcp/9/p2p/a",)})
    one.remember({})
    assert not (tmp_path / "peers.json").exists()
    one.remember({f"{number:02}": (f"/ip4/127.0.0.1/tcp/9/p2p/{number}",) for number in range(MOST_PEERS + 5)})
    assert (tmp_path / "peers.json").read_text().count("tcp") == MOST_PEERS
    assert "tcp/9/p2p/a" in kept


@pytest.mark.parametrize("text", [None, "", "[", "[1]", '{"a": 1}', '{"a": ["nonsense", 7]}'])
async def test_a_file_that_is_none_recalls_nobody(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "peers.json").write_text(text)
    assert await Acquaintances(tmp_path).recall() == ()


def test_a_disk_that_is_full_does_not_stop_a_coordinator(tmp_path: Path) -> None:
    Acquaintances(tmp_path / "not there").remember({"a": ("/ip4/127.0.0.1/tcp/9/p2p/a",)})
