"""Where peers were reached last: by them a coordinator that comes back enters the network that it has left.

All others came in by the coordinator's own door. Without this it would sit behind it, with an empty DHT, until each of
them has published its records anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from dtfm_coordinator.doors import open_doors
from dtfm_protocol.errors import UserError
from dtfm_protocol.logs import log
from dtfm_protocol.statedir import write_atomically

MOST_PEERS = 16
"""More are of no use: one that answers is enough."""


class Acquaintances:
    """Addresses of peers, kept in a state dir."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "peers.json"
        self._kept: dict[str, list[str]] = {}

    def remember(self, addresses: Mapping[str, tuple[str, ...]]) -> None:
        """Keep where some of those who are here are reached; whom only a relay reaches is of no use."""
        plain = {peer: [at for at in ats if "/p2p-circuit" not in at] for peer, ats in addresses.items()}
        kept = dict(sorted((peer, ats) for peer, ats in plain.items() if ats)[:MOST_PEERS])
        if kept and kept != self._kept:
            self._kept = kept
            try:
                write_atomically(self._path, json.dumps(kept, indent=1))
            except UserError as error:
                log.warning("%s", error)

    async def recall(self) -> tuple[str, ...]:
        """The addresses at which something still answers."""
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            addresses = tuple(str(at) for ats in kept.values() for at in ats)
        except (OSError, ValueError, AttributeError, TypeError):
            return ()
        return await open_doors(addresses)
