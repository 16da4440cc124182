"""What is old tells nothing: replays of messages, goodbyes and last wills, over restarts of either side."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.errors import Cause, Refused, UserError
from dtfm_protocol.identity.freshness import MOST_SENDERS, Freshness
from dtfm_protocol.process.freshness_files import HEARD, SAVE_SECONDS, FreshnessFile


def restarted(heard: Freshness) -> Freshness:
    return Freshness({sender: dict(kinds) for sender, kinds in heard.known.items()})


def stale(heard: Freshness, sender: str, kind: str, counter: int) -> bool:
    try:
        heard.admit(sender, kind, counter)
    except Refused as error:
        return error.cause is Cause.STALE
    return False


def test_only_what_is_newer_is_news_each_sender_and_kind_for_itself() -> None:
    heard = Freshness()
    assert heard.admit("a", "report", 5)
    assert not heard.admit("a", "report", 5)
    assert stale(heard, "a", "report", 4)
    assert heard.admit("a", "report", 9)
    assert stale(heard, "a", "report", 5)
    assert heard.admit("a", "phase", 1)
    assert heard.admit("b", "report", 1)


@given(said=st.lists(st.integers(1, 8), max_size=20))
def test_whatever_is_said_again_nothing_is_taken_out_of_order(said: list[int]) -> None:
    heard = Freshness()
    taken = [number for number in said if _taken(heard, number)]
    assert taken == sorted(set(taken))
    assert not said or taken[-1] == max(said)


def _taken(heard: Freshness, number: int) -> bool:
    try:
        return heard.admit("a", "k", number)
    except Refused:
        return False


def test_what_a_broker_keeps_is_heard_once_more_after_a_restart_and_nothing_older() -> None:
    heard = Freshness()
    heard.admit("a", "phase", 5)
    again = restarted(heard)
    assert stale(again, "a", "phase", 4)
    assert again.admit("a", "phase", 5)
    assert not again.admit("a", "phase", 5)


def test_a_record_may_be_read_any_number_of_times_until_there_is_a_newer_one() -> None:
    heard = Freshness()
    assert all(heard.admit("a", "profile", 5, again=True) for _ in range(3))
    assert heard.admit("a", "profile", 6, again=True)
    with pytest.raises(Refused, match="number 5 after number 6"):
        heard.admit("a", "profile", 5, again=True)


# A connection's will is numbered before its hello: will 10, hello 11; will 20, hello 21.


def test_a_last_will_takes_its_own_connection_off() -> None:
    heard = Freshness()
    assert heard.admit_hello("a", "presence", 11, will=10)
    assert heard.admit_goodbye("a", "presence", 10)
    assert not heard.admit_goodbye("a", "presence", 10)


@pytest.mark.parametrize("was_heard", [True, False], ids=["fired before", "never fired"])
def test_the_will_of_an_earlier_connection_takes_nobody_off(was_heard: bool) -> None:
    """Whether the session is another one, or the same daemon has only reconnected."""
    heard = Freshness()
    heard.admit_hello("a", "presence", 11, will=10)
    if was_heard:
        heard.admit_goodbye("a", "presence", 10)
    heard.admit_hello("a", "presence", 21, will=20)
    for now in (heard, restarted(heard)):
        with pytest.raises(Refused, match="last will of a connection that is over"):
            now.admit_goodbye("a", "presence", 10)
        assert now.admit_goodbye("a", "presence", 20), "its own one still counts"


def test_a_hello_from_before_a_goodbye_brings_nobody_back() -> None:
    heard = Freshness()
    heard.admit_hello("a", "presence", 11, will=10)
    heard.admit_goodbye("a", "presence", 12)
    for now in (heard, restarted(heard)):
        with pytest.raises(Refused, match="from before its sender left"):
            now.admit_hello("a", "presence", 11, will=10)
        assert now.admit_hello("a", "presence", 21, will=20)


def test_a_hello_that_is_heard_again_does_not_undo_the_will_of_its_connection_in_one_run() -> None:
    heard = Freshness()
    heard.admit_hello("a", "presence", 11, will=10)
    heard.admit_goodbye("a", "presence", 10)
    assert not heard.admit_hello("a", "presence", 11, will=10)


def test_the_will_of_a_connection_after_its_goodbye_is_no_news() -> None:
    heard = Freshness()
    heard.admit_hello("a", "presence", 11, will=10)
    heard.admit_goodbye("a", "presence", 12)
    with pytest.raises(Refused):
        heard.admit_goodbye("a", "presence", 10)


def test_a_goodbye_of_one_who_never_said_hello_is_heard() -> None:
    assert Freshness().admit_goodbye("a", "presence", 3)


def test_any_number_of_senders_fills_no_memory_and_the_one_that_is_heard_stays() -> None:
    heard = Freshness()
    heard.admit("coordinator", "plan", 7)
    for number in range(MOST_SENDERS + 100):
        heard.admit(f"stranger {number}", "report", 1)
        if number % 1000 == 0:
            heard.admit("coordinator", "epoch", number + 1)
    assert len(heard.known) == MOST_SENDERS
    assert stale(heard, "coordinator", "plan", 6)


def test_what_was_heard_outlives_the_process(tmp_path: Path) -> None:
    file, heard = FreshnessFile(tmp_path), FreshnessFile(tmp_path).load()
    assert heard.known == {}
    heard.admit("a", "phase", 5)
    file.save(heard, now=True)
    assert stale(FreshnessFile(tmp_path).load(), "a", "phase", 4)


def test_the_disk_is_written_now_and_then(tmp_path: Path) -> None:
    now = [100.0]
    file, heard = FreshnessFile(tmp_path, lambda: now[0]), Freshness()
    heard.admit("a", "phase", 5)
    for step in range(10):
        file.save(heard)
        assert not (tmp_path / HEARD).exists(), step
    now[0] += SAVE_SECONDS
    file.save(heard)
    assert (tmp_path / HEARD).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": {"k": -1}}', '{"a": {"k": "x"}}', "\xff"])
def test_a_damaged_file_is_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / HEARD).write_text(text, encoding="latin-1")
    assert FreshnessFile(tmp_path).load().known == {}


def test_a_full_disk_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise UserError("no space left")

    monkeypatch.setattr("dtfm_protocol.process.freshness_files.write_atomically", full)
    FreshnessFile(tmp_path).save(Freshness(), now=True)
