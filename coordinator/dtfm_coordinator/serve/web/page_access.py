"""Access to the owner's page: who may see it, and who may act, by links, hosts and origins. Pure.

On this machine anybody may look, and who has the owner's link may act. From elsewhere either link is needed.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from dtfm_coordinator.serve.web.page_address import PageAddress
from dtfm_coordinator.serve.web.page_links import PageKeys, Role

REQUEST_KEY_HEADER = "x-dtfm-request"
"""Header in which a request that acts carries `PageKeys.request_key`."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class NoAccess(Exception):
    """Error: a request is not let in; with the HTTP status, and the reason for who made it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class PageAccess:
    """Rules of access to the page at one address."""

    address: PageAddress
    """Address at which it is served, with the port that it has."""
    announced: str | None = None
    """Name or address under which this machine is reached."""

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds a key. Browsers send cookies to all ports of a host: each page has its own."""
        return f"dtfm-{self.address.port}" if self.address.is_local else f"__Host-dtfm-{self.address.port}"

    def check_host(self, host: str) -> None:
        """Let in who calls this page by a name of its own: another name may be one that a stranger's page has had
        point here.

        Raises:
            NoAccess: it is not.
        """
        name, port = _split(host)
        if port not in (None, self.address.port):
            raise NoAccess(421, f"this page is not at port {port}")
        if name in LOCAL_NAMES or (not self.address.is_local and (name == self.announced or _is_address(name))):
            return
        raise NoAccess(421, "this page does not go by that name: open it as `dtfm-coordinator page` says")

    def role(self, headers: Mapping[str, str], keys: PageKeys) -> Role:
        """Return who makes a request.

        Raises:
            NoAccess: nobody who may look.
        """
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip() if scheme.lower() == "bearer" else self._cookie(headers)
        role = keys.role_of(shown) if shown else None
        if role is None and not self.address.is_local:
            why = (
                "the link that you have used counts no more" if shown else "open the link that the owner has given you"
            )
            raise NoAccess(401, f"{why}: `dtfm-coordinator page` prints links")
        return role or "viewer"

    def check_act(self, headers: Mapping[str, str], keys: PageKeys) -> None:
        """Let in a request that acts: by the owner's link, from this page itself.

        Raises:
            NoAccess: it is not.
        """
        if self.role(headers, keys) != "owner":
            raise NoAccess(403, "to act, open the owner's link: `dtfm-coordinator page` prints it")
        if headers.get("authorization"):
            return  # no browser sends that by itself
        self.check_origin(headers)
        if not hmac.compare_digest(headers.get(REQUEST_KEY_HEADER, "").encode(), keys.request_key().encode()):
            raise NoAccess(403, "this request does not come from the page: load it anew")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Let in a request of this page alone, and of none that somebody else has made.

        Raises:
            NoAccess: it comes from another one.
        """
        scheme = "http" if self.address.is_local else "https"
        if headers.get("origin") != f"{scheme}://{headers.get('host', '')}":
            raise NoAccess(403, "this request comes from another page")

    def set_cookie(self, key: str) -> str:
        """Return the header that has a browser keep a key, out of reach of scripts and of other sites."""
        secure = "" if self.address.is_local else "; Secure"
        return f"{self.cookie}={key}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000{secure}"

    def _cookie(self, headers: Mapping[str, str]) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


def _split(host: str) -> tuple[str, int | None]:
    """Return name and port of a Host header; the port is -1 where it is none."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        name, _, port = host.partition(":")
    if not port:
        return name.lower(), None
    return name.lower(), int(port) if port.isascii() and port.isdigit() else -1


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
