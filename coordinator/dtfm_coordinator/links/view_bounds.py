"""Views in which what nobody has measured is as bad, or as good, as it may well be, at an end of its spread; or at
least as good as it was seen to be. Pure."""

from collections.abc import Collection, Mapping

import numpy as np

from dtfm_coordinator.links.probe_rounds import Pair
from dtfm_protocol.view.link_matrix import LEAST, Matrix
from dtfm_protocol.view.view import View


def at_worst(view: View) -> View:
    """Return a view in which what nobody has measured is as bad as it may well be."""
    delays, rates = view.estimated_ms, view.estimated_gbps
    return _filled(view, delays.values * (1 + delays.spread), np.maximum(LEAST, rates.values / rates.spread))


def at_best(view: View, looked_at: Collection[frozenset[str]] = ()) -> View:
    """Return a view in which what nobody has measured is as good as it may well be; no link carries more than its ends
    send and receive in all, where that is known.

    Args:
        looked_at: pairs of which no more is hoped for than is estimated.
    """
    delays, rates = view.estimated_ms, view.estimated_gbps
    up = np.array([np.inf if node.up_gbps is None else node.up_gbps for node in view.nodes])
    down = np.array([np.inf if node.down_gbps is None else node.down_gbps for node in view.nodes])
    most = np.minimum(up[:, None], down[None, :])
    hoped = np.minimum(rates.values * rates.spread, most)
    place = {peer: index for index, peer in enumerate(view.ids)}
    for one, other in (pair for pair in looked_at if pair <= place.keys()):
        for link in ((place[one], place[other]), (place[other], place[one])):
            hoped[link] = rates.values[link]
    return _filled(view, delays.values * max(0.0, 1 - delays.spread), hoped)


def at_least(view: View, carried: Mapping[Pair, float]) -> View:
    """Return a view in which links that nobody has measured carry at least what they were seen to carry, where that is
    more than their estimate.

    Args:
        carried: Gbit/s from the first peer to the second.
    """
    place = {peer: index for index, peer in enumerate(view.ids)}
    seen = {
        (place[one], place[other]): gbps
        for (one, other), gbps in carried.items()
        if one in place and other in place and np.isnan(view.bandwidth_gbps[place[one], place[other]])
    }
    if not seen:
        return view
    estimates, rates = view.estimated_gbps.values, np.array(view.bandwidth_gbps)
    for link, gbps in seen.items():
        if gbps > estimates[link]:
            rates[link] = gbps
    return View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=rates, ways=view.ways)


def is_measured(view: View) -> bool:
    """Whether every link of a view was measured, or tried in vain."""
    apart = ~np.eye(len(view.nodes), dtype=np.bool_)
    return not (np.isnan(view.bandwidth_gbps) & apart).any()


def _filled(view: View, delays: Matrix, rates: Matrix) -> View:
    """Return a view with these figures where none were measured: milliseconds and Gbit/s, shape (N, N)."""
    return View(
        nodes=view.nodes,
        latency_ms=np.where(np.isnan(view.latency_ms), delays, view.latency_ms),
        bandwidth_gbps=np.where(np.isnan(view.bandwidth_gbps), rates, view.bandwidth_gbps),
        ways=view.ways,
    )
