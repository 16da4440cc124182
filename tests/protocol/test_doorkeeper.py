"""Whom the doorkeeper asks, and whom it disconnects."""

import os
import sys

from dtfm_protocol.transport.doorkeeper import Doorkeeper, Orders, memory_of
from dtfm_protocol.transport.libp2p_limits import StreamLimits

LIMITS = StreamLimits(strangers=6, strangers_of_one=4, patience=10.0)
MEMBERS = {"alice", "bob"}


def keeper() -> Doorkeeper:
    return Doorkeeper(MEMBERS.__contains__, LIMITS)


def test_members_are_left_alone() -> None:
    assert keeper().look([(name, "somewhere") for name in MEMBERS] * 9, 0.0) == Orders((), ())


def test_a_stranger_is_asked_once_and_disconnected_when_its_time_is_over_and_asked_again_if_it_comes_back() -> None:
    at = keeper()
    here = [("carol", "c"), ("alice", "a")]
    assert at.look(here, 0.0) == Orders(("carol",), ())
    assert at.look(here, 9.9) == Orders((), ())
    assert at.look(here, 10.0) == Orders((), ("carol",))
    assert at.look([("alice", "a")], 12.0) == Orders((), ())
    assert at.look(here, 14.0) == Orders(("carol",), ())
    assert at.look(here, 20.0) == Orders((), ())


def test_who_leaves_and_comes_back_has_its_time_anew_and_a_member_stays_as_long_as_it_is_one() -> None:
    at, members = keeper(), set[str]()
    at._is_member = members.__contains__
    assert at.look([("carol", "c"), ("dave", "d")], 0.0).ask == ("carol", "dave")
    members.add("dave")
    assert at.look([("dave", "d")], 5.0) == Orders((), ())
    assert at.look([("carol", "c"), ("dave", "d")], 9.0) == Orders(("carol",), ())
    assert at.look([("carol", "c"), ("dave", "d")], 11.0) == Orders((), ())
    members.clear()
    assert at.look([("carol", "c"), ("dave", "d")], 12.0) == Orders((), ("dave",))
    assert at.look([("carol", "c"), ("dave", "d")], 14.0) == Orders(("dave",), ())


def test_of_too_many_strangers_from_one_place_the_oldest_goes_at_once_and_others_stay() -> None:
    at = keeper()
    crowd = [(f"rude {number}", "r") for number in range(20)]
    orders = at.look([("carol", "c"), *crowd], 0.0)
    assert set(orders.cut) == {f"rude {number}" for number in range(16)}
    assert "carol" in orders.ask
    assert len(orders.ask) == 5


def test_where_memory_is_tight_no_stranger_stays() -> None:
    at, here = keeper(), [("carol", "c"), ("alice", "a")]
    assert at.look(here, 0.0, is_tight=True) == Orders((), ("carol",))
    assert at.look(here, 1.0) == Orders(("carol",), ())
    assert at.look(here, 1.1, is_tight=True) == Orders((), ("carol",))


def test_the_memory_of_a_process_is_known_where_the_system_tells() -> None:
    assert memory_of(os.getpid()) > (1 << 20) or not sys.platform.startswith("linux")
    assert memory_of(1 << 30) == 0


def test_too_many_places_at_once_cost_the_one_that_has_most() -> None:
    at = keeper()
    assert (
        at.look([("one", "a"), ("two", "a"), ("three", "a"), ("four", "b"), ("five", "c"), ("six", "d")], 0.0).cut == ()
    )
    assert at.look(
        [("one", "a"), ("two", "a"), ("three", "a"), ("four", "b"), ("five", "c"), ("six", "d"), ("seven", "e")], 1.0
    ).cut == ("one",)
