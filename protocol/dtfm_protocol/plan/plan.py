"""The plan: which peer serves which stage of which micro-batch. One schema in every file, message and program."""

import json
from collections import Counter
from collections.abc import Collection
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, computed_field, field_validator, model_validator

from dtfm_protocol.bounds import (
    MOST_INT64,
    MOST_MICRO_BATCHES,
    MOST_PEERS,
    MOST_STAGES,
    Count,
    Index,
    Label,
    PeerName,
    Text,
    Version,
    printable,
)
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.envelope import signable
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.amendment import MOST_AMENDMENTS, Amendment
from dtfm_protocol.job.job_file import ScheduleName, Wire
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.lineage import LINEAGE_LIMIT, Ancestor, Chain
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.played_pace import Pacing
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.summed_parts import SummedParts
from dtfm_protocol.schema import NEEDED, Needs, Schema, check_needs, needs_of, unknown_key

Route = Annotated[tuple[PeerName, ...], Field(max_length=MOST_STAGES)]
"""Peers that serve the stages of one micro-batch, in order."""
SealHash = Literal["sha256", "blake3"]
"""Name of a hash of 32 bytes."""
HISTORY_LIMIT = 1 << 16
"""Entries of a search's history."""
REASON_LIMIT = 500
"""Characters of a plan's reason."""


class Cost(Schema):
    """The predicted seconds of a training step under a plan, in all and by part."""

    kind: Label
    """Cost model: "paper", communication only, arXiv 2206.01288 section 3, or "makespan", a simulated training step."""
    total: float
    data_parallel: float
    pipeline: float
    compute: float | None = None
    optimizer: float | None = None


class Source(Schema):
    """A peer that has parts of a state, and the layers of those parts."""

    peer: PeerName
    layers: Annotated[tuple[LayerRange, ...], Field(max_length=MOST_STAGES)]


class Resume(Schema):
    """The state that a plan goes on from, and the peers that have its parts."""

    mark: Mark = Mark()
    """The name of that state; step 0 is the initial weights, which nobody has to hold."""
    commit: SignedCommit | None = None
    """The commit that made the mark's step final, where it is known: peers that hold the step's reduced gradients, but
    did not hear of it, apply them."""
    sources: Annotated[tuple[Source, ...], Field(max_length=MOST_PEERS)] = ()
    """Peers that give layers of the state to those that lack them; the coordinator, with its checkpoint, is among
    them."""
    digests: Annotated[tuple[StateDigest, ...], Field(max_length=MOST_STAGES)] = ()
    """Digests of the state's parts that are certified: all replicas of the plan that made it have signed them."""


class Plan(Schema):
    """A layout of the training step over peers.

    `routes[micro_batch][stage]` is the peer that serves that stage of that micro-batch; all else follows from it.
    A peer serves one stage. Unknown fields are kept: they are signed, too. A plan that `needs` them is refused.
    """

    model_config = ConfigDict(extra="allow")

    version: Version = 0
    """Number of the plan, which grows by one with every plan that is published; 0 for a plan that never was."""
    stages: tuple[LayerRange, ...] = Field(min_length=1, max_length=MOST_STAGES)
    """Decoder layers `[first, end)` of each stage, in order, without gaps."""
    routes: tuple[Route, ...] = Field(min_length=1, max_length=MOST_MICRO_BATCHES)
    idle: Annotated[tuple[PeerName, ...], Field(max_length=MOST_PEERS)] = ()
    """Peers of the view that the plan leaves out."""
    schedule: ScheduleName = "1f1b"
    wire: Wire = Wire()
    boundaries: Annotated[tuple[Wire, ...], Field(max_length=MOST_STAGES), NEEDED] = Field(default=(), exclude_if=not_)
    """Codecs of activations, and of the gradients that come back, over each boundary between two stages, in order;
    empty: `wire` over all. What replicas reduce is in `wire` everywhere. All peers must know it: each decodes by it."""
    recompute: Annotated[tuple[Index, ...], Field(max_length=MOST_STAGES)] = ()
    """Stages that keep their layers' inputs alone between forward and backward, and compute the rest anew."""
    pacing: Annotated[Pacing | None, NEEDED] = Field(default=None, exclude_if=not_)
    """What actions and messages take, and how many micro-batches each peer may have in flight, by which the orders of
    compute are made. Without it all stages are taken for equally fast and links for free, and no more are in flight
    than keep such stages busy. All peers must know it: orders that were made otherwise may wait for each other."""
    follows_durations: Annotated[bool, NEEDED] = Field(default=False, exclude_if=not_)
    """Whether the orders of compute follow durations that drift from those of `pacing`: votes then say what actions
    have taken, and a commit may bring new durations, of which orders are made anew from the next step on. All peers
    must know it. The plan that follows begins with a pace of its own."""
    parts: Annotated[SummedParts | None, NEEDED] = Field(default=None, exclude_if=not_)
    """How much of each bucket of gradients each replica sums. Without it all replicas of a stage sum equally much. All
    peers must know it: each awaits what the others send by it."""
    trees: Annotated[ReductionTrees | None, NEEDED] = Field(default=None, exclude_if=not_)
    """Who sends its sum of a part to whom. Without it each sends to the part's owner directly. All peers must know it:
    each awaits what the others send by it."""
    seal_hash: Annotated[SealHash, NEEDED] = Field(default="sha256", exclude_if=lambda name: name == "sha256")
    """The hash of reduced parts that their owners seal. All peers must know it: each checks what the others seal."""
    resume: Resume = Resume()
    shadows: Annotated[tuple[PeerName | None, ...], Field(max_length=MOST_STAGES)] = ()
    """The peer that keeps a copy of the snapshots of each stage, for stages that one peer alone serves, else None.
    Empty where there is no stage such as that."""
    lineage: Annotated[tuple[Ancestor, ...], Field(max_length=LINEAGE_LIMIT)] = ()
    """Plans that led to the state with which this one begins, oldest first, as far as they are remembered."""
    amendments: tuple[Amendment, ...] = Field(default=(), max_length=MOST_AMENDMENTS, exclude_if=not_)
    """Changes of the job since it began, also those that are yet to hold. A plan has all of the plan that it follows,
    as they were, and adds none to steps that may have been made without it. Where there are none it is left out, so
    that programs that do not know of them read the plan."""
    needs: Needs = Field(default=(), exclude_if=not_)
    """Fields that are set in it and that its readers must know, as `needs_of` finds them; else it is refused."""
    author: PeerName = ""
    """Peer id of the coordinator that made the plan."""
    cost: Cost | None = None
    seed: Annotated[int, Field(ge=-MOST_INT64, le=MOST_INT64)] | None = None
    """Seed of the search that found the plan."""
    evaluations: Count | None = None
    """Number of placements that the search looked at."""
    seconds: float | None = None
    """Seconds that the search took."""
    reason: Text = ""
    """The reason for this plan, in one line for people."""
    history: Annotated[tuple[tuple[float, float], ...], Field(max_length=HISTORY_LIMIT)] = ()
    """Pairs of seconds of the search and the best total cost found by then, in seconds of a step."""
    signature: Annotated[str, Field(max_length=128)] | None = None
    """The author's Ed25519 signature in hexadecimal digits; None: not signed."""

    @field_validator("routes")
    @classmethod
    def _peers_serve_one_stage(cls, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        serves: dict[str, int] = {}
        for route in routes:
            if len(route) != len(routes[0]):
                raise ValueError("every route names one peer a stage; these differ in length")
            for stage, peer in enumerate(route):
                if serves.setdefault(peer, stage) != stage:
                    raise ValueError(f"peer {peer} serves stages {serves[peer]} and {stage}; a peer serves one stage")
        return routes

    @model_validator(mode="after")
    def _stages_join_up(self) -> Self:
        if len(self.routes[0]) != len(self.stages):
            raise ValueError(f"routes: {len(self.routes[0])} peers a route for {len(self.stages)} stages")
        if any(stage >= len(self.stages) for stage in self.recompute):
            raise ValueError(f"recompute: there is no stage {max(self.recompute)} among {len(self.stages)}")
        if len(self.boundaries) not in (0, len(self.stages) - 1):
            raise ValueError(
                f"boundaries: {len(self.boundaries)} wires, where {len(self.stages)} stages need {len(self.stages) - 1}"
            )
        if len(self.shadows) not in (0, len(self.stages)):
            raise ValueError(f"shadows: {len(self.shadows)} for {len(self.stages)} stages")
        layer = 0
        for first, end in self.stages:
            if first != layer or end <= first:
                raise ValueError(f"stages: layers {first} to {end} do not follow layer {layer}")
            layer = end
        return self

    @model_validator(mode="after")
    def _pacing_is_of_these_peers(self) -> Self:
        if self.pacing is not None:
            self.pacing.check(self.schedule, len(self.peers), len(self.pairs))
        return self

    @model_validator(mode="after")
    def _reductions_are_of_these_replicas(self) -> Self:
        if self.parts is not None:
            self.parts.check([len(self.replicas(stage)) for stage in range(len(self.stages))])
        if self.trees is not None:
            self.trees.check([len(self.replicas(stage)) for stage in range(len(self.stages))])
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pipelines(self) -> tuple[Route, ...]:
        """The distinct routes, in order of first use."""
        return tuple(dict.fromkeys(self.routes))

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        check_needs(cls, value.get("needs", ()))
        return {k: v for k, v in value.items() if k != "pipelines"}

    @property
    def layers(self) -> int:
        """Number of decoder layers of the whole model."""
        return self.stages[-1][1]

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers that take part, by stage and order of first use: the fixed order of every sum."""
        return tuple(peer for stage in range(len(self.stages)) for peer in self.replicas(stage))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of peers between which micro-batches go ahead, by boundary and order of first use."""
        both = range(len(self.stages) - 1)
        return tuple(dict.fromkeys((route[stage], route[stage + 1]) for stage in both for route in self.routes))

    def boundary_wire(self, boundary: int) -> Wire:
        """Return the codecs of what crosses the boundary between stages `boundary` and `boundary + 1`: of activations
        ahead, and of their gradients back.

        Raises:
            IndexError: there is no such boundary.
        """
        if not 0 <= boundary < len(self.stages) - 1:
            raise IndexError(f"no boundary {boundary} between {len(self.stages)} stages")
        return self.boundaries[boundary] if self.boundaries else self.wire

    @property
    def wires(self) -> tuple[Wire, ...]:
        """The codecs of what crosses each boundary, in order (`boundary_wire`)."""
        return tuple(self.boundary_wire(boundary) for boundary in range(len(self.stages) - 1))

    def replicas(self, stage: int) -> tuple[str, ...]:
        """List the peers that serve `stage`, in order of first use."""
        return tuple(dict.fromkeys(route[stage] for route in self.routes))

    def stage_of(self, peer: str) -> int | None:
        """Return the stage that `peer` serves, or None."""
        for route in self.routes:
            if peer in route:
                return route.index(peer)
        return None

    def micro_batches(self, peer: str) -> tuple[int, ...]:
        """List the micro-batches of a step whose route leads through `peer`, ascending."""
        return tuple(index for index, route in enumerate(self.routes) if peer in route)

    def shares(self) -> dict[str, int]:
        """Count the micro-batches in a step of each peer."""
        return dict(Counter(peer for route in self.routes for peer in route))

    def is_placed_as(self, other: "Plan") -> bool:
        """Whether the same peers serve the same layers of the same micro-batches as in `other`, over the same wires,
        and reduce their gradients in the same way."""
        alike = ("routes", "stages", "wires", "parts", "trees")
        return all(getattr(self, name) == getattr(other, name) for name in alike)

    def is_laid_out_as(self, other: "Plan") -> bool:
        """Whether the plan is placed as `other`, and has its orders, too."""
        orders = ("schedule", "pacing", "recompute")
        return self.is_placed_as(other) and all(getattr(self, name) == getattr(other, name) for name in orders)

    def renamed(self, names: dict[str, str]) -> Self:
        """Return the same plan with peers renamed; a name that is not in `names` stays."""
        routes = tuple(tuple(names.get(peer, peer) for peer in route) for route in self.routes)
        return self.model_copy(update={"routes": routes, "idle": tuple(names.get(peer, peer) for peer in self.idle)})

    def shadow_of(self, stage: int) -> str | None:
        """Return the peer that keeps a copy of the snapshots of `stage`; None where nobody does."""
        return self.shadows[stage] if self.shadows else None

    @property
    def electors(self) -> tuple[str, ...]:
        """The peers whose promises decide on the plan after this one: its own and its author. Those it leaves idle do
        not: else spares that say nothing could hold up any plan."""
        return tuple(dict.fromkeys([*self.peers, *([self.author] if self.author else [])]))

    @property
    def chain(self) -> Chain:
        """The plan and those that it descends from."""
        replicas = tuple(self.replicas(stage) for stage in range(len(self.stages)))
        this = Ancestor(
            version=self.version, began=self.resume.mark, stages=self.stages, replicas=replicas, shadows=self.shadows
        )
        given = frozenset((source.peer, span) for source in self.resume.sources for span in source.layers)
        return Chain((*self.lineage, this), given, self.resume.commit)

    def resumed_commit(self, signer: Signer) -> Commit | None:
        """Return the commit of the state that the plan resumes from; None: the plan does not bring it along.

        Args:
            signer: checks signatures in this swarm.

        Raises:
            Refused: it is of another state, or not signed by the arbiter of the plan that made that one.
        """
        signed, mark = self.resume.commit, self.resume.mark
        if signed is None:
            return None
        maker = self.chain.maker(mark)
        if maker is None or (signed.plan, signed.step) != (mark.plan, mark.step):
            raise Refused(f"plan {self.version} resumes from {mark} with a commit of another state")
        return signed.opened(maker.arbiter, signer.swarm, signer.check)

    def _signable(self, swarm: str) -> bytes:
        return signable({"swarm": swarm, "plan": self.model_dump(mode="json", exclude={"signature"})})

    def signed(self, identity: Identity, swarm: str) -> Self:
        """Return the same plan with its author and the author's signature."""
        # The reason as others will read it, for they check the signature with what they have read.
        reason = printable(self.reason)[:REASON_LIMIT]
        mine = self.model_copy(update={"author": identity.peer_id, "reason": reason, "needs": needs_of(self)})
        return mine.model_copy(update={"signature": identity.sign(mine._signable(swarm)).hex()})

    def verify(self, coordinators: Collection[str], swarm: str) -> None:
        """Check the plan's author and signature; a plan by a key that was replaced later counts.

        Raises:
            Refused: the plan is not signed by one of `coordinators` for `swarm`.
        """
        if isinstance(coordinators, Coordinators):
            counts = coordinators.may_plan(self.author, self.version)
        else:
            counts = self.author in coordinators
        if not counts:
            raise Refused(f"a plan by {self.author[-8:] or 'nobody'}, who is no coordinator of this swarm")
        verify(self.author, self._signable(swarm), _bytes_of(self.signature or ""))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan file.

        Raises:
            UserError: unreadable, not JSON, or not a plan.
        """
        return cls.read(_json_in(path), str(path))

    @classmethod
    def read(cls, value: Any, what: str) -> Self:
        """Validate a plan as `Schema.read`; one that is not signed, so somebody has written it, has no unknown keys."""
        plan = super().read(value, what)
        if plan.model_extra and plan.signature is None:
            raise UserError(f"{what}: {unknown_key(cls, next(iter(plan.model_extra)))}")
        return plan


def _bytes_of(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return b""


def _json_in(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the plan {path}: {error}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
