"""Made-up networks: the paper's five to the letter at 64 nodes, and all of any size, always alike."""

import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.job_demand import workload
from dtfm_coordinator.allocator.paper.paper_cost import PaperCostModel, cost_of_pipelines
from dtfm_coordinator.main import app
from dtfm_lab.networks.catalogue import NETWORKS, network
from dtfm_lab.networks.consumer_gpus import MACHINES
from dtfm_lab.networks.home import CITIES, LINES, between_cities_ms
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network
from dtfm_lab.networks.summary import summary
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import GBIT, View
from tests.coordinator.lettered_swarm import JOB

PAPER = ("datacenter", "spot", "universities", "regional", "worldwide")
ASYMMETRIC = ("home", "irregular")
DRAWN = ("home", "irregular")


def regions(view: View) -> list[str]:
    """Region of each node."""
    return [str(node.region) for node in view.nodes]


def link(view: View, here: str, there: str) -> tuple[float, float]:
    """Milliseconds and Gbit/s from the last node of one region to the first of another."""
    names = regions(view)
    sender, receiver = len(names) - 1 - names[::-1].index(here), names.index(there)
    assert sender != receiver
    return float(view.latency_ms[sender, receiver]), float(view.bandwidth_gbps[sender, receiver])


def between(matrix: Matrix) -> Matrix:
    """The entries of pairs."""
    pairs: Matrix = matrix[~np.eye(len(matrix), dtype=bool)]
    return pairs


@pytest.mark.parametrize(
    ("name", "sizes", "links"),
    [
        ("datacenter", [8] * 8, {("host3", "host3"): (0, 100), ("host0", "host7"): (0, 3.125)}),
        (
            "spot",
            [4] * 8 + [1] * 32,
            {("host3", "host3"): (0, 100), ("host0", "single9"): (0, 1.25), ("single3", "single4"): (0, 1.25)},
        ),
        ("universities", [32, 32], {("Ohio", "Ohio"): (1, 5), ("Virginia", "Ohio"): (11, 1.12)}),
        (
            "regional",
            [16] * 4,
            {
                ("Ohio", "Ohio"): (5, 2),
                ("Virginia", "Oregon"): (67, 1.15),
                ("California", "Virginia"): (59, 1.05),
                ("Virginia", "Ohio"): (11, 1.12),
                ("Oregon", "California"): (12, 1.25),
                ("Ohio", "Oregon"): (49, 1.10),
                ("California", "Ohio"): (52, 1.02),
            },
        ),
        (
            "worldwide",
            [8] * 8,
            {
                ("Tokyo", "Tokyo"): (5, 2),
                ("Oregon", "Virginia"): (67, 0.79),
                ("Frankfurt", "Tokyo"): (223, 0.36),
                ("London", "Ireland"): (12, 1.09),
            },
        ),
    ],
)
def test_the_papers_five_have_its_figures(
    name: str, sizes: list[int], links: dict[tuple[str, str], tuple[float, float]]
) -> None:
    view = network(name, 64)
    assert view == paper_network(PAPER.index(name) + 1)
    names = regions(view)
    assert [names.count(region) for region in dict.fromkeys(names)] == sizes
    assert names == [region for region in dict.fromkeys(names) for _ in range(names.count(region))]
    for (here, there), figures in links.items():
        assert link(view, here, there) == figures


def test_the_regions_stand_in_the_papers_order() -> None:
    assert list(dict.fromkeys(regions(network("regional", 64)))) == ["Virginia", "Oregon", "California", "Ohio"]
    worldwide = ["Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland"]
    assert list(dict.fromkeys(regions(network("worldwide", 64)))) == worldwide


def test_one_pipeline_a_region_worldwide_costs_what_the_authors_report() -> None:
    view = network("worldwide", 64)
    model = PaperCostModel(view.alpha(), view.beta(), AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, 8)
    cost, _ = model.arrange(np.arange(64).reshape(8, 8).T.tolist())
    assert cost.total == pytest.approx(49.218, abs=5e-4)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 9, 33, 130])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_any_size_named_regions_and_whole_links(name: str, nodes: int, tmp_path: Path) -> None:
    view = network(name, nodes, seed=3)
    assert len(view.nodes) == nodes
    assert all(node.region for node in view.nodes)
    assert (between(view.bandwidth_gbps) > 0).all()
    assert (between(view.latency_ms) >= 0).all()
    ups, downs = ([getattr(node, side) or np.inf for node in view.nodes] for side in ("up_gbps", "down_gbps"))
    assert (view.bandwidth_gbps <= np.minimum.outer(ups, downs) + 1e-12).all()
    for file in ("view.json", "view.npz"):
        view.save(tmp_path / file)
        assert View.load(tmp_path / file) == view


@pytest.mark.parametrize("name", NETWORKS)
def test_seeds_repeat_and_matter_where_something_is_drawn(name: str) -> None:
    assert network(name, 40, 1) == network(name, 40, 1)
    assert (network(name, 40, 1) == network(name, 40, 2)) == (name not in DRAWN)


@pytest.mark.parametrize("name", NETWORKS)
def test_links_are_symmetric_but_where_stated(name: str) -> None:
    view = network(name, 40)
    assert np.array_equal(view.bandwidth_gbps, view.bandwidth_gbps.T) == (name not in ASYMMETRIC)
    assert np.array_equal(view.latency_ms, view.latency_ms.T) == (name != "irregular")


@pytest.mark.parametrize(
    ("name", "nodes", "sizes"),
    [
        ("datacenter", 20, [8, 8, 4]),
        ("spot", 11, [4, 2, 1, 1, 1, 1, 1]),
        ("universities", 7, [4, 3]),
        ("regional", 10, [3, 3, 2, 2]),
        ("worldwide", 3, [1, 1, 1]),
        ("slow-site", 9, [3, 2, 2, 2]),
        ("two-clusters", 5, [3, 2]),
        ("hub-and-spoke", 10, [1, 1, 1, 1, 2, 2, 1, 1]),
    ],
)
def test_other_sizes_keep_the_structure(name: str, nodes: int, sizes: list[int]) -> None:
    names = regions(network(name, nodes))
    assert [names.count(region) for region in dict.fromkeys(names)] == sizes


@pytest.mark.parametrize("name", NETWORKS)
def test_each_machine_has_a_rate_for_each_precision_and_16_bits_are_no_slower(name: str) -> None:
    for node in network(name, 8).nodes:
        fp32, bf16 = node.flops_in("fp32"), node.flops_in("bf16")
        assert fp32 is not None
        assert bf16 is not None
        assert fp32 <= bf16 <= 8.1 * fp32


def test_homes_have_the_lines_cities_and_machines_of_the_tables() -> None:
    view = network("home", 400, 5)
    lines = {(line.up_gbps, line.down_gbps): line for line in LINES}
    speeds = {tuple(machine.flops.values()) for machine in MACHINES}
    way = between_cities_ms()
    cities = list(CITIES)
    assert {str(node.region) for node in view.nodes} == set(cities)
    assert {(node.flops_in("fp32"), node.flops_in("bf16")) for node in view.nodes} == speeds
    assert {(node.up_gbps, node.down_gbps) for node in view.nodes} == set(lines)
    for here, there in np.random.default_rng(0).choice(400, (50, 2)):
        if here != there:
            sender, receiver = view.nodes[here], view.nodes[there]
            assert sender.up_gbps is not None
            assert receiver.down_gbps is not None
            assert view.bandwidth_gbps[here, there] == min(sender.up_gbps, receiver.down_gbps)
            access = sum(lines[node.up_gbps, node.down_gbps].access_ms for node in (sender, receiver))  # type: ignore[index]
            wanted = access + way[cities.index(str(sender.region)), cities.index(str(receiver.region))]
            assert view.latency_ms[here, there] == pytest.approx(wanted)


def test_shares_of_lines_and_machines_add_up() -> None:
    assert sum(line.share for line in LINES) == pytest.approx(1)
    assert sum(machine.share for machine in MACHINES) == pytest.approx(1)


def test_cities_are_as_far_apart_as_they_are() -> None:
    """London to New York is 5570 km, Tokyo to Sydney 7820 km; 200 km a millisecond, 2.1 times the great circle."""
    way, cities = between_cities_ms(), list(CITIES)
    assert way[cities.index("London"), cities.index("New York")] == pytest.approx(5570 / 200 * 2.1, rel=0.01)
    assert way[cities.index("Tokyo"), cities.index("Sydney")] == pytest.approx(7820 / 200 * 2.1, rel=0.01)
    assert (way.diagonal() == 0).all()


def test_the_slow_site_is_slow_both_ways_and_its_nodes_have_the_line_as_their_limit() -> None:
    view = network("slow-site", 16)
    assert link(view, "slow", "site0") == link(view, "site0", "slow") == (40, 0.05)
    assert link(view, "site0", "site2") == (15, 1)
    assert link(view, "site1", "site1") == (0.5, 10)
    assert link(view, "slow", "slow") == (0.5, 0.05)
    assert {(node.region, node.up_gbps, node.down_gbps) for node in view.nodes} == {
        *((f"site{number}", None, None) for number in range(3)),
        ("slow", 0.05, 0.05),
    }


def test_spokes_reach_their_own_hub_best() -> None:
    view = network("hub-and-spoke", 24)
    assert link(view, "hub0", "hub3") == (10, 10)
    assert link(view, "spokes2", "hub2") == link(view, "hub2", "spokes2") == (2, 1)
    for here, there in (("spokes2", "hub1"), ("spokes1", "spokes1"), ("spokes0", "spokes3")):
        assert link(view, here, there) == (30, 0.1)


@pytest.mark.parametrize(("activations", "gradients", "whole_stages"), [(1e6, 1e9, True), (1e9, 1e8, False)])
def test_the_good_placement_of_two_clusters_is_the_one_its_docstring_gives(
    activations: float, gradients: float, whole_stages: bool
) -> None:
    """To the cost that it states, and better than the other one and than random ones."""
    view = network("two-clusters", 16)
    alpha, beta = view.alpha(), view.beta()
    by_stage, by_pipeline = np.arange(16).reshape(4, 4).T, np.arange(16).reshape(4, 4)

    def total(pipelines: np.ndarray) -> float:
        return cost_of_pipelines(alpha, beta, pipelines, activations, gradients).total

    good, other = (by_stage, by_pipeline) if whole_stages else (by_pipeline, by_stage)
    rng = np.random.default_rng(0)
    rivals = [other, *(rng.permutation(16).reshape(4, 4) for _ in range(50))]
    assert total(good) < min(map(total, rivals))
    slow = 2 * (0.04 + activations / 0.2 / GBIT) if whole_stages else 4 * 0.04 + gradients / 0.2 / GBIT
    # What stays within the clusters: at most three fast boundaries, and all-reduces among three others.
    fast = 2 * 3 * (0.0005 + activations / 10 / GBIT) + 3 * 2 * (0.0005 + gradients / 4 / 10 / GBIT)
    assert slow < total(good) <= slow + fast


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_four_thousand_nodes_take_seconds(name: str, tmp_path: Path) -> None:
    started = time.process_time()
    view = network(name, 4096)
    assert time.process_time() - started < 20
    assert len(view.nodes) == 4096
    largest = {"datacenter": 10e6, "worldwide": 10e6, "hub-and-spoke": 10e6, "home": 60e6}
    if name in largest:
        view.save(tmp_path / "view.npz")
        assert (tmp_path / "view.npz").stat().st_size < largest[name]
        assert View.load(tmp_path / "view.npz") == view


@pytest.mark.parametrize(
    ("name", "nodes", "seed", "said"),
    [
        ("nowhere", 8, 0, "choose one of datacenter, spot,"),
        ("home", 0, 0, "1 to 20000 nodes, not 0"),
        ("home", 20_001, 0, "1 to 20000 nodes, not 20001"),
        ("home", 8, -1, "a seed is a number from 0"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, nodes: int, seed: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        network(name, nodes, seed)


def test_a_view_is_summed_up_in_a_line() -> None:
    assert summary(network("two-clusters", 4)) == "4 nodes in 2 regions (bandwidth: median 0.2 Gbit/s, slowest 0.2)"
    assert summary(network("home", 1)) == "1 node in 1 region"


def test_the_command_writes_a_view_and_says_so_in_one_line(tmp_path: Path) -> None:
    for file in ("view.json", "view.npz"):
        out = tmp_path / file
        told = CliRunner().invoke(app, ["network", "worldwide", "--nodes", "64", "--out", str(out)])
        assert told.exit_code == 0, told.output
        assert told.output.splitlines() == [f"wrote {summary(paper_network(5))} to {out}"]
        assert View.load(out) == paper_network(5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--nodes", "4", "--out", "view.json"], "there is no network 'nowhere'"),
        (["home", "--nodes", "4", "--out", "view.txt"], "view.txt: a view is written as .json or as .npz"),
        (["home", "--nodes", "0", "--out", "view.json"], "1 to 20000 nodes"),
        (["home", "--nodes", "4", "--out", "/nowhere/view.json"], "cannot write"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app(["network", *arguments], standalone_mode=False)
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_a_job_in_bf16_is_planned_with_its_rates(tmp_path: Path) -> None:
    view, seconds = network("alike-homes", 2), {}
    for precision in ("fp32", "bf16"):
        path = tmp_path / f"{precision}.toml"
        path.write_text(JOB.replace("[training]", f'[training]\nprecision = "{precision}"'), encoding="utf-8")
        work = workload(Job.load(path))
        cost = allocate(view, work, evaluations=50).cost
        assert cost is not None
        assert cost.compute is not None
        seconds[precision] = cost.compute
    assert seconds["fp32"] == pytest.approx(2 * seconds["bf16"])
