"""Book of contributions: what each member has done for the run, as the coordinator signs it."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from dtfm_coordinator.records.member_records import Contribution, MemberRecords
from dtfm_coordinator.records.step_history import PlanWork, StepHistory
from dtfm_protocol.control.contribution_record import MOST_RANGES, ContributionRecord, ContributionStatement
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job import amendments_file
from dtfm_protocol.job.amendments_file import read_amendments
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process.logs import log


class ContributionBook:
    """Book of the contributions to one run, read from its state folder: it may be asked beside whoever leads.

    Rows of metrics are peers' words. What is signed of them is no more than can be true: a step has the tokens that the
    job gives it, and the steps of a plan took no longer than the plan was in force.
    """

    def __init__(
        self,
        folder: Path,
        swarm: str,
        job: ResolvedJob,
        coordinator: Identity,
        certificate: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: the coordinator's state folder.
            swarm: the swarm's id.
            job: as it began.
            coordinator: the key that signs.
            certificate: the key's own certificate, DER.
            clock: gives Unix seconds.
        """
        self._folder, self._swarm, self._job, self._clock = folder, swarm, job, clock
        self._coordinator, self._certificate = coordinator, certificate
        self._history, self._records = StepHistory(folder / "metrics.jsonl"), MemberRecords(folder)
        self._work: dict[int, PlanWork] = {}
        """Work under each plan, of which the contributions are known."""
        self._found: dict[str, Contribution] = {}
        self._whole = 0.0

    def record(self, peer: str) -> ContributionRecord | None:
        """Return the signed record of what `peer` has contributed; None: nothing that counts."""
        found, whole = self._contributions()
        mine = found.get(peer)
        if mine is None or not mine.steps:
            return None
        statement = ContributionStatement(
            swarm=self._swarm,
            job=self._job.name,
            peer=peer,
            name=self._records.names.get(peer, ""),
            tokens=round(mine.tokens),
            share=min(1.0, mine.layer_tokens / whole) if whole else 0.0,
            seconds=mine.seconds,
            steps=mine.steps,
            first_step=mine.first_step,
            last_step=mine.last_step,
            layers=mine.layers[:MOST_RANGES],
            of_layers=self._records.layers,
            at=self._clock(),
        )
        return ContributionRecord.signed(statement, self._coordinator, self._certificate)

    def _contributions(self) -> tuple[dict[str, Contribution], float]:
        """Return what each member has contributed, by peer id, and the tokens times layers of all together."""
        while self._history.take_up() or self._records.take_up():
            pass
        work = self._possible(self._history.work, self._clock())
        if work != self._work:  # at the end of a run everybody asks for the same
            self._found, self._work = self._records.contributions(work), work
            self._whole = sum(one.layer_tokens for one in self._found.values())
        return self._found, self._whole

    def _possible(self, work: Mapping[int, PlanWork], now: float) -> dict[int, PlanWork]:
        """Return the work under each plan without what cannot be."""
        tokens, begun = self._most_tokens(), self._records.begun
        ends = {plan: begun[following] for plan, following in pairwise(sorted(begun))}
        return {
            plan: done._replace(
                tokens=min(done.tokens, done.steps * tokens),
                seconds=min(done.seconds, max(0.0, ends.get(plan, now) - begun[plan])),
            )
            for plan, done in work.items()
            if plan in begun
        }

    def _most_tokens(self) -> int:
        """Return the tokens of the largest step that the job has had."""
        path = self._folder / amendments_file.NAME
        try:
            timeline = JobTimeline(self._job, read_amendments(path) if path.exists() else ())
        except UserError as error:
            log.warning("%s", error)
            timeline = JobTimeline(self._job)
        return max(stretch.settings.training.tokens for stretch in timeline.stretches)
