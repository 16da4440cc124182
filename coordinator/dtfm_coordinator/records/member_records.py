"""Records of who has done what: the shares of each plan, in `members.jsonl`, and what members have contributed.

What a step was worth stands in `metrics.jsonl`, which says under which plan it was made. So nothing is counted twice,
and steps that were lost and run again count for those who ran them last.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field, ValidationError

from dtfm_coordinator.records.growing_file import GrowingFile
from dtfm_coordinator.records.step_history import PlanWork
from dtfm_protocol.bounds import MOST_PEERS, Count, Nickname, PeerName, Time, Version
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.peer_state import LayerRange
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

NAME = "members.jsonl"
MOST_BYTES = 1 << 26
"""Bytes of the file above which plans under which no step was made are taken out."""


class MemberShare(Schema):
    """A member's share of a plan."""

    layers: LayerRange
    """Decoder layers `[first, end)`."""
    micro_batches: Count
    """Micro-batches of a step that go through it."""
    name: Nickname = Field(default="", exclude_if=lambda name: not name)
    """What its person called the machine then; "": nothing."""


class PlanShares(Schema):
    """Everybody's share of one plan: a row of the file."""

    plan: Version
    at: Time
    """Unix seconds when the plan came into force."""
    layers: Count
    """Layers of the whole model."""
    micro_batches: Count
    """Micro-batches of a whole step."""
    members: Annotated[dict[PeerName, MemberShare], Field(max_length=MOST_PEERS)]

    @classmethod
    def of(cls, plan: Plan, at: float, names: Mapping[str, str] = MappingProxyType({})) -> "PlanShares":
        """Return the shares of a plan that came into force `at` Unix seconds.

        Args:
            names: what their persons call the members' machines, by peer id.
        """
        counts = plan.shares()
        members = {
            peer: MemberShare(layers=span, micro_batches=counts[peer], name=names.get(peer, ""))
            for stage, span in enumerate(plan.stages)
            for peer in plan.replicas(stage)
        }
        return cls(plan=plan.version, at=at, layers=plan.layers, micro_batches=len(plan.routes), members=members)


class Contribution(Schema):
    """What a member has contributed to the state of the run."""

    tokens: float = 0.0
    """Tokens that went through its layers."""
    layer_tokens: float = 0.0
    """Tokens times layers: what it has computed; those of all members together are the run's tokens times the model's
    layers."""
    seconds: float = 0.0
    """Seconds of the steps in which it took part."""
    steps: int = 0
    first_step: int = 0
    """First of those steps; 0: there is none."""
    last_step: int = 0
    layers: tuple[LayerRange, ...] = ()
    """Decoder layers `[first, end)` that it has computed, ascending, with gaps between them."""

    def plus(self, share: MemberShare, whole: PlanShares, work: PlanWork) -> "Contribution":
        """Return this contribution and that of a share in the work under its plan."""
        tokens = work.tokens * share.micro_batches / max(whole.micro_batches, 1)
        first, end = share.layers
        if not work.steps:
            return self
        return Contribution(
            tokens=self.tokens + tokens,
            layer_tokens=self.layer_tokens + tokens * (end - first),
            seconds=self.seconds + work.seconds,
            steps=self.steps + work.steps,
            first_step=min(self.first_step or work.first, work.first),
            last_step=max(self.last_step, work.last),
            layers=_joined([*self.layers, share.layers]),
        )


class MemberRecords:
    """Records of a run's plans, and what members have contributed by them."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingFile(folder / NAME)
        self._shares: dict[int, PlanShares] = {}
        self.names: dict[str, str] = {}
        """What members' machines were called when they were last part of a plan, by peer id, as far as they had names;
        up to the last `take_up`."""
        self._counted: dict[int, PlanWork] = {}
        self._before: dict[str, Contribution] = {}
        """Contributions under all plans but the newest that has work."""
        self._newest = 0

    def contributions(self, work: Mapping[int, PlanWork]) -> dict[str, Contribution]:
        """Return what each member has contributed, by peer id.

        Args:
            work: the work under each plan, by its version. Of a plan that is not in the records, nobody's is known.
        """
        self.take_up()
        known = {plan: done for plan, done in work.items() if plan in self._shares}
        newest = max(known, default=0)
        older = {plan: done for plan, done in known.items() if plan != newest}
        if older != self._counted or newest != self._newest:
            self._counted, self._newest = older, newest
            self._before = self._sum({}, older)
        return self._sum(self._before, {newest: known[newest]} if known else {})

    @property
    def begun(self) -> dict[int, float]:
        """Unix seconds when each plan came into force, by its version, as `names`."""
        return {plan: shares.at for plan, shares in self._shares.items()}

    @property
    def layers(self) -> int:
        """Layers of the whole model; 0: no plan is known."""
        return next((plan.layers for plan in self._shares.values()), 0)

    def _sum(self, start: Mapping[str, Contribution], work: Mapping[int, PlanWork]) -> dict[str, Contribution]:
        found = dict(start)
        for plan, done in work.items():
            whole = self._shares[plan]
            for peer, share in whole.members.items():
                found[peer] = found.get(peer, Contribution()).plus(share, whole, done)
        return found

    def take_up(self) -> bool:
        """Read what was written since the last time, or some of it where that is much; return whether there was
        anything."""
        is_new, lines = self._file.look()
        if is_new:
            self._shares.clear()
            self.names.clear()
            self._newest = 0
        for line in lines:
            try:
                row = PlanShares.model_validate_json(line)
            except ValidationError:
                continue  # a crash has torn it
            self._shares[row.plan] = row
            for peer, share in row.members.items():
                if share.name:
                    self.names[peer] = share.name
                else:
                    self.names.pop(peer, None)
        return is_new or bool(lines)


def append_shares(
    folder: Path,
    plan: Plan,
    rows: MetricsFile,
    most_bytes: int = MOST_BYTES,
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Append a plan's shares to the records; if there is no room on the disk, the run goes on without.

    Args:
        folder: the state folder.
        plan: the plan that comes into force.
        rows: tells which plans have made steps: when the records have become long, the others are taken out.
        most_bytes: bytes above which they are long.
        names: what their persons call the members' machines, by peer id.
    """
    path = folder / NAME
    row = PlanShares.of(plan, time.time(), names).model_dump_json().encode() + b"\n"
    try:
        before = path.read_bytes() if path.exists() and path.stat().st_size > most_bytes else None
        if before is not None:
            worked = {step.plan_version for step in rows.rows()}
            write_atomically(
                path, b"".join(line + b"\n" for line in before.splitlines() if _plan(line) in worked) + row
            )
            return
        with path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                row = row if file.read(1) == b"\n" else b"\n" + row  # a crash has torn the last one
            file.write(row)
    except (OSError, UserError) as error:
        log.warning("cannot write down who does what: %s", error)


def _plan(line: bytes) -> int | None:
    """Return the plan of a row; None: it is none."""
    try:
        return PlanShares.model_validate_json(line).plan
    except ValidationError:
        return None


def _joined(ranges: Iterable[LayerRange]) -> tuple[LayerRange, ...]:
    """Return runs of layers ascending, those that touch or overlap as one."""
    found: list[LayerRange] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return tuple(found)
