"""Frames that one peer awaits from the others under one plan: which are due, which have come, and who is gone. Pure.

Every receive is posted before its frame can come: a step begins only after all peers have voted for the one before,
and a peer posts the next step's receives before it votes. So a frame that nobody posted is a fault, and refused.
"""

from collections import Counter
from dataclasses import dataclass

from dtfm_node.engine.rejected_frames import FrameFault, FrameRefused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.wire.frames import FrameHeader, Key, Kind
from dtfm_protocol.wire.stream import Bytes

UNREAD_EVALUATIONS = 4
"""Number of evaluation frames of one peer that are taken in before they are asked for. How far training frames may run
ahead the schedule bounds: no peer has more micro-batches in flight than it says."""


class PeerLost(Exception):
    """Error: a peer that this step needs is gone."""

    def __init__(self, peer: str, why: str, *, refused: bool = False) -> None:
        super().__init__(f"{short(peer)} is gone: {why}")
        self.peer = peer
        self.refused = refused
        """Whether it has sent what this peer refused, and did not just vanish."""


@dataclass(slots=True)
class _Awaited:
    size: int
    exact: bool
    begun: bool = False
    """Whether the frame's header has come: then another one with this key, on whatever stream, is one too many."""
    outcome: Bytes | PeerLost | None = None
    """Payload of the frame, or the reason why none will come; None while neither is known."""


class Mailbox:
    """Frames that were posted, by sender and key, from then until they are taken.

    Args:
        unread_evaluations: number of evaluation frames of one peer that may lie in memory before they are asked for.
    """

    def __init__(self, plan_version: int, unread_evaluations: int = UNREAD_EVALUATIONS) -> None:
        self.lost: dict[str, PeerLost] = {}
        """Reason why each peer that is gone counts as gone (the first that was found), by peer id."""
        self._plan_version = plan_version
        self._most_unread = unread_evaluations
        self._awaited: dict[tuple[str, Key], _Awaited] = {}
        self._unread: Counter[str] = Counter()

    def post(self, sender: str, key: Key, size: int, *, exact: bool = True) -> None:
        """Expect a frame from `sender` with `size` payload bytes (with at most as many where not `exact`)."""
        self._awaited[sender, key] = _Awaited(size, exact, outcome=self.lost.get(sender))

    def admit(self, sender: str, header: FrameHeader) -> None:
        """Admit the frame that this header announces; decided before any memory is taken for it.

        Raises:
            FrameRefused: it is of another plan, not due (never posted, or here already), or of another size.
        """
        if header.plan_version != self._plan_version:
            text = f"a frame of plan {header.plan_version} under plan {self._plan_version}"
            raise FrameRefused(FrameFault.PLAN, text)
        frame = self._awaited.get((sender, header.key))
        if frame is None or frame.begun or frame.outcome is not None:
            raise FrameRefused(FrameFault.NOT_DUE, f"a frame that is not due: {header.key}")
        if header.size > frame.size or (frame.exact and header.size != frame.size):
            raise FrameRefused(FrameFault.SIZE, f"{header.size} bytes for {header.key} where {frame.size} belong")
        frame.begun = True

    def has_room(self, sender: str) -> bool:
        """Whether one more evaluation frame of `sender` may be read."""
        return self._unread[sender] < self._most_unread

    def take_room(self, sender: str) -> None:
        """Count an evaluation frame of `sender` that is being read; `take` gives the room back."""
        self._unread[sender] += 1

    def put(self, sender: str, key: Key, payload: Bytes) -> None:
        """Keep the payload of an admitted frame, unless its sender has been lost meanwhile."""
        frame = self._awaited.get((sender, key))
        if frame is not None and frame.outcome is None:
            frame.outcome = payload

    def lose(self, lost: PeerLost) -> list[Key]:
        """Count a peer as lost, and fail what is still awaited from it; return the keys of that. What it sent before
        stays good."""
        self.lost.setdefault(lost.peer, lost)
        failed = []
        for (sender, key), frame in self._awaited.items():
            if sender == lost.peer and frame.outcome is None:
                frame.outcome = lost
                failed.append(key)
        return failed

    def is_decided(self, sender: str, key: Key) -> bool:
        """Whether `take` has an answer: the posted frame is here, or will never be.

        Raises:
            KeyError: nobody posted it, or it has been taken.
        """
        return self._awaited[sender, key].outcome is not None

    def take(self, sender: str, key: Key) -> Bytes:
        """Return the payload of a frame that is decided on, and forget it.

        Raises:
            KeyError: nobody posted it, or it has been taken.
            PeerLost: the sender vanished before it came.
        """
        outcome = self._awaited.pop((sender, key)).outcome
        assert outcome is not None, f"{key} of {sender} is taken before it is here"
        if key.kind is Kind.EVALUATION:
            self._unread[sender] -= 1
        if isinstance(outcome, PeerLost):
            raise outcome
        return outcome
