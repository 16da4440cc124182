"""The worlds that are measured."""

from benchmarks.world.paced import World
from dtfm_coordinator.networks import network
from dtfm_coordinator.networks.paper import paper_network

HOME_SHRINK = 32.0
"""Homes train a smaller model than 64 V100s do: its messages are 512 KiB, as of hidden 512, sequence 512, in fp16."""


def paper_world(case: int, peers: int = 8, **changes: float) -> World:
    """One of the paper's networks with fewer peers."""
    names = {1: "data centre", 3: "two universities", 4: "regional", 5: "worldwide"}
    world = World(f"case {case}, {names[case]}", paper_network(case, peers), stretch=2.0)
    return _changed(world, changes)


def home_world(peers: int = 8, seed: int = 3, **changes: float) -> World:
    """Volunteers at home: unequal devices, asymmetric lines."""
    world = World("home volunteers", network("home", peers, seed), shrink=HOME_SHRINK, stretch=2.0)
    return _changed(world, changes)


def _changed(world: World, changes: dict[str, float]) -> World:
    from dataclasses import replace

    return replace(world, **changes)  # type: ignore[arg-type]
