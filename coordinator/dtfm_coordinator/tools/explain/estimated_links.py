"""Lines on what nobody measured of a plan's links and of its peers' lines, and how far off those estimates may be.
Pure."""

import numpy as np

from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View


def estimate_lines(plan: Plan, view: View, *, tied: bool) -> list[str]:
    """Return a line if links of the plan are estimated in the view, and one if what its peers carry in all is; none
    where all was measured.

    Args:
        tied: whether first and last stage reduce an embedding that they share.
    """
    place = {peer: row for row, peer in enumerate(view.ids)}
    rows = [(place[one], place[other]) for one, other in map(tuple, pairs_of(plan, tied=tied))]
    links = [*rows, *((other, one) for one, other in rows)]
    slow = sum(bool(np.isnan(view.latency_ms[link])) for link in links)
    thin = sum(bool(np.isnan(view.bandwidth_gbps[link])) for link in links)
    said = []
    if slow:
        said.append(f"delays of {slow}, to within {view.estimated_ms.spread:.0%}")
    if thin:
        said.append(f"rates of {thin}, to within a factor of {view.estimated_gbps.spread:.3g}")
    found = []
    if said:
        found.append(f"estimated, of {len(links)} links of the plan: {', and '.join(said)} in nine of ten cases")
    peers = {peer for route in plan.routes for peer in route}
    spreads = [node.line_spread for node in view.nodes if node.id in peers and node.line_spread is not None]
    if spreads:
        found.append(
            f"estimated, of {len(peers)} nodes of the plan: what {len(spreads)} can send and receive in all, to within "
            f"a factor of {max(spreads):.3g} in nine of ten cases"
        )
    return found
