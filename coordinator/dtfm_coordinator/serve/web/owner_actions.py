"""Actions that the owner's page offers to who holds the owner's link, with answers in plain words."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dtfm_coordinator.membership import ledger_acts
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_protocol.bounds import Label, PeerName
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.entry_token import MOST_USES, TokenId
from dtfm_protocol.schema import Schema, first_fault


class MakeInvite(Schema):
    """Action: make an invite."""

    action: Literal["invite"]
    uses: Annotated[int, Field(ge=1, le=MOST_USES)] = 1
    days: Annotated[float, Field(ge=0.01, le=3650)] = 7.0
    name: Annotated[Label, Field(max_length=80)] = ""


class TakeBack(Schema):
    """Action: take an invite back."""

    action: Literal["revoke"]
    token: TokenId


class SendAway(Schema):
    """Action: have the swarm go on without a member until it comes back."""

    action: Literal["kick"]
    peer: PeerName


class ShutOut(Schema):
    """Action: ban a member for good."""

    action: Literal["ban"]
    peer: PeerName
    key_only: bool = False
    """Whether the others who entered with the same invite stay."""


OwnerAction = Annotated[MakeInvite | TakeBack | SendAway | ShutOut, Field(discriminator="action")]
_ACTION: TypeAdapter[OwnerAction] = TypeAdapter(OwnerAction)


async def act(folder: Path, values: Any) -> dict[str, str]:
    """Do what a request asks for; return what to say, and the text of an invite where one was made.

    Args:
        folder: the state folder.
        values: the request's JSON.

    Raises:
        UserError: it asks for nothing that there is, or it cannot be done.
    """
    try:
        action = _ACTION.validate_python(values)
    except ValidationError as error:
        raise UserError(f"this is nothing that can be done: {first_fault(error)}") from None
    return await asyncio.to_thread(_done, folder, action)


def _done(folder: Path, action: OwnerAction) -> dict[str, str]:
    match action:
        case MakeInvite():
            text = ledger_acts.make_invite(folder, action.uses, action.days, action.name)
            return {"said": "The invite is made. Send it to whom it is for, and to nobody else.", "invite": text}
        case TakeBack():
            return {"said": _sentence(ledger_acts.revoke_invite(folder, action.token))}
        case SendAway():
            return {"said": _sentence(ledger_acts.kick_member(folder, action.peer))}
        case ShutOut():
            return {"said": _sentence(ledger_acts.ban_member(folder, action.peer, key_only=action.key_only))}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def invites(folder: Path) -> list[dict[str, Any]]:
    """Return the invites that were made, newest first, without what lets anybody in.

    Raises:
        UserError: the ledger cannot be read.
    """
    ledger = LedgerFile(folder).ledger
    found = [
        {
            "token": one.token,
            "name": one.name,
            "uses": one.uses,
            "used": len(ledger.users(one.token)),
            "expires": one.expires,
            "revoked": one.token in ledger.revoked,
        }
        for one in ledger.invited.values()
    ]
    return found[::-1]
