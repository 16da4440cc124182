"""Frames that cannot be used: kinds of fault, how often each was, and whether one is worth a line in the log. Pure."""

from collections import Counter
from collections.abc import Collection
from enum import Enum

from dtfm_protocol.errors import Refused


class FrameFault(Enum):
    """Kinds of fault of a frame; few, so that nobody can make the counters grow."""

    STRANGER = "from a peer that is not in the plan"
    FORM = "not a frame"
    PLAN = "of another plan"
    NOT_DUE = "not due"
    SIZE = "of another size than is due"
    SEAL = "with a seal that is not its sender's"
    CONTENT = "with contents that cannot be used"


class FrameRefused(Refused):
    """Error: a frame cannot be used, by its `fault`; the text says what was sent."""

    def __init__(self, fault: FrameFault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class RejectedFrames:
    """Counts of the frames that were refused under one plan, and a memory of which were logged."""

    def __init__(self, peers: Collection[str]) -> None:
        self.counts: Counter[FrameFault] = Counter()
        self._peers = peers
        self._named: set[tuple[str, FrameFault]] = set()

    def note(self, peer: str, fault: FrameFault) -> bool:
        """Count a refused frame. True if it is to be logged: the first of its fault from that peer, or from anyone not
        in
        the plan, of whom there may be any number.
        """
        self.counts[fault] += 1
        name = (peer if peer in self._peers else "", fault)
        if name in self._named:
            return False
        self._named.add(name)
        return True
