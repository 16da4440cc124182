"""Proof of catalogues: which sources of a state offer what its replicas have signed, and which ones lie. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.state_slots import StateTable
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.state_vote import digest_of_state

Catalogues = Mapping[str, Mapping[str, TensorEntry]]
"""Tensors by key that each source offers, by its peer id."""


class CertifiedPart(NamedTuple):
    """A part of a state whose digest is certified, and the keys of its tensors."""

    certified: StateDigest
    keys: frozenset[str]

    def fits(self, hashes: Mapping[str, str]) -> bool:
        """Whether these are the hashes of its tensors, by key."""
        return hashes.keys() == self.keys and digest_of_state(hashes) == self.certified.digest


@dataclass
class CatalogueProof:
    """What catalogues prove."""

    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each tensor of the certified parts that are proven, by key."""
    false: dict[str, str] = field(default_factory=dict)
    """Sources that offer something else, and what in a line: nothing of theirs is to be used."""
    unproven: set[str] = field(default_factory=set)
    """Keys of certified parts of which nobody offers all that was signed."""


def prove(catalogues: Catalogues, parts: Iterable[CertifiedPart], table: StateTable) -> CatalogueProof:
    """Compare what sources offer with what is certified of a state whose slots are those of `table`.

    A digest is over all tensors of a stage. So whoever offers all of them proves each hash, and who offers some is
    compared with that; where each has only some, they prove together what all of them agree on.
    """
    proof = CatalogueProof()
    for part in parts:
        found = _proven(part, catalogues, proof)
        if found is None:
            proof.unproven |= part.keys
        else:
            proof.hashes |= found
    for peer, catalogue in catalogues.items():
        other = sorted(key for key, entry in catalogue.items() if not _agrees(key, entry, proof.hashes, table))
        if other:
            proof.false.setdefault(peer, f"{short(peer)} offers another {other[0]} than its replicas have signed")
    proof.unproven -= proof.hashes.keys()
    return proof


def _proven(part: CertifiedPart, catalogues: Catalogues, proof: CatalogueProof) -> dict[str, str] | None:
    """Return the hashes of a part's tensors; None: nobody proves them. Who offers all of it wrongly is noted."""
    found: dict[str, str] | None = None
    partly: dict[str, set[str]] = {}
    for peer, catalogue in catalogues.items():
        hashes = {key: entry.sha256 for key, entry in catalogue.items() if key in part.keys}
        if part.fits(hashes):
            found = hashes
        elif hashes.keys() == part.keys:
            low, high = part.certified.layers
            proof.false[peer] = (
                f"{short(peer)} offers layers {low} to {high} of {part.certified.mark} that are not what their "
                "replicas have signed"
            )
        else:
            for key, value in hashes.items():
                partly.setdefault(key, set()).add(value)
    if found is None:
        together = {key: next(iter(values)) for key, values in partly.items() if len(values) == 1}
        found = together if part.fits(together) else None
    return found


def _agrees(key: str, entry: TensorEntry, hashes: Mapping[str, str], table: StateTable) -> bool:
    # A tensor's hash is over its bytes alone, so its type is looked at for itself.
    return key not in hashes or (entry.sha256, entry.dtype) == (hashes[key], table.of_key(key).dtype)
