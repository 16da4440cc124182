"""News for people: what has changed between two overviews, in plain words, with what to do. Pure."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator

from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.swarm.overview.overview import Level, NewsItem, Overview
from dtfm_coordinator.swarm.overview.owner_words import again_in_words, division, reason_in_words
from dtfm_protocol.bounds import printable
from dtfm_protocol.identity.keys import called

KEPT = 200
"""Items that are shown."""
WARNING_CHARACTERS = 500
TOO_MANY = 20
"""Members that come or go at once of which each is named; of more, their number is told."""

Said = tuple[Level, str, str]

ADVICE = (
    (r"no space|no room|disk is full", "Make room on the disk of the state folder; nothing is lost meanwhile."),
    (r"accuses|has fallen out|signed two states|different (weights|states)", "The swarm keeps the two apart by itself. "
     "Where the loss has just jumped it means nothing; else, a member that falls out with one after the other has a "
     "fault, or lies: `kick` sends it away."),
    (r"hands in|its share of a checkpoint|shares? .* late", "If that goes on, kick the member: its machine or its "
     "upload may be too slow."),
    (r"measuring the connections took", "A member may be behind a strict router: `dtfm-node doctor` on its machine "
     "says what to do."),
    (r"holds is not used", "The run goes on from what others hold. Where that happens again and again with one member, "
     "its disk or its program may have a fault: ask its person."),
    (r"losses of steps", "The curve has a gap there; the training itself has none."),
    (r"broker|was disconnected", "If nodes stay away, look whether this machine's port is open and its network is up."),
)  # fmt: skip
"""What to do where a warning has such words."""


def news(before: Overview | None, after: Overview) -> Iterator[Said]:
    """Yield what has changed from one overview to the next: level, text, and what to do.

    Args:
        before: the earlier overview; None: there was none, and what is there is no news.
        after: the later one.
    """
    if before is None:
        return
    yield from _comings(before, after)
    if after.plan is not None and (before.plan is None or before.plan.version != after.plan.version):
        machines = len({one for stage in after.plan.stages for one in stage.members})
        anew = " anew" if before.plan is not None else ""
        yield "good", f"The work is divided{anew}: {division(machines, len(after.plan.stages))}.", ""
    if again := steps_again(before, after):
        yield "warn", again_in_words(again, after.plan.resumed if after.plan is not None else 0), ""
    kept, newest = (max((one.step for one in seen.storage.checkpoints), default=0) for seen in (before, after))
    if newest > kept:
        yield "good", f"The model after step {newest:,} is safe on this disk.", ""
    is_worse = (after.loss_rises and not before.loss_rises) or (after.has_diverged and not before.has_diverged)
    if after.health.level in {"warn", "bad", "done"} and (after.health.level != before.health.level or is_worse):
        yield after.health.level, after.health.sentence, after.health.advice
    elif before.health.level == "warn" and after.health.level == "good":
        yield "good", after.health.sentence, ""


def steps_again(before: Overview, after: Overview) -> int:
    """Return the number of steps that are run again, as the plan that has begun goes on from an older state."""
    if after.plan is None or before.plan is None or before.plan.version == after.plan.version:
        return 0
    return max(0, before.progress.step - after.plan.resumed)


def _comings(before: Overview, after: Overview) -> Iterator[Said]:
    here_before = {peer for peer, one in before.members.items() if one.role != "gone"}
    here = {peer for peer, one in after.members.items() if one.role != "gone"}
    for peers, word, view in ((here - here_before, "joined", after), (here_before - here, "left", before)):
        if len(peers) > TOO_MANY:
            yield "good" if word == "joined" else "wait", f"{len(peers)} members {word}.", ""
            continue
        for peer in sorted(peers):
            member = view.members[peer]
            who = called(peer, member.name)
            # After the end, and in a pause, nobody goes on without it.
            lost = word == "left" and member.stage is not None and not after.stands_still
            advice = (
                "The others go on without it, from the newest step of which the whole state is left." if lost else ""
            )
            yield "warn" if lost else "good" if word == "joined" else "wait", f"{who} {word}.", advice


def told_plan(event: PlanEvent) -> NewsItem:
    """Return a plan of an earlier life of the coordinator as it is told."""
    why = reason_in_words(printable(event.why))
    anew, because = (" anew", f": {why}") if why else ("", "")
    steps = f" for the steps after {event.step:,}" if event.step else ""
    text = f"The work was divided{anew}{steps}{because}."
    text += f" {again_in_words(event.repeated, event.step)}" if event.repeated else ""
    return NewsItem(at=event.in_force_at, level="wait", text=text)


def advice_for(warning: str) -> str:
    """Return what to do about a warning of the log; "": nothing that is known."""
    return next((advice for words, advice in ADVICE if re.search(words, warning, re.IGNORECASE)), "")


def advise(record: logging.LogRecord) -> bool:
    """Add to a warning what to do about it, as a filter of the log: its formats say `record.advice` after the rest."""
    if record.levelno >= logging.WARNING:
        record.advice = advice_for(record.getMessage())
    return True


class NewsBoard:
    """Board of the newest items, with the warnings of a log among them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._items: deque[tuple[int, NewsItem]] = deque(maxlen=KEPT)
        self._number = 0

    def put(self, item: NewsItem) -> None:
        """Take an item; what was said last is not said again at once."""
        if self._items and (self._items[-1][1].text, self._items[-1][1].level) == (item.text, item.level):
            return
        self._number += 1
        self._items.append((self._number, item))

    def say(self, level: Level, text: str, advice: str = "") -> None:
        """Take an item of now."""
        self.put(NewsItem(at=self._clock(), level=level, text=text, advice=advice))

    @property
    def items(self) -> dict[str, NewsItem]:
        """Items by running number, oldest first."""
        return {str(number): item for number, item in self._items}


class WarningListener(logging.Handler):
    """Listener to a log, whose warnings it puts on the board."""

    def __init__(self, board: NewsBoard) -> None:
        super().__init__(logging.WARNING)
        self._board = board

    def emit(self, record: logging.LogRecord) -> None:
        """Put a warning on the board."""
        text = printable(record.getMessage())[:WARNING_CHARACTERS]
        self._board.say("warn" if record.levelno < logging.ERROR else "bad", text, advice_for(text))
