"""Tables and text of pages in Markdown. Pure."""

import re
import textwrap
from collections.abc import Iterable

WIDTH = 120
MADE = "<!-- Made from the code by `python -m docs.generate`: change the code, and run that. -->"
"""Line at the top of each page."""


def page(title: str, *parts: str) -> str:
    """Return a whole page."""
    return "\n\n".join([f"{MADE}\n\n# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def paragraph(text: str) -> str:
    """Return text as one paragraph, wrapped."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; "" where it has no rows."""
    lines = ["| " + " | ".join(cell(one) for one in row) + " |" for row in rows]
    if not lines:
        return ""
    names = list(head)
    return "\n".join(["| " + " | ".join(names) + " |", "|" + " --- |" * len(names), *lines])


def cell(text: str) -> str:
    """Return text as it stands in one cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: object) -> str:
    """Return a text that is written in a job file or a command line, as such."""
    return f"`{text}`"
