"""Failure detector: decides from measured times when a peer that is silent, or busy with one thing, counts as gone.
Pure.

Every peer says four times a second that it lives, and for how long it has been at the action that it computes now. A
peer that is slow goes on saying so: it is not gone.
"""

from dtfm_protocol.process.timeouts import TIMEOUTS

ROUND_TRIPS = 4.0
"""A pulse that is lost on the way comes after the next one's acknowledgement and its own second way, or somewhat later:
a silence must be longer."""
STUCK_TIMES = 20.0
"""Multiple of the longest action so far that an action may take."""


class FailureDetector:
    """Failure detector for one peer, fed with what is heard of it; all times in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._mean = TIMEOUTS.pulse
        self._deviation = 0.0
        self._longest_action = 0.0
        self._action = 0.0
        self._round_trip = 0.0

    def pulse(self, now: float, action_seconds: float) -> None:
        """Take a pulse that came at `now`: the peer has been at one action for `action_seconds` (0: it computes
        nothing)."""
        gap = now - self._heard
        self._heard = now
        # Jacobson's estimator, as TCP's retransmission timer has it (RFC 6298): gains of 1/8 and 1/4.
        self._deviation += (abs(gap - self._mean) - self._deviation) / 4
        self._mean += (gap - self._mean) / 8
        if action_seconds < self._action:  # that one is done
            self._longest_action = max(self._longest_action, self._action)
        self._action = action_seconds

    def echo(self, round_trip: float) -> None:
        """Take the seconds that a pulse and its answer took, queues on the way included; a longer time than before
        counts at once."""
        self._round_trip = max(round_trip, self._round_trip + (round_trip - self._round_trip) / 8)

    def excuse(self, now: float) -> None:
        """Count the peer as heard of at `now`: other bytes of it came then, or this side did not listen until then."""
        self._heard = max(self._heard, now)

    @property
    def silence_limit(self) -> float:
        """Seconds of silence after which it is gone."""
        on_the_way = TIMEOUTS.pulse + ROUND_TRIPS * self._round_trip
        return min(
            TIMEOUTS.silence_longest, max(TIMEOUTS.silence_shortest, on_the_way, self._mean + 8 * self._deviation)
        )

    @property
    def action_limit(self) -> float:
        """Seconds at one action after which it is stuck."""
        return max(TIMEOUTS.action_shortest, STUCK_TIMES * self._longest_action)

    @property
    def measured(self) -> dict[str, float]:
        """Measurements from which the limits follow, and the limits, by name; all in seconds."""
        return {
            "gap": self._mean,
            "deviation": self._deviation,
            "round_trip": self._round_trip,
            "silence_limit": self.silence_limit,
            "longest_action": self._longest_action,
            "action_limit": self.action_limit,
        }

    def fault(self, now: float) -> str:
        """Return in words what is wrong with the peer at `now`; "" if nothing is."""
        silent = now - self._heard
        if silent > self.silence_limit:
            return f"silent for {silent:.1f} s (its limit: {self.silence_limit:.1f} s)"
        if self._action > self.action_limit:
            return f"at one action for {self._action:.0f} s (its limit: {self.action_limit:.0f} s)"
        return ""
