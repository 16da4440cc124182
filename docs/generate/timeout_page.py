"""Page of the timeouts: the table of `Timeouts`, with each row's reason."""

import re
from dataclasses import fields
from pathlib import Path

from docs.generate.docstrings import field_texts
from docs.generate.markdown import code, page, paragraph, table
from dtfm_protocol.process import timeouts
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts


def timeout_page() -> str:
    """Return the page."""
    texts, parts = field_texts(Timeouts), []
    groups = _groups(Path(str(timeouts.__file__)).read_text(encoding="utf-8"))
    for title, names in groups:
        rows = ([code(name), f"{getattr(TIMEOUTS, name):g}", texts[name]] for name in names)
        parts.append(f"## {title}\n{table(['name', 'seconds', 'what, and why'], rows)}")
    assert [name for _, names in groups for name in names] == [field.name for field in fields(Timeouts)]
    about = (
        "How long anyone waits, and how often anyone looks. They are one table in the code "
        "(`protocol/dtfm_protocol/process/timeouts.py`), the same for all programs, and no option changes them. What "
        "people notice of them stands in [what is promised](../explanation/guarantees.md#how-long-anyone-waits)."
    )
    return page("Timeouts", paragraph(about), *parts)


def _groups(source: str) -> list[tuple[str, list[str]]]:
    """Return the names of the fields under the heading, a comment, under which they stand."""
    found: list[tuple[str, list[str]]] = []
    for title, name in re.findall(r"^    # -- (.+)$|^    (\w+): (?:int|float) = ", source, flags=re.M):
        if title:
            found.append((title[0].upper() + title[1:], []))
        else:
            found[-1][1].append(name)
    return found
