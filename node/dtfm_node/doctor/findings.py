"""Findings of the doctor: a line of what was seen, and for what is not well one thing to do."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

TEXT_LIMIT = 400


class Verdict(IntEnum):
    """Degree of a finding; a higher number is worse."""

    good = 0
    warn = 1
    """Taking part works, but worse than it could, or not for long; or whether it works is not known."""
    bad = 2
    """Taking part does not work."""


@dataclass(frozen=True)
class Finding:
    """One line for the volunteer about one thing."""

    group: str
    name: str
    verdict: Verdict
    seen: str
    todo: str = ""
    """The one thing to do about it; "" exactly where the verdict is good."""

    def __post_init__(self) -> None:
        if (self.verdict is Verdict.good) != (self.todo == ""):
            raise ValueError(f"{self.name}: what is well needs nothing done, all else one thing")
        for field in ("name", "seen", "todo"):
            object.__setattr__(self, field, clean(getattr(self, field)))


def good(group: str, name: str, seen: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(group, name, Verdict.good, seen)


def warn(group: str, name: str, seen: str, todo: str) -> Finding:
    """Return a finding that something works, but worse than it could, or that it is not known whether it does."""
    return Finding(group, name, Verdict.warn, seen, todo)


def bad(group: str, name: str, seen: str, todo: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding(group, name, Verdict.bad, seen, todo)


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text`, whoever wrote it, as one line of at most `limit` printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def counted(number: int, what: str) -> str:
    """Return a number with its noun: "1 node", "2 nodes"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict of all findings; good where there are none."""
    return max((finding.verdict for finding in findings), default=Verdict.good)


def things_to_do(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return each thing to do once, with the findings that ask for it; what is bad comes first."""
    found: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: -finding.verdict):
        if finding.todo:
            found.setdefault(finding.todo, []).append(finding)
    return found


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """Return the findings, the worst verdict and the things to do as an object for JSON."""
    return {
        "verdict": worst(findings).name,
        "findings": [asdict(finding) | {"verdict": finding.verdict.name} for finding in findings],
        "todo": list(things_to_do(findings)),
    }
