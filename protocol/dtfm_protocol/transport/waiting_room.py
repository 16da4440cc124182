"""A waiting room: those who have connected and have not proven yet who they are, of whom there are never too many."""

import ipaddress
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingRoom(Generic[T]):
    """The guests that wait, each with its origin. Where there are too many, the origin that has most loses one.

    So whoever fills the room, and comes from one place, crowds nobody out but itself.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        """Make an empty room.

        Args:
            most: guests that may wait at once.
            most_of_one: guests of one origin that may wait at once.
        """
        self._most, self._most_of_one = most, most_of_one
        self._guests: dict[T, str] = {}
        self._origins: dict[str, dict[T, None]] = {}  # each origin's guests, who has waited longest first

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, guest: T, origin: str) -> T | None:
        """Let `guest` wait; return who has to go for it, the one of its origin that has waited longest, if anybody."""
        self._guests[guest] = origin
        self._origins.setdefault(origin, {})[guest] = None
        if len(self._origins[origin]) > self._most_of_one:
            crowded = origin
        elif len(self._guests) > self._most:
            crowded = max(self._origins, key=lambda name: len(self._origins[name]))
        else:
            return None
        oldest = next(iter(self._origins[crowded]))
        self.leave(oldest)
        return oldest

    def leave(self, guest: T) -> None:
        """Forget `guest`, if it waits."""
        origin = self._guests.pop(guest, None)
        if origin is not None:
            del self._origins[origin][guest]
            if not self._origins[origin]:
                del self._origins[origin]


def network_of(host: str) -> str:
    """Return what one machine can have of addresses at will: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
        address = address.ipv4_mapped
    return str(address)
