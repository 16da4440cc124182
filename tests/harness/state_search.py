"""A search through all states that a model can reach: does an invariant break, or is there a state without a way on?"""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from dtfm_protocol.process.garbage_pause import without_collector

S = TypeVar("S", bound=Hashable)
Words = tuple[object, ...]
"""What happens; put together when it is wanted."""
Move = tuple[Words, S]
"""What happens, and the state after it."""


class Violated(Exception):
    """An invariant does not hold."""


class StateModel(Protocol[S]):
    """What is searched."""

    def start(self) -> S:
        """The first state."""
        ...

    def moves(self, state: S) -> Iterator[Move[S]]:
        """Everything that may happen next.

        Raises:
            Violated: what happens breaks an invariant.
        """
        ...

    def check(self, state: S) -> None:
        """What must hold in every state.

        Raises:
            Violated: it does not.
        """
        ...

    def is_done(self, state: S) -> bool:
        """Whether nothing is left to do."""
        ...

    def may_go_on(self, state: S) -> bool:
        """Whether a way from here to one that is done is asked for."""
        ...


class Found(NamedTuple):
    """What a search came to."""

    states: int
    violation: str | None
    trace: tuple[str, ...]
    """The shortest way to the violation."""
    stuck: tuple[str, ...] | None
    """The way to a state that should lead to one that is done, and does not."""


def search_states(model: StateModel[S], most: int = 1_000_000) -> Found:
    """Visit every state that can be reached, nearest first."""
    with without_collector():
        return _search(model, most)


def _search(model: StateModel[S], most: int) -> Found:
    first = model.start()
    numbers: dict[S, int] = {first: 0}
    states = [first]
    came: list[tuple[int, Words]] = [(-1, ())]
    before: list[list[int]] = [[]]
    queue = deque([0])
    while queue:
        at = queue.popleft()
        try:
            model.check(states[at])
            for what, after in model.moves(states[at]):
                number = numbers.setdefault(after, len(states))
                if number == len(states):
                    states.append(after)
                    came.append((at, what))
                    before.append([])
                    queue.append(number)
                before[number].append(at)
        except Violated as error:
            return Found(len(states), str(error), _way(came, at), None)
        if len(states) > most:
            raise AssertionError(f"more than {most} states")
    reaches = {number for number, state in enumerate(states) if model.is_done(state)}
    queue = deque(reaches)
    while queue:
        for number in before[queue.popleft()]:
            if number not in reaches:
                reaches.add(number)
                queue.append(number)
    stuck = next((n for n, state in enumerate(states) if n not in reaches and model.may_go_on(state)), None)
    return Found(len(states), None, (), None if stuck is None else _way(came, stuck))


def _way(came: list[tuple[int, Words]], at: int) -> tuple[str, ...]:
    words = []
    while at > 0:
        at, what = came[at]
        words.append(" ".join(map(str, what)))
    return tuple(reversed(words))
