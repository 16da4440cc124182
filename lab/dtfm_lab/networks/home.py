"""The network of volunteers at home: broadband lines, cities apart, consumer GPUs."""

from dataclasses import dataclass

import numpy as np

from dtfm_lab.networks.consumer_gpus import MACHINES
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import NodeView, View

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 200.0
"""Kilometres that light goes in fibre in a millisecond: about two thirds of the speed of light."""
ROUTE_FACTOR = 2.1
"""Delay over that of the great circle in fibre: the rule of thumb that "Dissecting Latency in the Internet's Fiber
Infrastructure" (Bozkurt et al., arXiv 1811.10737) cites from measurements."""


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of home broadband."""

    name: str
    down_gbps: float
    up_gbps: float
    access_ms: float
    """One-way milliseconds between the home and its city's exchange. Chosen: a few on fibre, more on cable and copper,
    the order in which Ofcom and the FCC find them."""
    share: float
    """Share of the volunteers that have this line. Chosen: people who train models have better lines than most."""


# Speeds are the tiers that are sold and defined: ADSL2+ by ITU-T G.992.5, 24/1 at most, here 16/1; 25/3 and 100/20 the
# FCC's benchmarks for broadband of 2015 and of 2024; 80/20 VDSL from the street cabinet and 1000/115 fibre as sold over
# Openreach; cable of 1000/50; symmetric fibre. For scale: the medians that Ofcom measured in March 2023 were 69.4/18.4.
LINES = (
    Line("ADSL", 0.016, 0.001, 12, 0.03),
    Line("basic broadband", 0.025, 0.003, 10, 0.05),
    Line("VDSL", 0.08, 0.02, 7, 0.17),
    Line("cable 100", 0.1, 0.02, 8, 0.20),
    Line("cable 1000", 1.0, 0.05, 8, 0.20),
    Line("fibre 1000", 1.0, 0.115, 3, 0.15),
    Line("symmetric fibre 500", 0.5, 0.5, 3, 0.10),
    Line("symmetric fibre 1000", 1.0, 1.0, 3, 0.10),
)
"""The kinds of line of volunteers."""

CITIES = {
    "Seattle": (47.6, -122.3),
    "Los Angeles": (34.1, -118.2),
    "Denver": (39.7, -105.0),
    "Chicago": (41.9, -87.6),
    "Toronto": (43.7, -79.4),
    "New York": (40.7, -74.0),
    "Sao Paulo": (-23.6, -46.6),
    "London": (51.5, -0.1),
    "Paris": (48.9, 2.4),
    "Berlin": (52.5, 13.4),
    "Warsaw": (52.2, 21.0),
    "Lagos": (6.5, 3.4),
    "Bangalore": (13.0, 77.6),
    "Singapore": (1.4, 103.8),
    "Tokyo": (35.7, 139.7),
    "Sydney": (-33.9, 151.2),
}
"""Latitude and longitude in degrees. The choice, and that all are as likely, is ours."""


def home(nodes: int, seed: int) -> View:
    """Draw volunteers by `seed`, each with a line, a city and a GPU of its own; in no order, as they would come.

    A pair has the smaller of the sender's uplink and the receiver's downlink, so that links are asymmetric. Its delay
    is both homes' access and the way between the cities, which is symmetric. The city is the region.
    """
    rng = np.random.default_rng(seed)
    lines = [LINES[place] for place in _drawn(rng, [line.share for line in LINES], nodes)]
    machines = [MACHINES[place] for place in _drawn(rng, [machine.share for machine in MACHINES], nodes)]
    cities = rng.integers(len(CITIES), size=nodes)
    names = list(CITIES)
    access = np.array([line.access_ms for line in lines])
    latency = between_cities_ms()[cities[:, None], cities[None, :]]
    latency += access[:, None]
    latency += access[None, :]
    up, down = (np.array([getattr(line, name) for line in lines]) for name in ("up_gbps", "down_gbps"))
    return View(
        nodes=tuple(
            NodeView(
                id=f"home-{number}",
                region=names[city],
                flops=machine.flops,
                memory_bytes=machine.memory_bytes,
                up_gbps=line.up_gbps,
                down_gbps=line.down_gbps,
            )
            for number, (line, machine, city) in enumerate(zip(lines, machines, cities.tolist(), strict=True))
        ),
        latency_ms=latency.round(1),
        bandwidth_gbps=np.minimum(up[:, None], down[None, :]),
    )


def between_cities_ms() -> Matrix:
    """Return one-way milliseconds between exchanges, in the order of `CITIES`, to a tenth; none within a city."""
    latitude, longitude = np.radians(np.array(list(CITIES.values()))).T
    # The haversine formula: unlike the law of cosines it is exact for places close by.
    half = (
        np.sin((latitude[:, None] - latitude[None, :]) / 2) ** 2
        + np.cos(latitude[:, None])
        * np.cos(latitude[None, :])
        * np.sin((longitude[:, None] - longitude[None, :]) / 2) ** 2
    )
    distance_km = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(half))
    delays: Matrix = (ROUTE_FACTOR * distance_km / FIBRE_KM_PER_MS).round(1)
    return delays


def _drawn(rng: np.random.Generator, shares: list[float], count: int) -> list[int]:
    """Draw `count` places in `shares`, each as often as its share has it in the mean."""
    places: list[int] = rng.choice(len(shares), size=count, p=np.array(shares) / sum(shares)).tolist()
    return places
