"""What peers that lie may say that they hold, alone or together, beside or instead of what they have."""

from collections.abc import Iterator
from functools import cache

from dtfm_protocol.plan.peer_state import Mark
from tests.coordinator.commit_state import LAYERS, MadePlan, Part, electorate, layers_of

NEVER = 9
"""A step that nobody has made."""
Shown = tuple[tuple[str, tuple[Part, ...]], ...]
"""What each peer says that it holds."""


@cache
def told(truth: Shown, liars: tuple[str, ...], plans: tuple[MadePlan, ...]) -> tuple[Shown, ...]:
    """What may be heard of those who hold `truth`, the truth first.

    Args:
        plans: all plans so far; a liar tells of each.
    """
    if not liars:
        return (truth,)
    kinds = [tuple((who, shown) if who not in liars else (who, ()) for who, shown in truth)]  # they hide what they have
    for lie in _lies(liars, plans):
        kinds.append(tuple((who, (*shown, *lie.get(who, ()))) for who, shown in truth))
    return tuple(dict.fromkeys((truth, *kinds)))


def _lies(liars: tuple[str, ...], plans: tuple[MadePlan, ...]) -> Iterator[dict[str, tuple[Part, ...]]]:
    """Lies that all liars tell at a time."""
    for plan in plans:
        arbiter, newer = electorate(plan).peers[0], Mark(step=NEVER, plan=plan.version)
        # A commit that another peer has signed is not theirs to make up; what they sign in its place is found out.
        signers = (arbiter,) if arbiter in liars else (liars[0], None)
        for signer in signers:
            yield {who: (Part((0, LAYERS), newer, (), signer),) for who in liars}
            yield {who: (Part(own, newer, (), signer),) for who in liars if (own := layers_of(plan, who)) is not None}
        began = plan.resume.mark
        yield {who: (Part((0, LAYERS), began, (), arbiter),) for who in liars}
        yield {who: (Part((0, LAYERS), Mark(step=began.step + 1, plan=plan.version), (), arbiter),) for who in liars}
