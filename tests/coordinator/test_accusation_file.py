"""What a coordinator has heard of quarrels lies in its folder: bounded, whole, and named where it cannot be read."""

from pathlib import Path

import pytest

from dtfm_coordinator.records.accusation_file import NAME, KeptAccusations
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.errors import UserError
from tests.harness.disks import full_disk

AB, CD = frozenset("ab"), frozenset("cd")


def test_what_is_recalled_goes_on_as_before(tmp_path: Path) -> None:
    accusations = KeptAccusations(tmp_path)
    assert accusations.apart == frozenset()
    accusations.differed(AB, 1)
    accusations.reported("c", "d", 2)
    accusations.proven("e")
    again = KeptAccusations(tmp_path)
    assert again.left_out == {"e"}
    assert not again.proven("e")
    assert not again.reported("a", "d", 2), "under one plan one quarrel counts, over a restart too"
    again.excuse(1)  # it is still known that the two contradicted each other under that plan
    assert again.apart == {CD} == KeptAccusations(tmp_path).apart
    assert again.reported("a", "d", 3)
    assert again.left_out == {"d", "e"}


def test_any_number_of_accusations_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    accusations = KeptAccusations(tmp_path)
    for number in range(SEEN_LIMIT + 10):
        accusations.differed(frozenset((f"a{number}", f"b{number}")), number + 1)
        accusations.proven(f"liar {number}")
    assert len(accusations.apart) == SEEN_LIMIT
    assert KeptAccusations(tmp_path).record == accusations.record


@pytest.mark.parametrize(
    "content", ["", "{", '{"quarrels": [{"pair": ["a"], "blamed": ["a"]}]}', '{"plan": -1}', "\udcff"]
)
def test_a_file_that_cannot_be_understood_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=f"{path} cannot be understood: restore the file, or delete it"):
        KeptAccusations(tmp_path)


def test_a_full_disk_costs_the_record_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accusations = KeptAccusations(tmp_path)
    with full_disk(16):
        assert accusations.reported("a", "b", 1)
    (record,) = caplog.records
    assert record.message.startswith("accusations could not be written down: ")
    assert accusations.reported("c", "d", 2)
    assert KeptAccusations(tmp_path).apart == {AB, CD}
