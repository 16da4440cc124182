"""What a check has found: a line of what was seen, and for what is not well one thing to do."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

TEXT_LIMIT = 400


class Verdict(IntEnum):
    """How well it is."""

    good = 0
    warn = 1
    """Taking part works, but worse than it could, or not for long; or it cannot be told."""
    bad = 2
    """Taking part does not work."""


@dataclass(frozen=True)
class Finding:
    """One line for the volunteer."""

    group: str
    name: str
    verdict: Verdict
    seen: str
    todo: str = ""
    """One thing to do; only of what is not good."""

    def __post_init__(self) -> None:
        if (self.verdict is Verdict.good) != (self.todo == ""):
            raise ValueError(f"{self.name}: what is well needs nothing done, all else one thing")
        for field in ("name", "seen", "todo"):
            object.__setattr__(self, field, clean(getattr(self, field)))


def good(group: str, name: str, seen: str) -> Finding:
    """All is well."""
    return Finding(group, name, Verdict.good, seen)


def warn(group: str, name: str, seen: str, todo: str) -> Finding:
    """It works, but."""
    return Finding(group, name, Verdict.warn, seen, todo)


def bad(group: str, name: str, seen: str, todo: str) -> Finding:
    """It does not work."""
    return Finding(group, name, Verdict.bad, seen, todo)


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """One line that changes nothing in a terminal, whoever wrote `text`."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def counted(number: int, what: str) -> str:
    """ "1 node", "2 nodes"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict on all of them."""
    return max((finding.verdict for finding in findings), default=Verdict.good)


def things_to_do(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Each thing to do once, with the findings that ask for it; what is bad comes first."""
    found: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: -finding.verdict):
        if finding.todo:
            found.setdefault(finding.todo, []).append(finding)
    return found


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """All of it for programs."""
    return {
        "verdict": worst(findings).name,
        "findings": [asdict(finding) | {"verdict": finding.verdict.name} for finding in findings],
        "todo": list(things_to_do(findings)),
    }
