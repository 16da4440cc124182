"""An owner watches a run in a browser, and steers it from there."""

import json
import signal
from typing import Any

import pytest

from dtfm_coordinator.membership.ledger_acts import make_invite
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.serve.web.page_links import PageLinks, link, page_url
from dtfm_coordinator.swarm.overview.overview import Overview
from dtfm_coordinator.swarm.overview.spoken_numbers import many
from dtfm_protocol.identity.invite import Invite
from tests.harness.browser import CHROMIUM, Browser
from tests.harness.daemon import Daemon
from tests.harness.entrances import free_port
from tests.harness.swarm import Swarm

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]


async def ask(
    browser: Browser, button: str, go: str, within: str = "#actions", fill: dict[str, object] | None = None
) -> str:
    """Press a button, fill its form by the labels' words, say yes to its question, and return the answer."""
    await browser.until(f"""(() => {{
        const at = [...document.querySelectorAll({json.dumps(f"{within} button")})].find(one =>
            one.textContent === {json.dumps(button)});
        at?.click();
        return Boolean(at);
    }})()""")
    await browser.until("document.getElementById('dialog').open")
    assert await browser.run("document.getElementById('dialog-go').textContent") == go
    for label, value in (fill or {}).items():
        await browser.run(f"""(() => {{
            const at = [...document.querySelectorAll('#dialog-body label')].find(one =>
                one.textContent.includes({json.dumps(label)})).querySelector('input, select');
            if (at.type === 'checkbox') at.checked = {json.dumps(value)};
            else at.value = {json.dumps(value)};
        }})()""")
    await browser.run("document.getElementById('dialog-go').click()")
    said = "document.getElementById('dialog-said').textContent"
    answer = str(await browser.until(f"{said} !== 'One moment.' && {said}", 120.0))
    await browser.run("document.getElementById('dialog-cancel').click()")
    assert not await browser.run("document.getElementById('dialog').open")
    return answer


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


def row_of(peer: str) -> str:
    """Where the page shows a member."""
    return f"#members tbody tr:has([aria-label$=' {peer[-6:]}'])"


async def members(swarm: Swarm) -> dict[str, bool]:
    """Who was let in, and whether it is banned."""
    code, said = await swarm.run("dtfm-coordinator", "members", "--state-dir", swarm.folder / "coordinator", "--json")
    assert code == 0, said
    return {one["peer"]: one["banned"] for one in json.loads(said)["members"]}


async def invite_somebody(browser: Browser, swarm: Swarm) -> None:
    """An invite is made and taken back."""
    said = await ask(browser, "Invite somebody", "Make the invite", ".tools", {"Whom it is for": "Ann", "For how": 3})
    assert said.startswith("The invite is made")
    text = str(await browser.run("document.querySelector('#dialog-body textarea').value"))
    assert Invite.decode(text.removeprefix("dtfm-node join ")).token is not None
    await browser.until("document.querySelector('#invites li').innerText.includes('0 of 3 used')")
    said = await ask(browser, "Take back", "Take back", "#invites li:first-child")
    assert "is taken back; 0 who entered with it stay" in said
    await browser.until("document.querySelector('#invites li').innerText.includes('taken back')")
    newest = LedgerFile(swarm.folder / "coordinator").ledger
    assert [(newest.invited[token].name, newest.invited[token].uses) for token in newest.revoked] == [("Ann", 3)]


async def send_away(browser: Browser, swarm: Swarm, node: Daemon) -> None:
    """A node that is sent away is gone until it is started anew, and says so."""
    peer = swarm.peer_of(node)
    row = row_of(peer)
    assert "is sent away" in await ask(browser, "Send away", "Send away", row)
    await browser.until(f"document.querySelector({json.dumps(row)}).innerText.includes('was sent away by the owner')")
    overview = Overview.model_validate(swarm.status()["overview"])
    assert overview.members[peer].role == "gone"
    await swarm.until(lambda: "has sent this machine away" in node.said(), "its person is told")
    assert await node.exit_code() == 0
    await node.start()
    await swarm.until(lambda: swarm.statuses().get(peer) == "idle", "it is a member again")
    await browser.until(f"!document.querySelector({json.dumps(row)}).classList.contains('gone')")


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

        await invite_somebody(browser, swarm)
        kicked, banned = nodes
        await send_away(browser, swarm, kicked)

        assert "from step" in await ask(browser, "Resume", "Resume")
        await browser.until("document.getElementById('health').textContent.startsWith('Training')")
        said = await ask(browser, "Change settings", "Change it", fill={"New value": "2e-4"})
        assert "in force from step" in said.lower()
        await swarm.until(lambda: swarm.rows()[-1]["learning_rate"] < 2.1e-4, "the rate is another")
        assert "is kept" in await ask(browser, "Keep a checkpoint", "Keep a checkpoint")
        assert "state is kept" in await ask(browser, "Pause", "Pause")
        row = row_of(swarm.peer_of(banned))
        assert "is banned." in await ask(browser, "Ban", "Ban", row, {"this one alone": True})
        assert await banned.exit_code() == 2
        assert await members(swarm) == {swarm.peer_of(kicked): False, swarm.peer_of(banned): True}
        assert "ended by the owner" in (await ask(browser, "Finish", "Finish")).lower()
        assert [await process.exit_code() for process in (coordinator, kicked)] == [0, 0]
        complaints = [one for one in browser.complaints if "Failed to load resource" not in one]
        assert complaints == [], "but for the coordinator's absence"
