"""Electors of a plan: who decides on what follows it, and when enough of them have. Pure."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from dtfm_protocol.plan.plan import Plan


class Electorate(NamedTuple):
    """Those values of a plan that decide on the plan after it."""

    version: int
    author: str
    peers: tuple[str, ...]
    electors: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return those values of `plan`."""
        return cls(plan.version, plan.author, plan.peers, plan.electors)


def has_quorum(
    plan: Plan | Electorate, promised: Iterable[str], ended: Iterable[str], *, alone: bool, forgetful: str = ""
) -> bool:
    """Whether the plan after `plan` can be the only one, and `plan` itself cannot go on beside it.

    Most of its electors must have promised; where exactly half have, its author's promise decides. And one peer that
    trains under it must have stopped, for no step is final without all of them: by its promise, or because its process
    has ended.

    Args:
        promised: peers that have promised to act under no plan up to this one.
        ended: peers whose processes are known to have ended.
        alone: whether the swarm has a single coordinator. A process that has ended cannot have promised to another
            then, and counts as if it had promised.
        forgetful: a coordinator that may have decided on what follows `plan`, and has forgotten it: without its vote,
            and without those of ended processes, which decided by its word. Of any earlier quorum one must be among
            these who remembers; where the plan has a single peer, that one.
    """
    electors = plan.electors
    given, over = (set(promised) & set(electors)) - {forgetful}, set(ended) & set(electors)
    stopped = any(peer in given or peer in over for peer in plan.peers)
    if forgetful:
        return given.issuperset(plan.peers) or (stopped and 2 * len(given) > len(electors))
    votes = len(given | over) if alone else len(given)
    half = 2 * votes == len(electors) and plan.author in given
    return stopped and (2 * votes > len(electors) or half)
