"""Extras: packages that only some commands need, and that pip installs where they are asked for (`dtfm[NAME]`)."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.product_version import DISTRIBUTION


def require(extra: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        UserError: some are not installed.
    """
    if missing(extra, requires(DISTRIBUTION) or ()):
        raise UserError(f"this needs the {extra}'s packages: pip install '{DISTRIBUTION}[{extra}]'")


def missing(extra: str, asked: Iterable[str]) -> list[str]:
    """List the packages of an extra, and of the extras that it includes, that are not installed.

    Args:
        asked: requirements of the distribution, as its metadata have them.
    """
    found = []
    requirements = [Requirement(one) for one in asked]
    for one in requirements:
        if one.marker is None or one.marker.evaluate({"extra": ""}) or not one.marker.evaluate({"extra": extra}):
            continue
        if one.name == DISTRIBUTION:
            found += [name for included in sorted(one.extras) for name in missing(included, map(str, requirements))]
        elif not _is_installed(one.name):
            found.append(one.name)
    return found


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
