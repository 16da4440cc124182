"""What peers that lie may say that they hold, alone or together, beside or instead of what they have."""

from collections.abc import Iterator

from dtfm_protocol.plan.peer_state import Mark
from tests.coordinator.commit_state import LAYERS, MadePlan, Part, Shown, electorate, layers_of
from tests.harness.memo import remembered

NEVER = 9
"""A step that nobody has made."""


@remembered
def told(
    truth: Shown, liars: tuple[str, ...], plans: tuple[MadePlan, ...], follows: MadePlan, final: frozenset[Mark]
) -> tuple[Shown, ...]:
    """What may be heard of those who hold `truth`, the truth first.

    Args:
        plans: all plans that came into force.
        follows: the newest of them that a new one follows.
        final: the states of which there are genuine commits.
    """
    if not liars:
        return (truth,)
    kinds = [tuple((who, shown) if who not in liars else (who, ()) for who, shown in truth)]  # they hide what they have
    for plan in plans:
        for lie in _lies(liars, plan, final, closed=plan is not follows):
            kinds.append(tuple((who, (*shown, *lie.get(who, ()))) for who, shown in truth))
    return tuple(dict.fromkeys((truth, *kinds)))


def _lies(
    liars: tuple[str, ...], plan: MadePlan, final: frozenset[Mark], *, closed: bool
) -> Iterator[dict[str, tuple[Part, ...]]]:
    """Lies about the states of a plan, each told by all liars at a time.

    Where every stage of the newest plan has a liar, its arbiter is one, and it is not alone among honest replicas, what
    they say was final is: they are asked again when the plan is closed.
    """
    (arbiter, *others), began = electorate(plan).peers, plan.resume.mark
    stages = plan.chain.plans[-1].replicas
    believed = arbiter in liars and all(set(stage) & set(liars) for stage in stages)
    if closed or not believed or (others and set(others).isdisjoint(liars)):
        newer = Mark(step=NEVER, plan=plan.version)
        for signer in (arbiter,) if arbiter in liars else (liars[0], None):
            yield {who: (Part((0, LAYERS), newer, (), signer),) for who in liars}
            yield {who: (Part(own, newer, (), signer),) for who in liars if (own := layers_of(plan, who)) is not None}
    yield {who: (Part((0, LAYERS), began),) for who in liars}
    # Everybody may show a genuine commit, and say that it has all layers of that state.
    for mark in sorted(final, key=lambda mark: mark.order):
        if mark.plan == plan.version:
            yield {who: (Part((0, LAYERS), mark, (), arbiter),) for who in liars}
