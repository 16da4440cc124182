"""Ports of a coordinator that is told none: they are free again when it comes back."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtfm_coordinator.serve import endpoints
from dtfm_coordinator.serve.endpoints import Endpoints

HOST = "127.0.0.1"
WISHES = SimpleNamespace(listen=HOST, port=0, announce=None, broker="embedded")
SYSTEMS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that Linux gives to outgoing connections."""


def test_no_outgoing_connection_is_given_the_ports_and_a_restart_takes_them_again(tmp_path: Path) -> None:
    chosen = Endpoints.choose(tmp_path, WISHES)
    first, last = map(int, SYSTEMS.read_text().split())
    assert chosen.broker != chosen.data
    assert not any(first <= port <= last for port in (chosen.broker, chosen.data))
    assert Endpoints.choose(tmp_path, WISHES) == chosen


def test_ports_that_are_taken_are_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        monkeypatch.setattr(endpoints, "LASTING", range(port, port + 1))
        chosen = Endpoints.choose(tmp_path, WISHES)
    assert port not in {chosen.broker, chosen.data}
    assert chosen.broker != chosen.data


def test_two_ports_are_never_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoints.lasting(HOST) as free:
        port = int(free.getsockname()[1])
    monkeypatch.setattr(endpoints, "LASTING", range(port, port + 1))
    chosen = Endpoints.choose(tmp_path, WISHES)
    assert chosen.broker == port
    assert chosen.data != port
