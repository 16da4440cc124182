"""Work apart gives its result, or its error, to who waits for it."""

import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.process import work_apart
from dtfm_protocol.process.work_apart import run_apart, wait_apart

pytestmark = pytest.mark.unit


def fail() -> int:
    raise UserError("the text is none")


async def test_its_result_or_error_is_that_of_the_work() -> None:
    assert await run_apart(lambda: 7) == 7
    with pytest.raises(UserError, match="the text is none"):
        await run_apart(fail)


def test_without_an_event_loop_too() -> None:
    before = set(work_apart._threads)  # of other tests, whose work nobody waits for any more
    assert wait_apart(lambda: 7) == 7
    with pytest.raises(UserError, match="the text is none"):
        wait_apart(fail)
    assert not {thread for thread in work_apart._threads if thread.is_alive()} - before
