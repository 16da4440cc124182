"""What a lab's gauge finds on links that lose packets, or are slow; here on loopback, without a lab."""

import contextlib
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from dtfm_lab.emulation import command, probe_program
from dtfm_lab.emulation.accuracy import Gauge, LinkMeasurement, Unmeasured, echo_seconds, transfer_seconds
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.process.logs import log
from dtfm_protocol.view.view import View

HOST = "127.0.0.1"
TWO = ((0.0, 1.0), (1.0, 0.0))


@contextlib.contextmanager
def answering(answer: Callable[[int, bytes], bytes | None]) -> Iterator[int]:
    """At a port, echoes are answered with what `answer` makes of their number and what they say."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((HOST, 0))

        def serve() -> None:
            number = 0
            while (got := datagrams.recvfrom(2048))[0] != b"end":
                said = answer(number, got[0])
                number += 1
                if said is not None:
                    datagrams.sendto(said, got[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield datagrams.getsockname()[1]
        finally:
            datagrams.sendto(b"end", datagrams.getsockname())
            thread.join()


def test_echoes_that_are_lost_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(lambda number, said: said if number % 3 == 1 else None) as port:
        probe_program.echo(HOST, 6, 0.1, port)
    assert 0.0 < float(capsys.readouterr().out) < 0.1


def test_the_answer_to_an_earlier_echo_is_none_to_this_one() -> None:
    before = [b""]

    def late(number: int, said: bytes) -> bytes:
        answer, before[0] = before[0], said
        return answer

    with answering(late) as port, pytest.raises(OSError, match="no echo came back"):
        probe_program.echo(HOST, 3, 0.05, port)


def test_that_no_echo_came_back_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(lambda number, said: None) as port, pytest.raises(SystemExit, match=r"^no echo came back$"):
        probe_program.main("echo", HOST, "2", "0.02", port=port)
    assert capsys.readouterr().out == ""


def test_a_slow_link_is_not_given_more_than_it_soon_carries(capsys: pytest.CaptureFixture[str]) -> None:
    """One of 16 kB/s; in whole pieces, and with all that the system would buffer, this took a minute."""
    carried = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind((HOST, 0))
        listener.listen()

        def carry() -> None:
            stream, _ = listener.accept()
            with stream, contextlib.suppress(OSError):
                while size := len(stream.recv(800)):
                    carried.append(size)
                    time.sleep(0.05)
                stream.sendall(b"16000\n")

        thread = threading.Thread(target=carry, daemon=True)
        thread.start()
        begun = time.monotonic()
        probe_program.send(HOST, 1.0, 16e3, listener.getsockname()[1])
        took = time.monotonic() - begun
        thread.join()
    assert float(capsys.readouterr().out) == 16e3
    assert sum(carried) < 64e3
    assert took < 20.0


OWNER = """
import asyncio
from types import SimpleNamespace
from dtfm_lab.emulation.accuracy import Gauge

async def main():
    lab = SimpleNamespace(within=lambda number: ("sh", "-c", "exec sleep 1000"))
    print((await Gauge(lab)._start(0, "serve")).pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.process
def test_a_gauge_ends_with_its_lab_though_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        gauges = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    deadline = time.monotonic() + 30
    while gauges.is_running() and gauges.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wiring(rate: float | None, back: float | None, loss: float = 0.0) -> Wiring:
    return Wiring(
        delay=[[0.02, 0.02]] * 2, rate=[[None, rate], [back, None]], up=[None] * 2, down=[None] * 2, loss=loss
    )


def test_times_follow_the_links_rate() -> None:
    assert echo_seconds(wiring(None, None), 0, 1) == pytest.approx(0.04)
    assert echo_seconds(wiring(320.0, 64.0), 0, 1) == pytest.approx(0.04 + 0.1 + 0.5)
    assert echo_seconds(wiring(320.0, 0.0), 0, 1) == math.inf
    assert transfer_seconds(math.inf, 0.1) == pytest.approx(3.0)
    assert transfer_seconds(5e3, 0.1) == pytest.approx((32 << 10) / 5e3)
    assert transfer_seconds(1.0, 0.1) == transfer_seconds(1e6, 1e3) == 60.0


@pytest.mark.parametrize(("rate", "back"), [(1e6, 0.0), (0.0, 1e6)])
async def test_where_nothing_can_come_back_nothing_is_tried(rate: float, back: float) -> None:
    lab: Any = SimpleNamespace(wiring=wiring(rate, back))
    with pytest.raises(Unmeasured, match="nothing can come back"):
        await Gauge(lab).pair(0, 1)


async def test_a_pair_that_cannot_be_measured_is_said_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def pair(self: Any, sender: int, receiver: int) -> LinkMeasurement:
        if sender:
            return LinkMeasurement(sender, receiver, 0.04, 1e6)
        raise Unmeasured("no echo came back")

    monkeypatch.setattr(Gauge, "pair", pair)
    view = View.model_validate({"nodes": [{"id": "a"}, {"id": "b"}], "latency_ms": TWO, "bandwidth_gbps": TWO})
    lab: Any = None
    monkeypatch.setattr(command, "pairs_to_try", lambda wiring: [(0, 1), (1, 0)])
    monkeypatch.setattr(log, "propagate", True)
    with caplog.at_level("INFO", log.name):
        await command._say_accuracy(lab, wiring(1e6, 1e6), view)
    assert [line.partition(":")[0] for line in caplog.messages] == ["a -> b", "b -> a"]
    assert caplog.messages[0] == "a -> b: not measured: no echo came back"
    assert "round trip 40.0 ms" in caplog.messages[1]
