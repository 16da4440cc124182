"""Check whether the text is an invite."""

import re

from dtfm_node.doctor.findings import Finding, bad, good
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import PROTOCOL_VERSION, Invite
from dtfm_protocol.identity.keys import short

GROUP = "invite"


def look(text: str) -> tuple[Invite | None, Finding]:
    """Return the invite that `text` is, or None, and the finding about it."""
    try:
        invite = Invite.decode(text)
    except UserError as error:
        return None, bad(GROUP, "invite", str(error), _todo(text))
    seen = (
        f"swarm {invite.swarm}; protocol version {PROTOCOL_VERSION}; coordinators: "
        f"{', '.join(map(short, invite.coordinators))}; addresses of the DHT: {len(invite.doors)}"
    )
    return invite, good(GROUP, "invite", seen)


def _todo(text: str) -> str:
    if text.startswith("@"):
        return "check the name and the contents of the file after @: one line that begins with dtfm"
    version = re.search(r"\bdtfm(\d+)\.", text)
    if version is not None and int(version[1]) != PROTOCOL_VERSION:
        return "ask the swarm's owner which version of dtfm the coordinator runs, and install that one here"
    return "ask the swarm's owner for the invite again, and copy the whole line, in single quotes"
