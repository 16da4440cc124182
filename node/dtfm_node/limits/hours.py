"""Hours of the day in which a node may work."""

import re
from typing import NamedTuple, Self

from dtfm_protocol.errors import UserError

DAY_MINUTES = 24 * 60
_SPAN = re.compile(r"(\d{1,2})(?::([0-5]\d))?-(\d{1,2})(?::([0-5]\d))?")


class Hours(NamedTuple):
    """A span of the day by the machine's own clock, which may go over midnight."""

    begin: int
    """Minutes after midnight when it begins."""
    end: int
    """Minutes after midnight when it has ended."""

    @classmethod
    def parsed(cls, text: str, option: str = "--hours") -> tuple[Self, ...]:
        """Return the spans that `text` names: "22-7", "22:30-6:45", or some, with commas between them.

        Args:
            text: what a person has written.
            option: how an error is to call the option that it was given for.

        Raises:
            UserError: it names none, or one that is empty.
        """
        return tuple(cls._span(part.strip(), f"{option} {text}") for part in text.split(","))

    @classmethod
    def _span(cls, part: str, given: str) -> Self:
        found = _SPAN.fullmatch(part)
        if found is None:
            raise UserError(f"{given}: say from when until when, as in 22-7 or 22:30-6:45,12-13")
        hours, minutes = (int(found[1]), int(found[3])), (int(found[2] or 0), int(found[4] or 0))
        begin, end = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
        if max(begin, end) > DAY_MINUTES or begin % DAY_MINUTES == end % DAY_MINUTES:
            raise UserError(
                f"{given}: {part} is no part of a day; hours go from 0 to 24, and without this option a node works at "
                "all of them"
            )
        return cls(begin % DAY_MINUTES, end % DAY_MINUTES)

    def has(self, minute: int) -> bool:
        """Whether `minute` (after midnight) lies in the span."""
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    def __str__(self) -> str:
        return f"{_clock(self.begin)}-{_clock(self.end)}"


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}" if minutes % 60 else str(minutes // 60)
