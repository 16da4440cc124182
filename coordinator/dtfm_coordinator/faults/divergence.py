"""Divergence of the training as peers report it, and whether their words are enough to end the run. Pure.

A loss or a gradient that is not finite ends a run for good: no other plan could go on. So one peer's word is not enough
for it. Its plan is over in any case, as if it had stalled, and the step is run again where possible without it: where
training has diverged indeed, whoever takes its place says the same. A peer in whose place nobody can be put, so that
it is given the step again and again, is believed in the end: without it there is no run to be ended.
"""

from dataclasses import dataclass

from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.identity.keys import short

REPEATS = 3
"""Plans under which one peer must have said it of the same step, to be believed alone."""


@dataclass(frozen=True)
class _Word:
    """Word of a peer that the step after `step` has diverged, and the versions of the plans under which it said so."""

    step: int
    plans: frozenset[int]
    text: str


class Divergence:
    """Words of peers that training has diverged, the last of each."""

    def __init__(self) -> None:
        self._words: dict[str, _Word] = {}
        self._alone: frozenset[str] = frozenset()

    def reported(self, peer: str, plan: int, step: int, text: str, *, alone: bool) -> None:
        """Take the word of `peer`, a peer of plan `plan`, that the step after `step` has diverged.

        Args:
            alone: whether the plan has no other peer, who could say otherwise.
        """
        before = self._words.pop(peer, None)
        plans = before.plans if before is not None and before.step == step else frozenset()
        self._words[peer] = _Word(step, plans | {plan}, text)
        if alone:
            self._alone |= {peer}
        if len(self._words) > SEEN_LIMIT:
            del self._words[next(iter(self._words))]

    def forget(self) -> None:
        """Forget all words: the step is run again as another one, or because the owner wants it to be."""
        self._words.clear()
        self._alone = frozenset()

    def is_said_under(self, plan: int) -> bool:
        """Whether any peer has said so under plan `plan`."""
        return any(plan in word.plans for word in self._words.values())

    @property
    def doubted(self) -> frozenset[str]:
        """Peers whose word nobody has confirmed: the next plan does better without them."""
        return frozenset() if self.verdict else frozenset(self._words)

    @property
    def verdict(self) -> str:
        """What has happened, and who says so, in one line, where that is believed; else ""."""
        for peer, word in self._words.items():
            agreed = [other for other, one in self._words.items() if one.step == word.step]
            if len(agreed) > 1 or len(word.plans) >= REPEATS or peer in self._alone:
                return f"{word.text} (so say {', '.join(map(short, agreed))}, after step {word.step})"
        return ""
