"""The turns of those who wait for a TLS handshake: only so many begin in a second, and members need not wait."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from dtfm_protocol.process.allowance import Allowance

T = TypeVar("T")

_HOSTS = 1024
"""Hosts that are remembered, of either kind."""


@dataclass(frozen=True)
class HandshakeRates:
    """How many handshakes begin: each takes most of a millisecond of the processor."""

    strangers: float = 50.0
    """Handshakes a second with all hosts from which nobody has proven to be a member."""
    strangers_burst: float = 100.0
    host: float = 100.0
    """Handshakes a second with one host from which a member has come; a peer opens some ten streams at once."""
    host_burst: float = 200.0


class HandshakeTurns(Generic[T]):
    """The guests who wait for a handshake, each with its host.

    Guests from a host where there is a member go at once. Of all others, who share one rate, those go first whose host
    has begun fewest handshakes without proving to be a member: so one host's flood holds up nobody but itself.
    """

    def __init__(self, rates: HandshakeRates, now: float) -> None:
        """Know no hosts.

        Args:
            rates: how many handshakes begin.
            now: seconds on a clock that does not jump.
        """
        self._rates = rates
        self._strangers = Allowance(rates.strangers, rates.strangers_burst, now)
        self._queue: dict[T, str] = {}
        self._begun: OrderedDict[str, int] = OrderedDict()
        self._members: OrderedDict[str, Allowance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def enter(self, guest: T, host: str) -> None:
        """Let `guest` wait for its turn."""
        self._queue[guest] = host

    def leave(self, guest: T) -> None:
        """Forget `guest`, if it waits."""
        self._queue.pop(guest, None)

    def take(self, now: float) -> list[T]:
        """Return the guests whose turn has come, who wait no more."""
        taken = [guest for guest, host in self._queue.items() if host in self._members and self._may(host, now)]
        for guest in taken:
            del self._queue[guest]
        while self._queue and self._strangers.use(1.0, now):
            guest = min(self._queue, key=lambda one: self._begun.get(self._queue[one], 0))  # the first of equal ones
            host = self._queue.pop(guest)
            self._begun[host] = self._begun.pop(host, 0) + 1
            _forget_oldest(self._begun)
            taken.append(guest)
        return taken

    def pause(self, now: float) -> float | None:
        """Return the seconds until somebody's turn comes; None: nobody waits."""
        return self._strangers.pause(1.0, now) if self._queue else None

    def proven(self, host: str, now: float) -> None:
        """Note that a member has come from `host`."""
        self._begun.pop(host, None)
        known = self._members.pop(host, None)
        self._members[host] = known or Allowance(self._rates.host, self._rates.host_burst, now)
        _forget_oldest(self._members)

    def _may(self, host: str, now: float) -> bool:
        return self._members[host].use(1.0, now)


def _forget_oldest(hosts: "OrderedDict[str, int] | OrderedDict[str, Allowance]") -> None:
    if len(hosts) > _HOSTS:
        hosts.popitem(last=False)
