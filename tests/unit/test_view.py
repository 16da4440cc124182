"""The view: matrices that fit their nodes, and what stands in for what nobody measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.view import GBIT, View

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


def test_delay_is_in_seconds_and_what_is_not_measured_takes_the_largest() -> None:
    wanted = [[0, 0.01, 0.03], [0.02, 0, 0.03], [0.03, 0.005, 0]]
    np.testing.assert_allclose(View.read(VALUES, "view").alpha(), wanted)


def test_bandwidth_is_in_bytes_a_second_and_what_is_not_measured_takes_the_smallest() -> None:
    beta = View.read(VALUES, "view").beta() / GBIT
    np.testing.assert_allclose(beta, [[np.inf, 1.0, 0.5], [0.5, np.inf, 2.0], [4.0, 0.5, np.inf]])


def test_a_gigabit_is_a_thousand_million_bits() -> None:
    assert GBIT * 8 == 1e9


def test_a_pair_that_cannot_talk_stays_at_zero() -> None:
    beta = View.read(VALUES | {"bandwidth_gbps": [[0, 0, 1], [1, 0, 1], [1, 1, 0]]}, "view").beta()
    assert beta[0, 1] == 0
    assert np.isinf(beta.diagonal()).all()


def test_where_nothing_is_measured_there_is_still_a_view() -> None:
    nothing = [[None] * 3] * 3
    view = View.read(VALUES | {"latency_ms": nothing, "bandwidth_gbps": nothing}, "view")
    assert (view.alpha() == 0).all()
    np.testing.assert_allclose(view.beta() / GBIT, np.where(np.eye(3, dtype=bool), np.inf, 1.0))


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
        ({"nodes": [{"id": "a"}, {"id": "b", "gpu": 1}, {"id": "c"}]}, "nodes.1.gpu: unknown key"),
        ({"nodes": [{"id": "a"}, {"id": "b"}]}, "latency_ms: 2 nodes need 2 rows of 2 entries"),
        ({"latency_ms": [[0, 1], [1, 0]]}, "latency_ms: 3 nodes need 3 rows of 3 entries"),
        ({"bandwidth_gbps": [[0, 1, 1], [1, 0, 1], [1, 0]]}, "bandwidth_gbps: 3 nodes need 3 rows"),
        ({"latency_ms": [[0, -1, 1], [1, 0, 1], [1, 1, 0]]}, "latency_ms: negative entry at row 0, column 1"),
        ({"bandwidth_gbps": [[0, 1, 1], [1, 0, 1], [1, -1, 0]]}, "bandwidth_gbps: negative entry at row 2, column 1"),
        ({"latency_ms": [[0, float("nan"), 1], [1, 0, 1], [1, 1, 0]]}, "latency_ms.0.1: "),
        ({"bandwidth_gbps": [[0, "fast", 1], [1, 0, 1], [1, 1, 0]]}, "bandwidth_gbps.0.1: "),
        ({"links": []}, "links: unknown key"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    assert said in complaint(**change)


def test_a_view_file_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "view.json"
    path.write_text(json.dumps(VALUES), encoding="utf-8")
    view = View.load(path)
    assert view.ids == ("a", "b", "c")
    path.write_text(view.model_dump_json(), encoding="utf-8")
    assert View.load(path) == view
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="is not JSON"):
        View.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot read the view"):
        View.load(path)
    with pytest.raises(UserError, match="cannot read the view"):
        View.load(tmp_path / "none.json")
