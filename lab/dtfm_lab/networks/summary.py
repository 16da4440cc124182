"""The summary of a view in a line: its nodes, its regions, and how fast its links are."""

import numpy as np

from dtfm_protocol.view.view import View


def summary(view: View) -> str:
    """Say how many nodes and regions a view has, and how fast its links are, e.g. for a command's output.

    Of one node there is nothing to say about links; what was not measured is left out.
    """
    regions = len({node.region for node in view.nodes if node.region is not None})
    said = f"{len(view.nodes)} node{'s'[: len(view.nodes) != 1]} in {regions} region{'s'[: regions != 1]}"
    between = ~np.eye(len(view.nodes), dtype=bool)
    speeds = view.bandwidth_gbps[between & ~np.isnan(view.bandwidth_gbps)]
    if speeds.size:
        said += f" (bandwidth: median {np.median(speeds):.3g} Gbit/s, slowest {speeds.min():.3g})"
    return said
