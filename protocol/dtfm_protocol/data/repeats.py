"""How often each document of a source is in the corpus, by the source's weight (pure)."""

from fractions import Fraction
from hashlib import blake2b
from math import ceil


class Repeats:
    """The number of times that each document of a source is in the corpus.

    All documents are there as often as the whole part of the weight says, and once more those that are drawn for the
    rest of it: where that is 1/4, one of every four documents that follow each other, so that of any number of
    documents the share is exact, to less than one, and no pattern in their order can meet that of the draws.
    """

    def __init__(self, weight: float, key: str) -> None:
        """Set up the draws.

        Args:
            weight: average number of times that a document is there; above 0.
            key: what decides the draws: the same on every machine.
        """
        exact = Fraction(str(weight))
        self._whole = int(exact)
        rest = exact - self._whole
        self._leaves_out = rest * 2 > 1
        """Whether those are drawn that are left out: they are fewer than a half."""
        share = 1 - rest if self._leaves_out else rest
        # Of whole numbers: this is asked of every document, and fractions take ten times as long.
        self._drawn, self._among = share.numerator, share.denominator
        self._key = blake2b(key.encode(), digest_size=32).digest()
        self.rounds = ceil(exact)
        """The largest number of times that a document can be there."""

    def of(self, number: int) -> int:
        """Return how many times document `number` of the source, from 0, is in the corpus."""
        is_drawn = self._is_drawn(number)
        return self._whole + (not is_drawn if self._leaves_out else is_drawn)

    def _is_drawn(self, number: int) -> bool:
        """Whether a document is the one that is drawn of its run, as many documents as come on one that is drawn."""
        if not self._drawn:
            return False
        run = number * self._drawn // self._among
        first, after = (-(-(one * self._among) // self._drawn) for one in (run, run + 1))  # rounded up
        return number - first == self._draw(run) % (after - first)

    def _draw(self, run: int) -> int:
        return int.from_bytes(blake2b(run.to_bytes(8, "little"), key=self._key, digest_size=8).digest(), "little")
