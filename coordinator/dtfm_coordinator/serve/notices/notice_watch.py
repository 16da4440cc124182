"""Watch over a run's overviews: what of their changes is worth a notice to an owner who does not look. Pure."""

from collections.abc import Iterator
from typing import Literal

from dtfm_coordinator.swarm.overview.news import steps_again
from dtfm_coordinator.swarm.overview.overview import MemberView, Overview
from dtfm_coordinator.swarm.overview.owner_words import again_in_words
from dtfm_coordinator.swarm.overview.spoken_numbers import duration
from dtfm_protocol.identity.keys import short
from dtfm_protocol.schema import Schema

NoticeKind = Literal[
    "done", "failed", "loss-not-finite", "loss-rises", "stalled", "going-on", "member-lost", "went-back", "test"
]
"""What has happened: "going-on" follows "stalled" as soon as there is a new step; "test": nothing, the owner looks
whether notices come."""


class Notice(Schema):
    """Something that an owner who does not look wants to know; as JSON it goes to the owner's command and webhook."""

    event: NoticeKind
    at: float
    """Unix seconds."""
    job: str
    swarm: str
    step: int
    """The newest step that is recorded."""
    steps: int
    """Steps of the whole run."""
    text: str
    """What has happened, in a plain sentence."""
    advice: str = ""
    """What to do; "": nothing."""


class NoticeWatch:
    """Watch over one run. What was so before it began is no news."""

    def __init__(self, stalled_seconds: float) -> None:
        """Know nothing of the run yet.

        Args:
            stalled_seconds: seconds without a new step after which a run that has begun counts as stalled.
        """
        self._limit = stalled_seconds
        self._before: Overview | None = None
        self._stepped_at = 0.0
        self._step = -1
        """Newest step at the last look; -1: there was none."""
        self._is_stalled = False

    def look(self, overview: Overview) -> list[Notice]:
        """Return what is worth a notice since the overview before; each is told once."""
        before, self._before = self._before, overview
        if before is None:
            self._stepped_at, self._step = overview.at, overview.progress.step
            return []
        return [
            Notice(
                event=event,
                at=overview.at,
                job=overview.job,
                swarm=overview.swarm,
                step=overview.progress.step,
                steps=overview.progress.steps,
                text=text,
                advice=advice,
            )
            for event, text, advice in (
                *self._worsens(before, overview),
                *self._ends(before, overview),
                *self._lost(before, overview),
                *self._stands(overview),
            )
        ]

    def _worsens(self, before: Overview, after: Overview) -> Iterator[tuple[NoticeKind, str, str]]:
        """Yield what has become of the loss, and that steps are run again."""
        if after.has_diverged and not before.has_diverged:
            yield "loss-not-finite", after.health.sentence, after.health.advice
        elif after.loss_rises and not before.loss_rises and not after.has_diverged:
            yield "loss-rises", after.health.sentence, after.health.advice
        if (again := steps_again(before, after)) and after.plan is not None:
            yield "went-back", again_in_words(again, after.plan.resumed), ""

    def _ends(self, before: Overview, after: Overview) -> Iterator[tuple[NoticeKind, str, str]]:
        if after.phase == before.phase:
            return
        if after.phase == "done":
            yield "done", after.health.sentence, after.health.advice
        elif after.phase == "failed" and (before.has_diverged or not after.has_diverged):
            # Else it is told of the loss, just now, with the same words.
            yield "failed", after.health.sentence, after.health.advice

    def _lost(self, before: Overview, after: Overview) -> Iterator[tuple[NoticeKind, str, str]]:
        """Yield who had a part in the training and is gone. Who leaves politely has given its part to others before."""
        if after.stands_still:
            return
        for peer, one in before.members.items():
            now = after.members.get(peer)
            if one.stage is not None and one.role != "gone" and (now is None or now.role == "gone"):
                yield "member-lost", f"{_name(peer, one)} is gone: the others go on without it as soon as they can.", ""

    def _stands(self, after: Overview) -> Iterator[tuple[NoticeKind, str, str]]:
        """Yield that no step comes, once, and that there is one again."""
        step = after.progress.step
        may_stand = after.phase in {"done", "failed"} or after.is_paused or not (step or after.plan)
        if may_stand or step != self._step:
            if self._is_stalled and step != self._step:
                yield "going-on", f"Training goes on: step {step:,} is done.", ""
            self._stepped_at, self._is_stalled = after.at, False
        elif not self._is_stalled and after.at - self._stepped_at >= self._limit:
            self._is_stalled = True
            text = f"No step has ended for {duration(after.at - self._stepped_at)}. {after.health.sentence}"
            yield "stalled", text, after.health.advice
        self._step = step


def _name(peer: str, member: MemberView) -> str:
    return f"{member.name} ({short(peer)})" if member.name else short(peer)
