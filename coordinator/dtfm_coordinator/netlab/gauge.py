"""A small program on a lab's hosts that finds delays and rates. It imports nothing that takes long.

python -m dtfm_coordinator.netlab.gauge serve
python -m dtfm_coordinator.netlab.gauge echo ADDRESS COUNT
python -m dtfm_coordinator.netlab.gauge send ADDRESS SECONDS
"""

import socket
import statistics
import sys
import threading
import time

PORT = 5999
_PIECE = 1 << 16
_WARM = 0.3
"""Of a transfer, the part before its rate counts: the congestion window opens."""


def serve() -> None:
    """Echo datagrams; count streams' bytes once a window is open, and say their rate when they end."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", PORT))
    listener = socket.create_server(("0.0.0.0", PORT))

    def echo() -> None:
        while True:
            datagrams.sendto(*datagrams.recvfrom(2048))

    def count(stream: socket.socket) -> None:
        with stream:
            seconds = float(stream.recv(16).decode())
            begun, warm, counted, ended = time.monotonic(), 0.0, 0, 0.0
            while size := len(stream.recv(_PIECE)):
                now = time.monotonic()
                if now < begun + _WARM * seconds:
                    warm = now
                elif now < begun + seconds:
                    warm = warm or now
                    counted, ended = counted + size, now
            rate = counted / (ended - warm) if ended > warm else 0.0
            stream.sendall(f"{rate}\n".encode())

    threading.Thread(target=echo, daemon=True).start()
    print("ready", flush=True)
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=count, args=(stream,), daemon=True).start()


def echo(host: str, count: int) -> None:
    """Print the median round trip of small datagrams in seconds."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(5.0)
        datagrams.connect((host, PORT))
        seconds = []
        for _ in range(count):
            begun = time.monotonic()
            datagrams.send(b"dtfm")
            datagrams.recv(16)
            seconds.append(time.monotonic() - begun)
            time.sleep(0.01)
    print(statistics.median(seconds))


def send(host: str, seconds: float) -> None:
    """Send as fast as it goes for `seconds`; print the bytes a second of payload that arrived after the warm-up."""
    with socket.create_connection((host, PORT)) as stream:
        stream.sendall(f"{seconds:.3f}".ljust(16).encode())
        stream.settimeout(seconds + 10)
        end, piece = time.monotonic() + seconds, bytes(_PIECE)
        while time.monotonic() < end:
            stream.sendall(piece)
        stream.shutdown(socket.SHUT_WR)
        print(float(stream.makefile().readline()))


if __name__ == "__main__":
    action, *given = sys.argv[1:]
    if action == "serve":
        serve()
    elif action == "echo":
        echo(given[0], int(given[1]))
    else:
        send(given[0], float(given[1]))
