"""How fast frames come in from each peer: what training traffic tells of links, for nothing. Pure."""

LEAST_BYTES = 4096
"""A frame that is smaller comes in one piece, and tells nothing."""
LEAST_SECONDS = 1e-4


class Inflow:
    """The fastest frame of each peer since it was last asked. A lower bound: a frame may have shared its way."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}

    def came(self, peer: str, size: int, seconds: float) -> None:
        """A frame of `size` bytes took `seconds` from its header to its end."""
        if size >= LEAST_BYTES:
            self._best[peer] = max(self._best.get(peer, 0.0), size / max(seconds, LEAST_SECONDS))

    def take(self) -> dict[str, float]:
        """Gbit/s of the fastest frame of each peer that has sent any since this was last asked."""
        best, self._best = self._best, {}
        return {peer: rate * 8e-9 for peer, rate in best.items()}
