"""Address at which the owner's page is served, as `serve --web` names it, and what else decides how."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from dtfm_protocol.errors import UserError

MOST_PORT = 65_535


@dataclass(frozen=True)
class PageAddress:
    """Address at which the owner's page is served."""

    host: str
    """Address to listen on, without brackets."""
    port: int
    """0: any that is free."""

    @classmethod
    def parse(cls, text: str) -> "PageAddress":
        """Read `PORT`, for this machine alone, or `HOST:PORT`.

        Raises:
            UserError: it is neither.
        """
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > MOST_PORT:
            raise UserError(
                f"--web {text}: give a port, as 8080, or an address to listen on with a port, as 0.0.0.0:8080"
            )
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if host != "localhost":
            try:
                ipaddress.ip_address(host)
            except ValueError:
                raise UserError(
                    f"--web {text}: {host} is no address of this machine; 0.0.0.0 listens on all, and --announce says "
                    "under which name it is reached"
                ) from None
        return cls("127.0.0.1" if host == "localhost" else host, int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.host).is_loopback

    def url(self, announced: str | None = None) -> str:
        """Return the URL of the page.

        Args:
            announced: name or address under which this machine is reached, if that is known.
        """
        host = self.host
        if not self.is_local:
            is_any = ipaddress.ip_address(host).is_unspecified
            host = announced or ("localhost" if is_any else host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self.is_local else 'https'}://{shown}:{self.port}/"


@dataclass(frozen=True)
class PageOptions:
    """Options of the owner's page."""

    address: PageAddress
    announced: str | None = None
    """Name or address under which this machine is reached."""
    certificate: Path | None = None
    """PEM file of a certificate that browsers trust; None: the page makes its own where it needs one."""
    key: Path | None = None
    """PEM file of its key."""
