"""The network of alike volunteers: as many of one stated home machine, each in another city."""

import numpy as np

from dtfm_lab.networks.consumer_gpus import MACHINES
from dtfm_lab.networks.home import LINES, between_cities_ms
from dtfm_protocol.job.job_file import Precision
from dtfm_protocol.view.view import NodeView, View

GPU = next(gpu for gpu in MACHINES if gpu.name == "RTX 3060")
"""The GPU of each: the one that most volunteers of `home` have."""
LINE = next(line for line in LINES if line.name == "cable 100")
"""The line of each: of the two that most volunteers of `home` have, the slower one."""


def apart_ms() -> float:
    """Return the one-way milliseconds between two homes: both accesses, and the way between two middling cities."""
    ways = between_cities_ms()
    return float(2 * LINE.access_ms + np.median(ways[np.triu_indices(len(ways), 1)]).round())


def alike_homes(nodes: int) -> View:
    """Make alike volunteers: GPU, line and delays are those that are common or middling in `home`. Nothing is drawn."""
    return View(
        nodes=tuple(
            NodeView(
                id=f"home-{number}",
                region=f"city {number}",
                flops=GPU.flops,
                memory_bytes=GPU.memory_bytes,
                up_gbps=LINE.up_gbps,
                down_gbps=LINE.down_gbps,
            )
            for number in range(nodes)
        ),
        latency_ms=np.full((nodes, nodes), apart_ms()),
        bandwidth_gbps=np.full((nodes, nodes), min(LINE.up_gbps, LINE.down_gbps)),
    )


def machine_in_words(precision: Precision) -> str:
    """Return what each of `alike_homes` is for a job in `precision`, in words."""
    teraflops = GPU.flops[precision] / 1e12
    return (
        f"{GPU.name} with {GPU.memory_bytes / 1e9:.3g} GB free, {teraflops:.2g} TFLOP/s in {precision}, "
        f"{1000 * LINE.down_gbps:.0f} Mbit/s down and {1000 * LINE.up_gbps:.0f} up, {apart_ms():.0f} ms apart"
    )
