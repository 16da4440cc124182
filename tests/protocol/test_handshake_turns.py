"""Who begins a TLS handshake when: members do not wait for strangers, and no host's flood holds up another host."""

import pytest

from dtfm_protocol.transport.handshake_turns import HandshakeRates, HandshakeTurns

RATES = HandshakeRates(strangers=10.0, strangers_burst=5.0, host=100.0, host_burst=20.0)


def crowd(turns: HandshakeTurns[str], host: str, count: int) -> list[str]:
    """Let so many from one host wait, and return them."""
    names = [f"{host} {number}" for number in range(count)]
    for name in names:
        turns.enter(name, host)
    return names


def test_where_nobody_else_is_a_stranger_does_not_wait() -> None:
    turns = HandshakeTurns[str](RATES, 0.0)
    names = crowd(turns, "a", 5)
    assert turns.take(0.0) == names
    assert len(turns) == 0
    assert turns.pause(0.0) is None


def test_strangers_share_one_rate_from_however_many_hosts_they_come() -> None:
    turns = HandshakeTurns[str](RATES, 0.0)
    for host in range(100):
        crowd(turns, str(host), 1)
    assert len(turns.take(0.0)) == 5
    assert turns.pause(0.0) == pytest.approx(0.1)
    assert turns.take(0.09) == []
    assert sum(len(turns.take(0.1 * tenth)) for tenth in range(1, 11)) == 10
    assert len(turns) == 85


def test_a_newcomer_is_next_though_another_host_floods() -> None:
    turns = HandshakeTurns[str](RATES, 0.0)
    flood = crowd(turns, "rude", 100)
    assert turns.take(0.0) == flood[:5]
    crowd(turns, "newcomer", 1)
    assert turns.take(0.1) == ["newcomer 0"]
    assert turns.take(0.2) == flood[5:6]


def test_members_do_not_wait_for_strangers() -> None:
    turns = HandshakeTurns[str](RATES, 0.0)
    turns.proven("member", 0.0)
    for host in range(100):
        crowd(turns, str(host), 1)
    turns.take(0.0)
    streams = crowd(turns, "member", 10)
    assert turns.take(0.0) == streams


def test_a_host_with_a_member_begins_not_more_than_its_own_rate_beside_the_strangers() -> None:
    turns = HandshakeTurns[str](RATES, 0.0)
    turns.proven("shared", 0.0)
    names = crowd(turns, "shared", 50)
    assert turns.take(0.0) == names[:25]  # its own burst, and that of all strangers
    crowd(turns, "newcomer", 1)
    assert "newcomer 0" in turns.take(0.1)


def test_who_leaves_is_not_called_and_a_member_is_a_stranger_no_more() -> None:
    turns = HandshakeTurns[str](RATES, 0.0)
    names = crowd(turns, "a", 7)
    turns.take(0.0)
    turns.leave(names[5])
    turns.leave(names[5])
    turns.leave(names[0])
    crowd(turns, "b", 1)
    turns.proven("a", 0.0)
    assert turns.take(0.1) == [names[6], "b 0"]


def test_no_more_hosts_are_remembered_than_a_bounded_number() -> None:
    turns = HandshakeTurns[int](HandshakeRates(strangers=1e9, strangers_burst=1e9), 0.0)
    for number in range(3000):
        turns.enter(number, str(number))
        assert turns.take(0.0) == [number]
        turns.proven(f"member {number}", 0.0)
    assert len(turns._begun) == len(turns._members) == 1024
    assert "member 2999" in turns._members
