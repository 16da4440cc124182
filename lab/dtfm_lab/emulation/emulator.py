"""The forwarding process: it takes packets from each host's TUN device, and hands them to the others when they are due.

    python -m dtfm_lab.emulation.emulator DESCRIPTOR...

Reads lines of JSON: a `Wiring` sets the links, and an empty line asks for the counts, which are one line back.
"""

import contextlib
import gc
import json
import math
import os
import select
import sys
import time

from dtfm_lab.emulation.emulated_links import EmulatedLinks
from dtfm_lab.emulation.tun import LARGEST_PACKET, destination, wire_bytes
from dtfm_lab.emulation.wiring import Wiring

AT_ONCE = 32
"""Packets that are taken from one host before the others have their turn."""
PRIORITY = 10
"""Real-time priority of the forwarding process (SCHED_FIFO), where that is allowed."""
_clock = time.monotonic


class Emulator:
    """The forwarder of packets between the hosts' devices and the emulated links."""

    def __init__(self, devices: list[int], wiring: Wiring) -> None:
        self._devices = devices
        self._hosts = {device: number for number, device in enumerate(devices)}
        self._wires: EmulatedLinks[bytes] = EmulatedLinks(wiring.links())
        self._late, self._latest, self._delivered = 0.0, 0.0, 0

    def change(self, wiring: Wiring) -> None:
        """Replace the links from now on."""
        self._wires.change(wiring.links(), _clock())

    def forward(self, control: int) -> None:
        """Forward packets until there is something to read from `control`."""
        watched = [*self._devices, control]
        while True:
            wait = self._wires.next_time - _clock()
            readable, _, _ = select.select(watched, [], [], None if math.isinf(wait) else max(0.0, wait))
            for device in readable:
                if device != control:
                    self._take(device)
            self._deliver()
            if control in readable:
                return

    def counts(self) -> str:
        """Return what was carried and how late, as JSON: of each ordered pair bytes, packets, dropped packets."""
        pairs = [[*pair, one.bytes, one.packets, one.dropped] for pair, one in self._wires.counts.items()]
        values = {"delivered": self._delivered, "late": self._late, "late_most": self._latest}
        return json.dumps({"pairs": pairs, **values})

    def _take(self, device: int) -> None:
        sender = self._hosts[device]
        for _ in range(AT_ONCE):
            try:
                packet = os.read(device, LARGEST_PACKET)
            except OSError:  # no more, or the host is gone
                return
            number = destination(packet)
            if number is not None and 0 < number <= len(self._devices):
                self._wires.send(sender, number - 1, packet, wire_bytes(packet), _clock())

    def _deliver(self) -> None:
        now = _clock()
        for receiver, packet, due in self._wires.due(now):
            try:
                os.write(self._devices[receiver], packet)
            except OSError:  # its queue is full, or the host is gone: packets may be lost
                continue
            self._late += now - due
            self._latest = max(self._latest, now - due)
            self._delivered += 1


def main() -> None:
    """Serve until standard input ends."""
    devices = [int(text) for text in sys.argv[1:]]
    with contextlib.suppress(OSError):  # without it packets are late more often, which the lab measures
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    emulator: Emulator | None = None
    control = sys.stdin.fileno()
    told = b""
    while piece := os.read(control, 1 << 16):
        *lines, told = (told + piece).split(b"\n")
        for line in lines:
            if emulator is None:
                emulator = Emulator(devices, Wiring.model_validate_json(line))
                gc.collect()
                gc.freeze()
            elif line:
                emulator.change(Wiring.model_validate_json(line))
            else:
                print(emulator.counts(), flush=True)
        if emulator is not None:
            emulator.forward(control)


if __name__ == "__main__":
    main()
