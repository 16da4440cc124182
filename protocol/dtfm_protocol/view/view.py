"""The view of a swarm's devices and links, on which the allocator plans.

Two files hold one: JSON, which people can read, and `.npz` for hundreds of nodes and more. Both are `View` once read.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, get_args

import numpy as np
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, field_validator, model_validator

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Precision
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.link_matrix import MOST_NODES, Matrix, parsed, rows
from dtfm_protocol.view.missing_links import Estimated, estimated_bandwidth, estimated_latency
from dtfm_protocol.wire.stream import Way

GBIT = 1.25e8
"""Bytes a second of one Gbit/s."""
LARGEST_FILE = 2 << 30
"""Bytes of the largest view file."""
LARGEST_UNPACKED = 2 * 8 * MOST_NODES**2 + (1 << 28)
"""Bytes that the largest `.npz` unpacks to: two matrices, and the nodes."""
_QUICK = 1
"""Level of zlib's compression of `.npz`: numpy's own, 6, takes five times as long to save a third."""

Amount = Annotated[float, Field(ge=1e-12, le=1e24)]
"""A positive amount, within bounds far beyond what there is, either way, and far from where doubles end."""


def _matrix(value: Any) -> Matrix:
    """Return a matrix of links, read-only, its diagonal cleared."""
    matrix = parsed(value)
    np.fill_diagonal(matrix, 0.0)
    matrix.flags.writeable = False
    return matrix


LinkMatrix = Annotated[Matrix, PlainValidator(_matrix), PlainSerializer(rows)]
"""A matrix of links as files and messages hold it: rows of numbers and nulls."""


class LayerSeconds(Schema):
    """The measured seconds of one decoder layer of the job, trained as the job has it, on one micro-batch, in the job's
    precision."""

    forward: Amount
    """Seconds of the forward."""
    backward: Amount
    """Seconds of the whole backward: gradients of the input and of the weights."""
    weight: Annotated[float, Field(ge=0, le=1e24)] | None = None
    """Seconds of `backward` that the gradients of the weights take; null where that was not measured."""
    optimizer: Annotated[float, Field(ge=0, le=1e24)] | None = None
    """Seconds of the optimizer on what is trained of the layer, once a step; null where that was not measured."""

    def times(self, factor: float) -> Self:
        """Return the seconds of a device that is `factor` times slower."""
        return self.model_copy(update={name: value * factor for name, value in self if value is not None})

    @property
    def weight_part(self) -> float:
        """Seconds of the weights' gradients: `weight`, else half of `backward`, as both products cost the same."""
        return self.backward / 2 if self.weight is None else min(self.weight, self.backward)


class NodeView(Schema):
    """A peer as the allocator sees it."""

    id: Annotated[str, Field(min_length=1)]
    """The peer's id; in a view that was made up, any name."""
    region: str | None = None
    """Name of the place where the peer is, for people and for guesses at links that were not measured."""
    flops: Amount | dict[Precision, Amount] | None = None
    """FLOP/s that the peer attains in training (2.5e13 is 25 TFLOP/s): one figure for any precision, or one by each
    precision's name (`{"fp32": 6e12, "bf16": 2.5e13}`); of use where `layer_seconds` is not known."""
    layer_seconds: LayerSeconds | None = None
    """Measured seconds of one decoder layer of the job; they go before `flops`."""
    memory_bytes: Amount | None = None
    """Bytes of memory that are free for training; without it, as much as is asked for."""
    host_bytes: Amount | None = None
    """Bytes that are free for training in the machine's memory, where `memory_bytes` are a GPU's own; without it, the
    two are one memory."""
    up_gbps: Amount | None = None
    """Gbit/s that the peer can send in all; without it, what its links can together."""
    down_gbps: Amount | None = None
    """Gbit/s that the peer can receive in all; without it, what its links can together."""
    line_spread: Annotated[float, Field(ge=1, le=1e24)] | None = None
    """Factor by which what the peer can send and receive in all may be off in nine of ten cases, also where nothing is
    said to limit it; null: that was not estimated."""

    @field_validator("flops", mode="before")
    @classmethod
    def _names_are_precisions(cls, flops: object) -> object:
        if isinstance(flops, dict):
            known = get_args(Precision)
            for name in flops:
                if name not in known:
                    raise ValueError(
                        f"{name!r} is no precision: give figures by {' and '.join(known)}, or one for both"
                    )
        return flops

    def flops_in(self, precision: Precision) -> float | None:
        """Return the FLOP/s of a job in `precision`; None where they are not known."""
        return self.flops.get(precision) if isinstance(self.flops, dict) else self.flops


class LinkWay(Schema):
    """The way of one peer's streams to another, where that is not a direct connection; `{"from", "to", "way"}`."""

    model_config = ConfigDict(populate_by_name=True)

    sender: str = Field(validation_alias="from", serialization_alias="from")
    """Id of the node that sends."""
    receiver: str = Field(validation_alias="to", serialization_alias="to")
    """Id of the node that receives."""
    way: Literal["punched", "relayed"]
    """"punched": a hole through both routers; "relayed": over the coordinator's machine. For people: what the way
    costs is in the delay and the bandwidth of the pair."""


class View(Schema):
    """The devices of a swarm and the links between them. Row sends to column; the diagonal means nothing.

    `latency_ms` is one-way milliseconds, `bandwidth_gbps` Gbit/s, each of shape (N, N); 0 Gbit/s is a pair that cannot
    talk, and null (NaN) one that was not measured. Pairs are direct but for those in `ways`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, ignored_types=(cached_property,))

    nodes: tuple[NodeView, ...] = Field(min_length=1)
    latency_ms: LinkMatrix
    bandwidth_gbps: LinkMatrix
    ways: tuple[LinkWay, ...] = ()

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        count = len(self.nodes)
        if count > MOST_NODES:
            raise ValueError(f"nodes: {count} are more than the {MOST_NODES} that a view can hold")
        seen: set[str] = set()
        for node in self.nodes:
            if node.id in seen:
                raise ValueError(f"nodes: the id {node.id!r} occurs twice")
            seen.add(node.id)
        for name in ("latency_ms", "bandwidth_gbps"):
            given = len(getattr(self, name))
            if given != count:
                raise ValueError(f"{name}: {count} nodes need {count} rows of {count} entries, and there are {given}")
        self._check_ways(seen)
        return self

    def _check_ways(self, known: set[str]) -> None:
        for number, link in enumerate(self.ways):
            for key, peer in (("from", link.sender), ("to", link.receiver)):
                if peer not in known:
                    raise ValueError(f"ways.{number}.{key}: there is no node {peer!r}")
            if link.sender == link.receiver:
                raise ValueError(f"ways.{number}: from and to are the same")
        if len(self._ways) != len(self.ways):
            raise ValueError("ways: a pair occurs twice")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, View)
            and self.nodes == other.nodes
            and self._ways == other._ways
            and np.array_equal(self.latency_ms, other.latency_ms, equal_nan=True)
            and np.array_equal(self.bandwidth_gbps, other.bandwidth_gbps, equal_nan=True)
        )

    @property
    def ids(self) -> tuple[str, ...]:
        """The peers' ids, in the order of the matrices."""
        return tuple(node.id for node in self.nodes)

    def way(self, sender: str, receiver: str) -> Way:
        """Return the way by which the streams of one peer get to another."""
        return self._ways.get((sender, receiver), "direct")

    def alpha(self) -> Matrix:
        """Return the one-way delays in seconds, shape (N, N), zero diagonal; what was not measured is estimated."""
        delays: Matrix = self.estimated_ms.values * 1e-3
        return delays

    def beta(self) -> Matrix:
        """Return the bandwidths in bytes/s, shape (N, N), infinite diagonal; what was not measured is estimated."""
        bandwidths: Matrix = self.estimated_gbps.values * GBIT
        np.fill_diagonal(bandwidths, np.inf)
        return bandwidths

    @cached_property
    def _ways(self) -> dict[tuple[str, str], Way]:
        return {(link.sender, link.receiver): link.way for link in self.ways}

    @cached_property
    def estimated_ms(self) -> Estimated:
        """One-way delays in milliseconds, and by how much those may be off that were not measured."""
        return estimated_latency(self.latency_ms, self._regions)

    @cached_property
    def estimated_gbps(self) -> Estimated:
        """Gbit/s, and by what factor those may be off that were not measured."""
        up, down = ([getattr(node, name) for node in self.nodes] for name in ("up_gbps", "down_gbps"))
        delays = self.estimated_ms.values
        return estimated_bandwidth(self.bandwidth_gbps, self._regions, _limits(up), _limits(down), delays)

    @property
    def _regions(self) -> tuple[str | None, ...]:
        return tuple(node.region for node in self.nodes)

    def part(self, peers: Sequence[str]) -> Self:
        """Return the view of `peers` alone, in their order."""
        index = {peer: row for row, peer in enumerate(self.ids)}
        chosen, there = [index[peer] for peer in peers], set(peers)
        block = np.ix_(chosen, chosen)
        return type(self)(
            nodes=tuple(self.nodes[row] for row in chosen),
            latency_ms=self.latency_ms[block],
            bandwidth_gbps=self.bandwidth_gbps[block],
            ways=tuple(link for link in self.ways if link.sender in there and link.receiver in there),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a view file, JSON or `.npz`.

        Raises:
            UserError: unreadable, neither of the two, or not a view; the key is named.
        """
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise UserError(f"the view {path} has more than {bytes_in_words(LARGEST_FILE)}: keep it as .npz")
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read the view {path}: {error}") from None
        if path.suffix == ".npz":
            return cls.read(_from_npz(data, path), str(path))
        try:
            values = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise UserError(f"cannot read the view {path}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not JSON: {error}") from None
        return cls.read(values, str(path))

    def save(self, path: Path) -> None:
        """Write a view file: `.npz` by that suffix, else JSON.

        Raises:
            UserError: the file cannot be written.
        """
        ways = {"ways": [link.model_dump(mode="json", by_alias=True) for link in self.ways]} if self.ways else {}
        if path.suffix == ".npz":
            packed = io.BytesIO()
            nodes = json.dumps([node.model_dump(mode="json", exclude_none=True) for node in self.nodes])
            arrays: dict[str, Any] = {
                "nodes": np.array(nodes),
                "latency_ms": self.latency_ms,
                "bandwidth_gbps": self.bandwidth_gbps,
            }
            arrays |= {name: np.array(json.dumps(value)) for name, value in ways.items()}
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_QUICK) as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)  # type: ignore[no-untyped-call]
            content: str | bytes = packed.getvalue()
        else:
            values = {
                "nodes": [node.model_dump(mode="json", exclude_none=True) for node in self.nodes],
                "latency_ms": rows(self.latency_ms),
                "bandwidth_gbps": rows(self.bandwidth_gbps),
            }
            content = _as_lines(values | ways)
        write_atomically(path, content)


def _limits(values: Sequence[float | None]) -> Matrix:
    return np.array([np.inf if value is None else value for value in values])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has; write null for what is unmeasured")


def _from_npz(data: bytes, path: Path) -> dict[str, Any]:
    """Read what an `.npz` holds, without unpickling anything."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_UNPACKED:
                raise UserError(f"the view {path} unpacks to more than a view of {MOST_NODES} nodes takes")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            values: dict[str, Any] = {name: arrays[name] for name in arrays.files}
        for name in {"nodes", "ways"} & set(values):
            values[name] = json.loads(str(values[name]), parse_constant=_refuse_constant)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  # a damaged archive fails in zlib, zipfile or numpy, each in its own way
        raise UserError(f"{path} is not an .npz with nodes, latency_ms and bandwidth_gbps: {error}") from None
    return values


def _as_lines(values: dict[str, Any]) -> str:
    """Write JSON with a line for each node and each row, so that people can read it and tools can compare it."""

    def lines(value: Any) -> str:
        if isinstance(value, dict) and value and all(isinstance(part, list | dict) for part in value.values()):
            return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(part)}" for key, part in value.items()) + "\n}"
        if isinstance(value, list) and value and isinstance(value[0], list | dict):
            return "[\n " + ",\n ".join(json.dumps(part) for part in value) + "\n]"
        return json.dumps(value)

    return lines(values) + "\n"
