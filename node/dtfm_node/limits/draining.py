"""Wait of a node that is to stop until others have what it holds, and when that is given up. Pure.

The step under way must end, and a plan without the node begin, within `Timeouts.leave`; after that the node's state may
take longer to get to others, as its line is slow or capped: that is waited for as long as bytes go out.
"""

from typing import NamedTuple, Self

PROGRESS_BYTES = 1 << 18
"""Bytes that must go out within `Timeouts.leave` for others to count as fetching what the node holds."""


class Draining(NamedTuple):
    """State of the wait; times are seconds of any one clock."""

    limit: float
    """See `Timeouts.leave`."""
    alone_limit: float
    """See `Timeouts.leave_alone`."""
    since: float
    """When the wait began, or others were last seen to fetch something after the work had ended."""
    sent: int
    """Bytes that the node had sent by then."""
    alone_since: float | None = None
    """When the broker was lost; None: it is there."""

    def looked(self, now: float, sent: int, *, works: bool, connected: bool) -> Self:
        """Return the state after a look.

        Args:
            now: time of the look.
            sent: bytes that the node has sent so far.
            works: whether it still serves a plan.
            connected: whether it has its broker.
        """
        alone = None if connected else now if self.alone_since is None else self.alone_since
        if not works and sent - self.sent >= PROGRESS_BYTES:
            return self._replace(since=now, sent=sent, alone_since=alone)
        return self._replace(sent=sent if works else self.sent, alone_since=alone)

    def is_vain(self, now: float) -> bool:
        """Whether waiting any longer has no use."""
        is_alone = self.alone_since is not None and now - self.alone_since >= self.alone_limit
        return is_alone or now - self.since >= self.limit
