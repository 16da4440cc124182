"""How a world changes: the wiring at a time is a function of the script, by value."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtfm_lab.emulation.wiring import Wiring
from dtfm_lab.emulation.world_script import WAVE_SECONDS, WorldScript
from dtfm_protocol.errors import UserError
from dtfm_protocol.view.view import NodeView, View

REGIONS = {"a": "Tokyo", "b": "Tokyo", "c": "London", "d": None}
VIEW = View(
    nodes=tuple(NodeView(id=name, region=region) for name, region in REGIONS.items()),
    latency_ms=np.full((4, 4), 10.0),
    bandwidth_gbps=np.full((4, 4), 1.0),
)
WIRING = Wiring(
    delay=[[0.0 if i == j else 10.0 for j in range(4)] for i in range(4)],
    rate=[[None if i == j else 100.0 for j in range(4)] for i in range(4)],
    up=[1000.0, None, 1000.0, None],
    down=[2000.0, None, 2000.0, None],
)
UNLIMITED = WIRING.model_copy(update={"rate": [[None] * 4 for _ in range(4)], "up": [None] * 4, "down": [None] * 4})
ALL = frozenset(a + b for a, b in itertools.permutations("abcd", 2))


def script(*events: dict[str, Any]) -> WorldScript:
    return WorldScript.read({"event": list(events)}, "script")


def world(seconds: float, *events: dict[str, Any], wiring: Wiring = WIRING) -> Wiring:
    return script(*events).at(seconds, VIEW, wiring)


def changed(wiring: Wiring, factor: float, before: Wiring = WIRING, of: str = "rate") -> frozenset[str]:
    """The links whose rate or delay is `factor` times what it was, as pairs of names; all others are as they were."""
    found = set()
    for (i, a), (j, b) in itertools.permutations(enumerate("abcd"), 2):
        was, now = getattr(before, of)[i][j], getattr(wiring, of)[i][j]
        if now != was:
            assert now == pytest.approx(was * factor), a + b
            found.add(a + b)
    return frozenset(found)


@pytest.mark.parametrize(
    ("ends", "links"),
    [
        ({"from": "a", "to": "c"}, {"ac", "ca"}),
        ({"from": "a", "to": "c", "both": False}, {"ac"}),
        ({"from": "Tokyo", "to": "London"}, {"ac", "ca", "bc", "cb"}),
        ({"from": "Tokyo", "to": "d", "both": False}, {"ad", "bd"}),
        ({"from": "a", "to": "Tokyo"}, {"ab", "ba"}),
        ({"from": "Tokyo", "to": "Tokyo"}, {"ab", "ba"}),
        ({"from": "d"}, {"da", "db", "dc", "ad", "bd", "cd"}),
        ({"from": "d", "both": False}, {"da", "db", "dc"}),
        ({"to": "d", "both": False}, {"ad", "bd", "cd"}),
        ({"from": "Tokyo"}, ALL - {"cd", "dc"}),
        ({"from": "a", "to": "a"}, set()),
        ({}, ALL),
    ],
)
def test_an_event_means_links_by_id_region_or_star_and_each_of_them_once(ends: dict[str, Any], links: set[str]) -> None:
    wiring = world(1.0, ends | {"at": 0, "rate": 0.5, "delay": 3.0})
    assert changed(wiring, 0.5) == links
    assert changed(wiring, 3.0, of="delay") == links
    assert all(wiring.delay[i][i] == 0 and wiring.rate[i][i] is None for i in range(4))


def test_a_world_is_as_it_was_before_and_after_an_event() -> None:
    event = {"at": 30, "until": 90, "from": "a", "rate": 0.1}
    for seconds in (0.0, 29.999, 90.0, 1e9):
        assert world(seconds, event) == WIRING
    for seconds in (30.0, 60.0, 89.999):
        assert world(seconds, event) == world(31.0, event) != WIRING


def test_an_event_without_end_stays() -> None:
    assert changed(world(1e9, {"at": 5, "from": "a", "to": "b", "delay": 2}), 2.0, of="delay") == {"ab", "ba"}


def test_events_at_the_same_time_multiply() -> None:
    halves = [{"at": 0, "from": "a", "to": "b", "rate": 0.5}, {"at": 1, "from": "Tokyo", "to": "b", "rate": 0.1}]
    assert world(0.5, *halves).rate[0][1] == pytest.approx(50.0)
    assert world(1.5, *halves).rate[0][1] == pytest.approx(5.0)


def test_the_wiring_that_a_script_was_given_is_not_touched() -> None:
    before = WIRING.model_copy(deep=True)
    world(1.0, {"at": 0, "rate": 0.0, "delay": 9.0})
    assert before == WIRING


def test_a_period_comes_and_goes_as_a_cosine() -> None:
    event = {"at": 10, "until": 1000, "from": "a", "to": "b", "rate": 0.5, "delay": 3.0, "period": 60}

    def found(seconds: float) -> tuple[float, float]:
        wiring = world(seconds, event)
        assert wiring.rate[0][1] is not None
        return wiring.rate[0][1], wiring.delay[0][1]

    assert found(9.0) == found(10.0) == found(1000.0) == (100.0, 10.0)
    assert found(25.0) == pytest.approx((75.0, 20.0))
    assert found(40.0) == pytest.approx((50.0, 30.0))
    assert found(55.0) == pytest.approx((75.0, 20.0))
    assert found(70.0) == pytest.approx((100.0, 10.0))
    assert found(20.0) == pytest.approx((100 - 50 * 0.25, 10 + 20 * 0.25))


@pytest.mark.parametrize("before", [WIRING, UNLIMITED])
def test_without_rate_links_are_dark_also_where_they_have_no_limit(before: Wiring) -> None:
    wiring = world(0.0, {"at": 0, "from": "a", "to": "b", "both": False, "rate": 0}, wiring=before)
    assert wiring.rate[0][1] == 0.0
    assert wiring.rate[1][0] == before.rate[1][0]
    assert (wiring.up, wiring.down) == (before.up, before.down)
    assert wiring.path_rate(0, 1) == 0.0


def test_a_site_goes_dark_for_a_while() -> None:
    event = {"at": 120, "until": 130, "from": "Tokyo", "rate": 0}
    wiring = world(125.0, event)
    assert changed(wiring, 0.0) == ALL - {"cd", "dc"}
    assert world(130.0, event) == WIRING


def test_what_has_no_limit_keeps_none_unless_nothing_is_left() -> None:
    wiring = world(0.0, {"at": 0, "rate": 0.1}, wiring=UNLIMITED)
    assert wiring == UNLIMITED


def test_where_all_links_of_a_node_are_meant_its_own_limits_are_too() -> None:
    both = world(0.0, {"at": 0, "from": "a", "rate": 0.5})
    assert (both.up, both.down) == ([500.0, None, 1000.0, None], [1000.0, None, 2000.0, None])
    ahead = world(0.0, {"at": 0, "from": "a", "both": False, "rate": 0.5})
    assert (ahead.up, ahead.down) == ([500.0, None, 1000.0, None], WIRING.down)
    back = world(0.0, {"at": 0, "to": "a", "both": False, "rate": 0.5})
    assert (back.up, back.down) == (WIRING.up, [1000.0, None, 2000.0, None])
    one = world(0.0, {"at": 0, "from": "a", "to": "Tokyo", "rate": 0.5})
    assert (one.up, one.down) == (WIRING.up, WIRING.down)
    everyone = world(0.0, {"at": 0, "rate": 0.5})
    assert (everyone.up, everyone.down) == ([500.0, None, 500.0, None], [1000.0, None, 1000.0, None])
    dark = world(0.0, {"at": 0, "from": "Tokyo", "rate": 0})
    assert (dark.up, dark.down) == ([0.0, 0.0, 1000.0, None], [0.0, 0.0, 2000.0, None])
    later = world(0.0, {"at": 0, "from": "a", "delay": 5})
    assert (later.up, later.down) == (WIRING.up, WIRING.down)


def test_the_changes_are_the_edges_in_order() -> None:
    assert list(WorldScript().changes()) == []
    found = script({"at": 30, "until": 90}, {"at": 5}, {"at": 30, "until": 31.5}).changes()
    assert list(found) == [5.0, 30.0, 31.5, 90.0]


def test_a_period_is_set_anew_every_second_until_it_ends_and_at_every_edge() -> None:
    found = list(script({"at": 0.5, "until": 4.25, "period": 10}, {"at": 2.75, "until": 3}).changes())
    assert found == sorted(set(found))
    assert {0.5, 2.75, 3.0, 4.25} <= set(found)
    assert found[-1] == 4.25
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) <= WAVE_SECONDS


def test_a_period_without_end_is_set_anew_without_end() -> None:
    endless = script({"at": 0, "period": 60}, {"at": 7.5, "until": 9.25}).changes()
    found = list(itertools.islice(endless, 5000))
    assert found == sorted(set(found))
    assert {7.5, 9.25} <= set(found)
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) <= WAVE_SECONDS
    assert found[-1] > 4900


def test_between_changes_without_a_period_nothing_changes() -> None:
    events = [{"at": 1, "until": 4, "from": "a", "rate": 0.5}, {"at": 2.5, "from": "Tokyo", "to": "c", "delay": 2}]
    edges = [0.0, *script(*events).changes(), 100.0]
    for begin, end in itertools.pairwise(edges):
        worlds = [world(begin + share * (end - begin), *events) for share in (0.0, 0.5, 0.999)]
        assert worlds[0] == worlds[1] == worlds[2]


TEXT = """
[[event]]            # a link loses nine tenths of its rate, for a minute
at = 30
until = 90
from = "Tokyo"
to = "c"
rate = 0.1

[[event]]
at = 0
rate = 0.3
period = 60
"""


def test_a_file_says_it_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "world.toml"
    path.write_text(TEXT)
    loaded = WorldScript.load(path, VIEW)
    assert [event.sender for event in loaded.event] == ["Tokyo", "*"]
    assert loaded.at(60.0, VIEW, WIRING).rate[0][2] == pytest.approx(10.0)
    assert loaded.at(30.0, VIEW, WIRING).rate[0][2] == pytest.approx(3.0)
    path.write_text("")
    assert WorldScript.load(path, VIEW) == WorldScript()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[event]]\nat = 1\nfrom = "Osaka"', ["event.0", "'Osaka'", "no node and no region"]),
        ('[[event]]\nat = 1\n[[event]]\nat = 1\nto = "e"', ["event.1", "'e'"]),
        ("[[event]]\nat = 1\nspeed = 2", ["event.0.speed", "unknown key"]),
        ("[[events]]\nat = 1", ["events", "unknown key"]),
        ("[[event]]\nrate = 1", ["event.0.at", "missing"]),
        ("[[event]]\nat = 5\nuntil = 5", ["event.0", "until must be later than at"]),
        ("[[event]]\nat = 5\nuntil = 4", ["until must be later than at"]),
        ("[[event]]\nat = -1", ["event.0.at", "-1"]),
        ("[[event]]\nat = 1\nrate = -0.5", ["event.0.rate", "-0.5"]),
        ("[[event]]\nat = 1\nrate = inf", ["event.0.rate"]),
        ("[[event]]\nat = 1\ndelay = nan", ["event.0.delay"]),
        ("[[event]]\nat = 1\nperiod = 0", ["event.0.period"]),
        ('[[event]]\nat = "soon"', ["event.0.at", "soon"]),
        ("event = 3", ["event"]),
        ("[[event]", ["not TOML"]),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_that_names_it(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "world.toml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        WorldScript.load(path, VIEW)
    said = str(raised.value)
    assert "\n" not in said
    assert all(word in said for word in [str(path), *words]), said


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the script .*nowhere"):
        WorldScript.load(tmp_path / "nowhere.toml", VIEW)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read the script"):
        WorldScript.load(tmp_path / "binary", VIEW)
