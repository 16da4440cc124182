"""Links that lead to the owner's page: one to act, one to look, kept in the state folder."""

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

NAME, URL = "page-links.json", "page-url"
Role = Literal["owner", "viewer"]
"""Who somebody is to the page. owner: may act; viewer: may look."""
_Key = Annotated[str, Field(min_length=20, max_length=100)]


class PageKeys(Schema):
    """Keys of the links; who has one is let in."""

    owner: _Key
    viewer: _Key

    def role_of(self, key: str) -> Role | None:
        """Return who holds a key; None: nobody. It takes as long for one that is almost right as for any other."""
        given = hashlib.sha256(key.encode()).digest()
        roles: dict[Role, str] = {"owner": self.owner, "viewer": self.viewer}
        matches = [
            role for role, own in roles.items() if hmac.compare_digest(hashlib.sha256(own.encode()).digest(), given)
        ]
        return matches[0] if matches else None

    def request_key(self) -> str:
        """Return what a request that acts has to carry beside the cookie: no other page can know it."""
        return hmac.new(self.owner.encode(), b"requests that act", hashlib.sha256).hexdigest()

    @classmethod
    def new(cls) -> "PageKeys":
        """Return new random keys."""
        return cls(owner=secrets.token_urlsafe(32), viewer=secrets.token_urlsafe(32))


class PageLinks:
    """The links of a state folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._read: tuple[int, int] | None = None
        self._keys: PageKeys | None = None

    @property
    def path(self) -> Path:
        """The file that holds the keys, for its owner's eyes alone."""
        return self._path

    def keys(self) -> PageKeys:
        """Return the keys, which are made where there are none; those of a file that was replaced count at once.

        Raises:
            UserError: the file cannot be read or written, or holds no keys.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self.renew()
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from None
        if self._keys is None or self._read != (found.st_mtime_ns, found.st_ino):
            if found.st_mode & 0o077:
                raise UserError(f"{self._path} is open to other users: chmod 600 it, and renew the links")
            try:
                self._keys = PageKeys.model_validate_json(self._path.read_bytes())
            except (OSError, ValidationError):
                raise UserError(f"{self._path} holds no links: delete it, and new ones are made") from None
            self._read = (found.st_mtime_ns, found.st_ino)
        return self._keys

    def renew(self) -> PageKeys:
        """Make new keys: the links of before lead in no more.

        Raises:
            UserError: they cannot be written down.
        """
        keys = PageKeys.new()
        write_atomically(self._path, keys.model_dump_json() + "\n", private=True)
        return keys


def link(url: str, key: str) -> str:
    """Return the link that brings a key: behind the #, which browsers send to nobody."""
    return f"{url}#key={key}"


def page_url(folder: Path) -> str:
    """Return the URL at which the page of a state folder was served last.

    Raises:
        UserError: it was not.
    """
    try:
        return (folder / URL).read_text(encoding="utf-8").strip()
    except OSError:
        raise UserError(
            "no page was served from this state folder: start `dtfm-coordinator serve` with --web PORT"
        ) from None
