"""Contributions for tests: statements on them, and records that coordinators have signed."""

from typing import Any

from dtfm_protocol.control.contribution_record import ContributionRecord, ContributionStatement
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import OWNER, SWARM


def statement_of(peer: str, **values: Any) -> ContributionStatement:
    """Make a statement on the contribution of `peer` to a run of `SWARM`."""
    given: dict[str, Any] = {
        "swarm": SWARM,
        "job": "tiny",
        "peer": peer,
        "name": "attic",
        "tokens": 1_250_000,
        "share": 0.25,
        "seconds": 11_000.0,
        "steps": 411,
        "first_step": 3,
        "last_step": 500,
        "layers": ((0, 2), (5, 6)),
        "of_layers": 8,
        "at": 1.7e9,
    }
    return ContributionStatement.model_validate(given | values)


def record_of(peer: str, coordinator: Identity = OWNER, **values: Any) -> ContributionRecord:
    """Make a record on the contribution of `peer`, signed by `coordinator`."""
    return ContributionRecord.signed(statement_of(peer, **values), coordinator, authority_certificate(coordinator))
