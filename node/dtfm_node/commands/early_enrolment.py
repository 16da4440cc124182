"""Enrolment of a newcomer before the seconds of importing that training needs: who is not let in hears it at once."""

import asyncio
import contextlib
from pathlib import Path

from dtfm_node.control.enrolment_client import EnrolmentClient, NotLetIn
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity

PATIENCE_SECONDS = 30.0
"""Seconds to wait for a coordinator that may be starting."""


def enrol(invite: Invite, folder: Path, *, is_new: bool) -> None:
    """Have a coordinator make the credential of the node of a state folder, which is locked.

    Args:
        invite: names the swarm, its coordinators and the token.
        folder: the state folder.
        is_new: whether all that lies there was made just now: then nothing of it is left behind where the node is not
            let in.

    Raises:
        NotLetIn: a coordinator does not let this node in.
        UserError: no coordinator answers.
    """
    client = EnrolmentClient(invite, Identity.load_or_create(folder / "key"), folder)
    try:
        asyncio.run(_obtain(client))
    except NotLetIn:
        if is_new:
            _forget(folder)
        raise


async def _obtain(client: EnrolmentClient) -> None:
    await client.obtain(PATIENCE_SECONDS)


def _forget(folder: Path) -> None:
    """Delete what a node has made that never was a member: files of its own, and nothing in folders."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
