"""An owner watches a run in a browser, and steers it from there."""

import json
import signal
import socket
from typing import Any

import pytest

from dtfm_coordinator.membership.ledger_acts import make_invite
from dtfm_coordinator.serve.web.page_links import PageLinks, link, page_url
from dtfm_coordinator.swarm.overview.overview import Overview
from dtfm_coordinator.swarm.overview.spoken_numbers import many
from tests.harness.browser import CHROMIUM, Browser
from tests.harness.swarm import Swarm

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ask(browser: Browser, button: str, go: str, within: str = "#actions") -> str:
    """Press a button, say yes to its question, and return the answer."""
    press = "[...document.querySelectorAll({})].find(one => one.textContent === {})?.click() ?? true"
    await browser.until(f"!{press.format(json.dumps(f'{within} button'), json.dumps(button))}")
    assert await browser.run("document.getElementById('dialog-go').textContent") == go
    await browser.run("document.getElementById('dialog-go').click()")
    said = "document.getElementById('dialog-said').textContent"
    return str(await browser.until(f"{said} !== 'One moment.' && {said}", 120.0))


async def shown(browser: Browser) -> dict[str, Any]:
    """What the page says, by place."""
    script = """({
        facts: Object.fromEntries([...document.querySelectorAll('#facts div')].map(one =>
            [one.querySelector('dt').textContent, one.querySelector('dd').innerText.replace('\\n', ' ')])),
        health: document.getElementById('health').textContent,
        members: [...document.querySelectorAll('#members tbody tr')].map(one =>
            [...one.children].map(cell => cell.innerText)),
        map: [...document.querySelectorAll('#map .peer')].map(one => one.dataset.peer),
        stored: document.getElementById('storage').innerText,
    })"""
    return dict(await browser.run(script))


def expected(overview: Overview) -> dict[str, str]:
    """The facts as the page should word them."""
    progress, figures = overview.progress, overview.figures
    assert figures.loss is not None
    assert figures.tokens_per_second is not None
    evaluated = f" evaluation {figures.eval_loss:.4f}" if figures.eval_loss is not None else ""
    return {
        "Step": f"{progress.step} of {progress.steps}",
        "Loss": f"{figures.loss:.4f}{evaluated}",
        "Tokens a second": f"{figures.tokens_per_second:,.0f} {many(progress.tokens)} so far",
    }


async def test_an_owner_watches_a_run_in_a_browser_and_steers_it_from_there(swarm: Swarm) -> None:
    """What the page says is what `status` says; it goes on by itself after a restart, and loaded anew."""
    swarm.slow_down()
    job, state = swarm.job(steps=500, checkpoint=500), swarm.folder / "coordinator"
    layout, port = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8), free_port()
    coordinator = await swarm.serve(job, "--plan", layout, "--web", port, "--exit-when-done")
    async with Browser.running() as browser:
        await swarm.until((state / "page-url").exists, "the page is served")
        await browser.open(link(page_url(state), PageLinks(state).keys().owner))
        await browser.until("document.getElementById('role')?.textContent === 'you may act'")
        assert await browser.run("location.hash + document.cookie") == "", "the key is out of scripts' reach"
        nodes = [await swarm.join() for _ in range(2)]
        await browser.until("document.getElementById('health').textContent.startsWith('Training')", 120.0)
        await browser.until("!!document.querySelector('.chart path')")
        make_invite(state, 1, 7.0, "made by the command")
        assert "state is kept" in await ask(browser, "Pause", "Pause")
        await browser.until("document.getElementById('health').textContent.startsWith('Paused by the owner')")
        await swarm.until(lambda: set(swarm.statuses().values()) == {"idle"}, "the nodes do nothing")
        await browser.until("document.getElementById('invites').textContent.includes('made by the command')")

        async def agrees() -> bool:
            overview, page = Overview.model_validate(swarm.status()["overview"]), await shown(browser)
            facts = {name: page["facts"].get(name) for name in expected(overview)}
            rows = {row[0].split()[-1]: row[1] for row in page["members"]}
            return (
                facts == expected(overview)
                and page["health"] == overview.health.sentence
                and rows == {peer[-6:]: one.does for peer, one in overview.members.items()}
                and overview.plan is not None
                and page["map"] == [peer for line in overview.plan.pipelines for peer in line.members]
                and f"Model after step {overview.progress.step}" in page["stored"]
            )

        async def comes_to_agree() -> None:
            for _ in range(100):
                if await agrees():
                    return
                await browser.run("new Promise(done => setTimeout(done, 100))")
            raise AssertionError((await shown(browser), swarm.status()["overview"]))

        await comes_to_agree()
        coordinator.signal(signal.SIGTERM)
        await coordinator.exit_code()
        await browser.until("document.getElementById('connection').textContent.startsWith('no word')")
        coordinator = await swarm.serve(job, "--plan", layout, "--web", port, "--exit-when-done")
        await browser.until("document.getElementById('connection').textContent === 'live'")
        await swarm.until(lambda: len(swarm.statuses()) == 2 and all(swarm.statuses().values()), "both nodes are back")
        await comes_to_agree()
        await browser.call("Page.reload")
        await browser.until("document.getElementById('role')?.textContent === 'you may act'")
        await browser.until("document.querySelectorAll('#map .peer').length === 2")
        await comes_to_agree()

        assert "from step" in await ask(browser, "Resume", "Resume")
        await browser.until("document.getElementById('health').textContent.startsWith('Training')")
        assert "is kept" in await ask(browser, "Keep a checkpoint", "Keep a checkpoint")
        assert "ended by the owner" in (await ask(browser, "Finish", "Finish")).lower()
        assert [await process.exit_code() for process in (coordinator, *nodes)] == [0, 0, 0]
        complaints = [one for one in browser.complaints if "Failed to load resource" not in one]
        assert complaints == [], "but for the coordinator's absence"
