"""The plan: which peer serves which stage of which micro-batch. One schema in every file, message and program."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, computed_field, field_validator, model_validator

from dtfm_protocol.envelope import signable
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity import Identity, verify
from dtfm_protocol.job import ScheduleName, Wire
from dtfm_protocol.schema import Schema

LayerRange = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]]
Route = tuple[str, ...]


class Cost(Schema):
    """What a plan is predicted to cost, in seconds, and by which cost model."""

    kind: str
    """"paper": communication only, arXiv 2206.01288 section 3; "makespan": a simulated training step."""
    total: float
    data_parallel: float
    pipeline: float
    compute: float | None = None
    optimizer: float | None = None


class Plan(Schema):
    """A layout of the training step over peers.

    `routes[micro_batch][stage]` is the peer that serves that stage of that micro-batch; all else follows from it.
    A peer serves one stage.
    """

    version: Annotated[int, Field(ge=0)] = 0
    """Grows by one with every plan that is published; 0 for a plan that never was."""
    stages: tuple[LayerRange, ...] = Field(min_length=1)
    """Decoder layers `[first, end)` of each stage, in order, without gaps."""
    routes: tuple[Route, ...] = Field(min_length=1)
    idle: tuple[str, ...] = ()
    """Peers of the view that the plan leaves out."""
    schedule: ScheduleName = "1f1b"
    wire: Wire = Wire()
    recompute: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Stages that keep their layers' inputs alone between forward and backward, and compute the rest anew."""
    resume_step: Annotated[int, Field(ge=0)] = 0
    """Training goes on from the state after this step: a checkpoint's, or 0 for the initial weights."""
    cost: Cost | None = None
    seed: int | None = None
    evaluations: int | None = None
    """Placements that the search looked at."""
    seconds: float | None = None
    """How long the search took."""
    reason: str = ""
    """Why this plan, in one line."""
    history: tuple[tuple[float, float], ...] = ()
    """Best total so far over the seconds of the search."""
    signature: str | None = None

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
        layer = 0
        for first, end in self.stages:
            if first != layer or end <= first:
                raise ValueError(f"stages: layers {first} to {end} do not follow layer {layer}")
            layer = end
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pipelines(self) -> tuple[Route, ...]:
        """The distinct routes, in order of first use."""
        return tuple(dict.fromkeys(self.routes))

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, value: object) -> object:
        return {k: v for k, v in value.items() if k != "pipelines"} if isinstance(value, dict) else value

    @property
    def layers(self) -> int:
        """Decoder layers of the whole model."""
        return self.stages[-1][1]

    @property
    def peers(self) -> tuple[str, ...]:
        """Every peer that takes part, by stage and order of first use: the fixed order of every sum."""
        return tuple(peer for stage in range(len(self.stages)) for peer in self.replicas(stage))

    def replicas(self, stage: int) -> tuple[str, ...]:
        """The peers that serve `stage`, in order of first use."""
        return tuple(dict.fromkeys(route[stage] for route in self.routes))

    def stage_of(self, peer: str) -> int | None:
        """The stage that `peer` serves, or None."""
        for route in self.routes:
            if peer in route:
                return route.index(peer)
        return None

    def micro_batches(self, peer: str) -> tuple[int, ...]:
        """The micro-batches of a step whose route leads through `peer`, ascending."""
        return tuple(index for index, route in enumerate(self.routes) if peer in route)

    def shares(self) -> dict[str, int]:
        """Micro-batches a step of each peer."""
        return dict(Counter(peer for route in self.routes for peer in route))

    def renamed(self, names: dict[str, str]) -> Self:
        """The same plan with peers renamed; a name that is not in `names` stays."""
        routes = tuple(tuple(names.get(peer, peer) for peer in route) for route in self.routes)
        return self.model_copy(update={"routes": routes, "idle": tuple(names.get(peer, peer) for peer in self.idle)})

    def _signable(self, swarm: str) -> bytes:
        return signable({"swarm": swarm, "plan": self.model_dump(mode="json", exclude={"signature"})})

    def signed(self, identity: Identity, swarm: str) -> Self:
        """The same plan with the signature of the coordinator of `swarm`."""
        return self.model_copy(update={"signature": identity.sign(self._signable(swarm)).hex()})

    def verify(self, coordinator: str, swarm: str) -> None:
        """Check the signature.

        Raises:
            Refused: the plan is not signed by `coordinator` for `swarm`.
        """
        try:
            signature = bytes.fromhex(self.signature or "")
        except ValueError:
            signature = b""
        verify(coordinator, self._signable(swarm), signature)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan file.

        Raises:
            UserError: unreadable, not JSON, or not a plan.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the plan {path}: {error}") from None
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not JSON: {error}") from None
        return cls.read(values, str(path))
