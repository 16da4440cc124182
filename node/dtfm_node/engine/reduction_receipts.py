"""Receipts of a step's reduced parts: what each holder got, sealed by its owner, and who lies where they differ.

Pure. Each holder votes a root over its receipts, and the sums of squares that follow from them. Where votes of holders
differ, the receipts tell why: an owner has sealed two things for one part, or a holder has voted what it did not get.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from pydantic import Field

from dtfm_node.engine.frame_seals import FrameSeals, Seal
from dtfm_protocol.bounds import MOST_BUCKETS, MOST_PEERS, Signature
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import Sha256
from dtfm_protocol.plan.ballot import MOST_SQUARES, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import SHARED_BUCKETS, Reduction, held_by, reductions
from dtfm_protocol.schema import Schema
from dtfm_protocol.wire.frames import Key, Kind

MOST_PARTS = 1 << 18
"""Parts of which one peer's receipts may tell."""


class PartReceipt(Schema):
    """What a holder got as one reduced part, and its owner's seal on it."""

    group: Annotated[int, Field(ge=0, lt=MOST_BUCKETS)]
    """Number of the bucket."""
    index: Annotated[int, Field(ge=0, lt=MOST_PEERS)]
    """Number of the part: the place of its owner among the bucket's holders."""
    sha256: Sha256
    """Hash of the part as it was coded, by the plan's `seal_hash`."""
    squares: Annotated[float, Field(ge=0, le=MOST_SQUARES)]
    """Sum of squares of what it decodes to."""
    seal: Signature


def receipt_of(key: Key, seal: Seal, squares: float) -> PartReceipt:
    """Return the receipt of the reduced part `key`, whose seal has been checked or made here."""
    # Not validated: who has diverged finds out by the sums.
    return PartReceipt.model_construct(
        group=key.group, index=key.index, sha256=seal.digest.hex(), squares=squares, seal=seal.signature.hex()
    )


class StepReceipts(Schema):
    """All receipts of one holder for one step."""

    parts: Annotated[tuple[PartReceipt, ...], Field(max_length=MOST_PARTS)] = ()

    def of(self, shared: bool) -> list[PartReceipt]:
        """Return those of the buckets that first and last stage share, or of the others; in order."""
        found = [part for part in self.parts if (part.group in SHARED_BUCKETS) == shared]
        return sorted(found, key=lambda part: (part.group, part.index))

    @property
    def reduced(self) -> str:
        """The root over the parts of a stage's own buckets, as in `Vote.reduced`."""
        return _root(self.of(shared=False))

    @property
    def shared(self) -> str:
        """The root over the parts of shared buckets, as in `Vote.shared`."""
        return _root(self.of(shared=True))


def _root(parts: Iterable[PartReceipt]) -> str:
    lines = [f"{part.group} {part.index} {part.sha256}\n" for part in parts]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def squares_of(parts: Iterable[float]) -> float:
    """Return a bucket's sum of squares from those of its parts, added one after the other in their order."""
    total = 0.0
    for squares in parts:
        total += squares
    return total


def reduction_of(plan: Plan, peer: str) -> Callable[[int], Reduction | None]:
    """Return a function that tells in which reduction `peer` holds a bucket, by the bucket's number; None: in none."""
    held = held_by(reductions(plan, tied=True), peer)
    return lambda group: next((one for one in held if group in one.buckets), None)


def judge(
    step: int,
    votes: Mapping[str, Vote],
    receipts: Mapping[str, StepReceipts],
    held: Mapping[str, Callable[[int], Reduction | None]],
    seals: FrameSeals,
) -> dict[str, str]:
    """Return the peers that the receipts of step `step` prove to have lied, with what each has done.

    Nobody is named who keeps to the rules, whatever others say: it seals one thing for each part, and votes what it got
    with others' seals. Where the roots or the squares of two holders differ, and both have given their receipts, one is
    named.

    Args:
        votes: the vote of each holder whose receipts are here.
        receipts: those receipts, by holder.
        held: the reduction of each bucket, as `reduction_of` tells it, by holder of receipts.
    """
    named: dict[str, str] = {}
    sealed: dict[tuple[str, Key], set[tuple[str, float]]] = defaultdict(set)
    for holder, given in receipts.items():
        for part in given.parts:
            try:
                owner = _checked(part, step, held[holder], seals)
            except Refused as error:
                named.setdefault(holder, f"receipts that prove nothing: {error}")
                continue
            sealed[owner, _key(part, step)].add((part.sha256, part.squares))
        if (fault := _unlike(votes[holder], given, held[holder])) is not None:
            named.setdefault(holder, fault)
    for (owner, key), contents in sealed.items():
        if len(contents) > 1:
            named[owner] = f"different contents as {key} to different peers"
        elif owner in receipts and key not in {_key(part, step) for part in receipts[owner].parts}:
            named.setdefault(owner, f"receipts without {key}, which it has sealed itself")
    return named


def _key(part: PartReceipt, step: int) -> Key:
    return Key(Kind.REDUCED, step, part.index, part.group)


def _checked(part: PartReceipt, step: int, held: Callable[[int], Reduction | None], seals: FrameSeals) -> str:
    """Return the owner of a part, after a check of its seal.

    Raises:
        Refused: there is no such part, or it is not the owner's seal.
    """
    reduction, key = held(part.group), _key(part, step)
    if reduction is None or part.index not in reduction.owners:
        raise Refused(f"{key} has no owner")
    seal, owner = Seal(bytes.fromhex(part.sha256), bytes.fromhex(part.seal)), reduction.holders[part.index]
    seals.check(owner, key, seal, part.squares)
    return owner


def _unlike(vote: Vote, given: StepReceipts, held: Callable[[int], Reduction | None]) -> str | None:
    """Return in what a holder's receipts are unlike its vote, or incomplete; None: in nothing."""
    squares: dict[int, list[float]] = defaultdict(list)
    indices: dict[int, list[int]] = defaultdict(list)
    for part in sorted(given.parts, key=lambda part: (part.group, part.index)):
        squares[part.group].append(part.squares)
        indices[part.group].append(part.index)
    if (given.reduced, given.shared) != (vote.reduced, vote.shared):
        return "receipts that do not give the root of its vote"
    reduced = {group: held(group) for group in {*indices, *vote.sum_squares}}
    owners = {group: () if one is None else one.owners for group, one in reduced.items()}
    if any(tuple(found) != owners[group] for group, found in indices.items()):
        return "receipts of some parts of a bucket and not of others"
    sums = {group: squares_of(found) for group, found in squares.items()}
    with_others = {group for group, one in reduced.items() if one is not None and len(one.holders) > 1}
    if sums != {group: value for group, value in vote.sum_squares.items() if group in with_others}:
        return "receipts that do not give the sums of squares of its vote"
    return None
