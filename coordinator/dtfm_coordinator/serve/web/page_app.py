"""Requests of the owner's page and their answers (an ASGI application)."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dtfm_coordinator.serve.web import owner_actions
from dtfm_coordinator.serve.web.event_stream import EventStream
from dtfm_coordinator.serve.web.metrics_text import CONTENT_TYPE, metrics_text
from dtfm_coordinator.serve.web.page_access import NoAccess, PageAccess
from dtfm_coordinator.serve.web.page_assets import Asset, load_assets
from dtfm_coordinator.serve.web.page_links import PageLinks, Role
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log

EVENTS = "/api/events"
"""Path of the live stream."""
MOST_BODY = 4096
"""Bytes of the largest request."""
BODY_SECONDS = 10.0
"""Limit of a request's coming in."""
MOST_VIEWERS = 50
"""Viewers that are told live at the same time."""
MOST_ACTING = 8
"""Requests that act at the same time."""
COMPRESSED_FROM = 1024
"""Bytes from which an answer is compressed."""
SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
Handler = Callable[[Request], Awaitable[Response]]


class PageApp:
    """Requests of the page of one run, and their answers."""

    def __init__(self, feed: OverviewFeed, folder: Path, access: PageAccess, links: PageLinks) -> None:
        """Read the page's files.

        Args:
            feed: the run's overviews.
            folder: the state folder.
            access: who may see the page, and who may act.
            links: the keys of those.
        """
        self._feed, self._folder, self._access, self._links = feed, folder, access, links
        self._assets = load_assets()
        self._acting = 0
        """Requests that act and were not answered yet."""
        self._app = Starlette(
            routes=[
                Route("/", self._guarded(self._index)),
                Route("/assets/{name}", self._guarded(self._asset)),
                Route("/api/enter", self._guarded(self._enter), methods=["POST"]),
                Route("/api/session", self._guarded(self._session)),
                Route("/api/overview", self._guarded(self._overview)),
                Route("/api/curves", self._guarded(self._curves)),
                Route("/api/invites", self._guarded(self._invites)),
                Route("/api/settings", self._guarded(self._settings)),
                Route("/api/act", self._guarded(self._act), methods=["POST"]),
                Route("/metrics", self._guarded(self._metrics)),
            ],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the live stream is one of its own. Where the server ends, it has no answer."""
        is_live = scope["type"] == "http" and scope["path"] == EVENTS and scope["method"] == "GET"
        with contextlib.suppress(asyncio.CancelledError):  # the server would print it as a failure
            await (self._events if is_live else self._app)(scope, receive, send)

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler whose refusals are one plain line, and all of whose answers are safe to show."""

        async def guarded(request: Request) -> Response:
            try:
                self._access.check_host(request.headers.get("host", ""))
                response = await handler(request)
            except (NoAccess, UserError) as error:
                response = _refusal(error)
            except ClientDisconnect:
                response = Response(status_code=400)
            response.headers.update(SAFE_HEADERS)
            return response

        return guarded

    async def _index(self, request: Request) -> Response:
        return self._given(request, "index.html")

    async def _asset(self, request: Request) -> Response:
        return self._given(request, request.path_params["name"])

    def _given(self, request: Request, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            raise NoAccess(404, "there is no such file")
        headers = {"etag": asset.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return _sent(request, asset, headers)

    async def _enter(self, request: Request) -> Response:
        """Take the key of a link into a cookie."""
        self._access.check_origin(request.headers)
        values = await _body(request)
        key = values.get("key") if isinstance(values, dict) else None
        if not isinstance(key, str) or self._links.keys().role_of(key) is None:
            raise NoAccess(401, "this link counts no more: `dtfm-coordinator page` prints those that do")
        return _json(request, {"said": "welcome"}, {"set-cookie": self._access.set_cookie(key)})

    async def _session(self, request: Request) -> Response:
        """Say who is there, and give an owner what requests that act carry."""
        keys = self._links.keys()
        role = self._access.role(request.headers, keys)
        return _json(request, {"role": role} | ({"request_key": keys.request_key()} if role == "owner" else {}))

    async def _overview(self, request: Request) -> Response:
        self._role(request)
        if self._feed.newest is None:
            raise NoAccess(503, "the coordinator has just started: try again in a second")
        return _json(request, self._feed.newest.model_dump(mode="json"))

    async def _curves(self, request: Request) -> Response:
        """Give the curves; with `after` and `stride`, only what has come since, where they are drawn as then."""
        self._role(request)
        history = self._feed.history
        points, evaluations, after = history.curve, history.evaluations, 0
        if request.query_params.get("stride") == str(history.stride):
            digits = request.query_params.get("after", "")
            after = int(digits) if digits.isdecimal() and len(digits) < 12 else 0
        rows = [[point.step, *(_rounded(value) for value in point[1:])] for point in points if point.step > after]
        evaluated = [[step, _rounded(loss)] for step, loss in evaluations]
        return _json(request, {"stride": history.stride, "after": after, "points": rows, "evaluations": evaluated})

    async def _invites(self, request: Request) -> Response:
        if self._role(request) != "owner":
            raise NoAccess(403, "invites are for the owner alone")
        return _json(request, {"invites": await asyncio.to_thread(owner_actions.invites, self._folder)})

    async def _settings(self, request: Request) -> Response:
        if self._role(request) != "owner":
            raise NoAccess(403, "settings are for the owner alone")
        return _json(request, await asyncio.to_thread(owner_actions.settings, self._folder))

    async def _act(self, request: Request) -> Response:
        self._access.check_act(request.headers, self._links.keys())
        values = await _body(request)
        if self._acting >= MOST_ACTING:
            raise NoAccess(503, f"{MOST_ACTING} requests wait for their answers already: try again in a minute")
        self._acting += 1
        try:
            said = await owner_actions.act(self._folder, values)
        finally:
            self._acting -= 1
        if "said" in said:  # else nothing was done yet
            log.info("on the owner's page: %s", said["said"])
        return _json(request, said)

    async def _metrics(self, request: Request) -> Response:
        self._role(request)
        if self._feed.newest is None:
            raise NoAccess(503, "the coordinator has just started: try again in a second")
        return Response(metrics_text(self._feed.newest), headers={"cache-control": "no-store"}, media_type=CONTENT_TYPE)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._access.check_host(request.headers.get("host", ""))
            self._role(request)
            if self._feed.viewers >= MOST_VIEWERS:
                raise NoAccess(503, f"{MOST_VIEWERS} others look at this page already: try again later")
        except (NoAccess, UserError) as error:
            response = _refusal(error)
            response.headers.update(SAFE_HEADERS)
            await response(scope, receive, send)
            return
        headers = [(name.encode(), value.encode()) for name, value in SAFE_HEADERS.items()]
        await EventStream(self._feed, headers)(scope, receive, send)

    def _role(self, request: Request) -> Role:
        return self._access.role(request.headers, self._links.keys())


async def _body(request: Request) -> Any:
    """Read the JSON of a request.

    Raises:
        NoAccess: it is too large, comes too slowly, or is no JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise NoAccess(415, "a request is JSON")
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BODY:
                    raise NoAccess(413, f"a request has {MOST_BODY} bytes at most")
    except TimeoutError:
        raise NoAccess(408, "the request has not come in time") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise NoAccess(400, "the request is not JSON") from None


def _refusal(error: NoAccess | UserError) -> Response:
    status = error.status if isinstance(error, NoAccess) else 400
    # A body that was not read to its end would be taken for the next request.
    headers = {"connection": "close"} if status in {408, 413} else {}
    return Response(json.dumps({"error": str(error)}), status, headers, "application/json")


def _json(request: Request, values: Any, headers: dict[str, str] | None = None) -> Response:
    data = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    found = {"cache-control": "no-store", "vary": "accept-encoding"} | (headers or {})
    if len(data) >= COMPRESSED_FROM and _takes_gzip(request):
        data, found["content-encoding"] = gzip.compress(data, 5), "gzip"
    return Response(data, headers=found, media_type="application/json")


def _sent(request: Request, asset: Asset, headers: dict[str, str]) -> Response:
    if _takes_gzip(request):
        return Response(asset.compressed, headers=headers | {"content-encoding": "gzip"}, media_type=asset.kind)
    return Response(asset.data, headers=headers, media_type=asset.kind)


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
