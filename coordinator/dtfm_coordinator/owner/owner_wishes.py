"""Wishes of the owner as records, and what they come to when summed up: whether the run is to go on, and what is asked
of it and was not answered yet. Pure.

A new kind of wish is one more class here, and one more member of `Wish`; nothing else need know of it but who carries
it out.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.job.amendment import MOST_VALUES, Values
from dtfm_protocol.schema import Schema

TEXT_LIMIT = 2000


class OwnerRecord(Schema):
    """The base of all records: when it was written, and its place among them."""

    number: Annotated[int, Field(ge=0, le=MOST_UINT32)] = 0
    """Running number, from 1; 0: not written yet."""
    at: float
    """Unix seconds."""
    word: ClassVar[str] = ""
    """Name of the command that asks for it."""


class Paused(OwnerRecord):
    """Wish: the run is to stand still after the step under way, with its state kept, until it is resumed."""

    kind: Literal["paused"] = "paused"
    word: ClassVar[str] = "pause"


class Resumed(OwnerRecord):
    """Wish: the run is to go on, whether it was paused or ended."""

    kind: Literal["resumed"] = "resumed"
    word: ClassVar[str] = "resume"


class FinishWanted(OwnerRecord):
    """Wish: the run is to end after the step under way, as if that were the job's last one."""

    kind: Literal["finish"] = "finish"
    word: ClassVar[str] = "finish"


class CheckpointWanted(OwnerRecord):
    """Wish: the state after the step under way is to be kept."""

    kind: Literal["checkpoint"] = "checkpoint"
    word: ClassVar[str] = "checkpoint"


class PlanWanted(OwnerRecord):
    """Wish: a plan is to be made anew for the peers that are here."""

    kind: Literal["plan"] = "plan"
    word: ClassVar[str] = "replan"


class Amended(OwnerRecord):
    """Wish: values of the job are to be others from a step on."""

    word: ClassVar[str] = "set"
    kind: Literal["amended"] = "amended"
    values: Annotated[Values, Field(min_length=1, max_length=MOST_VALUES)]
    """New values by the job file's keys."""
    from_step: Annotated[int, Field(ge=1, le=MOST_UINT32)] | None = None
    """The first step for which they are to hold; None: as soon as can be."""


class Cancelled(OwnerRecord):
    """Wish: what was asked for before, and is not done yet, is not wanted any more."""

    kind: Literal["cancelled"] = "cancelled"
    word: ClassVar[str] = "cancel"


class WishAnswer(OwnerRecord):
    """Record of the coordinator: what has become of a wish."""

    kind: Literal["answered"] = "answered"
    to: Annotated[int, Field(ge=1, le=MOST_UINT32)]
    """Number of the wish."""
    done: bool
    """Whether it was carried out."""
    text: Annotated[str, Field(max_length=TEXT_LIMIT)]
    """What was done, or why nothing was, in one line for people."""


Course = Paused | Resumed | FinishWanted
"""Wish of which the newest one says whether the run goes on."""
Wish = Course | CheckpointWanted | PlanWanted | Amended | Cancelled
"""Any wish; the coordinator answers each."""
WishRecord = Annotated[Wish | WishAnswer, Field(discriminator="kind")]

"""Any record."""


@dataclass
class OwnerWishes:
    """Sum of all records."""

    course: Course | None = None
    """Newest wish of those that say whether the run goes on; None: it does."""
    settled: Course | None = None
    """The newest of them that was carried out; None: none was."""
    asked: dict[int, Wish] = field(default_factory=dict)
    """All wishes by number."""
    unanswered: dict[int, Wish] = field(default_factory=dict)
    """Wishes of which nothing has become yet, by number."""
    answers: dict[int, WishAnswer] = field(default_factory=dict)
    """Answers by the number of the wish."""

    def add(self, record: WishRecord) -> None:
        """Take a record."""
        match record:
            case WishAnswer():
                wish = self.unanswered.pop(record.to, None)
                if record.done and isinstance(wish, Course):
                    self.settled = wish
                self.answers.setdefault(record.to, record)
            case _:
                self.asked[record.number] = self.unanswered[record.number] = record
                if isinstance(record, Course):
                    self.course = record
                elif isinstance(record, Cancelled) and self.course is not None:
                    self.course = self.settled if self.course.number in self.unanswered else self.course

    @property
    def is_paused(self) -> bool:
        """Whether the run is to stand still until it is resumed."""
        return isinstance(self.course, Paused)

    @property
    def is_finished(self) -> bool:
        """Whether the run is to end before its last step."""
        return isinstance(self.course, FinishWanted)

    def open(self, kind: type[OwnerRecord]) -> tuple[Wish, ...]:
        """Return the wishes of a kind that were not answered yet, oldest first."""
        return tuple(wish for wish in self.unanswered.values() if isinstance(wish, kind) and not self._is_back(wish))

    def _is_back(self, wish: Wish) -> bool:
        """Whether a wish that was not answered yet was taken back."""
        later = (one.number for one in self.unanswered.values() if isinstance(one, Cancelled))
        return not isinstance(wish, Cancelled) and any(wish.number < number for number in later)

    def taken_back(self) -> tuple[Wish, ...]:
        """Return the wishes that are not wanted any more, and were not answered yet, oldest first."""
        return tuple(wish for wish in self.unanswered.values() if self._is_back(wish))

    def overtaken(self) -> tuple[tuple[Wish, str], ...]:
        """Return the wishes that need no more be carried out, because of a later one, each with what to answer."""
        back = tuple((wish, "not done: you have taken it back") for wish in self.taken_back())
        course = self.course
        if course is None:
            return back
        old = (wish for wish in self.unanswered.values() if isinstance(wish, Course) and wish is not course)
        old = (wish for wish in old if not self._is_back(wish))
        return back + tuple((wish, f"not done: a later `{course.word}` came before it was") for wish in old)
