"""Links in the documentation lead somewhere, and every page is reached."""

import re
from pathlib import Path
from urllib.parse import unquote

from tests.docs.markdown_pages import PAGES, ROOT, anchors, links, text_of


def test_every_link_and_anchor_leads_somewhere() -> None:
    dead = []
    for page in PAGES:
        for link in links(page):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    reached, coming = {index}, [index]
    while coming:
        page = coming.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in reached and target.exists():
                reached.add(target)
                coming.append(target)
    assert [str(page.relative_to(ROOT)) for page in PAGES if page.is_relative_to(ROOT / "docs")] == [
        str(page.relative_to(ROOT)) for page in sorted(reached) if page.is_relative_to(ROOT / "docs")
    ]


def test_pages_that_programs_name_are_there() -> None:
    gone = []
    for source in ROOT.glob("*/dtfm_*/**/*.py"):
        for path in re.findall(r"\bdocs/[\w/.-]+\.md", source.read_text(encoding="utf-8")):
            if not (ROOT / path).exists():
                gone.append(f"{source.relative_to(ROOT)}: {path}")
    assert gone == []


def test_the_readme_is_short_and_so_is_each_how_to() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= 120
    how_tos = [page for page in PAGES if page.parent == Path(ROOT, "docs", "how-to")]
    assert {page.name: lines for page in how_tos if (lines := len(text_of(page).splitlines())) > 80} == {}
