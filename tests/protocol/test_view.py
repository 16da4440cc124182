"""The view: matrices that fit their nodes, in whatever file they come; what does not fit is named."""

from typing import Any

import numpy as np
import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.view.view import GBIT, View

VALUES: dict[str, Any] = {
    "nodes": [{"id": "a"}, {"id": "b", "flops": 1e12, "layer_seconds": {"forward": 0.1, "backward": 0.2}}, {"id": "c"}],
    "latency_ms": [[0, 10, None], [20, 0, 30], [None, 5, 0]],
    "bandwidth_gbps": [[0, 1.0, None], [0.5, 0, 2.0], [4.0, None, 0]],
}


def complaint(**change: Any) -> str:
    with pytest.raises(UserError) as caught:
        View.read(VALUES | change, "view.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_delay_is_in_seconds_and_bandwidth_in_bytes_a_second() -> None:
    view = View.read(VALUES, "view")
    np.testing.assert_allclose(view.alpha()[0, :2], [0, 0.01])
    np.testing.assert_allclose(view.beta()[1] / GBIT, [0.5, np.inf, 2.0])
    assert np.isnan(view.latency_ms[0, 2])


def test_a_gigabit_is_a_thousand_million_bits() -> None:
    assert GBIT * 8 == 1e9


def test_a_pair_that_cannot_talk_stays_at_zero() -> None:
    beta = View.read(VALUES | {"bandwidth_gbps": [[0, 0, 1], [1, 0, 1], [1, 1, 0]]}, "view").beta()
    assert beta[0, 1] == 0
    assert np.isinf(beta.diagonal()).all()


def test_the_diagonal_means_nothing() -> None:
    odd = [
        [-5 if row == column else value for column, value in enumerate(values)]
        for row, values in enumerate(VALUES["latency_ms"])
    ]
    np.testing.assert_array_equal(
        View.read(VALUES | {"latency_ms": odd}, "view").alpha(), View.read(VALUES, "view").alpha()
    )


def test_one_node_alone_is_a_view() -> None:
    view = View.read({"nodes": [{"id": "a"}], "latency_ms": [[None]], "bandwidth_gbps": [[0]]}, "view")
    assert view.ids == ("a",)
    assert view.alpha().shape == view.beta().shape == (1, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": []}, "nodes: "),
        ({"nodes": [{"id": "a"}, {"id": "b"}, {"id": "a"}]}, "the id 'a' occurs twice"),
        ({"nodes": [{"id": "a"}, {"id": ""}, {"id": "c"}]}, "nodes.1.id: "),
        ({"nodes": [{"id": "a"}, {"id": "b", "flops": 0}, {"id": "c"}]}, "nodes.1.flops: "),
        ({"nodes": [{"id": "a"}, {"id": "b", "flops": {"bf16": 0}}, {"id": "c"}]}, "nodes.1.flops"),
        ({"nodes": [{"id": "a"}, {"id": "b", "flops": {"fp8": 1}}, {"id": "c"}]}, "'fp8' is no precision"),
        ({"nodes": [{"id": "a"}, {"id": "b", "gpu": 1}, {"id": "c"}]}, "nodes.1.gpu: unknown key"),
        ({"nodes": [{"id": "a"}, {"id": "b"}]}, "latency_ms: 2 nodes need 2 rows of 2 entries"),
        ({"latency_ms": [[0, 1], [1, 0]]}, "latency_ms: 3 nodes need 3 rows of 3 entries"),
        ({"bandwidth_gbps": [[0, 1, 1], [1, 0, 1], [1, 0]]}, "bandwidth_gbps: 3 rows need 3 entries each, and row 2"),
        ({"bandwidth_gbps": [[0, 1, 1], [1, 0, 1]]}, "bandwidth_gbps: 2 rows need 2 entries each, and row 0 has 3"),
        ({"bandwidth_gbps": [[0, 1, 1], 5, [1, 0, 1]]}, "bandwidth_gbps: write a list of rows"),
        ({"bandwidth_gbps": [[[0], [1]], [[1], [0]]]}, "bandwidth_gbps: row 0, column 0 is not a number"),
        ({"latency_ms": [[0, -1, 1], [1, 0, 1], [1, 1, 0]]}, "latency_ms: negative entry at row 0, column 1"),
        ({"bandwidth_gbps": [[0, 1, 1], [1, 0, 1], [1, -1, 0]]}, "bandwidth_gbps: negative entry at row 2, column 1"),
        ({"latency_ms": [[0, float("nan"), 1], [1, 0, 1], [1, 1, 0]]}, "latency_ms: an entry is not a number"),
        ({"latency_ms": [[0, float("inf"), 1], [1, 0, 1], [1, 1, 0]]}, "latency_ms: infinite entry at row 0, column 1"),
        ({"latency_ms": [[0, 10**400, 1], [1, 0, 1], [1, 1, 0]]}, "latency_ms: an entry is too large"),
        ({"bandwidth_gbps": [[0, "fast", 1], [1, 0, 1], [1, 1, 0]]}, "row 0, column 1 is not a number (got 'fast')"),
        ({"bandwidth_gbps": [[0, 1, "1"], [1, 0, 1], [1, 1, 0]]}, "row 0, column 2 is not a number (got '1')"),
        ({"bandwidth_gbps": [[0, 1, 1], [True, 0, 1], [1, 1, 0]]}, "row 1, column 0 is not a number (got 'True')"),
        ({"bandwidth_gbps": np.array([["0", "1"], ["1", "0"]])}, "bandwidth_gbps: an array of 2 dimensions of <U1"),
        ({"bandwidth_gbps": np.zeros(3)}, "bandwidth_gbps: an array of 1 dimensions"),
        ({"bandwidth_gbps": np.zeros((3, 2))}, "bandwidth_gbps: 3 rows of 2 entries"),
        ({"bandwidth_gbps": np.zeros((3, 3), dtype=bool)}, "bandwidth_gbps: an array of 2 dimensions of bool"),
        ({"nodes": [{"id": "a", "tflops": 1}, {"id": "b"}, {"id": "c"}]}, "did you mean flops?"),
        ({"nodes": [{"id": "a", "gpu": 1}, {"id": "b"}, {"id": "c"}]}, "; the keys here are id, region, flops, layer_"),
        ({"nodes": ["a", "b", "c"]}, "nodes.0: keys and their values are wanted here (got 'a')"),
        ({"ways": [{"from": "a", "to": "b", "over": "c"}]}, "; the keys here are from, to, way"),
        ({"links": []}, "links: unknown key"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    assert said in complaint(**change)


def test_a_part_keeps_what_is_known_of_its_peers_in_their_order() -> None:
    whole = View.read(VALUES, "view")
    whole.alpha()
    part = whole.part(["c", "b"])
    assert part.ids == ("c", "b")
    np.testing.assert_array_equal(part.latency_ms, [[0, 5], [30, 0]])
    assert part.alpha().shape == part.beta().shape == (2, 2)


def test_matrices_cannot_be_written_to_and_are_apart_from_what_they_were_made_of() -> None:
    delays = np.ones((3, 3))
    view = View.read(VALUES | {"latency_ms": delays}, "view")
    delays[0, 1] = 7
    assert view.latency_ms[0, 1] == 1
    with pytest.raises(ValueError, match="read-only"):
        view.latency_ms[0, 1] = 2


def test_a_view_of_too_many_nodes_is_refused() -> None:
    nodes = [{"id": str(number)} for number in range(20_001)]
    with pytest.raises(UserError, match="20001 are more than the 20000"):
        View.read({"nodes": nodes, "latency_ms": [[0]], "bandwidth_gbps": [[0]]}, "view")
