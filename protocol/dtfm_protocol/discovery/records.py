"""What peers publish of themselves over the DHT: signed, schema-checked, expiring."""

from typing import Annotated, Literal

from pydantic import Field

from dtfm_protocol.identity.keys import PeerName
from dtfm_protocol.job.job_file import Precision
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.link_matrix import LEAST, MOST
from dtfm_protocol.view.view import Amount, LayerSeconds
from dtfm_protocol.wire.stream import Way

Measured = Annotated[float, Field(ge=4 * LEAST, le=MOST)]
"""Of a link, halved or not: what a view takes."""


class Profile(Schema):
    """A peer's device, measured with the job's own layer, and where to reach it."""

    kind: Literal["profile"] = "profile"
    device: Annotated[str, Field(max_length=128)]
    """For people, e.g. "cuda:0 NVIDIA GeForce RTX 3090" or "cpu, 2 threads"."""
    flops: dict[Precision, Amount]
    """Effective FLOP/s of a large matrix product."""
    layer_seconds: LayerSeconds
    memory_bytes: Amount
    """Free for training."""
    addresses: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=16)]
    """libp2p multiaddresses."""
    version: Annotated[str, Field(max_length=32)]
    session: Annotated[str, Field(max_length=64)] = ""
    """Of the daemon's run, as in its presence: what an earlier one has published may be found for a while."""


class Link(Schema):
    """What one probe saw between its reporter and another peer."""

    round_trip_ms: Measured
    """Of the fastest of several small echoes."""
    sent_gbps: Measured
    """Reporter to the other peer."""
    received_gbps: Measured
    """The other peer to the reporter."""
    way: Way = "direct"
    """That the probe took."""
    round: int = 0
    """The round of probes in which it was measured (`ProbeRound.id`), or after which: both ends may hold one."""


class Limits(Schema):
    """What a peer can send and receive in all, where that is less than its links have together; else null."""

    up_gbps: Amount | None = None
    down_gbps: Amount | None = None


class LinkReport(Schema):
    """All links that one peer has probed."""

    kind: Literal["links"] = "links"
    links: dict[PeerName, Link]
    limits: Limits | None = None
    """None where they were not measured."""
    probed: int = 0
    """The last round of probes that is in it (`ProbeRound.id`)."""


Record = Profile | LinkReport


class Entry(Schema):
    """What is sealed and stored: one record of any kind."""

    record: Annotated[Record, Field(discriminator="kind")]
