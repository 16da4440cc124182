"""The owner's page has no fault that axe-core finds, whatever it shows, on screens and phones, light and dark."""

import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.membership.ledger_acts import make_invite
from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.web.page_links import link
from tests.coordinator.peers import plan_of, row
from tests.coordinator.test_owners_page import MEMBER, Page, served
from tests.harness.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
AXE = importlib.resources.files("axe_core_python") / "axe.min.js"
PHASES = {
    "waiting": "waiting for 2 nodes",
    "training": "plan 1",
    "done": "all 90 steps are done",
    "failed": "the loss is not finite: a and b say so of step 3",
}
"""Phases of a run, each with a text."""
LOOKS: tuple[tuple[int, bool], ...] = ((1280, False), (1280, True), (360, False), (360, True))
"""Width of a screen, and whether it is dark."""
HEALTH = "document.getElementById('health').textContent"
BUTTONS = ("#actions button", "#invite", "#members .row-actions button", "#invites button")


async def run_of(page: Page) -> None:
    """A run of two members, one of which has fallen silent under a plan with a curve behind it, and an invite."""
    peers = (MEMBER, MEMBER[:-1] + "d")
    await page.peers.join(*peers)
    page.peers.state.plan = plan_of(*peers)
    append_shares(page.folder, page.peers.state.plan, page.peers.rows)
    for step in range(1, 40):
        evaluated = 2.0 if step % 10 == 0 else None
        page.peers.rows.append(row(step).model_copy(update={"loss": 5.0 / step, "eval_loss": evaluated}))
    await page.peers.report(MEMBER, "training", plan_version=1, step=39)
    make_invite(page.folder, 1, 7.0, "Ann")


async def faults(browser: Browser) -> list[str]:
    """What axe finds in the page as it is."""
    found: Sequence[dict[str, Any]] = await browser.run("axe.run(document).then(found => found.violations)")
    return [f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']]}" for one in found]


async def opened(browser: Browser, page: Page) -> None:
    """The page as its owner sees it, with axe in it."""
    await browser.open(link(page.server.url, page.keys.owner))
    await browser.until("document.getElementById('role')?.textContent === 'you may act'")
    await browser.run(AXE.read_text(encoding="utf-8"))
    await browser.until("document.querySelectorAll('#members .row-actions button').length === 4")


async def test_axe_sees_what_is_wrong(tmp_path: Path) -> None:
    """Else it would find nothing in any page."""
    async with served(tmp_path) as page, Browser.running() as browser:
        await run_of(page)
        page.tell()
        await opened(browser, page)
        await browser.run("""(() => {
            document.querySelector('main').append(document.createElement('input'));
            document.getElementById('health').style.color = 'gray';
            document.getElementById('health').style.background = 'silver';
        })()""")
        found = await faults(browser)
        assert [one.split(":")[0] for one in found] == ["color-contrast", "label"], found


async def test_a_page_has_no_fault_on_any_screen(tmp_path: Path) -> None:
    async with served(tmp_path) as page, Browser.running() as browser:
        await run_of(page)
        page.tell()
        await opened(browser, page)
        seen = set()
        for name, text in PHASES.items():
            await page.peers.announcer.say(name, text)
            page.tell()
            await browser.until(f"!{json.dumps(sorted(seen))}.includes({HEALTH})")
            seen.add(await browser.run(HEALTH))
            for width, dark in LOOKS:
                await browser.look_like(width, 900, dark=dark, phone=width < 500)
                assert await faults(browser) == [], (name, width, dark)


async def test_no_form_has_a_fault(tmp_path: Path) -> None:
    async with served(tmp_path) as page, Browser.running() as browser:
        await run_of(page)
        await page.peers.announcer.say("training", PHASES["training"])
        page.tell()
        await opened(browser, page)
        await browser.until("document.querySelectorAll('#invites button').length === 1")
        seen = set()
        for where in BUTTONS:
            buttons = f"[...document.querySelectorAll({json.dumps(where)})].filter(one => one.checkVisibility())"
            for number in range(await browser.run(f"{buttons}.length")):
                await browser.run(f"{buttons}[{number}].click()")
                await browser.until("document.getElementById('dialog').open")
                title = str(await browser.run("document.getElementById('dialog-title').textContent"))
                assert await faults(browser) == [], title
                seen.add(title)
                await browser.run("document.getElementById('dialog-cancel').click()")
        assert len(seen) >= 8, seen
