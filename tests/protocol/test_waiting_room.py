"""Who waits to prove who it is, and who has to go; and the tally of those who did not."""

from dtfm_protocol.process.tally import MOST_REASONS, OTHERS, Tally
from dtfm_protocol.transport.waiting_room import WaitingRoom, network_of


def test_a_room_with_space_sends_nobody_away_and_forgets_who_leaves() -> None:
    room = WaitingRoom[int](most=2, most_of_one=2)
    for _ in range(5):
        assert [room.enter(guest, "a") for guest in range(2)] == [None, None]
        assert len(room) == 2
        for guest in (0, 1, 1, 7):
            room.leave(guest)
        assert len(room) == 0


def test_of_too_many_from_one_place_the_oldest_goes() -> None:
    room = WaitingRoom[int](most=10, most_of_one=3)
    assert [room.enter(guest, "a") for guest in range(6)] == [None, None, None, 0, 1, 2]
    assert [room.enter(guest, "b") for guest in range(6, 9)] == [None, None, None]
    assert len(room) == 6


def test_where_the_room_is_full_the_place_that_has_most_loses_one() -> None:
    room = WaitingRoom[str](most=5, most_of_one=5)
    assert room.enter("honest", "b") is None
    gone = [room.enter(f"rude {number}", "a") for number in range(100)]
    assert gone == [None] * 4 + [f"rude {number}" for number in range(96)]
    assert room.enter("also honest", "c") == "rude 96"
    assert len(room) == 5


def test_what_one_machine_has_of_addresses_counts_as_one_place() -> None:
    assert network_of("192.0.2.1") == network_of("::ffff:192.0.2.1") != network_of("192.0.2.2")
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("no address") == "no address"


def test_a_tally_counts_each_reason_and_does_not_grow_with_what_others_write() -> None:
    tally = Tally()
    assert [tally.note("no"), tally.note("no"), tally.note("never")] == [True, False, True]
    assert tally == {"no": 2, "never": 1}
    new = [tally.note(f"written by a stranger: {number}") for number in range(1000)]
    assert len(tally) == MOST_REASONS + 1
    assert tally.total() == 1003
    assert sum(new) == MOST_REASONS - 1
    assert tally[OTHERS] > 900
