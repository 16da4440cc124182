"""Memo of pure functions, for a search that asks the same of the same few values again and again.

Where a state consists of actors, it differs from the one before it in one of them, and hardly any of these is new. So
of each value there is one object (`only`), which is compared by identity (`by_identity`), and what follows from it is
found out once (`remembered`).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound=type)
V = TypeVar("V", bound=tuple[Any, ...])

_ONLY: dict[tuple[object, ...], Any] = {}
_CLEAR: list[Callable[[], None]] = []


def by_identity(kind: K) -> K:
    """Have the values of a class equal none but themselves: whatever is compared, or asked about, comes from `only`, or
    from a function that is remembered."""
    for name in ("__eq__", "__ne__", "__hash__"):
        setattr(kind, name, getattr(object, name))
    return kind


def only(one: V) -> V:
    """The one object of a value; its parts are compared with their classes, for those of two rules may be equal."""
    found: V = _ONLY.setdefault((*one, *map(type, one)), one)
    return found


def remembered(function: F) -> F:
    """A pure function whose answers are kept by its arguments and their classes, for events of two kinds may be equal.

    What it raises is not kept.
    """
    known = lru_cache(maxsize=None, typed=True)(function)
    _CLEAR.append(known.cache_clear)
    return cast(F, known)


def forget() -> None:
    """Keep nothing of a search that is over."""
    _ONLY.clear()
    for clear in _CLEAR:
        clear()
