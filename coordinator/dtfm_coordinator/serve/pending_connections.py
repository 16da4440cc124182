"""Connections of which nobody knows yet whose they are: how many there may be, and which one has to go."""

import ipaddress
from collections import Counter
from typing import Generic, TypeVar

C = TypeVar("C")


class PendingConnections(Generic[C]):
    """Connections that have proven nothing yet, oldest first.

    With one too many of an address its oldest goes, with one too many in all the oldest of the address that has most:
    who means it has soon proven itself, and one address alone pushes out nobody else.
    """

    def __init__(self, most: int, most_an_address: int) -> None:
        """Start with none.

        Args:
            most: connections in all.
            most_an_address: connections of one address.
        """
        self._most, self._most_an_address = most, most_an_address
        self._origins: dict[C, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._origins)

    def add(self, connection: C, host: str) -> C | None:
        """Add a connection from the IP address `host`; return the one that has to go for it, if any."""
        origin = _origin(host)
        crowded = None
        if self._counts[origin] >= self._most_an_address:
            crowded = origin
        elif len(self._origins) >= self._most:
            crowded = self._counts.most_common(1)[0][0]
        leaving = next((one for one, its in self._origins.items() if its == crowded), None)
        if leaving is not None:
            self.remove(leaving)
        self._origins[connection] = origin
        self._counts[origin] += 1
        return leaving

    def remove(self, connection: C) -> None:
        """Forget a connection that has proven whose it is, or is gone; unknown ones do not count."""
        origin = self._origins.pop(connection, None)
        if origin is not None:
            self._counts[origin] -= 1
            if not self._counts[origin]:
                del self._counts[origin]


def _origin(host: str) -> str:
    """Return what stands for one household: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))
