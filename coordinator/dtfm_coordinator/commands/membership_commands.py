"""Commands of the owner on who is a member: invites, the list of members, how to be rid of one, and a new key.

They write to the ledger in the coordinator's state folder; a coordinator that runs takes it up at once.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtfm_coordinator.commands.option_types import StateDir
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line

if TYPE_CHECKING:
    from dtfm_coordinator.membership.membership_ledger import MembershipLedger
    from dtfm_coordinator.membership.roster import Roster
    from dtfm_protocol.identity.invite import Invite
    from dtfm_protocol.identity.keys import Identity

TAKEN_UP_SECONDS = 60.0
Peer = Annotated[str, typer.Argument(help="The member's name, peer id, or the end of it, as `members` shows them.")]


def invite(
    state_dir: StateDir,
    uses: Annotated[int, typer.Option(min=1, max=10_000, help="For how many nodes.")] = 1,
    days: Annotated[float, typer.Option("--for", min=0.01, help="Days within which they may enter.")] = 7.0,
    name: Annotated[str, typer.Option(help="Whom it is for; `members` shows it.")] = "",
) -> None:
    """Make an invite; whoever has its text can enter with it."""
    from dtfm_coordinator.membership.ledger_acts import make_invite

    with command_line.guarded():
        typer.echo(make_invite(state_dir, uses, days, name))


def members(
    state_dir: StateDir, as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False
) -> None:
    """List invites, members, what they are called, who of them is here, and bans."""
    from dtfm_coordinator.membership.ledger_file import LedgerFile
    from dtfm_coordinator.membership.roster import Roster
    from dtfm_protocol.process.state_dir import is_live

    with command_line.guarded():
        _served(state_dir)
        ledger, is_served = LedgerFile(state_dir).ledger, is_live(state_dir)
        roster = Roster.of(state_dir, ledger)
        if as_json:
            typer.echo(json.dumps(_as_dictionary(ledger, roster, is_served=is_served)))
            return
        for invited in ledger.invited.values():
            used = f"{len(ledger.users(invited.token))} of {invited.uses} used, until {_day(invited.expires)}"
            state = "taken back" if invited.token in ledger.revoked else used
            typer.echo(f"invite {invited.token}  {state}  {invited.name}".rstrip())
        for one in ledger.members.values():
            state = "banned" if ledger.is_banned(one.peer, one.token) else f"credential of {_day(one.at)}"
            if is_served:
                state = f"{'here' if one.peer in roster.here else 'away'}, {state}"
            name = f"  {roster.names[one.peer]}" if one.peer in roster.names else ""
            typer.echo(f"member {one.peer}{name}  {state}  invite {one.token}  {_name(ledger, one.token)}".rstrip())
        if not ledger.members:
            typer.echo("nobody has entered yet")
        elif not is_served:
            typer.echo("the coordinator does not run: who is here is not known")


def _as_dictionary(ledger: "MembershipLedger", roster: "Roster", *, is_served: bool) -> dict[str, object]:
    invites = [
        one.model_dump(exclude={"kind"})
        | {"used": len(ledger.users(one.token)), "revoked": one.token in ledger.revoked}
        for one in ledger.invited.values()
    ]
    members = [
        one.model_dump(exclude={"kind"})
        | {
            "name": _name(ledger, one.token),
            "called": roster.names.get(one.peer, ""),
            "here": one.peer in roster.here if is_served else None,
            "banned": ledger.is_banned(one.peer, one.token),
        }
        for one in ledger.members.values()
    ]
    return {
        "invites": invites,
        "members": members,
        "bans": sorted(filter(ledger.is_ban, {*ledger.bans, *ledger.rulings})),
    }


def _name(ledger: "MembershipLedger", token: str) -> str:
    return ledger.invited[token].name if token in ledger.invited else ""


def revoke(
    token: Annotated[str, typer.Argument(help="The invite's token, or whom it is for, as `members` shows it.")],
    state_dir: StateDir,
) -> None:
    """Take an invite back. Nobody else enters with it; those who have stay."""
    from dtfm_coordinator.membership.ledger_acts import revoke_invite

    with command_line.guarded():
        typer.echo(revoke_invite(state_dir, token))


def kick(peer: Peer, state_dir: StateDir) -> None:
    """Send a member away. It stays away until its person joins again; a changed program may not: `ban` keeps it out."""
    from dtfm_coordinator.membership.ledger_acts import kick_member

    with command_line.guarded():
        typer.echo(kick_member(state_dir, peer))


def ban(
    peer: Peer,
    state_dir: StateDir,
    key_only: Annotated[
        bool, typer.Option("--key-only", help="Ban this key alone, not all who entered with the same invite.")
    ] = False,
) -> None:
    """Ban a member until `unban`. All others who entered with its invite are banned, too."""
    from dtfm_coordinator.membership.ledger_acts import ban_member

    with command_line.guarded():
        typer.echo(ban_member(state_dir, peer, key_only=key_only))


def unban(peer: Peer, state_dir: StateDir) -> None:
    """Take a ban back. The member's person can join again, with the invite of before."""
    from dtfm_coordinator.membership.ledger_acts import unban_member

    with command_line.guarded():
        typer.echo(unban_member(state_dir, peer))


def rotate(state_dir: StateDir) -> None:
    """Replace the coordinator's own key by a new one. Whether it runs or not; the old one is deleted."""
    from dtfm_coordinator.serve import key_replacement
    from dtfm_protocol.identity.invite import Invite
    from dtfm_protocol.process.state_dir import is_live, locked

    with command_line.guarded():
        served = Invite.decode(f"@{_served(state_dir)}")
        if not (state_dir / "swarm").exists():
            raise UserError(
                "a coordinator that stands by keeps its key: start another in a new --state-dir, and give its card to "
                "`serve --card` in this one's place"
            )
        if is_live(state_dir):
            if served.broker is not None:
                raise UserError("stop the coordinator first: the broker has to be told of the new key before it comes")
            key_replacement.ask(state_dir)
            _wait_for_key(state_dir)
        else:
            with locked(state_dir):
                key_replacement.ask(state_dir)
                key_replacement.replace_key(state_dir, served.swarm)
            if served.broker is not None:
                _tell_broker(state_dir, served)
        typer.echo(f"the coordinator is {_identity(state_dir).peer_id} from now on, and its old key is deleted")


def _wait_for_key(folder: Path) -> None:
    """Wait until the coordinator that runs has taken up its new key."""
    from dtfm_coordinator.serve import key_replacement

    end = time.monotonic() + TAKEN_UP_SECONDS
    while key_replacement.is_due(folder):
        if time.monotonic() > end:
            raise UserError(
                f"the coordinator that runs has not taken up the new key for {TAKEN_UP_SECONDS:.0f} s: it does when it "
                "leads, or when it is started again"
            )
        time.sleep(0.1)


def _tell_broker(folder: Path, served: "Invite") -> None:
    """Write anew what an external broker knows of the coordinators."""
    from dtfm_coordinator.membership.ledger_file import LedgerFile
    from dtfm_coordinator.serve import key_replacement, mosquitto_files
    from dtfm_coordinator.serve.topic_rules import TopicRules
    from dtfm_protocol.identity.admission import Admission

    own = key_replacement.own_certificate(folder, _identity(folder))
    known = [*LedgerFile(folder).ledger.trusted, *(standby.card.certificate for standby in served.standbys)]
    admission = Admission(served.swarm, served.coordinators, own, (own, *map(bytes.fromhex, known)))
    rules = TopicRules(served.swarm, admission.coordinators)
    mosquitto_files.write_mosquitto_files(folder / mosquitto_files.FOLDER, rules, admission.authorities)
    typer.echo(f"give the broker what is in {folder / mosquitto_files.FOLDER} now, and start it again; then serve")


def _served(folder: Path) -> Path:
    from dtfm_coordinator.membership.ledger_acts import served_invite

    return served_invite(folder)


def _identity(folder: Path) -> "Identity":
    from dtfm_coordinator.membership.ledger_acts import own_identity

    return own_identity(folder)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
