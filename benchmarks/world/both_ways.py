"""Two hosts that send each other as much at once, again and again: what a replica pair's all-reduce asks of TCP.

python -m benchmarks.world.both_ways serve BYTES PACE
python -m benchmarks.world.both_ways go BYTES PACE ADDRESS

The one that serves says when it is ready. PACE: bytes a second, 0 for none. It imports nothing that takes long.
"""

import socket
import struct
import sys
import threading
import time

PORT = 5998
TIMES, PAUSE_SECONDS = 8, 4.0
_SO_MAX_PACING_RATE = 47


def exchange(stream: socket.socket, size: int) -> float:
    """Seconds until all has come from the other side, and all has gone there."""
    begun = time.monotonic()
    sending = threading.Thread(target=stream.sendall, args=(bytes(size),))
    sending.start()
    left = size
    while left:
        piece = stream.recv(min(left, 1 << 16))
        if not piece:
            raise ConnectionError("the other side has ended")
        left -= len(piece)
    sending.join()
    return time.monotonic() - begun


def main() -> None:
    """Either side; the one that goes prints each time's seconds of two exchanges: parts there, sums back."""
    side, size, pace, *host = sys.argv[1:]
    if side == "serve":
        with socket.create_server(("0.0.0.0", PORT)) as listener:
            print("ready", flush=True)
            stream, _ = listener.accept()
    else:
        stream = socket.create_connection((host[0], PORT))
    with stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if float(pace):
            stream.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", int(float(pace))))
        for _ in range(TIMES):
            stream.sendall(b"?")
            stream.recv(1)
            seconds = exchange(stream, int(size)) + exchange(stream, int(size))
            if side == "go":
                print(seconds, flush=True)
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
