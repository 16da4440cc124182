"""With 500 members the owner's page shows a few, all when asked, and those that are looked for."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.web.page_links import link
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.peers import LAYERS, row
from tests.coordinator.test_owners_page import served
from tests.harness.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
MEMBERS, SPARES = 500, 4
FEW = 30
"""Members that are shown at first on a wide screen."""
NAMES = [f"12D3KooW{number:044d}" for number in range(MEMBERS)]


def plan() -> Plan:
    """Pipelines of two stages, and spares."""
    working = NAMES[: MEMBERS - SPARES]
    routes = tuple(zip(working[::2], working[1::2], strict=True))
    half = LAYERS // 2
    return Plan(version=1, stages=((0, half), (half, LAYERS)), routes=routes, idle=tuple(NAMES[-SPARES:]))


async def rows(browser: Browser) -> list[str]:
    """Ends of the ids of the members that the page shows."""
    found: list[Any] = await browser.run(
        "[...document.querySelectorAll('#members tbody th')].map(one => one.innerText)"
    )
    return [str(one).split()[-1] for one in found]


async def test_500_members_are_counted_found_and_shown_when_asked_for(tmp_path: Path) -> None:
    async with served(tmp_path) as page, Browser.running() as browser:
        await page.peers.join(NAMES[0])
        listed = page.peers.records.listed
        profile: Profile = listed[NAMES[0]]
        listed |= dict.fromkeys(NAMES, profile)
        page.peers.state.members.listed(listed)
        working = frozenset(plan().peers)
        page.peers.state.plan = plan()
        for name in NAMES:
            await page.peers.hello(name)
            await page.peers.report(name, "training" if name in working else "idle", plan_version=1)
        append_shares(tmp_path, page.peers.state.plan, page.peers.rows)
        page.peers.rows.append(row(1))
        page.tell()
        await browser.open(link(page.server.url, page.keys.owner))
        await browser.until("document.getElementById('role')?.textContent === 'you may act'")
        await browser.until("document.getElementById('members-count').textContent  === '500 here, 496 at work'")
        assert len(await rows(browser)) == FEW
        more = "document.getElementById('members-more')"
        assert await browser.run(f"{more}.textContent") == "Show all 500 members"
        await browser.run(f"{more}.click()")
        assert sorted(await rows(browser)) == sorted(name[-6:] for name in NAMES)
        await browser.run("""(() => {
            const at = document.getElementById('find');
            at.value = '000321';
            at.dispatchEvent(new Event('input'));
        })()""")
        assert await rows(browser) == ["000321"]
        pipelines = await browser.run("document.getElementById('map-more').textContent")
        assert pipelines == f"Show all {(MEMBERS - SPARES) // 2} pipelines"
        for whole in ("document.documentElement", "document.querySelector('.scroll')"):
            assert await browser.run(f"{whole}.scrollWidth <= {whole}.clientWidth"), whole
        assert browser.complaints == []
