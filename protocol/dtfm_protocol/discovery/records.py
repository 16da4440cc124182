"""The records that peers publish of themselves over the DHT: signed, schema-checked, expiring."""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from dtfm_protocol.bounds import Addresses, Count, Label, PeerName, Port, ProductVersion, Session
from dtfm_protocol.job.job_file import Precision
from dtfm_protocol.schema import Fallback, Message
from dtfm_protocol.view.link_matrix import LEAST, MOST
from dtfm_protocol.view.view import Amount, LayerSeconds
from dtfm_protocol.wire.stream import Way

Measured = Annotated[float, Field(ge=4 * LEAST, le=MOST)]
"""A measured figure of a link, in milliseconds or Gbit/s, that a view takes even when it is halved."""

MOST_NEIGHBOURS = 512
"""Neighbours of which one report or record may tell."""
RECORD_LIMIT = 1 << 18
"""Bytes of the largest record in its envelope."""
PROFILE_LIMIT = 1 << 13
"""Bytes of the largest profile in its envelope."""


def _known_precisions(flops: object) -> object:
    """Return speeds by precision without those that this version does not know."""
    known = get_args(Precision)
    return {name: speed for name, speed in flops.items() if name in known} if isinstance(flops, dict) else flops


class Profile(Message):
    """A peer's device, measured with the job's own layer, and where to reach the peer."""

    kind: Literal["profile"] = "profile"
    device: Label
    """Name of the device for people, e.g. "cuda:0 NVIDIA GeForce RTX 3090" or "cpu, 2 threads"."""
    flops: Annotated[dict[Precision, Amount], BeforeValidator(_known_precisions)]
    """Effective FLOP/s of a large matrix product, by precision."""
    layer_seconds: LayerSeconds
    memory_bytes: Amount
    """Bytes of memory that are free for training."""
    host_bytes: Amount | None = None
    """Bytes that are free for training in the machine's memory, where those are a GPU's own; null: they are one."""
    addresses: Addresses
    """libp2p multiaddresses at which the peer is reached."""
    port: Port | None = None
    """Port at which it takes direct connections, at the hosts of these addresses; null: it does not say."""
    up_gbps: Amount | None = None
    """Gbit/s that the peer's person lets it send in all; null: as fast as its line is."""
    down_gbps: Amount | None = None
    """Gbit/s that the peer's person lets it receive in all; null: as fast as its line is."""
    version: ProductVersion
    """Version of the program that the peer runs."""
    session: Session = ""
    """The daemon's run, as in its `Presence`: what an earlier one has published may be found for a while."""


class Link(Message):
    """A probe's findings on the link between its reporter and another peer."""

    round_trip_ms: Measured
    """Milliseconds there and back of the fastest of several small echoes."""
    sent_gbps: Measured
    """Gbit/s from the reporter to the other peer."""
    received_gbps: Measured
    """Gbit/s from the other peer to the reporter."""
    way: Annotated[Way, Fallback("direct")] = "direct"
    """The way that the probe's stream took."""
    is_least: bool = False
    """Whether an end's line was shared with other traffic while rates were measured: the link may carry more."""
    round: Count = 0
    """The round of probes in which it was measured (`ProbeRound.id`), or after which: both ends may hold one."""


class Limits(Message):
    """The Gbit/s that a peer can send and receive in all; null where its links together have no more."""

    up_gbps: Amount | None = None
    down_gbps: Amount | None = None


class LinkReport(Message):
    """The links that one peer has probed, by the other peer."""

    kind: Literal["links"] = "links"
    links: Annotated[dict[PeerName, Link], Field(max_length=MOST_NEIGHBOURS)]
    limits: Limits | None = None
    """Gbit/s that the peer can send and receive in all; None where that was not measured."""
    probed: Count = 0
    """The last round of probes of which the report tells (`ProbeRound.id`)."""


Record = Profile | LinkReport
"""A record that a peer publishes of itself."""


class Entry(Message):
    """The body of a sealed envelope on the DHT: one record of any kind."""

    record: Annotated[Record, Field(discriminator="kind")]
    until: Annotated[float, Field(ge=0, le=1e12)]
    """Unix seconds, on the clock of the DHT, up to which the record counts: whoever stores it anew can add nothing."""
