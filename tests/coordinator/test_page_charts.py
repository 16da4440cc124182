"""The charts of the owner's page have the labels of their axis where the values are."""

from pathlib import Path

import pytest

from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.web.page_links import link
from tests.coordinator.peers import plan_of, row
from tests.coordinator.test_owners_page import MEMBER, Page, served
from tests.harness.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
LABELS = """[...(document.querySelector('svg.chart')?.querySelectorAll('text[text-anchor=end]') ?? [])].map(
    (one) => [Number(one.textContent), Number(one.getAttribute('y'))])"""
"""Value and height of each label of the first chart's axis, the loss."""


async def run_of(page: Page, losses: list[float]) -> None:
    """A run of one member with a curve."""
    await page.peers.join(MEMBER)
    page.peers.state.plan = plan_of(MEMBER)
    append_shares(page.folder, page.peers.state.plan, page.peers.rows)
    for step, loss in enumerate(losses, 1):
        page.peers.rows.append(row(step).model_copy(update={"loss": loss, "eval_loss": None}))
    await page.peers.report(MEMBER, "training", plan_version=1, step=len(losses))


@pytest.mark.parametrize("losses", [[5.0, 5.0, 5.0], [4.0, 9.7, 5.9]], ids=["constant", "that change"])
async def test_labels_stand_as_far_apart_as_their_values(losses: list[float], tmp_path: Path) -> None:
    async with served(tmp_path) as page, Browser.running() as browser:
        await run_of(page, losses)
        page.tell()
        await browser.open(link(page.server.url, page.keys.owner))
        await browser.until(f"{LABELS}.length > 2")
        labels = await browser.run(LABELS)
        (low, bottom), (high, top) = labels[0], labels[-1]
        for value, height in labels:
            share = (value - low) / (high - low)
            assert height == pytest.approx(bottom + share * (top - bottom), abs=0.5), labels
