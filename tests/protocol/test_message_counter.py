"""Numbers of messages: none repeats, whatever becomes of the process, its disk or its clock."""

from pathlib import Path

import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.message_counter import BLOCK, TICKS, MessageCounter
from dtfm_protocol.process.freshness_files import COUNTER, message_counter


class Disk:
    """What is kept of reserved numbers."""

    def __init__(self) -> None:
        self.reserved = 0
        self.writes = 0
        self.full = False

    def reserve(self, end: int) -> None:
        if self.full:
            raise UserError("no space left")
        self.reserved, self.writes = end, self.writes + 1


def counter(disk: Disk, seconds: float = 0.0) -> MessageCounter:
    return MessageCounter(disk.reserved, disk.reserve, lambda: seconds)


def test_numbers_grow_by_one_and_the_disk_is_written_once_for_many() -> None:
    disk = Disk()
    numbers = counter(disk)
    assert [numbers.take() for _ in range(1000)] == list(range(1, 1001))
    assert disk.writes == 1


def test_after_a_crash_no_number_repeats_although_the_clock_stands_still() -> None:
    disk = Disk()
    first = counter(disk)
    used = [first.take() for _ in range(10)]
    assert counter(disk).take() > max(used)


def test_after_the_disk_was_restored_no_number_repeats_as_time_has_passed() -> None:
    used = [number for numbers in [counter(Disk(), 1000.0)] for number in (numbers.take() for _ in range(10))]
    assert counter(Disk(), 1000.0 + len(used) / TICKS + 1.0).take() > max(used)


def test_after_the_clock_was_set_back_no_number_repeats_as_the_disk_knows() -> None:
    disk = Disk()
    used = counter(disk, 1e9).take()
    assert counter(disk, 5.0).take() > used


def test_a_block_that_is_used_up_is_followed_by_another_before_a_number_of_it_is_given_out() -> None:
    disk = Disk()
    numbers = counter(disk)
    numbers.passed(disk.reserved - 2)
    last = numbers.take()
    assert (disk.writes, last < disk.reserved) == (2, True)
    numbers.passed(last + 5 * BLOCK)
    assert numbers.take() < disk.reserved


def test_a_disk_that_fills_up_ends_nothing() -> None:
    disk = Disk()
    numbers = counter(disk)
    disk.full = True
    numbers.passed(disk.reserved)
    assert numbers.take() == disk.reserved + 1


def test_a_number_that_is_lower_than_its_own_moves_nothing() -> None:
    numbers = counter(Disk(), 1.0)
    numbers.passed(5)
    assert numbers.take() == TICKS


def test_the_file_of_a_state_dir_keeps_numbers_from_repeating(tmp_path: Path) -> None:
    ahead = 10**18
    (tmp_path / COUNTER).write_text(f"{ahead}\n")
    first = message_counter(tmp_path).take()
    assert first == ahead
    assert message_counter(tmp_path).take() == ahead + BLOCK
    (tmp_path / COUNTER).write_text("torn")
    assert 0 < message_counter(tmp_path).take() < ahead


def test_without_room_for_it_nobody_begins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        message_counter(tmp_path / "not there")
