"""Links as training sees them, and who watches whether they become slow."""

from dtfm_coordinator.links.link_degradation import SECONDS, WARM_STEPS, LinkDegradation, Pair

AB: Pair = ("a", "b")
BA: Pair = ("b", "a")
NONE: frozenset[Pair] = frozenset()


class World:
    """A watch, its clock, and what links were measured at."""

    def __init__(self, **gbps: float) -> None:
        self.now = 1000.0
        self.watch = LinkDegradation(lambda: self.now)
        self.known: dict[Pair, float] = {(name[0], name[1]): rate for name, rate in gbps.items()}
        self._step = 0
        self.warm(1)

    def warm(self, plan: int) -> None:
        """The first steps of a plan end, of which nobody tells anything."""
        for step in (0, WARM_STEPS):
            self.watch.reported("someone", plan, step, {})

    def steps(self, *rates: float, plan: int = 1, pair: Pair = AB, every: float = SECONDS) -> None:
        """The fastest frames of steps, one after the other, with so many seconds from one to the next."""
        for rate in rates:
            self._step += 1
            self.now += every
            self.watch.reported(pair[1], plan, self._step, {pair[0]: rate})

    def suspects(self, **slowdown: float) -> frozenset[Pair]:
        return self.watch.suspects(lambda *pair: self.known.get(pair), lambda peer: slowdown.get(peer, 1.0))

    def looked(self, found: float, pair: Pair = AB) -> None:
        """A link was measured anew; 0: it cannot talk."""
        before = {pair: self.known.get(pair, 0.0)}
        self.known[pair] = found
        for one in self.watch.looked([pair], before, {pair: found} if found else {}):
            self.known[one] = before[one]
