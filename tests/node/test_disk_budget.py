"""What a node keeps for the swarm stays within its budget of disk; what has no room is refused before it is fetched."""

import asyncio
from pathlib import Path

import pytest

from dtfm_node.state.disk_budget import DiskBudget, most_disk
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import GB


@pytest.mark.parametrize(
    ("gb", "free", "held", "most"),
    [(None, 100, 20, 70), (None, 0, 20, 20), (2.0, 100, 20, 2 * GB), (0.0, 100, 20, 0)],
)
def test_without_a_word_of_the_owner_a_node_keeps_half_of_what_is_free(
    gb: float | None, free: int, held: int, most: int
) -> None:
    assert most_disk(gb, free, held) == most


def test_room_is_what_nobody_keeps_and_nobody_is_about_to_write() -> None:
    held = [10, 20]
    budget = DiskBudget(100)
    budget.counts(lambda: held[0])
    budget.counts(lambda: held[1])
    with budget.claimed(30, "this"):
        assert budget.room == 40
        with pytest.raises(UserError, match=r"^that takes .* --disk$"), budget.claimed(41, "that"):
            pytest.fail("there is no room")
        with budget.claimed(40, "that"):
            assert budget.room == 0
    held[1] = 90
    assert budget.room == 0
    with budget.claimed(0, "nothing"):
        pass


def test_without_a_limit_there_is_always_room() -> None:
    with DiskBudget().claimed(1 << 60, "much"):
        assert DiskBudget().room == float("inf")


async def test_a_claim_ends_however_its_work_ends(tmp_path: Path) -> None:
    budget = DiskBudget(10)
    for error in (UserError("full"), ConnectionError(), asyncio.CancelledError()):
        with pytest.raises(type(error)), budget.claimed(10, "a copy"):
            raise error
    assert budget.room == 10
