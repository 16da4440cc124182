"""The estimate of what a peer's line carries in all, by its links and by what others have measured of theirs. Pure.

Among homes it is the line that limits what a peer sends: the fastest of its links tells it, or else what it carries at
least. With no limit for those that are faster than any other end, plans would count on more than they have
(benchmarks/few_measurements.py). Elsewhere the links limit, unless a peer's are slower than those of others that lead
about as far, or two are equally fast, though the other ends could receive more: they have the line in common.

How far off that may be is told by those that have measured: what would have been estimated of them is set beside what
they have found.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.view.spread import covering

FAN = 3
"""How many others a peer sends to at once when its line is measured."""
FAST_GBPS = 2.0
"""Links that are all faster are no home's."""
ROOM = 1.25
"""Multiple of a link's rate that its other end must be able to carry for the rate to be what the line carries."""
ALIKE = 1.2
"""Ratio up to which rates of two links count as the same line's."""
ALMOST_ALL = 0.75
"""Share of the peers that have measured their lines above which others are taken to be as they are."""
ABOUT_AS_FAR = 3.0
"""Ratio of two links' delays up to which they are compared."""
MUCH_SLOWER = 2.0
"""Ratio to what links that lead about as far carry in the median from which a link may be limited by its line."""
UNKNOWN_LINE = float(FAN)
"""Spread of estimated lines where too few were measured to tell, and the largest: a line carries what one link does at
least, and that many links at once do not tell one that carries more than them."""
LEAST_SPREAD = 1.25
"""Spread of estimated lines at least: a line that carries so much less than the links that it is measured by counts as
none, too."""
ENOUGH = 9
"""Number of estimates that were checked from which nine of ten can be told."""


class KnownLink(NamedTuple):
    """A peer's link, and what its other end can do; Gbit/s, and milliseconds one way."""

    sent: float
    received: float
    delay: float
    other_receives: float
    other_sends: float
    """Of the other end in all, or else over any link that was measured with others; 0: over none."""


class Examples(NamedTuple):
    """What those are like that have measured their lines."""

    limited: float
    """Share of them whose line limits what they send."""
    free: Sequence[tuple[float, float]]
    """Delay and Gbit/s of each link between those whose lines limit nothing; empty where these are not almost all."""


def estimated_line(links: Sequence[KnownLink], examples: Examples) -> Limits | None:
    """Return what a peer's line carries in all; None: only measuring tells."""
    if len(links) < 2 or min(min(link.sent, link.received) for link in links) >= FAST_GBPS:
        return None
    if examples.limited > 0.5 and _share_a_line(links):
        return _line(links)
    if examples.limited > ALMOST_ALL:
        return Limits(up_gbps=max(link.sent for link in links))
    if examples.free and not (_share_a_line(links) or any(_is_slow(link, examples.free) for link in links)):
        return Limits()
    return None


def line_spread(measured: Iterable[tuple[Sequence[KnownLink], Limits]], examples: Examples) -> float:
    """Return the factor by which hardly more than one in ten estimated lines are off, `UNKNOWN_LINE` where too few were
    measured to tell.

    Args:
        measured: links of peers that have measured their lines, and what they have found.
    """
    misses = []
    for links, found in measured:
        if (said := estimated_line(links, examples)) is not None:
            ways = zip(_carries(said, links), _carries(found, links), strict=True)
            misses.append(max(abs(math.log(one / other)) for one, other in ways))
    if len(misses) < ENOUGH:
        return UNKNOWN_LINE
    return min(UNKNOWN_LINE, max(LEAST_SPREAD, math.exp(covering(np.array(misses)))))


def _carries(line: Limits, links: Sequence[KnownLink]) -> tuple[float, float]:
    """Return the Gbit/s that a peer sends, and receives, over as many of its fastest links as lines are measured by: no
    less than over one, no more than over each of them alone, whatever it says of its line."""
    fastest = sorted(links, key=lambda link: -link.sent)[:FAN]
    ways = [link.sent for link in fastest], [link.received for link in fastest]
    up, down = (
        sum(rates) if gbps is None else min(sum(rates), max(*rates, gbps))
        for rates, gbps in zip(ways, (line.up_gbps, line.down_gbps), strict=True)
    )
    return up, down


def _share_a_line(links: Sequence[KnownLink]) -> bool:
    """Return whether several links are about equally fast, though their other ends could receive more."""
    sent = max(link.sent for link in links)
    roomy = [link.sent for link in links if link.other_receives >= ROOM * sent]
    return len(roomy) > 1 and ALIKE * min(roomy) >= sent


def _line(links: Sequence[KnownLink]) -> Limits:
    """Return what a line carries that is shared by several links."""
    received = max(link.received for link in links)
    is_own = any(ALIKE * link.received >= received for link in links if link.other_sends >= ROOM * received)
    return Limits(up_gbps=max(link.sent for link in links), down_gbps=received if is_own else None)


def _is_slow(link: KnownLink, theirs: Sequence[tuple[float, float]]) -> bool:
    """Return whether a link is much slower than those that lead about as far, or there is none: then it may be its line
    that limits it. What TCP carries is less the further it leads, so those that lead less far count for less.

    Args:
        theirs: delay and Gbit/s of each.
    """
    as_far = [
        rate * min(1.0, far / link.delay) if link.delay else rate
        for far, rate in theirs
        if link.delay <= ABOUT_AS_FAR * far and far <= ABOUT_AS_FAR * link.delay
    ]
    return not as_far or MUCH_SLOWER * min(link.sent, link.received) < median(as_far)
