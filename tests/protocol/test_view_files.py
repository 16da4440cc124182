"""View files: two forms that say the same, nothing lost in writing, and one clear line for a bad one."""

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import UserError
from dtfm_protocol.view.view import NodeView, View

NODES = [{"id": "a", "region": "x"}, {"id": "b", "region": "y", "flops": 1e12}, {"id": "c", "region": "x"}]
DENSE: dict[str, Any] = {
    "nodes": NODES,
    "latency_ms": [[0, 20, 1], [30, 0, 30], [1, None, 0]],
    "bandwidth_gbps": [[0, None, 10], [0.5, 0, 0.5], [10, None, 0]],
}


def written(path: Path, values: Any) -> Path:
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def packed(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        View.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_json_and_npz_say_the_same(tmp_path: Path) -> None:
    dense = View.load(written(tmp_path / "dense.json", DENSE))
    dense.save(tmp_path / "view.npz")
    assert dense == View.load(tmp_path / "view.npz")
    assert dense.latency_ms[0, 1] == 20
    assert np.isnan(dense.latency_ms[2, 1])
    assert np.isnan(dense.bandwidth_gbps[2, 1])


def test_views_differ_by_a_node_a_delay_or_a_gap() -> None:
    view = View.read(DENSE, "view")
    for name, other in (
        ("latency_ms", [[0, 20, 1], [30, 0, 30], [1, 9, 0]]),
        ("bandwidth_gbps", [[0, None, 10], [0.5, 0, 0.5], [10, 0, 0]]),
        ("nodes", [*NODES[:2], {"id": "c"}]),
    ):
        assert view != View.read(DENSE | {name: other}, "view")


def test_json_has_a_line_for_each_row(tmp_path: Path) -> None:
    speeds = np.random.default_rng(0).random((40, 40))
    for region in (None, "here"):
        view = View(
            nodes=tuple(NodeView(id=f"n{number}", region=region) for number in range(40)),
            latency_ms=speeds,
            bandwidth_gbps=speeds,
        )
        view.save(tmp_path / "view.json")
        text = (tmp_path / "view.json").read_text()
        assert set(json.loads(text)) == set(DENSE)
        assert len(text.splitlines()) > 120
        assert View.load(tmp_path / "view.json") == view


figures = st.one_of(st.none(), st.just(0.0), st.floats(1e-9, 1e12, allow_nan=False))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("views")
    groups = data.draw(st.integers(1, 4))
    count = data.draw(st.one_of(st.integers(groups, 6), st.integers(32, 40)))
    tables = data.draw(st.lists(st.lists(figures, min_size=groups**2, max_size=groups**2), min_size=2, max_size=2))
    latency, bandwidth = (np.array(table, dtype=np.float64).reshape(groups, groups) for table in tables)
    member = np.array(data.draw(st.lists(st.integers(0, groups - 1), min_size=count, max_size=count)))
    view = View(
        nodes=tuple(NodeView(id=f"n{number}", region=f"r{group}") for number, group in enumerate(member.tolist())),
        latency_ms=latency[member[:, None], member],
        bandwidth_gbps=bandwidth[member[:, None], member],
    )
    for name in ("view.json", "view.npz"):
        view.save(folder / name)
        assert View.load(folder / name) == view
    assert View.read(json.loads(view.model_dump_json()), "view") == view


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "view.json"
    path.write_text(json.dumps(DENSE).replace("30", text, 1), encoding="utf-8")
    assert ("write null" if text != "1e999" else "infinite entry") in complaint(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"3", b'"view"', b"1" * 5000])
def test_a_file_that_holds_no_view_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "view.json"
    path.write_bytes(content)
    complaint(path)
    complaint(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (DENSE | {"exceptions": []}, "exceptions: unknown key"),
        (DENSE | {"nodes": ["a"]}, "nodes.0"),
        (DENSE | {"nodes": []}, "nodes: "),
        (DENSE | {"latency_ms": [[0, 1], [1]]}, "2 rows need 2 entries each, and row 1 has 1"),
        (DENSE | {"latency_ms": [[0, 1, 1], [1, 0, -2], [1, 1, 0]]}, "negative entry at row 1, column 2"),
        (DENSE | {"bandwidth_gbps": [[0, "2", 1], [1, 0, 1], [1, 1, 0]]}, "row 0, column 1 is not a number"),
        (DENSE | {"bandwidth_gbps": [[0, True, 1], [1, 0, 1], [1, 1, 0]]}, "row 0, column 1 is not a number"),
        (DENSE | {"latency_ms": [[0, 10**400, 1], [1, 0, 1], [1, 1, 0]]}, "too large for a double"),
    ],
)
def test_what_does_not_fit_in_a_view_is_named(tmp_path: Path, values: Any, said: str) -> None:
    assert said in complaint(written(tmp_path / "view.json", values))


SQUARE = np.ones((3, 3))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"latency_ms": SQUARE, "bandwidth_gbps": SQUARE}, "nodes: this key is missing"),
        ({"nodes": np.array(json.dumps(NODES)), "latency_ms": SQUARE}, "bandwidth_gbps: this key is missing"),
        ({"nodes": np.array("["), "latency_ms": SQUARE}, "is not an .npz"),
        ({"nodes": np.array(["a", "b", "c"]), "latency_ms": SQUARE}, "is not an .npz"),
        ({"nodes": np.array('[{"id": "a", "flops": NaN}]')}, "write null"),
        ({"nodes": np.array([{"id": "a"}], dtype=object)}, "allow_pickle=False"),
        ({"latency_ms": np.array([[None, 1], [1, None]], dtype=object)}, "allow_pickle=False"),
        ({"nodes": np.array(json.dumps(NODES)), "latency_ms": SQUARE > 0, "bandwidth_gbps": SQUARE}, "of bool"),
        ({"nodes": np.array(json.dumps(NODES)), "latency_ms": SQUARE * 1j, "bandwidth_gbps": SQUARE}, "of complex"),
        ({"nodes": np.array(json.dumps(NODES)), "latency_ms": -SQUARE, "bandwidth_gbps": SQUARE}, "negative entry"),
        ({"nodes": np.array(json.dumps(NODES)), "latency_ms": SQUARE[:2, :2], "bandwidth_gbps": SQUARE}, "3 rows"),
    ],
)
def test_an_npz_that_holds_no_view_is_refused_and_nothing_unpickled(
    tmp_path: Path, arrays: dict[str, Any], said: str
) -> None:
    assert said in complaint(packed(tmp_path / "view.npz", **arrays))


def test_a_damaged_npz_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    """Cut short, or with bytes changed anywhere; where it loads all the same, it loads as a view."""
    View.read(DENSE, "view").save(tmp_path / "good.npz")
    good, path = (tmp_path / "good.npz").read_bytes(), tmp_path / "view.npz"
    for damaged in (b"", b"garbage", b"\x93NUMPY garbage", *(good[:length] for length in range(0, len(good), 97))):
        path.write_bytes(damaged)
        complaint(path)
    for place in range(0, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        with contextlib.suppress(UserError):
            assert isinstance(View.load(path), View)


def test_an_npz_that_unpacks_to_more_than_any_view_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "view.npz"
    small = io.BytesIO()
    with zipfile.ZipFile(small, "w") as archive:
        for number in range(2):
            archive.writestr(f"{number}.npy", b"")
    data = bytearray(small.getvalue())
    # The sizes that the archive's directory states, without 8 GB of zeros to prove them.
    place = -1
    while (place := data.find(b"PK\x01\x02", place + 1)) >= 0:
        data[place + 24 : place + 28] = (0xFFFF_FFF0).to_bytes(4, "little")
    path.write_bytes(data)
    assert "unpacks to more than a view of 20000 nodes takes" in complaint(path)


def test_a_view_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    for name in ("view.json", "view.npz"):
        with pytest.raises(UserError, match="cannot write"):
            View.read(DENSE, "view").save(tmp_path / "nowhere" / name)


@pytest.mark.parametrize("name", ["view.json", "view.npz"])
def test_pairs_that_are_not_direct_are_kept(name: str, tmp_path: Path) -> None:
    ways = [{"from": "a", "to": "c", "way": "punched"}, {"from": "c", "to": "b", "way": "relayed"}]
    view = View.read(DENSE | {"ways": ways}, "view")
    view.save(tmp_path / name)
    read = View.load(tmp_path / name)
    assert read == view
    assert read != View.read(DENSE, "view")
    assert (read.way("a", "c"), read.way("c", "b"), read.way("b", "c")) == ("punched", "relayed", "direct")
    assert [link.sender for link in read.part(["c", "b"]).ways] == ["c"]
    View.read(DENSE, "view").save(tmp_path / f"plain-{name}")
    assert b"ways" not in (tmp_path / f"plain-{name}").read_bytes()


@pytest.mark.parametrize(
    ("ways", "fault"),
    [
        ([{"from": "a", "to": "z", "way": "relayed"}], "ways.0.to: there is no node 'z'"),
        ([{"from": "a", "to": "a", "way": "relayed"}], "ways.0: from and to are the same"),
        (
            [{"from": "a", "to": "b", "way": "relayed"}, {"from": "a", "to": "b", "way": "punched"}],
            "a pair occurs twice",
        ),
        ([{"from": "a", "to": "b", "way": "tunnelled"}], "ways.0.way"),
    ],
)
def test_ways_that_make_no_sense_are_refused(ways: list[dict[str, str]], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        View.read(DENSE | {"ways": ways}, "view")
