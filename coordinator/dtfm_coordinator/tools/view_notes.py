"""Notes on a view that was written by hand: figures that are most likely of another unit, or that limits cut. Pure."""

from typing import Final

import numpy as np

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.tools.formatting import link_named, named
from dtfm_protocol.view.view import GBIT, NodeView, View

LEAST_FLOPS: Final = 1e8
"""FLOP/s below which a figure is taken for one of another unit: slower than any device that trains."""
NOTICEABLE: Final = 1.01
"""Times that a pair's bandwidth must be of its limit before a line says so: below, it is rounding."""


def view_notes(view: View) -> list[str]:
    """Return a line for each kind of figure that may mean something else than its author thinks."""
    return [*_slow_machines(view), *_cut_pairs(view)]


def _slow_machines(view: View) -> list[str]:
    least = {node.id: min(rates) for node in view.nodes if (rates := _rates(node))}
    slow = [(name, flops) for name, flops in least.items() if flops < LEAST_FLOPS]
    if not slow:
        return []
    return [
        f"note: flops of {named(slow[0][0])} is {slow[0][1]:g}{_more(len(slow), 'node')}: it is in FLOP/s, "
        "so 25 TFLOP/s is 25e12"
    ]


def _rates(node: NodeView) -> list[float]:
    """Return the FLOP/s that a node states, in whatever precision."""
    if node.flops is None:
        return []
    return list(node.flops.values()) if isinstance(node.flops, dict) else [node.flops]


def _cut_pairs(view: View) -> list[str]:
    counted = Links.of(view).beta / GBIT
    with np.errstate(invalid="ignore"):  # what was not measured is NaN, and is not cut
        cut = np.argwhere(view.bandwidth_gbps > NOTICEABLE * counted)
    if not len(cut):
        return []
    sender, receiver = (int(place) for place in cut[0])
    one, other = view.nodes[sender], view.nodes[receiver]
    is_up = one.up_gbps is not None and one.up_gbps <= (np.inf if other.down_gbps is None else other.down_gbps)
    limit = f"up_gbps of {named(one.id)}" if is_up else f"down_gbps of {named(other.id)}"
    return [
        f"note: {link_named(one.id, other.id)} has {view.bandwidth_gbps[sender, receiver]:.3g} Gbit/s and counts "
        f"{counted[sender, receiver]:.3g}{_more(len(cut), 'pair')}: {limit} cuts it"
    ]


def _more(count: int, what: str) -> str:
    return "" if count == 1 else f" ({count - 1} more {what}{'s' * (count > 2)} alike)"
