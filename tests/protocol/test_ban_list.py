"""A ban can be taken back and renewed: the coordinators' latest word counts, in whatever order words come."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_list import MOST_RULINGS, BanList
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import OTHER_SWARM, OWNER, SWARM

NEW = Identity.generate()
SUBJECT = "peer:a"


def ruling(at: int, *, holds: bool, by: Identity = OWNER, swarm: str = SWARM) -> BanRuling:
    return BanRuling.of(by, swarm, SUBJECT, at, holds=holds)


BAN = Ban.of(OWNER, SWARM, SUBJECT)
LIFTED, AGAIN, LAST = ruling(5, holds=False), ruling(6, holds=True), ruling(7, holds=False)


def known(*said: Ban | BanRuling) -> BanList:
    """What a peer knows to which these came one by one."""
    found = BanList(SWARM, {OWNER.peer_id})
    for one in said:
        found.add([one] if isinstance(one, Ban) else [], [one] if isinstance(one, BanRuling) else [])
    return found


@pytest.mark.parametrize(
    ("said", "is_banned"),
    [
        ([BAN], True),
        ([BAN, LIFTED], False),
        ([BAN, LIFTED, AGAIN], True),
        ([BAN, LIFTED, AGAIN, LAST], False),
        ([LIFTED], False),
        ([AGAIN], True),
        ([BAN, LIFTED, ruling(5, holds=True)], True),
    ],
)
def test_the_latest_word_counts(said: Sequence[Ban | BanRuling], is_banned: bool) -> None:
    found = known(*said)
    assert found.is_banned("a", "0" * 16) is is_banned
    assert not found.is_banned("b", "0" * 16)
    assert [ban.subject for ban in found.standing] == [SUBJECT] * (is_banned and BAN in said)


@given(st.permutations([BAN, LIFTED, AGAIN, LAST]), st.lists(st.sampled_from([BAN, LIFTED, AGAIN, LAST])))
def test_words_may_come_in_any_order_and_again(
    said: Sequence[Ban | BanRuling], replayed: Sequence[Ban | BanRuling]
) -> None:
    """Whoever keeps an old copy of a ban, or of its end, undoes nothing with it."""
    found, usual = known(*said, *replayed), known(BAN, LIFTED, AGAIN, LAST)
    assert (found.bans, found.rulings) == (usual.bans, usual.rulings)
    assert not found.holds(SUBJECT)


@pytest.mark.parametrize(
    "lie",
    [
        LIFTED.model_copy(update={"at": 9}),
        LIFTED.model_copy(update={"subject": "peer:b"}),
        AGAIN.model_copy(update={"holds": False}),
        ruling(9, holds=False, swarm=OTHER_SWARM),
        ruling(9, holds=False, by=NEW).model_copy(update={"by": OWNER.peer_id}),
    ],
    ids=["another time", "another subject", "another word", "another swarm", "a stranger's"],
)
def test_what_no_coordinator_has_signed_is_refused(lie: BanRuling) -> None:
    found = known(BAN)
    with pytest.raises(Refused):
        found.add([], [lie])
    assert found.holds(SUBJECT)


def test_nobody_who_does_not_coordinate_takes_a_ban_back() -> None:
    found = known(BAN)
    assert not found.add([], [ruling(9, holds=False, by=NEW)])
    assert found.holds(SUBJECT)


def test_a_replaced_keys_ruling_stays_believed_and_gives_way_to_any_word_of_the_new_key() -> None:
    coordinators = {OWNER.peer_id}
    found = BanList(SWARM, coordinators)
    found.add([BAN], [ruling(1 << 31, holds=False)])
    coordinators.symmetric_difference_update({OWNER.peer_id, NEW.peer_id})
    assert not found.holds(SUBJECT)
    assert not found.add([], [ruling((1 << 31) + 1, holds=True)]), "it is the old key's"
    assert found.add([], [ruling((1 << 31) + 1, holds=True)], is_own=True), "but for what this peer believed before"
    assert found.add([], [ruling(8, holds=False, by=NEW)])
    assert not found.holds(SUBJECT)


def test_a_thief_who_took_bans_back_with_a_stolen_key_is_overruled_by_the_ban_that_the_new_key_signs() -> None:
    coordinators = {OWNER.peer_id}
    found = BanList(SWARM, coordinators)
    found.add([BAN], [ruling((1 << 32) - 1, holds=False)])
    coordinators.symmetric_difference_update({OWNER.peer_id, NEW.peer_id})
    found.add([Ban.of(NEW, SWARM, SUBJECT)])
    assert found.holds(SUBJECT)


def test_rulings_have_an_end() -> None:
    found = known()
    found.add([], (BanRuling.of(OWNER, SWARM, f"peer:{number}", 1, holds=False) for number in range(MOST_RULINGS + 1)))
    assert len(found.rulings) == MOST_RULINGS
