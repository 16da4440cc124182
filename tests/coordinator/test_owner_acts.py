"""What the owner has done is told in plain lines: on the page, in `status` and in the report."""

import json
from dataclasses import replace
from pathlib import Path

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.membership import ledger_acts
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import Banned, Invited, Redeemed
from dtfm_coordinator.owner.owner_acts import OwnerActs
from dtfm_coordinator.owner.owner_wishes import Amended, Paused, Resumed, WishAnswer
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.records import event_log
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.serve.beginning import Beginning
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.keys import Identity, short
from tests.coordinator.peers import Peers
from tests.harness.membership import OWNER, SWARM, invite_of

A, B = (Identity.generate().peer_id for _ in range(2))


def served(folder: Path) -> Path:
    """A state folder in which a coordinator has served, and has let two in; one of them was called by its name."""
    owner = Identity.load_or_create(folder / "key")
    invite = invite_of(owner)
    (folder / "invite").write_text(invite.encode() + "\n")
    file = LedgerFile(folder)
    file.append(Invited(token=invite.token.id, uses=9, expires=9e9, name="printed by serve", at=1.0))
    file.append(*(Redeemed(token=invite.token.id, peer=peer, at=2.0) for peer in (A, B)))
    members = {A: {"name": "laptop", "role": "trains"}, B: {"name": "", "role": "trains"}}
    (folder / "status.json").write_text(json.dumps({"overview": {"members": members}}))
    return folder


def told(acts: OwnerActs) -> list[str]:
    return [one.text for one in acts.take_up()]


def test_each_decision_on_who_is_a_member_is_one_line_with_the_members_name(tmp_path: Path) -> None:
    acts = OwnerActs(served(tmp_path))
    assert told(acts) == ["The owner made an invite for 9 machines (printed by serve)."]
    ledger_acts.make_invite(tmp_path, 1, 7.0, "Ada")
    ledger_acts.revoke_invite(tmp_path, "Ada")
    ledger_acts.kick_member(tmp_path, A)
    ledger_acts.ban_member(tmp_path, A, key_only=True)
    ledger_acts.ban_member(tmp_path, B, key_only=False)
    assert told(acts) == [
        "The owner made an invite for 1 machine (Ada).",
        "The owner took back the invite for Ada.",
        f"The owner sent laptop ({short(A)}) away.",
        f"The owner banned laptop ({short(A)}).",
        f"The owner banned {short(B)}, and all who entered with the same invite.",
    ]
    ledger_acts.unban_member(tmp_path, B)
    ledger_acts.unban_member(tmp_path, A)
    ledger_acts.ban_member(tmp_path, B, key_only=True)
    assert told(acts) == [
        f"The owner took back the ban of {short(B)}, and all who entered with the same invite.",
        f"The owner took back the ban of laptop ({short(A)}).",
        f"The owner banned {short(B)}.",
    ]
    assert told(acts) == []


def test_a_wish_is_told_once_it_is_answered_and_warns_where_nothing_was_done(tmp_path: Path) -> None:
    wishes, acts = WishFile(tmp_path), OwnerActs(tmp_path)
    wishes.add(Paused(at=1.0))
    wishes.add(Amended(at=2.0, values={"training.steps": 80}))
    assert told(acts) == []
    wishes.add(WishAnswer(at=3.0, to=1, done=True, text="paused after step 9 of 60; its state is kept"))
    wishes.add(WishAnswer(at=4.0, to=2, done=False, text="nothing to change: training.steps = 80 holds already"))
    assert [(one.at, one.level, one.text) for one in acts.take_up()] == [
        (3.0, "wait", "The owner asked to pause the run: paused after step 9 of 60; its state is kept."),
        (
            4.0,
            "warn",
            "The owner asked to change training.steps = 80: nothing to change: training.steps = 80 holds already.",
        ),
    ]


def test_what_nobody_has_decided_or_has_no_time_is_not_told(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path)
    file.append(Banned(ban=Ban.of(OWNER, SWARM, f"entry:{'0' * 16}{A}"), at=1.0))  # an invite was used up
    file.append(Banned(ban=Ban.of(OWNER, SWARM, f"peer:{A}")))  # an earlier version has written it
    assert told(OwnerActs(tmp_path)) == []


async def test_acts_stand_among_the_news_in_the_order_in_which_they_happened_and_once(tmp_path: Path) -> None:
    wishes = WishFile(tmp_path)
    wishes.add(Resumed(at=1.0))
    wishes.add(WishAnswer(at=2.0, to=1, done=True, text="plan 2 goes on from step 9"))
    event_log.append(tmp_path, PlanEvent(plan=1, why="", called_at=1.0, in_force_at=1.5, step=0, repeated=0, source=""))
    event_log.append(tmp_path, PlanEvent(plan=2, why="", called_at=1.5, in_force_at=2.5, step=9, repeated=0, source=""))
    beginning = Beginning("job", 60, tmp_path)
    _, board, acts = beginning.over()
    assert [one.at for one in board.items.values()] == [1.5, 2.0, 2.5]

    peers = Peers(tmp_path)
    file = StatusFile(replace(peers.context, board=board, acts=acts), peers.state, peers.announcer, peers.rows)
    wishes.add(Paused(at=5.0))
    wishes.add(WishAnswer(at=6.0, to=3, done=True, text="paused before the first step"))
    file.write()
    file.write()
    news = json.loads((tmp_path / "status.json").read_text())["overview"]["news"]
    assert [one["at"] for one in news.values()] == [1.5, 2.0, 2.5, 6.0]
    assert news["4"]["text"] == "The owner asked to pause the run: paused before the first step."
