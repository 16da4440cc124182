"""The catalogue of networks that can be made up, by name."""

from collections.abc import Callable

from dtfm_protocol.errors import UserError
from dtfm_protocol.view.link_matrix import MOST_NODES
from dtfm_protocol.view.view import View

NETWORKS = {
    "datacenter": "hosts of 8 GPUs in one data centre (the paper's case 1)",
    "spot": "a data centre's spot market: half on hosts of 4, half single (case 2)",
    "universities": "two universities (case 3)",
    "regional": "four cloud regions of one country (case 4)",
    "worldwide": "eight cloud regions worldwide (case 5)",
    "home": "volunteers at home: asymmetric broadband, cities apart, mixed consumer GPUs",
    "alike-homes": "volunteers at home, all with the same middling GPU and line, a city each",
    "slow-site": "three sites with good links, and one behind slow lines",
    "two-clusters": "two halves, fast within and slow between",
    "irregular": "every ordered pair has its own delay and bandwidth",
    "hub-and-spoke": "a few hubs with fast links, each with spokes that reach their own hub best",
}
"""A line for people on each network, by its name."""


def network(name: str, nodes: int, seed: int = 0) -> View:
    """Make the network of that name, always the same for the same arguments.

    Only `home` and `irregular` are drawn; for the others `seed` changes nothing.

    Args:
        name: one of `NETWORKS`.
        nodes: number of nodes, 1 to 20,000.
        seed: seed of what is drawn, from 0.

    Raises:
        UserError: there is no such network, or it cannot have so many nodes, or the seed is negative.
    """
    if name not in NETWORKS:
        raise UserError(f"there is no network {name!r}: choose one of {', '.join(NETWORKS)}")
    if not 1 <= nodes <= MOST_NODES:
        raise UserError(f"a network has 1 to {MOST_NODES} nodes, not {nodes}")
    if seed < 0:
        raise UserError(f"a seed is a number from 0, not {seed}")
    from dtfm_lab.networks import contrived
    from dtfm_lab.networks.alike_homes import alike_homes
    from dtfm_lab.networks.home import home
    from dtfm_lab.networks.paper_networks import paper_network

    makers: dict[str, Callable[[], View]] = {
        "datacenter": lambda: paper_network(1, nodes),
        "spot": lambda: paper_network(2, nodes),
        "universities": lambda: paper_network(3, nodes),
        "regional": lambda: paper_network(4, nodes),
        "worldwide": lambda: paper_network(5, nodes),
        "home": lambda: home(nodes, seed),
        "alike-homes": lambda: alike_homes(nodes),
        "slow-site": lambda: contrived.slow_site(nodes),
        "two-clusters": lambda: contrived.two_clusters(nodes),
        "irregular": lambda: contrived.irregular(nodes, seed),
        "hub-and-spoke": lambda: contrived.hub_and_spoke(nodes),
    }
    return makers[name]()
