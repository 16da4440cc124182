"""Alarm for parts of a gradient that are well-formed and wrong: norms and directions that no honest replica's have.

Whoever sums a part judges what other replicas send it to be summed, and all judge the total, each by its own
gradient: that alone it knows to be true, so nobody else's lies can make an honest part look wrong. The decisions are
pure; `compare_parts` measures on tensors.

Gradients of honest replicas differ a lot: each saw other text, and some text is odd. How much they differ is seen from
the receiver's own norms of the last steps. The bounds come from many honest runs (`benchmarks/alarms.py`), where it is
also seen what stays below them.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from dtfm_node.engine.buckets import Bucket
from dtfm_protocol.plan.plan import Plan

WINDOW = 32
"""Newest steps whose norms tell what is usual."""
BEYOND = 64.0
"""Factor beyond the reach of a history at which a norm is an alarm."""
SUMS = 8.0
"""Further factor for a sum: its owner has let pass what is usual by its own history, which may be another."""
DENSITY_SAMPLE = 1 << 16
"""Numbers, at least, by which the share of zeros among a receiver's own is told."""
SMALLEST_PART = 4096
"""Elements of the smallest part that is judged: norms and directions of a few numbers say nothing."""
DENSE = 0.5
"""Least share of the receiver's numbers that are not zero where a part may be too small: rows of an embedding are zero
where their tokens do not occur, in one replica's text as in another's."""
MEMORIES = (64, 512)
"""Steps over which directions are remembered: the first finds a strong contradiction soon, the second a weak one."""
CONTRADICTION = 6.0
"""Standard deviations by which directions may contradict. A sum of independent numbers, each as often below zero as
above, is below its own root of squares times so much with a probability of exp(-18) at most (Hoeffding, 1963)."""


@dataclass(frozen=True, slots=True)
class PartSeen:
    """A part of a gradient, or of the reduced gradient, beside the same part of the receiver's own."""

    norm: float
    cosine: float
    """Cosine to the receiver's own; 0 where one of them is zero."""


@dataclass(frozen=True, slots=True)
class PartsSeen:
    """What a receiver is sent of one part of a bucket."""

    elements: int
    norm: float
    """Norm of the receiver's own."""
    density: float
    """Share of the receiver's own numbers that are not zero."""
    others: dict[str, PartSeen]
    """What others sent, by peer id."""


@dataclass(frozen=True, slots=True)
class Strain:
    """How near to its bounds something is that was sent: each figure is above 1 where it is an alarm."""

    large: float = 0.0
    """Its norm, beside the most that is usual."""
    small: float = 0.0
    """The least norm that is usual, beside its norm."""
    against: float = 0.0
    """How much its sender's directions contradict the receiver's own, beside what chance makes of honest ones."""

    @property
    def fault(self) -> str:
        """What is wrong with it, in words that follow "a part"; "" if nothing is."""
        if not self.large <= 1:
            return f"whose norm is {self.large:.2g} times the most that is usual"
        if self.small > 1:
            return f"whose norm is 1/{self.small:.2g} of the least that is usual"
        return "whose direction has contradicted the receiver's own for many steps" if self.against > 1 else ""


class NormHistory:
    """Norms of the last steps, each of a mean over a number of targets, and how far beyond them a norm may be.

    A mean over fewer has more noise: by the root of their ratio where there is nothing but noise.
    """

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._targets: deque[int] = deque(maxlen=WINDOW)

    def add(self, norm: float, targets: int) -> None:
        """Remember the norm of one more step, of a mean over `targets`."""
        self._norms.append(norm)
        self._targets.append(targets)

    def largest(self, targets: int) -> float:
        """Return the largest norm that is usual of a mean over `targets`: as far beyond the largest of the last steps
        as that is beyond their median, times `BEYOND`; more where few steps are known. Infinite where nothing is known
        or usual."""
        middle = median(self._norms) if self._norms else 0.0
        if middle <= 0:
            return math.inf
        most = max(self._norms) * (max(self._norms) / middle) * self._margin
        return most * math.sqrt(max(1.0, max(self._targets) / targets))

    def smallest(self, targets: int) -> float:
        """Return the smallest norm that is usual, likewise; 0 where nothing is known, or where norms have been zero."""
        middle = median(self._norms) if self._norms else 0.0
        if middle <= 0:
            return 0.0
        least = min(self._norms) * (min(self._norms) / middle) / self._margin
        return least * math.sqrt(min(1.0, min(self._targets) / targets))

    @property
    def _margin(self) -> float:
        return BEYOND * math.sqrt(WINDOW / len(self._norms))


class Agreement:
    """Cosines of what one peer sends to the receiver's own, step by step, and whether they contradict.

    Two honest gradients may point away from each other at any step. Over many steps they do not: what is expected of
    their product is the square of the true gradient, less a little where both are drawn from one small text without
    replacement.
    """

    def __init__(self, apart: float) -> None:
        """Begin without a step; `apart` is how far below zero an honest cosine's mean may be."""
        self._apart = apart
        self._sums = [(0.0, 0.0)] * len(MEMORIES)
        """For each memory, the weighted sum of cosines and of their squares."""

    def add(self, cosine: float) -> None:
        """Take the cosine of one more step."""
        value = cosine + self._apart
        self._sums = [
            (total * keep + value, squares * keep * keep + value * value)
            for (total, squares), keep in zip(self._sums, (1 - 1 / steps for steps in MEMORIES), strict=True)
        ]

    @property
    def contradiction(self) -> float:
        """How far the cosines are below zero, beside what chance makes of honest ones: more than 1 is an alarm."""
        return max(
            -total / (CONTRADICTION * math.sqrt(squares)) if squares > 0 else 0.0 for total, squares in self._sums
        )


class PartAlarm:
    """Alarm of one peer under one plan, for the parts that it sums and for the sums that it is sent."""

    def __init__(
        self,
        plan: Plan,
        me: str,
        micro_batches: float = math.inf,
        lenience: float = 1.0,
        targets: Callable[[int], Mapping[str, int]] | None = None,
    ) -> None:
        """Know nobody's norms yet.

        Args:
            micro_batches: micro-batches of an epoch: what replicas draw in one epoch is not independent.
            lenience: factor on the bounds of the first step: where a step was refused before, and again after others
                had taken it over, its text may be odd and nobody lies.
            targets: returns, for a step, the number of targets that each peer's gradients are summed over; None: the
                same in each micro-batch.
        """
        self._stage = {peer: plan.stage_of(peer) for peer in plan.peers}
        shares = plan.shares()
        self._targets = targets or (lambda step: shares)
        self._one_stage, self._me, self._lenience = plan.replicas(0), me, lenience
        self._first = plan.resume.mark.step + 1
        drawn = micro_batches / max(shares.values()) - 1
        self._apart = 2 / drawn if drawn > 2 else 1.0
        self._past: dict[tuple[int, int, str], NormHistory] = {}
        self._agreement: dict[tuple[int, int, str], Agreement] = {}

    def judge(self, bucket: Bucket, index: int, step: int, seen: PartsSeen) -> dict[str, Strain]:
        """Return how near to an alarm each sender of part `index` of a bucket is; a step without an alarm counts as
        usual from then on.

        Who sums judges what it is sent to be summed, the others what the part's owner has made of it. Small parts are
        not judged.
        """
        if seen.elements < SMALLEST_PART or not math.isfinite(seen.norm):
            return {}
        targets, summed = self._targets(step), _summed(bucket, index, seen)
        shares = {peer: sum(targets[holder] for holder in holders) for peer, holders in summed.items()}
        # What is sent is divided by the targets of the whole step.
        of_step = sum(targets[peer] for peer in self._one_stage)
        means = {peer: part.norm * of_step / max(1, shares[peer]) for peer, part in seen.others.items()}
        if (mine := targets[self._me]) > 0 and not self._is_seen_before(bucket, index, seen):
            self._history(bucket, index, self._me).add(seen.norm * of_step / mine, mine)
        strains = {
            peer: self._strain(bucket, index, peer, means[peer], shares[peer], summed[peer], seen, step)
            for peer in means
        }
        if not any(strain.fault for strain in strains.values()):
            for peer in means:
                if shares[peer] > 0:
                    self._history(bucket, index, peer).add(means[peer], shares[peer])
        return strains

    def _is_seen_before(self, bucket: Bucket, index: int, seen: PartsSeen) -> bool:
        """Whether the own part has been looked at already in this step: it was summed with others' on the way."""
        place = bucket.holders.index(self._me)
        return bucket.holders[index] in seen.others and bool(bucket.reduction.children(index, place))

    def _strain(
        self,
        bucket: Bucket,
        index: int,
        peer: str,
        norm: float,
        share: int,
        summed: Sequence[str],
        seen: PartsSeen,
        step: int,
    ) -> Strain:
        """Return how near to an alarm is what `peer` sent: the sum of what the holders `summed` have, whose mean over
        `share` targets has the norm `norm`."""
        lenience = (self._lenience if step == self._first else 1.0) * (SUMS if len(summed) > 1 else 1.0)
        if len({self._stage[holder] for holder in (*summed, self._me)}) > 1:
            # What first and last stage share is not the same thing to both: only the past can say what is usual.
            return Strain(large=norm / (self._history(bucket, index, peer).largest(max(1, share)) * lenience))
        usual = self._history(bucket, index, self._me)
        agreement = self._agreement.setdefault((bucket.group, index, peer), Agreement(self._apart))
        agreement.add(seen.others[peer].cosine)
        # Who has no target may send nothing: no gradient of its own.
        least = usual.smallest(share) / lenience if share > 0 and seen.density >= DENSE else 0.0
        return Strain(
            large=norm / (usual.largest(max(1, share)) * lenience),
            small=least / norm if norm > 0 else math.inf if least > 0 else 0.0,
            against=agreement.contradiction,
        )

    def _history(self, bucket: Bucket, index: int, peer: str) -> NormHistory:
        return self._past.setdefault((bucket.group, index, peer), NormHistory())


def _summed(bucket: Bucket, index: int, seen: PartsSeen) -> dict[str, tuple[str, ...]]:
    """Return the holders whose gradients are in what each other has sent of a part: those that come to it along the
    part's tree, or all where it is the part's owner, who sends nothing but the total."""
    owner, holders = bucket.holders[index], bucket.holders
    if owner in seen.others:
        return {owner: holders}
    places = {peer: holders.index(peer) for peer in seen.others}
    return {peer: tuple(holders[at] for at in bucket.reduction.summed(index, place)) for peer, place in places.items()}


class Retries:
    """Count of the plans in a row that begin at one step, and the lenience that follows: where a step is refused again
    and again, whoever computes it, the run must go on in the end."""

    EACH = 8.0
    """Factor on the bounds for each plan in a row."""
    MOST = 30
    """Plans in a row that count: every finite norm is within bounds by then."""

    def __init__(self) -> None:
        self._step, self._plans = -1, 0

    def begun(self, step: int) -> float:
        """Return the lenience of a plan that begins with the step after `step`."""
        self._plans = self._plans + 1 if step == self._step else 0
        self._step = step
        return self.EACH ** min(self._plans, self.MOST)


def compare_parts(own: torch.Tensor, others: Mapping[str, torch.Tensor]) -> PartsSeen:
    """Return what a receiver sees of `others`, fp32 `[elements]` each, that it was sent for a part of which it has
    `own`."""
    mine = math.sqrt(_products(own, own)[0]) if not others else 0.0
    found: dict[str, PartSeen] = {}
    for peer, part in others.items():
        own_squares, squares, both = _products(own, part)
        mine, norm = math.sqrt(own_squares), math.sqrt(squares)
        cosine = both / (norm * mine) if 0 < norm * mine < math.inf else 0.0
        found[peer] = PartSeen(norm, cosine if math.isfinite(cosine) else 0.0)

    some = own[:: max(1, own.numel() // DENSITY_SAMPLE)]  # to count all takes as long as all norms
    density = float(torch.count_nonzero(some)) / max(1, some.numel())
    return PartsSeen(own.numel(), mine, density, found)


def _products(own: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """Return the sums of squares of two parts and that of their products, in one pass where they are a processor's."""
    if own.device.type == "cpu":
        from dtfm_node.engine.compiled_norms import products  # numba takes half a second

        mine, theirs, both = products(own.detach().contiguous().numpy(), other.detach().contiguous().numpy())
        return float(mine), float(theirs), float(both)
    norms = (float(torch.linalg.vector_norm(part)) for part in (own, other))
    mine, theirs = (norm * norm for norm in norms)
    return mine, theirs, float(torch.dot(own, other))
