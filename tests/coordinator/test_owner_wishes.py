"""The owner's wishes: their sum, and their file."""

import os
from pathlib import Path

import pytest

from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import (
    Cancelled,
    CheckpointWanted,
    FinishWanted,
    OwnerWishes,
    Paused,
    PlanWanted,
    Resumed,
    WishAnswer,
    WishRecord,
)
from dtfm_coordinator.owner.wish_file import NAME, WishFile
from dtfm_protocol.errors import UserError
from tests.harness.disks import full_disk


def summed(*records: WishRecord) -> OwnerWishes:
    wishes = OwnerWishes()
    for number, record in enumerate(records, 1):
        wishes.add(record.model_copy(update={"number": number}))
    return wishes


PAUSE, RESUME, FINISH = Paused(at=1.0), Resumed(at=2.0), FinishWanted(at=3.0)


@pytest.mark.parametrize(
    ("records", "paused", "finished"),
    [
        ((), False, False),
        ((PAUSE,), True, False),
        ((PAUSE, RESUME), False, False),
        ((PAUSE, CheckpointWanted(at=1.5), PlanWanted(at=1.6)), True, False),
        ((PAUSE, FINISH), False, True),
        ((FINISH, PAUSE), True, False),
        ((FINISH, RESUME), False, False),
    ],
)
def test_the_newest_of_pause_resume_and_finish_holds(
    records: tuple[WishRecord, ...], paused: bool, finished: bool
) -> None:
    wishes = summed(*records)
    assert (wishes.is_paused, wishes.is_finished) == (paused, finished)


def test_a_wish_is_open_until_it_is_answered_and_a_pause_holds_after_that() -> None:
    wishes = summed(PAUSE, CheckpointWanted(at=2.0), WishAnswer(at=3.0, to=1, done=True, text="paused after step 7"))
    assert wishes.is_paused
    assert not wishes.open(Paused)
    assert [one.number for one in wishes.open(CheckpointWanted)] == [2]
    assert wishes.answers[1].text == "paused after step 7"


def test_a_later_wish_overtakes_an_earlier_one_that_contradicts_it() -> None:
    wishes = summed(PAUSE, PlanWanted(at=1.0), RESUME)
    assert [(wish.number, text) for wish, text in wishes.overtaken()] == [
        (1, "not done: a later `resume` came before it was")
    ]
    assert not summed(PAUSE, PlanWanted(at=1.0)).overtaken()


def test_writers_number_their_records_in_one_row_and_readers_take_up_what_is_new(tmp_path: Path) -> None:
    serving, command = WishFile(tmp_path), WishFile(tmp_path)
    assert [command.add(PAUSE).number, serving.add(RESUME).number, command.add(FINISH).number] == [1, 2, 3]
    assert [record.kind for record in serving.take_up()] == ["paused", "resumed", "finish"]
    assert serving.take_up() == []
    assert WishFile(tmp_path).wishes == serving.wishes
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_off_is_no_wish_and_the_next_one_counts(tmp_path: Path) -> None:
    WishFile(tmp_path).add(PAUSE)
    with (tmp_path / NAME).open("ab") as torn:
        torn.write(b'{"kind": "resu')
    file = WishFile(tmp_path)
    assert file.wishes.is_paused
    assert file.add(FINISH).number == 2
    assert WishFile(tmp_path).wishes.is_finished


def test_rubbish_is_named_once_and_costs_no_other_wish(tmp_path: Path) -> None:
    file = WishFile(tmp_path)
    file.add(PAUSE)
    with (tmp_path / NAME).open("ab") as other:
        other.write(b'{"kind": "king"}\n')
    assert file.add(RESUME).number == 2
    assert [record.kind for record in file.take_up()] == ["paused"]
    with pytest.raises(UserError, match=r"a line that is none of the owner's wishes \(line 2\)"):
        file.take_up()
    assert [record.kind for record in file.take_up()] == ["resumed"]
    with pytest.raises(UserError, match=r"\(line 2\): restore the file, or take that line out"):
        WishFile(tmp_path)


def test_a_full_disk_is_said_in_a_line_and_costs_no_earlier_wish(tmp_path: Path) -> None:
    file = WishFile(tmp_path)
    file.add(PAUSE)
    with full_disk(os.path.getsize(tmp_path / NAME) + 9), pytest.raises(UserError, match="cannot write"):
        file.add(RESUME)
    assert WishFile(tmp_path).wishes.is_paused
    assert file.add(FINISH).number == 2
    assert WishFile(tmp_path).wishes.is_finished


def test_what_is_not_done_yet_can_be_taken_back_and_what_was_done_stays(tmp_path: Path) -> None:
    file = WishFile(tmp_path)
    desk = OwnerDesk(WishFile(tmp_path), clock=lambda: 5.0)
    paused = file.add(PAUSE)
    desk.look()
    desk.answer_all(Paused, "paused after step 7")
    wished = [file.add(one) for one in (FINISH, CheckpointWanted(at=4.0), PlanWanted(at=4.0), Cancelled(at=5.0))]
    desk.look()
    assert desk.wishes.is_paused
    assert not desk.wishes.unanswered
    answers = [desk.wishes.answers[one.number] for one in wished]
    assert [one.done for one in answers] == [False, False, False, True]
    assert answers[-1].text == "taken back: finish, checkpoint, replan"
    assert desk.wishes.answers[paused.number].done
    again = file.add(Cancelled(at=6.0))
    desk.look()
    assert desk.wishes.answers[again.number].text == "nothing was asked for that is not done yet"
    read = WishFile(tmp_path).wishes
    assert (read.course, read.unanswered) == (desk.wishes.course, {})


def test_a_wish_that_was_taken_back_is_open_no_more_even_where_no_coordinator_runs() -> None:
    wishes = summed(PAUSE, CheckpointWanted(at=2.0), Cancelled(at=3.0), PlanWanted(at=4.0))
    assert not wishes.is_paused
    assert not wishes.open(CheckpointWanted)
    assert [one.number for one in wishes.open(PlanWanted)] == [4]
