"""The owner's page shows a run to who may look, lets who may act act, and holds against everybody else."""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import Redeemed
from dtfm_coordinator.owner.owner_wishes import (
    Amended,
    CheckpointWanted,
    FinishWanted,
    Paused,
    PlanWanted,
    Resumed,
    Wish,
    WishAnswer,
)
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.web import page_server
from dtfm_coordinator.serve.web.owner_actions import act
from dtfm_coordinator.serve.web.page_access import NoAccess, PageAccess
from dtfm_coordinator.serve.web.page_address import PageAddress, PageOptions
from dtfm_coordinator.serve.web.page_links import NAME, PageKeys, PageLinks, link
from dtfm_coordinator.serve.web.page_server import PageServer
from dtfm_protocol.errors import UserError
from tests.coordinator.peers import Peers, plan_of, row
from tests.harness.browser import CHROMIUM, Browser
from tests.harness.invites import invite_to
from tests.harness.page_visitor import PageVisitor, read_head

MEMBER = "12D3KooWMemberMemberMemberMemberMemberMemberMemberAbc"


@dataclass
class Page:
    """A page that is served, of a coordinator that hears what a test has peers say."""

    peers: Peers
    status: StatusFile
    server: PageServer
    folder: Path

    @property
    def port(self) -> int:
        return int(self.server.url.rsplit(":", 1)[1].strip("/"))

    @property
    def keys(self) -> PageKeys:
        return PageLinks(self.folder).keys()

    @property
    def stranger(self) -> PageVisitor:
        return PageVisitor(self.port)

    @property
    def viewer(self) -> PageVisitor:
        return PageVisitor(self.port, (f"Cookie: dtfm-{self.port}={self.keys.viewer}", f"Origin: {self.origin}"))

    @property
    def owner(self) -> PageVisitor:
        request = f"X-Dtfm-Request: {self.keys.request_key()}"
        return PageVisitor(
            self.port, (f"Cookie: dtfm-{self.port}={self.keys.owner}", f"Origin: {self.origin}", request)
        )

    @property
    def origin(self) -> str:
        return self.server.url.rstrip("/")

    def tell(self) -> None:
        """Have who looks told of the present status, however new the last one is of which was told."""
        self.status.feed._told_at = -1e9
        self.status.write()


@contextlib.asynccontextmanager
async def served(folder: Path, web: str = "0", **options: Any) -> AsyncIterator[Page]:
    peers = Peers(folder)
    (folder / "invite").write_text(invite_to(peers.context.identity, 7700).encode())
    status = StatusFile(peers.context, peers.state, peers.announcer, peers.rows)
    address = PageOptions(PageAddress.parse(web), "my.host.example")
    with PageServer(address, status.feed, folder, **options) as server:
        running = asyncio.create_task(server.run())
        try:
            status.write()
            yield Page(peers, status, server, folder)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_the_page_and_all_that_it_loads_come_from_here_and_nothing_in_it_runs_but_its_files(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as page:
        index = await page.stranger.get("/")
        assert index.status == 200
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = index.body.decode()
        loaded = re.findall(r'(?:src|href)="(/assets/[^"]+)"', text)
        assert not re.search(r"https?://|<script>|\sstyle=|\son\w+=", text)
        while loaded:
            asset = await page.stranger.get(loaded.pop())
            assert asset.status == 200
            script = asset.body.decode()
            assert not re.search(r"https?://(?!www\.w3\.org)|innerHTML|insertAdjacentHTML|outerHTML|eval\(", script)
            loaded += [f"/assets/{name}" for name in re.findall(r'from "\./([\w.]+)"', script)]
        tag = index.headers["etag"]
        assert (await page.stranger.get("/", f"If-None-Match: {tag}")).status == 304
        small = await page.stranger.get("/assets/page.css", "Accept-Encoding: gzip")
        assert small.headers["content-encoding"] == "gzip"
        for wrong in ("/assets/../page_app.py", "/assets/page_app.py", "/assets/%2e%2e/page_app.py", "/nothing"):
            assert (await page.stranger.get(wrong)).status == 404


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (`apt-get install chromium`)")
async def test_the_members_and_their_buttons_are_not_cut_on_a_screen_of_any_width(tmp_path: Path) -> None:
    async with served(tmp_path) as page, Browser.running() as browser:
        for peer in (MEMBER, MEMBER[:-1] + "d"):
            await page.peers.join(peer)
            profile = page.peers.records.listed[peer]
            long = profile.model_copy(update={"device": "cuda:0 NVIDIA GeForce RTX 3060", "version": "0.1.0"})
            page.peers.state.members.listed({peer: long})
        page.peers.state.plan = plan_of(MEMBER)
        append_shares(tmp_path, page.peers.state.plan, page.peers.rows)
        page.peers.rows.append(row(1))
        page.tell()
        for width in (360, 740, 800, 1000, 1280):
            await browser.look_like(width, 900)
            await browser.open(link(page.server.url, page.keys.owner))
            await browser.until("document.querySelectorAll('#members .row-actions button').length === 4")
            for whole in ("document.documentElement", "document.querySelector('.scroll')"):
                assert await browser.run(f"{whole}.scrollWidth <= {whole}.clientWidth"), (width, whole)
        assert browser.complaints == []


async def test_the_numbers_are_those_of_the_status(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        await page.peers.join("a", "b")
        page.peers.state.plan = plan_of("a", "b")
        await page.peers.report("a", "training", plan_version=1, step=2, rows=(row(1), row(2)))
        page.status.write()
        shown = await page.stranger.get("/api/overview")
        assert shown.values == json.loads((tmp_path / "status.json").read_text())["overview"]
        curves = (await page.stranger.get("/api/curves")).values
        assert [point[0] for point in curves["points"]] == [1, 2]
        later = (await page.stranger.get(f"/api/curves?stride={curves['stride']}&after=1")).values
        assert [point[0] for point in later["points"]] == [2]
        assert len((await page.stranger.get("/api/curves?stride=7&after=1")).values["points"]) == 2


async def test_who_looks_is_told_at_once_and_after_a_while_away_all_anew(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        reader, writer = await page.stranger.open()
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: localhost:{page.port}\r\n\r\n".encode())
        status, headers = await read_head(reader)
        assert (status, headers["content-type"]) == (200, "text/event-stream")

        async def event() -> tuple[str, Any]:
            async with asyncio.timeout(20):
                while not (line := await reader.readline()).startswith(b"event:"):
                    pass
                data = await reader.readline()
            return line[7:].strip().decode(), json.loads(data[6:])

        kind, whole = await event()
        assert (kind, whole["members"]) == ("whole", {})
        assert page.status.feed.viewers == 1
        await page.peers.join("a")
        page.tell()
        kind, patch = await event()
        assert kind == "patch"
        assert patch["members"]["a"]["role"] == "spare"
        writer.close()
        async with asyncio.timeout(20):
            while page.status.feed.viewers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_the_page_ends_at_once_and_quietly_while_somebody_looks_and_somebody_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as page:
        reader, writer = await page.owner.open()
        cookie = "\r\n".join(page.owner.headers)
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: localhost:{page.port}\r\n{cookie}\r\n\r\n".encode())
        assert (await read_head(reader))[0] == 200
        asking = asyncio.create_task(page.owner.post("/api/act", {"action": "pause"}))
        async with asyncio.timeout(20):
            while not WishFile(tmp_path).wishes.unanswered:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        begun = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun < page_server.GOODBYE_SECONDS, "it waited for a viewer"
    writer.close()
    assert isinstance(await asyncio.gather(asking, return_exceptions=True), list)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert page.status.feed.viewers == 0


async def test_who_has_the_owners_link_may_act_and_nobody_else(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        wanted = {"action": "invite", "uses": 3, "days": 2, "name": "Ann"}
        for somebody in (page.stranger, page.viewer):
            answer = await somebody.post("/api/act", wanted, f"X-Dtfm-Request: {page.keys.request_key()}")
            assert (answer.status, "owner's link" in answer.values["error"]) == (403, True)
            assert (await somebody.get("/api/invites")).status == 403
            assert "request_key" not in (await somebody.get("/api/session")).values
        assert LedgerFile(tmp_path).ledger.invited == {}
        made = await page.owner.post("/api/act", wanted)
        assert made.status == 200
        (invited,) = LedgerFile(tmp_path).ledger.invited.values()
        assert (invited.uses, invited.name) == (3, "Ann")
        shown = (await page.owner.get("/api/invites")).values["invites"]
        assert [(one["name"], one["used"]) for one in shown] == [("Ann", 0)]
        assert made.values["invite"] not in json.dumps(shown)
        for wrong in ({}, {"action": "exec"}, {"action": "kick"}, [], {"action": "invite", "uses": 10**9}, "x"):
            assert (await page.owner.post("/api/act", wrong)).status == 400


async def test_a_member_is_sent_away_and_banned_as_the_commands_do_it(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        LedgerFile(tmp_path).append(Redeemed(token="0" * 16, peer=MEMBER, at=1.0))
        sent = await page.owner.post("/api/act", {"action": "kick", "peer": MEMBER})
        assert (sent.status, sent.values["said"]) == (
            200,
            f"{MEMBER} is sent away, until its person types `dtfm-node join` again.",
        )
        assert (await page.owner.post("/api/act", {"action": "ban", "peer": MEMBER, "key_only": True})).status == 200
        ledger = LedgerFile(tmp_path).ledger
        assert MEMBER in ledger.kicked
        assert ledger.bans.keys() == {f"peer:{MEMBER}"}
        back = await page.owner.post("/api/act", {"action": "unban", "peer": MEMBER})
        assert (back.status, "is banned no more" in back.values["said"]) == (200, True)
        assert not LedgerFile(tmp_path).ledger.banned_members()
        nobody = await page.owner.post("/api/act", {"action": "kick", "peer": "nobody"})
        assert (nobody.status, "is no member" in nobody.values["error"]) == (400, True)


@pytest.mark.parametrize(("word", "kind"), [("pause", Paused), ("resume", Resumed), ("checkpoint", CheckpointWanted),
                                            ("plan", PlanWanted), ("finish", FinishWanted)])  # fmt: skip
async def test_a_wish_about_the_runs_course_is_written_down_and_its_answer_shown(
    tmp_path: Path, word: str, kind: type[Wish]
) -> None:
    async with served(tmp_path) as page:
        asking = asyncio.create_task(page.owner.post("/api/act", {"action": word}))
        file = WishFile(tmp_path)
        async with asyncio.timeout(20):
            while not file.wishes.open(kind):
                await asyncio.sleep(0.01)
                file.take_up()
        (wish,) = file.wishes.open(kind)
        file.add(WishAnswer(at=1.0, to=wish.number, done=word != "plan", text="as you wish, after step 9"))
        answer = await asking
        if word == "plan":
            assert (answer.status, answer.values["error"]) == (400, "as you wish, after step 9")
        else:
            assert (answer.status, answer.values["said"]) == (200, "As you wish, after step 9.")


async def test_a_setting_is_changed_where_that_is_possible_and_else_the_reason_is_said(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        (tmp_path / "job.json").write_text(page.peers.context.job.model_dump_json())
        assert (await page.viewer.get("/api/settings")).status == 403
        now = (await page.owner.get("/api/settings")).values
        assert now["training.learning_rate"] == 1e-3
        for wrong in ({"training.learning_rate": -1}, {"model.hidden_size": 8}, {"training.learning_rate": 1e-3}):
            refused = await page.owner.post("/api/act", {"action": "set", "values": wrong})
            assert refused.status == 400, wrong
        assert WishFile(tmp_path).wishes.asked == {}
        asking = asyncio.create_task(
            page.owner.post("/api/act", {"action": "set", "values": {"training.learning_rate": 1e-4}, "from_step": 5})
        )
        file = WishFile(tmp_path)
        async with asyncio.timeout(20):
            while not file.wishes.asked:
                await asyncio.sleep(0.01)
                file.take_up()
        (wish,) = file.wishes.asked.values()
        assert isinstance(wish, Amended)
        assert (wish.values, wish.from_step) == ({"training.learning_rate": 1e-4}, 5)
        file.add(WishAnswer(at=1.0, to=wish.number, done=True, text="from step 5 on"))
        assert (await asking).values["said"] == "From step 5 on."


async def test_a_rate_that_jumps_far_up_is_asked_about_before_anything_is_changed(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(Peers(tmp_path).context.job.model_dump_json())
    wanted = {"action": "set", "values": {"training.learning_rate": 5}}
    asked = await act(tmp_path, wanted)
    assert "5,000 times" in asked["question"]
    assert WishFile(tmp_path).wishes.asked == {}
    assert "question" not in await act(tmp_path, wanted | {"sure": True}, answer_seconds=0.01)
    assert len(WishFile(tmp_path).wishes.asked) == 1


async def test_who_waits_long_for_an_answer_is_told_so(tmp_path: Path) -> None:
    said = await act(tmp_path, {"action": "pause"}, answer_seconds=0.01)
    assert "has not done it yet" in said["said"]
    assert WishFile(tmp_path).wishes.is_paused


async def test_no_other_page_can_act_for_an_owner(tmp_path: Path) -> None:
    """What its browser would send along is not enough."""
    async with served(tmp_path) as page:
        cookie, origin, request = page.owner.headers
        wanted = {"action": "invite"}
        for headers, status in (
            ((cookie, "Origin: http://evil.example", request), 403),
            ((cookie, request), 403),
            ((cookie, origin), 403),
            ((cookie, origin, "X-Dtfm-Request: 0"), 403),
            ((cookie, origin, request, "Host: evil.example"), 421),
            ((cookie, origin, request, f"Host: evil.example:{page.port}"), 421),
            ((cookie, origin, request, "Host: 127.0.0.1:1"), 421),
        ):
            assert (await PageVisitor(page.port, headers).post("/api/act", wanted)).status == status, headers
        plain = PageVisitor(page.port, (*page.owner.headers, "Content-Type: text/plain"))
        assert (await plain.say("POST /api/act HTTP/1.1", body=json.dumps(wanted))).status == 415
        for path in ("/", "/api/overview", "/api/events", "/metrics", "/assets/page.js"):
            assert (await page.stranger.get(path, "Host: rebound.example")).status == 421
        assert LedgerFile(tmp_path).ledger.invited == {}


async def test_a_links_key_moves_into_a_cookie_that_scripts_and_other_sites_do_not_get(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        visitor = PageVisitor(page.port, (f"Origin: {page.origin}",))
        entered = await visitor.post("/api/enter", {"key": page.keys.owner})
        cookie = entered.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", f"dtfm-{page.port}="))
        session = await page.stranger.get("/api/session", f"Cookie: {cookie.split(';')[0]}")
        assert session.values == {"role": "owner", "request_key": page.keys.request_key()}
        for wrong in ("x" * 43, page.keys.owner[:-1], "", None, 1):
            assert (await visitor.post("/api/enter", {"key": wrong})).status == 401
        assert (await page.stranger.post("/api/enter", {"key": page.keys.owner})).status == 403
        assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
        before = page.owner
        PageLinks(tmp_path).renew()
        assert (await before.post("/api/act", {"action": "invite"})).status == 403


async def test_large_slow_and_broken_requests_cost_little(tmp_path: Path) -> None:
    async with served(tmp_path, request_seconds=0.3) as page:
        assert (await page.owner.post("/api/act", {"action": "x" * 5000})).status == 413
        assert (
            await page.owner.say("POST /api/act HTTP/1.1", "Content-Type: application/json", body="[" * 4000)
        ).status == 400
        with contextlib.suppress(ConnectionError):
            assert (await page.stranger.get("/", f"X: {'y' * 500_000}")).status == 400
        silent = [await page.stranger.open() for _ in range(20)]
        silent[0][1].write(b"GET / HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(20):
            for reader, writer in silent:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b"", "it was closed"
                writer.close()
        assert (await page.stranger.get("/")).status == 200


async def test_of_two_hundred_connections_too_many_are_closed_and_the_page_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        opened = [await page.stranger.open() for _ in range(200)]
        closed = 0
        for reader, _ in opened[page_server.MOST_CONNECTIONS :]:
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(20):
                    assert await reader.read() == b""
            closed += 1
        assert closed == 200 - page_server.MOST_CONNECTIONS
        for _, writer in opened:
            writer.transport.abort()
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    if (await page.stranger.get("/api/overview")).status == 200:
                        break


async def test_from_elsewhere_a_link_is_needed_and_tls(tmp_path: Path) -> None:
    async with served(tmp_path, "0.0.0.0:0") as page:
        assert page.server.url == f"https://my.host.example:{page.port}/"
        tls = ssl.create_default_context(cafile=str(tmp_path / "page-cert.pem"))
        tls.check_hostname = False
        visitor = PageVisitor(page.port, tls=tls)
        assert (await visitor.get("/")).status == 200
        for path in ("/api/overview", "/api/events", "/api/curves", "/api/session", "/metrics"):
            assert (await visitor.get(path)).status == 401, path
            assert (await visitor.get(path, f"Host: rebound.example:{page.port}")).status == 421, path
        bearer = f"Authorization: Bearer {page.keys.viewer}"
        assert (await visitor.get("/metrics", bearer)).status == 200
        assert (await visitor.get("/api/session", bearer)).values == {"role": "viewer"}
        assert (await visitor.post("/api/act", {"action": "invite"}, bearer)).status == 403
        made = await visitor.post("/api/act", {"action": "invite"}, f"Authorization: Bearer {page.keys.owner}")
        assert made.status == 200
        entered = await visitor.post(
            "/api/enter", {"key": page.keys.viewer}, f"Host: my.host.example:{page.port}", f"Origin: {page.origin}"
        )
        assert entered.headers["set-cookie"].startswith(f"__Host-dtfm-{page.port}={page.keys.viewer}; Path=/;")
        assert "; Secure" in entered.headers["set-cookie"]


async def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        with pytest.raises(UserError, match="give --web another port"):
            PageServer(PageOptions(PageAddress("127.0.0.1", page.port)), page.status.feed, tmp_path)


@pytest.mark.parametrize("wrong", ["", "x", "70000", "example.org:80", "127.0.0.1:", "-1", "٣"])
def test_a_wrong_address_is_said_in_a_line(wrong: str) -> None:
    with pytest.raises(UserError, match=r"^--web "):
        PageAddress.parse(wrong)


@pytest.mark.parametrize(
    ("text", "host", "local", "url"),
    [
        ("8080", "127.0.0.1", True, "http://127.0.0.1:8080/"),
        ("localhost:8080", "127.0.0.1", True, "http://127.0.0.1:8080/"),
        ("[::1]:8080", "::1", True, "http://[::1]:8080/"),
        ("0.0.0.0:8080", "0.0.0.0", False, "https://my.host.example:8080/"),
        ("[::]:8080", "::", False, "https://my.host.example:8080/"),
    ],
)
def test_a_port_alone_is_for_this_machine(text: str, host: str, local: bool, url: str) -> None:
    address = PageAddress.parse(text)
    assert (address.host, address.is_local, address.url("my.host.example")) == (host, local, url)


def test_keys_that_others_may_read_or_that_are_none_are_refused(tmp_path: Path) -> None:
    links = PageLinks(tmp_path)
    links.keys()
    (tmp_path / NAME).chmod(0o644)
    with pytest.raises(UserError, match="open to other users"):
        PageLinks(tmp_path).keys()
    (tmp_path / NAME).chmod(0o600)
    (tmp_path / NAME).write_text('{"owner": ""}')
    with pytest.raises(UserError, match="delete it"):
        PageLinks(tmp_path).keys()


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost:x", "127.0.0.1:1", "1.2.3.4"]
)
def test_names_that_are_not_the_pages_are_refused(host: str) -> None:
    access = PageAccess(PageAddress("127.0.0.1", 8080))
    with pytest.raises(NoAccess):
        access.check_host(host)
    for own in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST:8080"):
        access.check_host(own)
