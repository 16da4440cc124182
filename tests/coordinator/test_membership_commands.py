"""The owner's commands on who is a member, on the state folder of a coordinator that has served."""

import json
import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtfm_coordinator.main import app
from dtfm_coordinator.membership.ledger_file import LedgerFile, ledger_entries
from dtfm_coordinator.membership.membership_ledger import Banned, Invited, LedgerEntry, Redeemed, Ruled
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.state_dir import locked
from tests.harness.membership import DAY, SWARM, invite_of

A, B, C = (Identity.generate().peer_id for _ in range(3))
COMMANDS = [["invite"], ["members"], ["revoke", "0" * 16], ["kick", A], ["ban", A], ["unban", A], ["rotate"]]


class Folder:
    """The state folder of a coordinator that has served, and runs no more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = Identity.load_or_create(path / "key")
        self.served = invite_of(self.owner)
        (path / "invite").write_text(self.served.encode() + "\n")
        self.invited(self.served.token.id, uses=9, name="printed by serve")

    @property
    def file(self) -> LedgerFile:
        """The ledger, as it is on the disk now."""
        return LedgerFile(self.path)

    @property
    def entries(self) -> list[LedgerEntry]:
        """The entries of the ledger."""
        return ledger_entries(self.path).take_up()

    def invited(self, token: str, *, uses: int = 1, name: str = "") -> None:
        self.file.append(Invited(token=token, uses=uses, expires=time.time() + DAY, name=name))

    def entered(self, peer: str, token: str | None = None) -> None:
        self.file.append(Redeemed(token=token or self.served.token.id, peer=peer, at=time.time()))

    def shows(self, *members: tuple[str, str, str]) -> None:
        """Have the coordinator said last what members are called, and what they do."""
        shown = {peer: {"name": name, "role": role} for peer, name, role in members}
        (self.path / "status.json").write_text(json.dumps({"overview": {"members": shown}}))

    def says(self, *command: str) -> str:
        result = CliRunner().invoke(app, [*command, "--state-dir", str(self.path)])
        assert result.exit_code == 0, (result.output, result.exception)
        return str(result.stdout)

    def refuses(self, *command: str) -> str:
        before = (self.path / "membership.jsonl").read_bytes()
        result = CliRunner().invoke(app, [*command, "--state-dir", str(self.path)])
        assert result.exit_code == 2
        assert (self.path / "membership.jsonl").read_bytes() == before
        assert result.stderr.count("\n") == 1
        return str(result.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_an_invite_is_the_served_one_with_a_token_of_its_own_which_the_ledger_knows(folder: Folder) -> None:
    made = Invite.decode(folder.says("invite", "--uses", "3", "--for", "2", "--name", "Ada"))
    assert made.model_copy(update={"token": folder.served.token}) == folder.served
    assert (made.token.uses, made.token.by) == (3, folder.owner.peer_id)
    assert made.token.expires == pytest.approx(time.time() + 2 * DAY, abs=60)
    known = folder.file.ledger.invited[made.token.id]
    assert (known.uses, known.expires, known.name) == (3, made.token.expires, "Ada")
    assert known.at == pytest.approx(time.time(), abs=60)


def test_an_invite_is_for_one_node_and_a_week_where_nothing_else_is_said(folder: Folder) -> None:
    token = Invite.decode(folder.says("invite")).token
    assert token.uses == 1
    assert token.expires == pytest.approx(time.time() + 7 * DAY, abs=60)


def test_members_lists_invites_and_who_has_entered_with_them(folder: Folder) -> None:
    assert "nobody has entered yet" in folder.says("members")
    folder.entered(A)
    folder.entered(B)
    said = folder.says("members")
    assert re.search(rf"invite {folder.served.token.id}  2 of 9 used, until \d{{4}}-\d\d-\d\d  printed by serve", said)
    for peer in (A, B):
        assert re.search(rf"member {peer}  credential of .*  invite {folder.served.token.id}", said)
    assert "nobody" not in said
    assert folder.served.token.signature not in said, "who sees the list can enter with what it shows"


def test_members_as_json_says_the_same(folder: Folder) -> None:
    folder.entered(A)
    folder.says("revoke", folder.served.token.id)
    folder.says("ban", A, "--key-only")
    said = json.loads(folder.says("members", "--json"))
    (one,), (member,) = said["invites"], said["members"]
    assert (one["token"], one["uses"], one["used"], one["revoked"]) == (folder.served.token.id, 9, 1, True)
    assert (member["peer"], member["name"], member["banned"]) == (A, "printed by serve", True)
    assert said["bans"] == [f"peer:{A}"]


def test_members_says_what_they_are_called_and_who_is_here_while_the_coordinator_runs(folder: Folder) -> None:
    folder.entered(A)
    folder.entered(B)
    folder.shows((A, "Third\x1b[2J", "trains"), (B, "laptop", "gone"))
    said = folder.says("members")
    assert f"member {A}  Third" in said
    assert "\x1b" not in said
    assert f"member {B}  laptop  credential of" in said
    assert "the coordinator does not run: who is here is not known" in said
    assert [one["here"] for one in json.loads(folder.says("members", "--json"))["members"]] == [None, None]
    with locked(folder.path):
        said = folder.says("members")
        found = json.loads(folder.says("members", "--json"))["members"]
    assert re.search(rf"member {A}  Third.*  here, credential of", said)
    assert f"member {B}  laptop  away, credential of" in said
    assert "not known" not in said
    assert [(one["called"][:5], one["here"]) for one in found] == [("Third", True), ("lapto", False)]


def test_a_member_is_meant_by_a_name_that_no_other_has(folder: Folder) -> None:
    folder.invited("0" * 16, name="Ann")
    folder.entered(A, "0" * 16)
    folder.entered(B)
    folder.entered(C)
    assert f"{A} (Ann) is sent away" in folder.says("kick", "ann"), "by the invite, before it has said anything"
    folder.shows((A, "Ann, attic", "trains"), (B, "Third", "trains"), (C, "third", "gone"))
    for name in ("Ann", "attic", "Ann, attic"):
        assert f"{A} (Ann, attic) is sent away" in folder.says("kick", name)
    said = folder.refuses("ban", "Third")
    assert f"could be any of 2 members, give the id of one: Third ({B[-6:]}), third ({C[-6:]})" in said
    assert f"{B} (Third) is banned" in folder.says("ban", B[-6:], "--key-only")
    assert "is no member" in folder.refuses("kick", "An")


def test_nobody_is_meant_instead_of_another_by_calling_itself_by_the_others_id(folder: Folder) -> None:
    folder.entered(A)
    folder.entered(B)
    folder.shows((A, "", "trains"), (B, A, "trains"))
    assert folder.says("ban", A, "--key-only") == f"{A} is banned\n"
    folder.shows((A, "", "trains"), (B, A[-6:], "trains"))
    assert "could be any of 2 members" in folder.refuses("kick", A[-6:])


def test_an_invite_is_taken_back_by_the_name_of_whom_it_is_for(folder: Folder) -> None:
    folder.invited("1" * 16, name="Bob")
    folder.invited("2" * 16, name="Bob")
    assert f"there are 2 invites for Bob, give the token of one: {'1' * 16}, {'2' * 16}" in folder.refuses(
        "revoke", "Bob"
    )
    folder.says("revoke", "1" * 16)
    assert f"invite {'2' * 16} (Bob) is taken back" in folder.says("revoke", "bob")
    assert folder.file.ledger.revoked == {"1" * 16, "2" * 16}


def test_an_invite_that_is_taken_back_is_shown_so_and_its_members_stay(folder: Folder) -> None:
    folder.entered(A)
    assert "1 who entered with it stay" in folder.says("revoke", folder.served.token.id)
    assert folder.file.ledger.revoked == {folder.served.token.id}
    said = folder.says("members")
    assert f"invite {folder.served.token.id}  taken back" in said
    assert "banned" not in said


def test_a_kick_is_written_down_for_the_coordinator_and_bans_nobody(folder: Folder) -> None:
    folder.entered(A)
    assert f"{A} is sent away" in folder.says("kick", A[-8:])
    ledger = folder.file.ledger
    assert ledger.kicked[A] == pytest.approx(time.time(), abs=60)
    assert not ledger.bans


def test_a_ban_is_of_the_key_and_of_all_who_entered_with_its_invite(folder: Folder) -> None:
    folder.invited("0" * 16)
    folder.entered(A)
    folder.entered(B)
    folder.entered(C, "0" * 16)
    assert f"{A} is banned, and 1 others" in folder.says("ban", A[-8:])
    ledger = folder.file.ledger
    assert set(ledger.bans) == {f"peer:{A}", f"token:{folder.served.token.id}"}
    for ban in ledger.bans.values():
        ban.verify(folder.served.swarm)
    banned = {peer for peer in (A, B, C) if ledger.is_banned(peer, ledger.members[peer].token)}
    assert banned == {A, B}
    assert folder.says("members").count("banned") == 2


def test_a_ban_of_a_key_alone_leaves_the_others_of_its_invite(folder: Folder) -> None:
    folder.entered(A)
    folder.entered(B)
    assert folder.says("ban", A, "--key-only") == f"{A} is banned\n"
    assert set(folder.file.ledger.bans) == {f"peer:{A}"}


def test_a_ban_is_taken_back_by_a_ruling_that_counts_before_it_and_can_be_made_again(folder: Folder) -> None:
    token = folder.served.token.id
    for peer in (A, B, C):
        folder.entered(peer)
    folder.says("ban", A)
    folder.says("ban", C, "--key-only")
    assert folder.says("unban", A[-8:]) == (
        f"{A} is banned no more: its person can type `dtfm-node join` again; so can 1 other of the same invite\n"
    )
    assert folder.says("members").count("banned") == 1, "who was banned by itself stays so"
    assert json.loads(folder.says("members", "--json"))["bans"] == [f"peer:{C}"]
    for holds in (True, False):
        folder.says("ban" if holds else "unban", A)
        ledger = folder.file.ledger
        assert ledger.banned_members() == ({A, B, C} if holds else {C})
    for ruling in ledger.rulings.values():
        ruling.verify(folder.served.swarm)
    rulings = [entry.ruling for entry in folder.entries if isinstance(entry, Ruled)]
    times = [one.at for one in rulings if one.subject == f"token:{token}"]
    assert times == sorted(set(times)), "each is later than those before, however fast they follow each other"
    assert f"{A} is not banned" in folder.refuses("unban", A)


def test_who_was_turned_out_as_its_invite_was_used_up_needs_another_invite(folder: Folder) -> None:
    folder.entered(A)
    subject = f"entry:{folder.served.token.id}{A}"
    folder.file.append(Banned(ban=Ban.of(folder.owner, folder.served.swarm, subject)))
    assert "`dtfm-coordinator invite` makes a new one" in folder.refuses("unban", A)


@pytest.mark.parametrize("command", ["kick", "ban", "unban"])
def test_who_is_meant_must_be_plain(folder: Folder, command: str) -> None:
    folder.entered(A)
    folder.entered("another" + A[-8:])
    assert "could be any of 2 members" in folder.refuses(command, A[-8:])
    assert "is no member" in folder.refuses(command, B)
    assert "is no member" in folder.refuses(command, "")


def test_a_new_key_takes_the_place_of_the_old_one_and_invites_and_bans_are_by_it_from_then_on(folder: Folder) -> None:
    (folder.path / "swarm").write_text(SWARM + "\n")
    folder.entered(A)
    said = folder.says("rotate")
    new = Identity.load_or_create(folder.path / "key").peer_id
    assert new != folder.owner.peer_id
    assert said == f"the coordinator is {new} from now on, and its old key is deleted\n"
    made = Invite.decode(folder.says("invite"))
    assert (made.coordinator, made.token.by) == (folder.owner.peer_id, new), "it leads to the new key until `serve`"
    folder.says("ban", A, "--key-only")
    assert folder.file.ledger.bans[f"peer:{A}"].by == new


def test_with_an_external_broker_the_coordinator_must_not_run_and_the_broker_is_told_of_the_new_key(
    folder: Folder,
) -> None:
    (folder.path / "swarm").write_text(SWARM + "\n")
    served = folder.served.model_copy(update={"broker": "mqtts://broker.example"})
    (folder.path / "invite").write_text(served.encode() + "\n")
    with locked(folder.path):
        assert "stop the coordinator first" in folder.refuses("rotate")
    assert "give the broker what is in" in folder.says("rotate")
    new = Identity.load_or_create(folder.path / "key").peer_id
    access = (folder.path / "broker" / "acl").read_text()
    assert f"user {new}\n" in access
    assert folder.owner.peer_id not in access, "the old key writes nothing any more"
    assert (folder.path / "broker" / "members.crt").read_text().count("BEGIN") == 2, "whom it let in may come still"


def test_a_standby_keeps_its_key(folder: Folder) -> None:
    assert "a coordinator that stands by keeps its key" in folder.refuses("rotate")


def test_an_invite_that_nobody_made_is_not_taken_back(folder: Folder) -> None:
    assert "there is no invite" in folder.refuses("revoke", "f" * 16)


@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_a_folder_that_no_coordinator_has_served_from_is_named_and_stays_empty(
    tmp_path: Path, command: list[str]
) -> None:
    result = CliRunner().invoke(app, [*command, "--state-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path} is no coordinator's that has served" in result.stderr
    assert not list(tmp_path.iterdir())
