"""Actions that the owner's page offers to who holds the owner's link, with answers in plain words."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dtfm_coordinator.membership import ledger_acts
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.owner.amending import steep_rise
from dtfm_coordinator.owner.job_on_disk import JobOnDisk
from dtfm_coordinator.owner.owner_wishes import (
    Amended,
    CheckpointWanted,
    FinishWanted,
    Paused,
    PlanWanted,
    Resumed,
    Wish,
)
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_protocol.bounds import MOST_UINT32, Label, PeerName
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.entry_token import MOST_USES, TokenId
from dtfm_protocol.job.amendment import KEYS, MOST_VALUES, Values
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
    """Action: ban a member."""

    action: Literal["ban"]
    peer: PeerName
    key_only: bool = False
    """Whether the others who entered with the same invite stay."""


class LetBackIn(Schema):
    """Action: take a ban back."""

    action: Literal["unban"]
    peer: PeerName


class Steer(Schema):
    """Action: a wish about the course of the run, which its coordinator carries out and answers."""

    action: Literal["pause", "resume", "checkpoint", "plan", "finish"]


class ChangeSettings(Schema):
    """Action: change the job while it trains."""

    action: Literal["set"]
    values: Annotated[Values, Field(min_length=1, max_length=MOST_VALUES)]
    """New values by the job file's keys."""
    from_step: Annotated[int, Field(ge=1, le=MOST_UINT32)] | None = None
    """The first step for which they are to hold; None: as soon as can be."""
    sure: bool = False
    """Whether the owner has agreed to a learning rate that jumps far up."""


OwnerAction = Annotated[
    MakeInvite | TakeBack | SendAway | ShutOut | LetBackIn | Steer | ChangeSettings, Field(discriminator="action")
]
WISHES: dict[str, type[Paused | Resumed | CheckpointWanted | PlanWanted | FinishWanted]] = {
    "pause": Paused,
    "resume": Resumed,
    "checkpoint": CheckpointWanted,
    "plan": PlanWanted,
    "finish": FinishWanted,
}
"""Wishes by the word that asks for them."""
ANSWER_SECONDS = 60.0
"""Limit of the coordinator's answer to a wish, as long as somebody waits for it: steps may take longer."""
LOOK_SECONDS = 0.2
_ACTION: TypeAdapter[OwnerAction] = TypeAdapter(OwnerAction)


async def act(folder: Path, values: Any, answer_seconds: float = ANSWER_SECONDS) -> dict[str, str]:
    """Do what a request asks for; return what to say, and the text of an invite where one was made; or, as `question`,
    what the owner has to agree to before it is done.

    Args:
        folder: the state folder.
        values: the request's JSON.
        answer_seconds: seconds to wait for the coordinator's answer to a wish.

    Raises:
        UserError: it asks for nothing that there is, or it cannot be done.
    """
    try:
        action = _ACTION.validate_python(values)
    except ValidationError as error:
        raise UserError(f"this is nothing that can be done: {first_fault(error)}") from None
    if isinstance(action, Steer):
        return await _wish(folder, WISHES[action.action](at=time.time()), answer_seconds)
    if isinstance(action, ChangeSettings):
        wish = Amended(at=time.time(), values=action.values, from_step=action.from_step)
        rise = await asyncio.to_thread(_checked, folder, wish)
        if rise and not action.sure:
            return {"question": f"{rise} Change it all the same?"}
        return await _wish(folder, wish, answer_seconds)
    return await asyncio.to_thread(_done, folder, action)


def _checked(folder: Path, wish: Amended) -> str:
    """Return what an owner has to agree to before the job is changed so; "": nothing.

    Raises:
        UserError: it cannot be changed so.
    """
    found = JobOnDisk.of(folder)
    return steep_rise(found.timeline, found.changed(wish))


async def _wish(folder: Path, wish: Wish, seconds: float) -> dict[str, str]:
    """Write a wish down, and return the coordinator's answer if it comes in so many seconds."""
    file = WishFile(folder)
    number = (await asyncio.to_thread(file.add, wish)).number
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while number not in file.wishes.answers:
                await asyncio.sleep(LOOK_SECONDS)
                file.take_up()
    answer = file.wishes.answers.get(number)
    if answer is None:
        return {"said": "The coordinator knows, and has not done it yet: what it does stands at the top of the page."}
    if not answer.done:
        raise UserError(answer.text)
    return {"said": _sentence(answer.text)}


def _done(folder: Path, action: MakeInvite | TakeBack | SendAway | ShutOut | LetBackIn) -> dict[str, str]:
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
        case LetBackIn():
            return {"said": _sentence(ledger_acts.unban_member(folder, action.peer))}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def settings(folder: Path) -> dict[str, Any]:
    """Return the values of the job that may change, by the job file's keys, as they are for the next step.

    Raises:
        UserError: no job was served there.
    """
    found = JobOnDisk.of(folder)
    now = found.timeline.settings_at(found.recorded + 1)
    return {key: now.get(key) for key in KEYS}


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
