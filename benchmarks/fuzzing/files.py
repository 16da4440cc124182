"""Targets among states of the model and files: what peers give each other of states, and files of other people."""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tests.coordinator.peers import JOB

from benchmarks.fuzzing.messages import ROW
from benchmarks.fuzzing.swarm_sides import LAYERS, SWARM, SaidBefore, Sides, at_once, sized
from benchmarks.fuzzing.training import ENDS_EARLY, on_a_stream
from benchmarks.fuzzing.trial import Target
from dtfm_node.engine.job_survey import JobSurvey, confined_survey
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.base_transfers import WantBase, serve_base
from dtfm_protocol.checkpoint.manifest import Manifest, TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor, describe_shard, encode_shard
from dtfm_protocol.checkpoint.transfers import (
    CATALOGUE_LIMIT,
    HAND_IN_LIMIT,
    Catalogue,
    Deposit,
    HandIn,
    Parcel,
    Receipt,
    TransferReply,
    WantCatalogue,
    WantPiece,
    WantShard,
    serve_shards,
    serve_state,
)
from dtfm_protocol.data.chapters import MARKED_RECORD, RECORD, ChapterList
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.resolved_job import Chapter, Shard
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.process.trace_format import TraceHeader, TraceSpan, header_events, read_trace, span_event
from dtfm_protocol.view.view import NodeView, View
from dtfm_protocol.wire.stream import Bytes, StreamClosed

NAME = "stage-0.safetensors"
MARK = Mark(step=6, plan=2)
HASH = "0" * 64


def file_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    shard = encode_shard(
        {"weight/a": torch.arange(6.0).reshape(2, 3), "exp_avg/a": torch.zeros(2, 3), "weight/b": torch.ones(0, 3)}
    )
    piece = encode_shard(
        {"weight/a.weight": torch.ones(2, 3, dtype=torch.int8), "weight/a.weight_scale": torch.ones(2, 1)}
    )
    yield Target("safetensors file", _described, (shard,))
    yield Target("piece of weights", functools.partial(_begun_with, sides), (piece,))
    yield Target("snapshot of another peer", functools.partial(_adopted, sides), (shard,))
    yield from _chapters()
    yield from _transfers(sides, shard)
    yield from _of_people(sides)
    found = json.dumps(asdict(JobSurvey(1000, 2000))).encode()
    yield Target("answer of a confined process", _surveyed, (found, b'{"fault": "too large"}'), (UserError,))


def _described(data: bytes) -> None:
    """Do with a stage's file what the coordinator does when all is here, and what a peer does that fetches it."""
    file, entries = describe_shard(NAME, data, (0, LAYERS))
    manifest = Manifest(job="tiny", config={}, step=6, plan_version=2, files=(file,), tensors=entries)
    manifest.model_dump_json()
    Catalogue(tensors=entries).model_dump_json()
    for entry in entries.values():
        decode_tensor(entry, data[entry.offset : entry.offset + entry.bytes])


def _adopted(sides: Sides, data: bytes) -> None:
    """Keep a copy of a snapshot, as `ShadowReplication` does, from a peer that has signed whatever is in it."""
    entries: dict[str, TensorEntry] = {}
    with contextlib.suppress(Refused):
        _, entries = describe_shard(NAME, data)
    digest = digest_of_state({key: entry.sha256 for key, entry in entries.items()})
    vote = StateVote.made(Signer(sides.liar, SWARM), MARK, (0, LAYERS), digest)
    snapshots, path = Snapshots(sides.folder / "snapshots"), sides.folder / "coming"
    path.write_bytes(data)
    try:
        snapshots.add(snapshots.adopt(path, vote, hashlib.sha256(data).hexdigest()))
    finally:
        path.unlink(missing_ok=True)
        snapshots.keep_newest((0, LAYERS), 0)


def _begun_with(sides: Sides, data: bytes) -> None:
    """Read a piece of the weights that a job begins with, of a coordinator that has named whatever is in it."""
    pieces, sha256 = PieceFolder(sides.folder / "base"), hashlib.sha256(data).hexdigest()
    try:
        with pieces.receiving(sha256) as into:
            into.write(data)
            into.keep()
        for key in ("weight/a.weight", "weight/a.weight_scale"):
            pieces.tensor(sha256, key)
    finally:
        pieces.keep_only(())


class _States:
    """A state of one tensor."""

    def __init__(self, shard: bytes) -> None:
        _, self._entries = describe_shard(NAME, shard)
        self._shard = shard

    async def catalogue(self, mark: Mark) -> object:
        return self._entries if mark == MARK else {}

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        at = self._entries[key].offset + offset
        return self._shard[at : at + size]


def _chapters() -> Iterator[Target]:
    """Yield lists of shards, of a corpus with samples and of one without."""
    shards = [Shard(sha256=f"{number:064x}", tokens=number + 1) for number in range(5)]
    for marks in ([], shards):
        listed = ChapterList.of_shards(shards, marks)
        read = functools.partial(_chapter_read, has_marks=bool(marks))
        yield Target(f"list of a chapter{', with marks' if marks else ''}", read, (listed.to_bytes(),))


def _chapter_read(data: bytes, *, has_marks: bool) -> None:
    """Do with a list what a peer does, to which a job says of it what is most likely to let it through."""
    tokens = 15
    if len(data) == 5 * (MARKED_RECORD if has_marks else RECORD).itemsize:
        tokens = max(1, int(np.frombuffer(data, MARKED_RECORD if has_marks else RECORD)["tokens"].sum(dtype=np.int64)))
    chapter = Chapter(sha256=HASH, shards=5, tokens=tokens)
    found = ChapterList.read(data, chapter, has_marks=has_marks)
    for number in range(len(found)):
        found[number].model_dump_json()
        if has_marks:
            found.marks(number).model_dump_json()


def _transfers(sides: Sides, shard: bytes) -> Iterator[Target]:
    """Yield what is said around states and shards, and both services that answer."""
    _, entries = describe_shard(NAME, shard)
    for message, limit in (
        (WantShard(sha256=HASH), 1 << 20),
        (TransferReply(size=5), 1 << 20),
        (WantBase(sha256=HASH, offset=4, size=8), 1 << 20),
        (WantCatalogue(mark=MARK, ahead=("a", "b")), 1 << 20),
        (Parcel(name="a", step=6, grad_norm=1.0, size=24, left=2), 1 << 20),
        (Catalogue(tensors=entries), CATALOGUE_LIMIT),
        (WantPiece(key="weight/a", offset=4, size=8), 1 << 20),
        (Deposit(plan_version=2, mark=MARK, layers=(0, 2), size=100, sha256=HASH), 1 << 20),
        (HandIn(step=6, plan_version=2, stage=0, digest=HASH, eval_loss=2.5, size=9, sha256=HASH, rows=(ROW,)),
         HAND_IN_LIMIT),
        (Receipt(taken=True, text="kept"), 1 << 20),
    ):  # fmt: skip
        yield on_a_stream(sides, message, limit)
    states = _States(shard)
    asked = WantCatalogue(mark=MARK), WantPiece(key="weight/a", offset=4, size=8)
    said = b"".join(sized(one.model_dump_json().encode()) for one in asked)

    def state_given(data: bytes) -> None:
        with contextlib.suppress(StreamClosed):  # as it always ends
            at_once(serve_state(SaidBefore(sides.liar.peer_id, data), states))  # type: ignore[arg-type]

    def shards_given(data: bytes) -> None:
        at_once(serve_shards(SaidBefore(sides.liar.peer_id, data), lambda sha256: b"tokens"))

    def base_given(data: bytes) -> None:
        with contextlib.suppress(StreamClosed):  # as it always ends
            pieces = PieceFolder(sides.folder / "base")
            at_once(serve_base(SaidBefore(sides.liar.peer_id, data), pieces))

    yield Target("service of states", state_given, (said,))
    base_asked = sized(WantBase(sha256=HASH, offset=4, size=8).model_dump_json().encode())
    yield Target("service of pieces of weights", base_given, (base_asked,), ENDS_EARLY)
    shard_asked = sized(WantShard(sha256=HASH).model_dump_json().encode())
    yield Target("service of shards", shards_given, (shard_asked,), ENDS_EARLY)


def _of_people(sides: Sides) -> Iterator[Target]:
    """Yield files that people hand each other: manifests, plans, traces, views."""
    entry = {"file": NAME, "sha256": HASH, "dtype": "F32", "shape": [2, 3], "offset": 80, "bytes": 24}
    manifest = Manifest.model_validate(
        {
            "job": "tiny", "config": {"hidden_size": 8}, "step": 6, "plan_version": 2, "tensors": {"weight/a": entry},
            "files": [{"name": NAME, "sha256": HASH, "bytes": 200, "layers": [0, 4]}],
            "replicas": [{sides.liar.peer_id: HASH}], "eval_loss": 2.5,
        }
    )  # fmt: skip
    read = functools.partial(_from_text, Manifest)
    yield Target("manifest", read, (manifest.model_dump_json().encode(),), (UserError,))
    plan = Plan(stages=((0, 4),), routes=(("a",), ("b",)), reason="why not").signed(sides.owner, SWARM)
    path = sides.folder / "plan.json"
    yield Target(
        "plan in a file", functools.partial(_loaded, Plan.load, path), (plan.model_dump_json().encode(),), (UserError,)
    )
    header = TraceHeader(peer=sides.liar.peer_id, label="n1", wall=1.7e9, pid=5)
    spans = (TraceSpan("compute", "forward 1", 10_000, 20_000, {"step": 1, "peer": "a"}),)
    lines = [*header_events(header), *(span_event(span, 5, 1) for span in spans)]
    trace = ("[\n" + ",\n".join(lines) + "\n]\n").encode()
    path = sides.folder / "trace.json"
    yield Target("trace", functools.partial(_loaded, read_trace, path), (trace,), (UserError,))
    view = View(
        nodes=tuple(NodeView(id=name, region="here", flops=1e12, memory_bytes=1e9) for name in "abc"),
        latency_ms=np.full((3, 3), 5.0), bandwidth_gbps=np.full((3, 3), 1.0),
    )  # fmt: skip
    for ending in ("json", "npz"):
        path = sides.folder / f"view.{ending}"
        view.save(path)
        load = functools.partial(_loaded, View.load, path)
        yield Target(f"view as .{ending}", load, (path.read_bytes(),), (UserError,))


def _from_text(schema: type[Manifest], data: bytes) -> Manifest:
    """Read a manifest as the store does, but for its seal."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise UserError("not JSON") from None
    return schema.read(values, "manifest.json")


def _loaded(load: object, path: Path, data: bytes) -> object:
    path.write_bytes(data)
    return load(path)  # type: ignore[operator]


class _Confined:
    """A confined process that answers anything."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def run(self, data: bytes, *, memory: int, seconds: float) -> bytes:
        return self._answer


def _surveyed(data: bytes) -> None:
    try:
        at_once(confined_survey(_Confined(data), JOB))  # type: ignore[arg-type]
    except UserError as error:
        if "too large" not in str(error):
            raise
