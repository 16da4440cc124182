"""The small program that finds delays and rates on a lab's hosts. It imports nothing that takes long.

python -m dtfm_lab.emulation.probe_program serve
python -m dtfm_lab.emulation.probe_program echo ADDRESS COUNT WAIT
python -m dtfm_lab.emulation.probe_program send ADDRESS SECONDS RATE

Where nothing can be found out, it ends with a code that is not 0 and one line on standard error that says why.
"""

import contextlib
import socket
import statistics
import sys
import threading
import time

PORT = 5999
"""Port of the server on each host, UDP and TCP."""
ECHO_BYTES = 4
"""Bytes of payload of an echo."""
ALL_ECHOES_SECONDS = 60.0
"""Seconds after which no further echo is asked for, however many have come."""
_PIECE = 1 << 16
_LEAST_PIECE = 1448
_PIECES = 16
"""Pieces of a transfer at least. About four wait to be sent at most: a slow link is done soon after the time is up."""
_PATIENCE = 10.0
"""Seconds allowed for what takes none on a link that loses nothing."""
_WARM = 0.3
"""Part of a transfer's time before its rate counts: the congestion window opens."""


def serve(port: int = PORT) -> None:
    """Echo datagrams; count streams' bytes once a window is open, and say their rate when they end."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", port))
    listener = socket.create_server(("0.0.0.0", port))

    def echo() -> None:
        while True:
            datagrams.sendto(*datagrams.recvfrom(2048))

    def count(stream: socket.socket) -> None:
        with stream, contextlib.suppress(OSError, ValueError):  # who sends may give up
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


def echo(host: str, count: int, wait: float, port: int = PORT) -> None:
    """Print the median round trip of small datagrams in seconds; one that is not back after `wait` seconds is lost.

    Raises:
        OSError: no datagram came back.
    """
    seconds = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect((host, port))
        end = time.monotonic() + ALL_ECHOES_SECONDS
        for number in range(count):
            begun = time.monotonic()
            if begun >= end:
                break
            with contextlib.suppress(TimeoutError):
                _echo(datagrams, number.to_bytes(ECHO_BYTES), min(begun + wait, end))
                seconds.append(time.monotonic() - begun)
                time.sleep(0.01)
    if not seconds:
        raise OSError("no echo came back")
    print(statistics.median(seconds))


def _echo(datagrams: socket.socket, said: bytes, end: float) -> None:
    """Wait for the echo of `said` until `end`; others that come late do not count."""
    datagrams.send(said)
    answer = b""
    while answer != said:
        datagrams.settimeout(max(0.001, end - time.monotonic()))
        answer = datagrams.recv(16)


def send(host: str, seconds: float, rate: float, port: int = PORT) -> None:
    """Send for `seconds` as fast as it goes; print the bytes a second of payload that arrived after the warm-up.

    Args:
        rate: bytes a second that the link is said to have: no more is put into its queue than it soon carries.

    Raises:
        OSError: the transfer took far longer than `seconds`.
    """
    size = int(min(_PIECE, max(_LEAST_PIECE, rate * seconds / _PIECES)))
    with socket.socket() as stream:
        if size < _PIECE:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * size)
        stream.settimeout(seconds + _PATIENCE)
        stream.connect((host, port))
        stream.sendall(f"{seconds:.3f}".ljust(16).encode())
        end, piece = time.monotonic() + seconds, bytes(size)
        while time.monotonic() < end:
            stream.sendall(piece)
        stream.shutdown(socket.SHUT_WR)
        said = stream.makefile().readline()
        if not said:
            raise OSError("the other end has gone")
        print(float(said))


def main(action: str, *given: str, port: int = PORT) -> None:
    """Run the action of the command line, with its arguments, against the servers at `port`."""
    try:
        if action == "serve":
            serve(port)
        elif action == "echo":
            echo(given[0], int(given[1]), float(given[2]), port)
        else:
            send(given[0], float(given[1]), float(given[2]), port)
    except TimeoutError:
        sys.exit("what was sent took far too long")
    except OSError as error:
        sys.exit(error.strerror or str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
