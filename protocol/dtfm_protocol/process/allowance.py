"""An allowance: how much of something may be used at once, and how fast it comes back."""

from dataclasses import dataclass, field


@dataclass
class Allowance:
    """A token bucket: what may be used at once, and how fast it comes back."""

    rate: float
    """Units a second."""
    burst: float
    """Most units at a time."""
    at: float
    """Seconds of the clock at which `left` was true."""
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def use(self, amount: float, now: float) -> bool:
        """Use `amount` units at `now`; False where there are not so many, and none are used then."""
        self.left = min(self.burst, self.left + self.rate * max(0.0, now - self.at))
        self.at = max(self.at, now)
        if amount > self.left:
            return False
        self.left -= amount
        return True

    def is_full(self, now: float) -> bool:
        """Whether it is as it was at first."""
        return self.left + self.rate * (now - self.at) >= self.burst

    def pause(self, amount: float, now: float) -> float:
        """Return the seconds from `now` until `amount` units may be used, of which a burst has as many."""
        there = min(self.burst, self.left + self.rate * max(0.0, now - self.at))
        return max(0.0, amount - there) / self.rate
