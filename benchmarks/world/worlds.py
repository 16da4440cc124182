"""The worlds that are measured."""

from benchmarks.world.paced import World
from dtfm_lab.networks.catalogue import network
from dtfm_lab.networks.paper_networks import paper_network

HOME_SHRINK = 16.0
"""Homes train a smaller model than 64 V100s do: its messages are 256 KiB."""
NAMES = {1: "data centre", 3: "two universities", 4: "regional", 5: "worldwide"}


def paper_world(case: int, peers: int = 8, *, micro_batches: int = 8, stretch: float = 1.0) -> World:
    """One of the paper's networks with fewer peers."""
    name = f"case {case}, {NAMES[case]}"
    return World(name, paper_network(case, peers), micro_batches=micro_batches, stretch=stretch)


def chosen(name: str) -> World:
    """One by its name: "1", "3", "4", "5" for a case of the paper, or "home"."""
    return home_world() if name == "home" else paper_world(int(name))


def home_world(peers: int = 8, *, seed: int = 3, micro_batches: int = 8, stretch: float = 1.0) -> World:
    """Volunteers at home: unequal devices, asymmetric lines."""
    view = network("home", peers, seed)
    return World("home volunteers", view, micro_batches=micro_batches, shrink=HOME_SHRINK, stretch=stretch)
