"""Views in which what nobody has measured is as bad, or as good, as it may well be: at an end of its spread. Pure."""

import numpy as np

from dtfm_protocol.view.link_matrix import LEAST, Matrix
from dtfm_protocol.view.view import View


def at_worst(view: View) -> View:
    """Return a view in which what nobody has measured is as bad as it may well be."""
    delays, rates = view.estimated_ms, view.estimated_gbps
    return _filled(view, delays.values * (1 + delays.spread), np.maximum(LEAST, rates.values / rates.spread))


def at_best(view: View) -> View:
    """Return a view in which what nobody has measured is as good as it may well be; no link carries more than its ends
    send and receive in all, where that is known."""
    delays, rates = view.estimated_ms, view.estimated_gbps
    up = np.array([np.inf if node.up_gbps is None else node.up_gbps for node in view.nodes])
    down = np.array([np.inf if node.down_gbps is None else node.down_gbps for node in view.nodes])
    most = np.minimum(up[:, None], down[None, :])
    return _filled(view, delays.values * max(0.0, 1 - delays.spread), np.minimum(rates.values * rates.spread, most))


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
