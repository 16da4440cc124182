"""Addresses at which peers say they are reached: by them a coordinator that comes back enters the network again.

All others came in by the coordinator's own door. Without this it would sit behind it, with an empty DHT, until each of
them has published its records anew.
"""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

from dtfm_coordinator.membership.reachable_addresses import still_reachable
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule
from dtfm_protocol.transport.multiaddress import CIRCUIT, binary

MOST_PEERS = 64
"""Number of peers whose addresses are kept, at most. One that answers is enough; but many are behind routers, or have
gone."""


class KnownPeers:
    """Addresses of peers, kept in a state dir (`peers.json`)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "peers.json"
        self._kept = self._read()

    def remember(self, addresses: Mapping[str, tuple[str, ...]]) -> None:
        """Keep the addresses of the peers that are here, by peer id, and of as many former peers as have room."""
        usable = {peer: [at for at in ats if _is_usable(peer, at)] for peer, ats in addresses.items()}
        here = {peer: ats for peer, ats in sorted(usable.items()) if ats}
        before = {peer: ats for peer, ats in self._kept.items() if peer not in here}
        kept = dict(itertools.islice((here | before).items(), MOST_PEERS))
        if kept != self._kept:
            self._kept = kept
            try:
                write_atomically(self._path, json.dumps(kept, indent=1))
            except UserError as error:
                log.warning("%s", error)

    async def recall(self, dials: DialRule = ANYWHERE) -> tuple[str, ...]:
        """Return the addresses that `dials` allows and at which something still answers."""
        return await still_reachable(tuple(at for ats in self._kept.values() for at in ats), dials)

    def _read(self) -> dict[str, list[str]]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            return {peer: [at for at in ats if _is_usable(peer, at)] for peer, ats in kept.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}


def _is_usable(peer: str, address: str) -> bool:
    """Whether `address` is one of that peer, and not one that only a relay gives it; peers may announce anything."""
    try:
        binary(address)
    except ValueError:
        return False
    return address.endswith(f"/p2p/{peer}") and CIRCUIT not in address
