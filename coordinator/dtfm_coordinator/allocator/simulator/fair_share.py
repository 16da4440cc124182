"""Max-min fair rates of transfers that share capacities, kept up to date as transfers come and go.

A transfer takes at most its own cap, and shares the capacity of each resource that it crosses: its sender's uplink,
its receiver's downlink. Max-min fairness is what long TCP streams of equal delay tend to: no transfer's rate could
grow without taking from one that has no more. Progressive filling finds it (Bertsekas and Gallager, Data Networks,
section 6.5.2): all rates grow together, and a transfer stops at its cap or when a resource that it crosses is full.

When something changes, the rates are filled anew on as few resources as will do: those that changed, and further ones
only where a changed rate meets a resource that was full or would be overfull. Elsewhere every transfer still has the
full resource, or the cap, that holds it, which is what makes rates max-min fair.
"""

import heapq
import math
from collections.abc import Iterable, Sequence

TOLERANCE = 1e-9
"""Share of a capacity that is left where it counts as full, and by which rounding may overfill it."""
ROUNDING = 1e-12
"""Share of a rate below which a difference counts as no change."""


class FairShare:
    """Max-min fair rates of the transfers in progress, in bytes a second."""

    def __init__(self, capacities: Sequence[float]) -> None:
        """Take the capacities of the resources, bytes a second; each finite and positive, or zero to block all."""
        self._capacity = list(capacities)
        self._load = [0.0] * len(self._capacity)
        self._crossing: list[dict[int, None]] = [{} for _ in self._capacity]
        """Transfers on each resource, in the order in which they came."""
        self._resources: dict[int, tuple[int, ...]] = {}
        self._cap: dict[int, float] = {}
        self._changed: dict[int, None] = {}
        self.rate: dict[int, float] = {}
        """Rate of each transfer, bytes a second, as of the last `settle`."""

    def add(self, transfer: int, cap: float, resources: tuple[int, ...]) -> None:
        """Let a transfer begin, at rate 0 until `settle`. It must cross a resource, and its rate is `cap` at most."""
        self._cap[transfer] = cap
        self._resources[transfer] = resources
        self.rate[transfer] = 0.0
        for resource in resources:
            self._crossing[resource][transfer] = None
            self._changed[resource] = None

    def remove(self, transfer: int) -> None:
        """Let a transfer end; the others' rates follow at the next `settle`."""
        rate = self.rate.pop(transfer)
        del self._cap[transfer]
        for resource in self._resources.pop(transfer):
            del self._crossing[resource][transfer]
            # An idle resource carries exactly nothing: rounding does not pile up over a step.
            self._load[resource] = self._load[resource] - rate if self._crossing[resource] else 0.0
            self._changed[resource] = None

    def settle(self) -> dict[int, float]:
        """Make the rates max-min fair again, and return the transfers whose rate changed, with the rate before."""
        area, self._changed = self._changed, {}
        while True:
            rates = self._filled(area)
            old = self.rate
            moved = {t: rate - old[t] for t, rate in rates.items() if abs(rate - old[t]) > ROUNDING * rate}
            beyond: dict[int, float] = {}
            for transfer, delta in moved.items():
                for resource in self._resources[transfer]:
                    if resource not in area:
                        beyond[resource] = beyond.get(resource, 0.0) + delta
            grown = [resource for resource, delta in beyond.items() if self._is_full(resource, delta)]
            if not grown:
                break
            area.update(dict.fromkeys(grown))
        before = {transfer: self.rate[transfer] for transfer in moved}
        for transfer in moved:
            self.rate[transfer] = rates[transfer]
        for resource, delta in beyond.items():
            self._load[resource] += delta
        for resource in area:
            self._load[resource] = sum(self.rate[transfer] for transfer in self._crossing[resource])
        return before

    def _is_full(self, resource: int, delta: float) -> bool:
        """Whether a resource held transfers back, or would with `delta` more on it."""
        load, capacity = self._load[resource], self._capacity[resource]
        return load >= capacity * (1 - TOLERANCE) or load + delta > capacity * (1 + TOLERANCE)

    def _filled(self, area: Iterable[int]) -> dict[int, float]:
        """Return the rates of the transfers that cross `area` by progressive filling, as if there were no other
        resources."""
        left = {resource: self._capacity[resource] for resource in area}
        count = {resource: len(self._crossing[resource]) for resource in area}
        rates: dict[int, float] = {}
        waiting = dict.fromkeys(transfer for resource in left for transfer in self._crossing[resource])
        by_cap = sorted(waiting, key=self._cap.__getitem__, reverse=True)
        shares = [(left[resource] / count[resource], resource) for resource in left if count[resource]]
        heapq.heapify(shares)
        while waiting:
            while by_cap[-1] not in waiting:
                by_cap.pop()
            cap = self._cap[by_cap[-1]]
            share, resource = shares[0] if shares else (math.inf, -1)
            if cap <= share:
                level, held = cap, [by_cap.pop()]
            else:
                heapq.heappop(shares)
                if not count[resource]:
                    continue
                # Shares only grow as others stop below them, so an old share is a lower bound.
                level = max(0.0, left[resource]) / count[resource]
                if level > share * (1 + ROUNDING):
                    heapq.heappush(shares, (level, resource))
                    continue
                held = [transfer for transfer in self._crossing[resource] if transfer in waiting]
            for transfer in held:
                rates[transfer] = level
                del waiting[transfer]
                for crossed in self._resources[transfer]:
                    if crossed in left:
                        left[crossed] -= level
                        count[crossed] -= 1
        return rates
