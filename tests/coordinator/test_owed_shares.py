"""Who hands in no share of a checkpoint is left out after a while; who is slow, skips some, or is lied about is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.faults.owed_shares import SLOWEST, OwedShares
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.harness.manual_clock import ManualClock

STEPS, EVERY = 95, 10
PATIENCE = TIMEOUTS.checkpoint_share
MOST = 1 << 40


class Swarm:
    """Peers a, b and c of plan 1, and their coordinator's clock."""

    def __init__(self, peers: str = "abc") -> None:
        self.clock, self.peers = ManualClock(), peers
        self.owed = OwedShares(STEPS, EVERY, self.clock.now)
        self.follows(1)

    def follows(self, plan: int, peers: str | None = None) -> None:
        """The next plan is in force."""
        self.plan, self.peers = plan, peers or self.peers
        self.owed.begin(plan, self.peers)

    def reach(self, step: int, peers: str | None = None) -> None:
        """Peers say that they have come to a step."""
        for peer in peers or self.peers:
            self.owed.reached(peer, self.plan, step)

    def train(self, step: int, givers: str) -> None:
        """All have come to a step, and some hand in."""
        self.reach(step)
        for peer in givers:
            self.owed.given(peer, step)

    def late(self, seconds: float = PATIENCE + 1) -> bool:
        """Whether anybody is left out newly when so much time has passed."""
        before = self.owed.left_out
        self.clock.skip(seconds)
        self.owed.judge()
        return self.owed.left_out > before


def test_who_owes_the_last_share_for_too_long_ends_its_plan_and_is_left_out_of_the_next() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    assert not swarm.late(PATIENCE)
    assert (swarm.owed.left_out, swarm.owed.under(1)) == (frozenset(), "")
    assert swarm.late(1)
    assert swarm.owed.left_out == {"c"}
    assert "c does not hand in its share of the checkpoint of step 95" in swarm.owed.under(1)
    assert swarm.owed.under(2) == ""


def test_a_checkpoint_in_the_middle_of_a_run_may_be_missed_and_the_next_one_not() -> None:
    """A node without room for a snapshot trains on, and cannot hand in that one ever."""
    swarm = Swarm()
    swarm.train(10, "ab")
    assert not swarm.late()
    swarm.train(20, "ab")
    assert not swarm.late(PATIENCE)
    assert swarm.late(1)
    assert swarm.owed.left_out == {"c"}


def test_every_further_checkpoint_that_is_missed_gives_no_new_time() -> None:
    swarm = Swarm()
    for step in (10, 20, 30, 40):
        swarm.train(step, "ab")
        swarm.clock.skip(0.4 * PATIENCE)
    assert swarm.late(0)


def test_who_hands_in_newer_steps_and_skips_older_ones_owes_nothing() -> None:
    swarm = Swarm()
    for step in (10, 20, 30, 40, 50, 60):
        swarm.train(step, "ab" if step % 20 else "abc")
        assert not swarm.late()


def test_who_hands_in_the_same_share_again_and_again_makes_nobodys_time_begin_anew() -> None:
    swarm = Swarm()
    for _ in range(4):
        swarm.train(STEPS, "ab")
        swarm.clock.skip(PATIENCE / 4)
    assert swarm.late(1)


def test_who_hands_in_an_old_share_again_and_again_is_late_with_the_new_one() -> None:
    swarm = Swarm()
    swarm.train(90, "abc")
    swarm.train(STEPS, "ab")
    for _ in range(4):
        swarm.owed.given("c", 90)
        swarm.clock.skip(PATIENCE / 4)
    assert swarm.late(1)


def test_nobody_owes_what_no_one_has_handed_in_nor_what_is_handed_in_between_two_checkpoints() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "")
    assert not swarm.late()
    swarm.follows(2)
    swarm.train(7, "ab")
    swarm.train(17, "ab")
    assert not swarm.late()
    assert list(swarm.owed.contradictions()) == []


def test_a_file_that_comes_slowly_is_on_its_way_for_hours() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    for _ in range(100):
        swarm.owed.came("c", 200 * SLOWEST, MOST)
        assert not swarm.late(200)
    swarm.owed.given("c", STEPS)
    assert not swarm.late()


def test_a_file_that_comes_by_drops_is_late() -> None:
    """Else a byte a minute holds everyone up."""
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    for _ in range(20):
        swarm.owed.came("c", 1, MOST)
        swarm.clock.skip(PATIENCE / 10)
    assert swarm.late(0)


def test_files_that_come_again_and_again_and_are_none_buy_no_more_time_than_one() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    for _ in range(1000):
        swarm.owed.came("c", 100 * SLOWEST, 100 * SLOWEST)
    assert not swarm.late(PATIENCE + 100)
    assert swarm.late(1)


def test_no_time_passes_while_the_coordinator_has_no_room() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    for _ in range(10):
        swarm.owed.excuse()
        assert not swarm.late(PATIENCE)
    assert swarm.late(1)


def test_a_new_plan_lets_all_times_begin_anew() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    swarm.clock.skip(PATIENCE)
    swarm.follows(2)
    assert not swarm.late()
    swarm.train(STEPS, "ab")
    assert not swarm.late(PATIENCE)


def test_who_hands_in_again_takes_part_again() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    assert swarm.late()
    swarm.follows(2)
    swarm.train(STEPS, "abc")
    assert swarm.owed.left_out == frozenset()


def test_where_no_plan_does_without_it_a_silent_peer_ends_no_more_plans_and_is_named() -> None:
    swarm = Swarm()
    swarm.train(STEPS, "ab")
    assert swarm.late()
    swarm.follows(2)
    swarm.train(STEPS, "ab")
    swarm.clock.skip(PATIENCE + 1)
    assert "no plan does without it" in swarm.owed.judge()
    assert (swarm.owed.under(2), swarm.owed.judge()) == ("", "")
    assert swarm.owed.left_out == {"c"}


def test_of_many_who_owe_one_is_left_out_a_plan_the_one_that_has_owed_longest() -> None:
    """The coordinator's own line may be at fault."""
    swarm = Swarm("abcd")
    swarm.reach(STEPS, "abc")
    swarm.owed.given("a", STEPS)
    swarm.clock.skip(1)
    swarm.reach(STEPS)
    assert swarm.late()
    assert swarm.owed.left_out == {"b"}
    assert not swarm.late()
    swarm.follows(2, "acd")
    swarm.train(STEPS, "a")
    assert swarm.late()
    assert len(swarm.owed.left_out) == 2


@pytest.mark.parametrize("step", [50, STEPS])
def test_a_step_to_which_no_one_has_come_is_owed_by_no_one_and_who_hands_it_in_contradicts_them(step: int) -> None:
    """Else a liar hands in the last step first, and all others are left out."""
    swarm = Swarm()
    swarm.train(10, "bc")
    swarm.owed.given("a", step)
    for reached in (10, 11):
        swarm.reach(reached)
        assert not swarm.late(PATIENCE / 2)
        assert list(swarm.owed.contradictions()) == []
    assert not swarm.late()
    assert list(swarm.owed.contradictions()) == [("a", "b", step)]
    swarm.reach(step)
    assert list(swarm.owed.contradictions()) == []


def test_who_says_that_it_has_not_come_to_what_others_hand_in_contradicts_them() -> None:
    """Else who hands in nothing says that it is a step behind, and owes nothing."""
    swarm = Swarm()
    swarm.reach(STEPS - 1)
    swarm.reach(STEPS, "ab")
    swarm.owed.given("a", STEPS)
    swarm.owed.given("b", STEPS)
    assert not swarm.late()
    assert list(swarm.owed.contradictions()) == [("a", "c", STEPS), ("b", "c", STEPS)]
    swarm.owed.end("they differ")
    assert list(swarm.owed.contradictions()) == []
    assert swarm.owed.under(1) == "they differ"


def test_a_peer_that_comes_to_a_step_late_has_all_its_time_from_then_on() -> None:
    swarm = Swarm()
    swarm.reach(STEPS, "ab")
    swarm.owed.given("a", STEPS)
    swarm.owed.given("b", STEPS)
    swarm.clock.skip(PATIENCE)
    swarm.reach(STEPS, "c")
    assert not swarm.late(PATIENCE)
    assert swarm.late(1)


LIES = st.lists(
    st.tuples(st.sampled_from("xy"), st.sampled_from(("reached", "given", "came")), st.integers(0, STEPS + 5)),
    max_size=5,
)


@given(st.lists(st.tuples(LIES, st.integers(0, 3), st.sampled_from((0.01, 0.3, 0.9))), max_size=40))
def test_whatever_others_say_who_hands_in_what_it_has_come_to_is_not_late(
    turns: list[tuple[list[tuple[str, str, int]], int, float]],
) -> None:
    """Peers a and b train in lockstep and hand in, one of them late; x and y say and hand in what they like."""
    swarm, step = Swarm("abxy"), 0
    for lies, more, wait in turns:
        for liar, what, number in lies:
            arguments = {"reached": (1, number), "given": (number,), "came": (number, MOST)}[what]
            getattr(swarm.owed, what)(liar, *arguments)
        step = min(STEPS, step + more)
        swarm.reach(step, "ab")
        due = step if step == STEPS else step - step % EVERY
        swarm.owed.given("a", due)
        swarm.clock.skip(wait * PATIENCE)
        swarm.owed.judge()
        swarm.owed.given("b", due)
        assert swarm.owed.left_out.isdisjoint("ab")
        assert not any({giver, other} <= {"a", "b"} for giver, other, _ in swarm.owed.contradictions())


def test_a_job_without_checkpoints_in_between_has_a_last_one() -> None:
    swarm = Swarm()
    swarm.owed = OwedShares(STEPS, 0, swarm.clock.now)
    swarm.follows(1)
    swarm.train(50, "ab")
    swarm.train(60, "ab")
    assert not swarm.late()
    swarm.train(STEPS, "ab")
    assert swarm.late()


def test_what_strangers_say_and_hand_in_counts_for_nothing_and_fills_no_memory() -> None:
    swarm = Swarm()
    swarm.reach(STEPS)
    swarm.owed.given("stranger", STEPS)
    swarm.owed.reached("stranger", 1, STEPS)
    swarm.owed.reached("a", 2, STEPS)
    assert not swarm.late()
    for number in range(2 * SEEN_LIMIT):
        swarm.owed.begin(number + 2, ("a", f"b{number}"))
        for peer in ("a", f"b{number}"):
            swarm.owed.reached(peer, number + 2, STEPS)
        swarm.owed.given("a", STEPS)
        swarm.late()
    assert len(swarm.owed.left_out) == SEEN_LIMIT
