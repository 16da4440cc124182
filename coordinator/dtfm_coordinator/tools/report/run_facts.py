"""What a coordinator's state folder tells of its run, whether it goes on or has ended."""

import json
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import MembershipLedger
from dtfm_coordinator.owner.owner_acts import OwnerActs
from dtfm_coordinator.owner.owner_wishes import OwnerWishes
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.records import event_log
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.records.member_records import MemberRecords
from dtfm_coordinator.records.step_history import StepHistory
from dtfm_coordinator.swarm.overview.overview import NewsItem, Overview
from dtfm_coordinator.tools.checkpoint_list import ListedCheckpoint, checkpoints_of
from dtfm_coordinator.tools.export import CHECKPOINTS
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.state_dir import is_live


@dataclass(frozen=True)
class RunFacts:
    """A run as its coordinator has written it down."""

    job: ResolvedJob
    rows: tuple[StepMetrics, ...]
    events: tuple[PlanEvent, ...]
    checkpoints: tuple[ListedCheckpoint, ...]
    ledger: MembershipLedger
    wishes: OwnerWishes
    acts: tuple[NewsItem, ...]
    """What the owner has done, oldest first."""
    plan: Plan | None
    """Plan in force, or the last one; None before the first."""
    overview: Overview | None
    """Last overview of the coordinator; None: there is none, or another version has written it."""
    shares: dict[str, float]
    """Part of all that was computed which each member has contributed, from 0 to 1, by peer id, also of those who have
    left; of those who have contributed anything."""
    nicknames: dict[str, str]
    """What members' machines are called, or whom their invites were for, by peer id, as far as they have names."""
    parameters: int | None
    """Number of the model's parameters; None before the first checkpoint."""
    is_live: bool
    """Whether the coordinator runs."""

    @classmethod
    def of(cls, folder: Path) -> "RunFacts":
        """Read a state folder.

        Raises:
            UserError: no coordinator has served a job there, or a file of it cannot be read.
        """
        try:
            job = ResolvedJob.model_validate_json((folder / "job.json").read_bytes())
        except FileNotFoundError:
            raise UserError(f"{folder} holds no run: did `dtfm-coordinator serve` run with it?") from None
        except (OSError, ValidationError):
            raise UserError(f"{folder / 'job.json'} cannot be read: serve the job once more, which writes it") from None
        path, overview = folder / "plan.json", _overview(folder / "status.json")
        records = MemberRecords(folder)
        while records.take_up():
            pass
        listed = tuple(checkpoints_of(folder))
        return cls(
            job=job,
            rows=tuple(MetricsFile(folder / "metrics.jsonl").rows()),
            events=tuple(event_log.read(folder)),
            checkpoints=listed,
            ledger=LedgerFile(folder).ledger,
            wishes=WishFile(folder).wishes,
            acts=tuple(OwnerActs(folder).take_up()),
            plan=Plan.load(path) if path.exists() else None,
            overview=overview,
            shares=_shares(folder, records),
            nicknames=_nicknames(records, overview),
            parameters=_parameters(folder, [one.step for one in listed if not one.fault]),
            is_live=is_live(folder),
        )

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.overview is not None and self.overview.health.level in {"done", "bad"}

    @property
    def names(self) -> dict[str, str]:
        """Names of members by the ends of their ids, where nobody else's id ends so."""
        known = {*self.ledger.members, *self.nicknames, *(self.overview.members if self.overview else ())}
        ends = Counter(map(short, known))
        return {short(peer): name for peer, name in self.nicknames.items() if ends[short(peer)] == 1}

    @property
    def tokens(self) -> int:
        """Number of tokens that the model has been trained on."""
        return sum(row.tokens for row in self.rows)

    @property
    def timeline(self) -> JobTimeline:
        """The job with what was changed while it trained."""
        return JobTimeline(self.job, self.plan.amendments if self.plan is not None else ())

    @property
    def training_seconds(self) -> float:
        """Seconds that all steps have taken together, without what lies between them."""
        return sum(row.seconds for row in self.rows)

    @property
    def tokens_a_second(self) -> float | None:
        """Tokens a second in a usual step; None before the first."""
        speeds = [row.tokens / row.seconds for row in self.rows if row.seconds > 0]
        return median(speeds) if speeds else None

    @property
    def eval_losses(self) -> list[tuple[int, float]]:
        """Losses on the evaluation's text, by step."""
        return [(row.step, row.eval_loss) for row in self.rows if row.eval_loss is not None]


def _overview(path: Path) -> Overview | None:
    try:
        return Overview.model_validate(json.loads(path.read_text(encoding="utf-8"))["overview"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _shares(folder: Path, records: MemberRecords) -> dict[str, float]:
    history = StepHistory(folder / "metrics.jsonl")
    while history.take_up():
        pass
    found = records.contributions(history.work)
    whole = sum(one.layer_tokens for one in found.values())
    return {peer: one.layer_tokens / whole for peer, one in found.items() if one.layer_tokens}


def _nicknames(records: MemberRecords, overview: Overview | None) -> dict[str, str]:
    shown = {peer: one.name for peer, one in overview.members.items() if one.name} if overview is not None else {}
    return shown | records.names


def _parameters(folder: Path, steps: list[int]) -> int | None:
    """Return how many numbers the weights of the newest checkpoint have."""
    if not steps:
        return None
    try:
        manifest, _ = CheckpointStore(folder / CHECKPOINTS, sweep=False).described(steps[-1])
    except Refused:
        return None
    return sum(prod(entry.shape) for key, entry in manifest.tensors.items() if key.startswith("weight/"))
