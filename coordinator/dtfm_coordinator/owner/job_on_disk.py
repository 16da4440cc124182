"""Job of a run as its state folder has it: how it began, how it was changed, and what the owner still wishes of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dtfm_coordinator.allocator.foundations.shapes import check_choices
from dtfm_coordinator.owner.amending import place
from dtfm_coordinator.owner.owner_wishes import Amended
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_protocol.data.batches import check_corpus
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import Settings
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan


@dataclass(frozen=True)
class JobOnDisk:
    """Job of a run, as far as a program beside the coordinator can tell. It changes nothing."""

    timeline: JobTimeline
    """The job with what was changed, and with the wishes that are still open."""
    recorded: int
    """Newest step whose metrics are there."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read a coordinator's state folder.

        Raises:
            UserError: no job was served there, or a file cannot be read.
        """
        try:
            job = ResolvedJob.model_validate_json((folder / "job.json").read_bytes())
        except (OSError, ValueError):
            raise UserError(f"{folder} holds no run: did `dtfm-coordinator serve` run with it?") from None
        path = folder / "plan.json"
        timeline = JobTimeline(job, Plan.load(path).amendments if path.exists() else ())
        recorded = MetricsFile(folder / "metrics.jsonl").last
        wishes = (wish for wish in WishFile(folder).wishes.open(Amended) if isinstance(wish, Amended))
        return cls(place(timeline, wishes, recorded, recorded, lambda _: None)[0], recorded)

    def changed(self, wish: Amended) -> JobTimeline:
        """Return the job as it becomes by one more wish, were it fulfilled now.

        Raises:
            UserError: it cannot be.
        """
        timeline, refused = place(self.timeline, [wish], self.recorded, self.recorded, self._check)
        if refused:
            raise UserError(refused[0].why)
        return timeline

    def _check(self, settings: Settings) -> None:
        job = self.timeline.job
        layers = job.config.get("num_hidden_layers") or job.config.get("n_layer")
        check_choices(settings.plan, settings.training.micro_batches, layers)
        check_corpus(job.corpus, settings.training, job.evaluation)
