"""A tally of what others did wrong, by reason, whose size they cannot make grow."""

from collections import Counter

MOST_REASONS = 64
OTHERS = "other reasons"


class Tally(Counter[str]):
    """Numbers of refusals by reason. Reasons may hold what others wrote: only the first ones are counted apart."""

    def note(self, reason: str) -> bool:
        """Count one more refusal; return whether its reason is a new one, to be logged once."""
        if reason not in self and len(self) >= MOST_REASONS:
            reason = OTHERS
        self[reason] += 1
        return self[reason] == 1
