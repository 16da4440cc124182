"""Pages of the documentation, and what stands in them: headings, links, command lines."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from docs.generate.markdown import MADE

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "tests/*.md") for path in ROOT.glob(pattern)
)
"""Every page that people read; tables of measurements name commands of their own time."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.M | re.S)
SHELL = {">", ">>", "|", "&", "&&", "||", ";"}
"""Words with which the shell ends a command."""
PROGRAMS = ("dtfm-node", "dtfm-coordinator", "make", "python -m ")


class CommandLine(NamedTuple):
    """A command line in a page."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


@cache
def text_of(page: Path) -> str:
    """Return the text of a page."""
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as the usual viewers make them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", text_of(page)), flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", heading).lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def links(page: Path) -> Iterator[str]:
    """Yield what a page's links and pictures lead to."""
    text = re.sub(r"`[^`\n]+`", "", FENCE.sub("", text_of(page)))
    yield from re.findall(r"\]\(\s*<?([^)\s>]+)", text)
    yield from re.findall(r'(?:src|href|srcset)="([^"]+)"', text)


def command_lines(page: Path) -> Iterator[CommandLine]:
    """Yield the commands in a page's blocks of code that start one of the programs, or come after a prompt that does;
    what such a command prints is none. Pages that are made from the programs say how a command looks."""
    if text_of(page).startswith(MADE):
        return
    blocks = [match[3] for match in FENCE.finditer(text_of(page))]
    blocks += re.findall(r"(?:^    .*\n)+", FENCE.sub("", text_of(page)), flags=re.M)
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            words = re.sub(r"^(\$ |# )?(sudo )?(\S*/\.venv/bin/|\.venv/bin/)?", "", line.strip())
            if words.startswith(PROGRAMS) and not re.match(r"dtfm-(node|coordinator)[@.]", words):
                found = shlex.split(words, comments=True)
                ends = [at for at, word in enumerate(found) if word in SHELL]
                yield CommandLine(str(page.relative_to(ROOT)), tuple(found[: min([*ends, len(found)])]))


def mentioned_commands(page: Path) -> Iterator[CommandLine]:
    """Yield the commands of the two programs that a page's text names, which may leave out what must be given."""
    for words in re.findall(r"`(dtfm-(?:node|coordinator) [^`]+)`", FENCE.sub("", text_of(page))):
        yield CommandLine(str(page.relative_to(ROOT)), tuple(words.split()))
