"""Targets among measurements of links: requests and answers of a probe, and reports, up to the figures they lead to."""

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.fuzzing.messages import heard
from benchmarks.fuzzing.swarm_sides import SaidBefore, Sides, sized
from benchmarks.fuzzing.training import ENDS_EARLY
from benchmarks.fuzzing.trial import Target
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.membership.members import Member
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.probe import answer, probe
from dtfm_node.links.timed_transfers import ProbeRequest, Queued, Swallowed
from dtfm_node.links.witness import Witness
from dtfm_protocol.control.messages import REPORT, ProbeResult, ProbeRound, Report
from dtfm_protocol.discovery.records import Limits, Link, Profile
from dtfm_protocol.view.view import LayerSeconds
from dtfm_protocol.wire.stream import Bytes, StreamClosed

ROUND = 3
COST = 10
"""A probe makes a dozen transfers, and each of its answers is read anew."""


def figure_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    requests = (
        ProbeRequest(kind="echo", size=2),
        ProbeRequest(kind="send", size=100),
        ProbeRequest(kind="fetch", size=1 << 17, pace=1e6),
        ProbeRequest(kind="queued"),
        ProbeRequest(kind="fetch", size=1 << 14, beside=True),
        ProbeRequest(kind="found", gbps=1.0, round_trip=0.1),
    )
    said = (*(sized(one.model_dump_json().encode()) for one in requests),)
    probing = said[0] + b"dtfmecho" * 2 + said[1] + bytes(100) + b"".join(said[2:])
    yield Target("requests of a probe", functools.partial(_asked, sides), (probing,))
    answers = [
        [Swallowed(seconds=0.9, others=others).model_dump(), Queued(seconds=queued, others=others).model_dump()]
        for others in (0, 1 << 40)
        for queued in (0.2, None)
    ]
    for quick in (False, True):
        parse = functools.partial(_probed, sides, quick=quick)
        seeds = tuple(json.dumps(one).encode() for one in answers)
        yield Target(f"answers of a probe{', quick' if quick else ''}", parse, seeds, ENDS_EARLY, cost=COST)
    link = Link(round_trip_ms=20.0, sent_gbps=1.5, received_gbps=0.5, way="punched", is_least=True, round=ROUND)
    node = sides.node.peer_id
    results = (
        ProbeResult(round=ROUND, link=link, limits=Limits(up_gbps=1.0)),
        ProbeResult(round=ROUND + 1, limits=Limits(up_gbps=1.0, down_gbps=2.0), echoes={node: 20.0}),
    )
    reports = tuple(Report(session="one", state="idle", probed=one).model_dump_json().encode() for one in results)
    yield Target("links in a report", functools.partial(_reported, sides), reports)


def _asked(sides: Sides, data: bytes) -> None:
    async def answered() -> None:
        with contextlib.suppress(StreamClosed):  # as it always ends
            await answer(SaidBefore(sides.liar.peer_id, data), UplinkPacer(), Witness())

    sides.wait(answered())


class _Asked(SaidBefore):
    """A stream whose other end answers each transfer in the same words, and sends all bytes that are asked for."""

    def __init__(self, peer: str, swallowed: bytes, queued: bytes) -> None:
        super().__init__(peer, b"")
        self._swallowed, self._queued = sized(swallowed), sized(queued)

    async def write(self, *buffers: Bytes) -> None:
        """Say what answers a request; what else is written is of no interest."""
        kind = _kind_of(buffers)
        if kind in {"send", "queued"}:
            self._data, self._at = self._swallowed if kind == "send" else self._queued, 0

    async def read(self, size: int) -> Bytes:
        """Read what was said, or zeros where nothing was."""
        return await super().read(size) if self._at < len(self._data) else bytes(size)


def _kind_of(buffers: tuple[Bytes, ...]) -> str:
    """Return the kind of request that is in what was written; "" where it is none."""
    data = bytes(buffers[-1][:200])
    return str(json.loads(data[data.index(b"{") :])["kind"]) if b'"kind"' in data else ""


class _Plane:
    """A data plane with one stream."""

    def __init__(self, stream: SaidBefore) -> None:
        self._stream = stream

    def way(self, peer: str) -> str:
        return "relayed"

    async def open(self, peer: str, service: str) -> SaidBefore:
        return self._stream


def _probed(sides: Sides, data: bytes, *, quick: bool) -> object:
    """Probe the link to a peer that answers so; what is found is as good as any that is published."""
    try:
        answers: Any = json.loads(data)
    except (ValueError, RecursionError):
        answers = None
    pair = answers if isinstance(answers, list) and len(answers) == 2 else [None, None]
    stream = _Asked(sides.liar.peer_id, *(json.dumps(one).encode() for one in pair))
    uplink = UplinkPacer()
    found = sides.wait(probe(_Plane(stream), sides.liar.peer_id, uplink, quick=quick))  # type: ignore[arg-type]
    uplink.pace(sides.liar.peer_id)
    return Link.model_validate_json(found.model_dump_json())


def _reported(sides: Sides, data: bytes) -> None:
    """Have a coordinator take over what a peer says that it has measured, and judge what its links carry."""
    liar, node = sides.liar.peer_id, sides.node.peer_id
    pair, links = (liar, node), LinkTable()
    links.requests.ask(ProbeRound(id=ROUND, pairs=(pair,), addresses={}))
    links.requests.ask(ProbeRound(id=ROUND + 1, echoes={liar: (node,)}, addresses={}))
    profile = Profile(
        device="cpu", flops={"fp32": 1e11}, layer_seconds=LayerSeconds(forward=0.1, backward=0.2), memory_bytes=1e9,
        addresses=(f"/ip4/192.0.2.1/tcp/7/p2p/{node}",), version="0.1", session="one",
    )  # fmt: skip
    members = [Member(peer, order, profile=profile) for order, peer in enumerate(pair)]

    def take(sender: str, report: Report) -> None:
        if report.probed is not None:
            links.answered(sender, report.probed)
        links.carried(dict.fromkeys([pair], max(report.received_gbps.values(), default=1.0)))
        for beside in (False, True):
            if beside:
                links.beside(pair)
            links.doubtful([frozenset(pair)])
            view = links.view(members, "fp32")
            view.model_dump_json()
            if np.isinf(view.bandwidth_gbps).any() or (view.bandwidth_gbps < 0).any():
                raise AssertionError("a link carries what none does")

    heard(sides, REPORT, sides.liar, take, data)
